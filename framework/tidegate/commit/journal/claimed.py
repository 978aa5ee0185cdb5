"""The journal of a job, as the attempt that claimed it holds it, and the adding of entries.

`ClaimedJournal` goes from `claim` through every other procedure of the attempt. It has the last
entry that this process has written, the listed transactions, and those that were seen committed.
Publications, settled, lost and closed compete for the next number with each other and with the
claims of other processes. This module handles other processes. Within a process **the caller runs
one journal-writing procedure at a time** (`recover`, `publish`, `settle`, `close`; under a mutex or
in one thread). `commit` and `fence_zombies` do not write to the journal and may run in parallel.

The module keeps the central part of invariant 3. If the entry at the number where this process
should have its own is another one, a newer claim came first and this process has been fenced.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypedDict

from tidegate.commit.effects import (
    Procedure,
    create_entry,
    nonce,
    read_object,
    wall_clock,
    write_object,
)
from tidegate.commit.journal.entries import (
    REMEDY,
    SNAPSHOT_INTERVAL,
    AnyEntry,
    Claim,
    decode_entry,
    encode_entry,
    entry_path,
    snapshot_path,
)
from tidegate.commit.journal.reading import newest_snapshot, read_entry
from tidegate.commit.journal.state import JournalState, PublicationRef, encode_snapshot
from tidegate.commit.retry import RetryLoop, RetryPolicy
from tidegate.errors import (
    CorruptCheckpointError,
    FencedError,
    OutcomeUnknownError,
    RefusedError,
    StorageError,
    StorageGoneError,
    TidegateError,
)
from tidegate.ids import Attempt, JobName, JournalNumber, TransactionalId
from tidegate.ports.blobs import CreateResult
from tidegate.protocol.subtask_snapshot import PreparedTransaction


@dataclass(slots=True, kw_only=True)
class ClaimedJournal:
    """The journal as an attempt knows it. `claim` makes it, and only procedures change it."""

    job: JobName
    submission_id: str
    attempt: Attempt
    state_before_claim: JournalState
    """The state after the entries before the claim."""
    claim_nonce: str = ""
    """The nonce of the claim. By it, slots recognise the journal when they read the storage
    themselves.
    """
    state: JournalState
    """The state after the last entry that this process has written."""
    ended: set[PreparedTransaction] = field(default_factory=set)
    """The transactions that were seen CompleteCommit and may still be in acknowledgements. They are
    never listed again.
    """
    snapshot_interval: int = SNAPSHOT_INTERVAL
    snapshot_due: bool = False
    truncation_due: bool = False
    """Whether a journal snapshot was written since the journal was last truncated."""
    last_write_unknown: bool = False
    """Whether the attempt stopped waiting before it knew whether its last entry was written.
    `state` may then lack a publication, so no procedure may end, fence or write anything by it. The
    next claim reads the entry.
    """

    @property
    def journal_id(self) -> str:
        """The journal's random id, which is part of transactional ids."""
        return self.state.journal_id

    @property
    def is_first_claim(self) -> bool:
        """Whether this claim is the first of its submission."""
        return self.state_before_claim.submission_id != self.submission_id

    @property
    def final_checkpoint_published(self) -> bool:
        """Whether this submission's final checkpoint is published. Then settle and close, and start
        no task.
        """
        last = self.state.publication
        return last is not None and last.final and last.submission_id == self.submission_id

    @property
    def stopped(self) -> bool:
        """Whether the final checkpoint was published for a user's stop."""
        last = self.state.publication
        return self.final_checkpoint_published and last is not None and last.stopped

    @property
    def uncommitted(self) -> tuple[PreparedTransaction, ...]:
        """The transactions that are listed and not yet seen committed, in the order of the
        publication. They are the work of `commit`.
        """
        return tuple(txn for txn in self.state.pending_commits if txn not in self.ended)

    def pending_ids(self) -> frozenset[TransactionalId]:
        """Return the ids that an unsettled publication lists."""
        return frozenset(txn.transactional_id for txn in self.state.pending_commits)

    def fenced_before(self) -> Attempt:
        """Return the attempt of the last publication. All ids of older attempts were fenced once,
        because that attempt fenced them before its sources started.
        """
        last = self.state.publication
        return Attempt(0) if last is None else last.attempt

    def restore_point(self, restore: str) -> PublicationRef | None:
        """Return the publication that the job restores: this submission's last one, else the one
        that `restore` selects. None to start without state.

        `restore` is `latest`, `none` or a checkpoint's id. RefusedError for an id that is not among
        the last publications.
        """
        return restore_point(self.state, self.submission_id, restore)


