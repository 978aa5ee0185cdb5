"""The journal of a job, held by the attempt that has claimed it, and how an entry is added.

`ClaimedJournal` goes from `claim` through every other procedure of the attempt: it knows the last
entry that this process has written, what is named, and what was seen ended. Publications, settled,
lost and closed compete for the next number with each other and with the claims of other processes.
Other processes are handled here; within the process **the caller runs one journal-writing procedure
at a time** (`recover`, `publish`, `settle`, `close`; a mutex of the JobMaster). `commit` and
`sweep` write nothing and may run beside them.

Keeps the heart of invariant 3: an entry that is not our own at the number where ours should stand
means that a newer claim came first, and this process has been deposed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypedDict

from tidegate.checkpoint.effects import (
    Procedure,
    create_entry,
    nonce,
    read_object,
    wall_clock,
    write_object,
)
from tidegate.checkpoint.journal import (
    REMEDY,
    SNAPSHOT_INTERVAL,
    AnyEntry,
    Claim,
    decode_entry,
    encode_entry,
    entry_path,
    hint_path,
)
from tidegate.checkpoint.journal_state import JournalState, PublicationRef, encode_hint
from tidegate.checkpoint.procedures.reading import newest_hint, read_entry
from tidegate.checkpoint.procedures.retry import RetryLoop, RetryPolicy
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
from tidegate.protocol.snapshots import PreparedTransaction


@dataclass(slots=True, kw_only=True)
class ClaimedJournal:
    """What an attempt knows of its journal. Made by `claim`, changed by procedures only."""

    job: JobName
    submission: str
    attempt: Attempt
    before: JournalState
    """What the entries before the claim add up to."""
    claim_nonce: str = ""
    """Of the claim, by which slots recognise the journal in their own view of the storage."""
    state: JournalState
    """The same, up to the last entry that this process has written."""
    ended: set[PreparedTransaction] = field(default_factory=set)
    """Seen CompleteCommit, and possibly still in acknowledgements: never named again."""
    hint_interval: int = SNAPSHOT_INTERVAL
    hint_due: bool = False
    trim_due: bool = False
    """A hint was written since the journal was trimmed."""
    last_write_unknown: bool = False
    """Giving up left it open whether the last entry was written: `state` may lack a publication, so
    nothing may be ended, fenced or written by it. The next claim finds out."""

    @property
    def name(self) -> str:
        """The journal's random name, part of transactional ids."""
        return self.state.name

    @property
    def is_first_claim(self) -> bool:
        """This claim is the first of its submission."""
        return self.before.submission != self.submission

    @property
    def final_checkpoint_published(self) -> bool:
        """This submission's final checkpoint is published: settle and close, start no task."""
        last = self.state.publication
        return last is not None and last.final and last.submission == self.submission

    @property
    def stopped(self) -> bool:
        """The final checkpoint was published for a user's stop."""
        last = self.state.publication
        return self.final_checkpoint_published and last is not None and last.stopped

    @property
    def uncommitted(self) -> tuple[PreparedTransaction, ...]:
        """What is named and not yet seen ended, oldest first: the work of `commit`."""
        return tuple(txn for txn in self.state.named if txn not in self.ended)

    def named_ids(self) -> frozenset[TransactionalId]:
        """Ids that an unsettled publication names."""
        return frozenset(txn.transactional_id for txn in self.state.named)

    def fenced_before(self) -> Attempt:
        """Ids of attempts older than this were fenced once: the last publisher fenced, then
        began.
        """
        last = self.state.publication
        return Attempt(0) if last is None else last.attempt

    def restore_point(self, restore: str) -> PublicationRef | None:
        """Where the job restores: this submission's last publication, else what `restore` says.

        `restore` is `latest`, `none` or a checkpoint's id. RefusedError for an id that is not among
        the last publications.
        """
        return restore_point(self.state, self.submission, restore)


def restore_point(state: JournalState, submission: str, restore: str) -> PublicationRef | None:
    """See `ClaimedJournal.restore_point`; also asked before the claim, so that a refusal changes
    nothing.
    """
    last = state.recent[-1] if state.recent else None
    if restore == "latest" or (last is not None and last.submission == submission):
        return last
    if restore == "none":
        return None
    for ref in state.recent:
        if str(ref.checkpoint) == restore:
            return ref
    known = ", ".join(str(ref.checkpoint) for ref in state.recent[-5:]) or "none"
    message = (
        f"there is no published checkpoint {restore!r} to restore; the last ones are: {known}. "
        "Give one of these, `latest`, or `none` to start from nothing"
    )
    raise RefusedError(message)


class Header(TypedDict):
    """The fields that all entries share."""

    number: JournalNumber
    nonce: str
    previous: str
    journal: str
    created_ms: int


def header_after(state: JournalState) -> Procedure[Header]:
    """The common fields of the entry that follows `state`."""
    return {
        "number": JournalNumber(state.number + 1),
        "nonce": (yield from nonce()),
        "previous": state.nonce,
        "journal": state.name,
        "created_ms": (yield from wall_clock()),
    }