def restore_point(state: JournalState, submission_id: str, restore: str) -> PublicationRef | None:
    """Return the publication to restore, as `ClaimedJournal.restore_point` does. It is also called
    before the claim, so that a refusal changes nothing.
    """
    last = state.recent_checkpoints[-1] if state.recent_checkpoints else None
    if restore == "latest" or (last is not None and last.submission_id == submission_id):
        return last
    if restore == "none":
        return None
    for ref in state.recent_checkpoints:
        if str(ref.checkpoint) == restore:
            return ref
    known = f"the last one is {last.checkpoint}" if last is not None else "the job has none"
    message = (
        f"There is no published checkpoint {restore!r} to restore; {known}. `tidegate checkpoints` "
        "lists those that are kept. Give one of these, `latest`, or `none` to start from nothing."
    )
    raise RefusedError(message)


class Header(TypedDict):
    """The fields that all entries share."""

    number: JournalNumber
    nonce: str
    previous: str
    journal_id: str
    created_ms: int


def header_after(state: JournalState) -> Procedure[Header]:
    """Return the common fields of the entry that follows `state`."""
    return {
        "number": JournalNumber(state.number + 1),
        "nonce": (yield from nonce()),
        "previous": state.nonce,
        "journal_id": state.journal_id,
        "created_ms": (yield from wall_clock()),
    }


def append_entry(
    journal: ClaimedJournal, entry: AnyEntry, retry_policy: RetryPolicy
) -> Procedure[None]:
    """Add an entry of this attempt, after a check that its predecessor is in the storage. An entry
    in a storage without the entry before it would never count.

    FencedError if the number has another entry, or had one that was truncated since.
    StorageGoneError if the predecessor is missing. CorruptCheckpointError if the existing entry
    does not follow that predecessor, so entries are missing or were replaced. StorageError if it is
    certain that nothing was written. OutcomeUnknownError if the outcome was not known in time: the
    attempt must end, and must not touch its transactions.
    """
    yield from _check_predecessor(journal)
    try:
        found = yield from write_entry(journal.job, entry, retry_policy)
    except StorageError:
        raise
    except TidegateError:
        journal.last_write_unknown = (
            True  # after another failure of the create, its outcome is unknown too
        )
        raise
    if found is None:
        raise fenced_error(journal, found)
    if found.nonce != entry.nonce:
        if found.previous != entry.previous:
            message = (
                f"Journal entry {entry_path(journal.job, found.number)} does not follow the one "
                f"before it: entries of this journal are missing, or were replaced. {REMEDY}"
            )
            raise CorruptCheckpointError(message)
        raise fenced_error(journal, found)
    journal.state = journal.state.after(entry)
    journal.snapshot_due = journal.snapshot_due or entry.number % journal.snapshot_interval == 0
    if journal.snapshot_due:
        yield from _write_snapshot(journal)


def _check_predecessor(journal: ClaimedJournal) -> Procedure[None]:
    number = journal.state.number
    found = yield from read_entry(journal.job, number)
    if found is not None and found.nonce == journal.state.nonce:
        return
    if (yield from _is_superseded(journal.job, number)):
        raise fenced_error(journal, None)  # a newer attempt has truncated the journal
    raise StorageGoneError(
        f"Journal entry {entry_path(journal.job, number)}, the last one of this attempt, is not in "
        "the checkpoint storage: its folder was removed, or another storage is there. Bring it "
        "back; nothing is published until then."
    )


def write_entry(
    job: JobName, entry: AnyEntry, retry_policy: RetryPolicy
) -> Procedure[AnyEntry | None]:
    """Create an entry at its number and return the entry that is there: this one, or one that was
    there before.

    Return None if other processes have continued from that number and truncated the journal, or may
    have. The created entry then does not count, because no process reads it. A create with unknown
    outcome is repeated, the same bytes to the same number, until the outcome is known.
    """
    path, data = entry_path(job, entry.number), encode_entry(entry)
    unknown = False
    waiting = RetryLoop(retry_policy)
    while True:
        try:
            outcome = yield from create_entry(path, data)
            unknown = True  # until it is certain that what stands there counts
            found: AnyEntry | None = entry if outcome is CreateResult.CREATED else None
            if outcome is CreateResult.EXISTS:
                # It may be our own entry, from an earlier try or from a retry inside the store.
                there = yield from read_object(path)
                found = None if there is None else decode_entry(there, path)
            if found is not None:
                return None if (yield from _is_superseded(job, entry.number)) else found
        except StorageError:
            if not unknown:
                raise
        if not (yield from waiting.wait()):
            message = (
                f"The checkpoint storage did not say in {retry_policy.timeout_s:g} s whether "
                f"journal entry {path} was written; the attempt ends, and the next claim finds out."
            )
            raise OutcomeUnknownError(message)


def _is_superseded(job: JobName, number: int) -> Procedure[bool]:
    """Return whether a journal snapshot beyond an entry exists. Before any entry is deleted, there
    is a snapshot with a higher number.

    The existence of the previous entry would prove less. A create of that entry that was sent twice
    may have succeeded a second time since.
    """
    return (yield from newest_snapshot(job)) > number


def check_ownership(journal: ClaimedJournal) -> Procedure[None]:
    """Raise FencedError if another process has continued the job since this attempt's newest entry.

    The JobMaster calls this before slots start, which may be long after the claim. If another
    attempt has closed the job, no process would end the transactions that these slots open. The
    answer can be outdated when it returns. Publications are safe without it.
    """
    found = yield from read_entry(journal.job, journal.state.number + 1)
    if found is not None or (yield from _is_superseded(journal.job, journal.state.number)):
        raise fenced_error(journal, found)


def fenced_error(journal: ClaimedJournal, found: AnyEntry | None) -> FencedError:
    """Return the error for an entry of another process at the number of this attempt's
    own entry.
    """
    if found is None:
        who = "a newer attempt, which has truncated the journal since"
    elif isinstance(found, Claim):
        who = f"attempt {found.number}, which owns the job now"
    else:
        who = f"another process, which has written journal entry {found.number}"
    return FencedError(
        f"Attempt {journal.attempt} of job {journal.job!r} was fenced by {who}. This process "
        "exits. Nothing that it did after that entry counts. Check that only one cluster runs the "
        "job."
    )


def mark_committed(journal: ClaimedJournal, transactions: Iterable[PreparedTransaction]) -> None:
    """Remember the transactions that were seen CompleteCommit."""
    journal.ended.update(transactions)


def write_missing_snapshot(journal: ClaimedJournal) -> Procedure[None]:
    """Write a journal snapshot at the claim if the last complete interval has none. Called after
    the claim was read back.

    Appended entries write snapshots themselves. But a job that restarts and never publishes appends
    no entry, and each of its claims would read all claims before it. The claim is in the journal
    and counts. So the state up to it stays true, even if a newer claim has come meanwhile.
    """
    try:
        newest = yield from newest_snapshot(journal.job)
    except StorageError:
        return  # the next claim checks again
    if newest // journal.snapshot_interval < journal.state.number // journal.snapshot_interval:
        journal.snapshot_due = True
        yield from _write_snapshot(journal)


def _write_snapshot(journal: ClaimedJournal) -> Procedure[None]:
    try:
        path = snapshot_path(journal.job, journal.state.number)
        yield from write_object(path, encode_snapshot(journal.state))
    except StorageError:
        return  # it stays due until the next entry; until then claims only read more entries
    journal.snapshot_due, journal.truncation_due = False, True