def append_entry(
    journal: ClaimedJournal, entry: AnyEntry, patience: RetryPolicy
) -> Procedure[None]:
    """Add an entry of this attempt, which must see its predecessor first: an entry in a storage
    that does not have the one before it would count nowhere.

    FencedError if another entry stands there, or did before it was trimmed; StorageGoneError if
    the predecessor is missing; CorruptCheckpointError
    if what stands there is older than what it would have to follow. StorageError if it is certain
    that nothing was written, OutcomeUnknownError if it could not be learned in time: the attempt
    must end, and its transactions be left alone.
    """
    yield from _see_predecessor(journal)
    try:
        found = yield from write_entry(journal.job, entry, patience)
    except StorageError:
        raise
    except TidegateError:
        journal.last_write_unknown = (
            True  # of a create that failed in another way, nothing is known either
        )
        raise
    if found is None:
        raise fenced_error(journal, found)
    if found.nonce != entry.nonce:
        if found.previous != entry.previous:
            message = (
                f"journal entry {entry_path(journal.job, found.number)} does not follow the one "
                f"before it: entries of this journal are missing, or were replaced. {REMEDY}"
            )
            raise CorruptCheckpointError(message)
        raise fenced_error(journal, found)
    journal.state = journal.state.after(entry)
    journal.hint_due = journal.hint_due or entry.number % journal.hint_interval == 0
    if journal.hint_due:
        yield from _write_hint(journal)


def _see_predecessor(journal: ClaimedJournal) -> Procedure[None]:
    number = journal.state.number
    found = yield from read_entry(journal.job, number)
    if found is not None and found.nonce == journal.state.nonce:
        return
    if (yield from _is_superseded(journal.job, number)):
        raise fenced_error(journal, None)  # a newer attempt has trimmed the journal
    raise StorageGoneError(
        f"Journal entry {entry_path(journal.job, number)}, the last one of this attempt, is not in "
        "the checkpoint storage: its folder was removed, or another storage is there. Bring it "
        "back; nothing is published until then."
    )


def write_entry(job: JobName, entry: AnyEntry, patience: RetryPolicy) -> Procedure[AnyEntry | None]:
    """Create an entry at its number and return what stands there: it, or what was there before.

    None if others have gone on from that number and trimmed the journal, or may have: what was
    created then counts for nothing, because nobody reads it. A create whose outcome is not known is
    sent again, the same bytes to the same number, until it is.
    """
    path, data = entry_path(job, entry.number), encode_entry(entry)
    unknown = False
    waiting = RetryLoop(patience)
    while True:
        try:
            outcome = yield from create_entry(path, data)
            unknown = True  # until it is certain that what stands there counts
            found: AnyEntry | None = entry if outcome is CreateResult.CREATED else None
            if outcome is CreateResult.EXISTS:
                # It may be our own, from an earlier try or one that the store made by itself.
                there = yield from read_object(path)
                found = None if there is None else decode_entry(there, path)
            if found is not None:
                return None if (yield from _is_superseded(job, entry.number)) else found
        except StorageError:
            if not unknown:
                raise
        if not (yield from waiting.wait()):
            message = (
                f"the checkpoint storage did not say in {patience.timeout_s:g} s whether journal "
                f"entry {path} was written; the attempt ends, and the next claim finds out"
            )
            raise OutcomeUnknownError(message)


def _is_superseded(job: JobName, number: int) -> Procedure[bool]:
    """Whether a hint beyond an entry is there: before any entry goes, there is one above it.

    That the entry before it is still there would prove less: a create of that one, sent twice, may
    have landed a second time since.
    """
    return (yield from newest_hint(job)) > number


def check_ownership(journal: ClaimedJournal) -> Procedure[None]:
    """FencedError if somebody has gone on with the job since this attempt's newest entry.

    Asked before slots begin, which may be long after the claim: what they open after another
    attempt has closed the job, nobody would ever end. A look is no promise; publications are safe
    without it.
    """
    found = yield from read_entry(journal.job, journal.state.number + 1)
    if found is not None or (yield from _is_superseded(journal.job, journal.state.number)):
        raise fenced_error(journal, found)


def fenced_error(journal: ClaimedJournal, found: AnyEntry | None) -> FencedError:
    """The error for finding another's entry where one's own should stand."""
    if found is None:
        who = "others have gone on with the job and trimmed its journal"
    elif isinstance(found, Claim):
        who = f"attempt {found.number} has claimed the job"
    else:
        who = f"another process has written entry {found.number}"
    return FencedError(
        f"attempt {journal.attempt} of job {journal.job!r} was deposed: {who}. This process exits; "
        "nothing that it did after that entry counts"
    )


def mark_committed(journal: ClaimedJournal, transactions: Iterable[PreparedTransaction]) -> None:
    """Remember what was seen CompleteCommit."""
    journal.ended.update(transactions)


def write_missing_snapshot(journal: ClaimedJournal) -> Procedure[None]:
    """After a claim that was read back: if nobody has written the hint of an interval that is over,
    write one at the claim.

    Appended entries bring their own, but a job that restarts and never publishes appends none, and
    each of its claims would read all those before it. The claim stands and counts, so what the
    entries up to it add up to is true for ever, also where a newer claim has come meanwhile.
    """
    try:
        newest = yield from newest_hint(journal.job)
    except StorageError:
        return  # the next claim looks again
    if newest // journal.hint_interval < journal.state.number // journal.hint_interval:
        journal.hint_due = True
        yield from _write_hint(journal)


def _write_hint(journal: ClaimedJournal) -> Procedure[None]:
    try:
        path = hint_path(journal.job, journal.state.number)
        yield from write_object(path, encode_hint(journal.state))
    except StorageError:
        return  # it stays due and is written with the next entry; without it, claims only read more
    journal.hint_due, journal.trim_due = False, True
