"""Claiming a job's journal: the start of an attempt.

The number of the claim is the number of the attempt. Everything before the claim is read and
decided, and every entry that an older attempt writes later finds the claim in its place. Only a
fresh start or a restart makes a claim, and a fenced attempt never does: two processes would fence
each other forever.

Every check runs before the claim is created, so a refused submit changes nothing. The claim is
refused for a closed journal, an unaccepted loss, or an unknown or deleted checkpoint. It is also
refused for a checkpoint of another Kafka cluster, or for a name whose transactional ids in Kafka
come from another journal. The last case is a journal that lacks its newest entries.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from tidegate.checkpoint.manifest import manifest_folder
from tidegate.commit.claim_producer import KnownAttempts, initialise, read_with_attempts
from tidegate.commit.cluster_check import load_manifest_if_readable, refuse_other_cluster
from tidegate.commit.effects import (
    Procedure,
    list_objects,
    nonce,
)
from tidegate.commit.journal.claimed import (
    ClaimedJournal,
    header_after,
    restore_point,
    write_entry,
    write_missing_snapshot,
)
from tidegate.commit.journal.entries import (
    SNAPSHOT_INTERVAL,
    Claim,
    ClaimProducer,
    LossAccepted,
    entry_path,
)
from tidegate.commit.journal.reading import read_entry, read_journal
from tidegate.commit.journal.state import JournalState, PublicationRef
from tidegate.commit.lost_tail import GroupCommits, LostTail, find_lost_tail, read_again
from tidegate.commit.retry import (
    STORAGE_RETRY,
    RetryPolicy,
)
from tidegate.commit.transactional_ids import list_attempts
from tidegate.errors import (
    CorruptCheckpointError,
    DataLossError,
    FencedError,
    JobClosedError,
    JournalLostError,
    RefusedError,
    StorageError,
)
from tidegate.ids import Attempt, JobName, TransactionalId

COMPETITIONS_MAX: Final = 1_000
"""The most entries that other processes may add while one claim is being made. More of them are a
fault, not a race.
"""

NO_COMMITS: Final[GroupCommits] = MappingProxyType({})


def claim(
    job: JobName,
    *,
    submission_id: str,
    restore: str = "latest",
    accept_data_loss: bool = False,
    take_over: bool = False,
    restore_to_other_cluster: bool = False,
    process_id: str = "",
    repeated: bool = False,
    claimed_attempt: int = 0,
    commits: GroupCommits = NO_COMMITS,
    restores: bool = True,
    opens_transactions: bool = True,
    snapshot_interval: int = SNAPSHOT_INTERVAL,
    retry_policy: RetryPolicy = STORAGE_RETRY,
) -> Procedure[ClaimedJournal]:
    """Begin an attempt of the submit with the id `submission_id`.

    JobClosedError if the job has ended for it. DataLossError if a loss was stated and is not
    accepted. ClusterMismatchError if its first claim was on another Kafka cluster. RefusedError if
    the name is used, or if `restore` is unknown or a checkpoint of another Kafka cluster. Also if
    the ids that Kafka lists, or `commits` of consumer groups, show that the newest entries are
    missing; JournalLostError at a later claim. OutcomeUnknownError if the storage does not confirm.

    `claimed_attempt` is an attempt whose claim is known to have been written, or 0. If the journal
    does not reach it: JournalLostError. So `take_over` begins only one journal per submission.
    With `restores=False`, `restore`, the ids in Kafka and a checkpoint's cluster are not checked.
    `opens_transactions` may be False only if the attempt opens no transactional id. The consents
    `accept_data_loss` and `restore_to_other_cluster` count for the first claim only.
    `repeated`: this process, `process_id`, has claimed before. FencedError if the newest claim is
    not its own, because another process has replaced it.
    """
    known, state = yield from read_with_attempts(job, asks_kafka=restores and not repeated)
    request = _ClaimRequest(
        job=job,
        submission_id=submission_id,
        restore=restore,
        accept_data_loss=accept_data_loss,
        take_over=take_over,
        restore_to_other_cluster=restore_to_other_cluster,
        process_id=process_id,
        repeated=repeated,
        claimed_attempt=claimed_attempt,
        known=known,
        commits=commits,
        restores=restores,
        opens_transactions=opens_transactions,
    )
    for _ in range(COMPETITIONS_MAX):
        yield from _refuse(request, state)
        entry = yield from _next_entry(request, state)
        found = yield from write_entry(job, entry, retry_policy)
        if found is None or found.nonce != entry.nonce:
            state = yield from read_journal(job)  # other processes were faster
            continue
        if isinstance(found, Claim):
            yield from _read_back(job, found)
            journal = _claimed(request, state, found, snapshot_interval)
            yield from write_missing_snapshot(journal)
            return journal
        state = state.after(found)
    message = f"Job {job!r}: others have added {COMPETITIONS_MAX} journal entries during one claim."
    raise StorageError(message)


def claim_to_close(
    job: JobName,
    *,
    submission_id: str,
    process_id: str = "",
    repeated: bool = False,
    claimed_attempt: int = 0,
    retry_policy: RetryPolicy = STORAGE_RETRY,
) -> Procedure[ClaimedJournal | None]:
    """Claim the journal only to settle, fence and close it. This needs no user code and no restore.

    Return None if the newest claim is of another submission, or if the journal has no claim. Then
    no attempt of this submission has run, and a job that is refused before it runs changes nothing.
    Reasons to refuse a restore are ignored. JournalLostError and ClusterMismatchError as for
    `claim`: another journal, or another cluster, cannot settle the transactions.
    """
    state = yield from read_journal(job)
    if state.attempt >= claimed_attempt and state.submission_id != submission_id:
        return None
    return (
        yield from claim(
            job,
            submission_id=submission_id,
            process_id=process_id,
            repeated=repeated,
            claimed_attempt=claimed_attempt,
            restores=False,
            opens_transactions=False,
            retry_policy=retry_policy,
        )
    )


def _claimed(
    request: _ClaimRequest, before: JournalState, own: Claim, snapshot_interval: int
) -> ClaimedJournal:
    return ClaimedJournal(
        job=request.job,
        submission_id=request.submission_id,
        attempt=Attempt(own.number),
        state_before_claim=before,
        claim_nonce=own.nonce,
        state=before.after(own),
        snapshot_interval=snapshot_interval,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _ClaimRequest:
    """The arguments of `claim`, and what Kafka knows of the job."""

    job: JobName
    submission_id: str
    restore: str
    accept_data_loss: bool
    take_over: bool
    restore_to_other_cluster: bool
    process_id: str
    repeated: bool
    claimed_attempt: int
    known: KnownAttempts
    commits: GroupCommits
    restores: bool
    opens_transactions: bool

    @property
    def cluster(self) -> str:
        """The Kafka cluster on which the attempt would run."""
        return self.known.cluster

    def lost_tail(self, state: JournalState) -> LostTail | None:
        """Return what the journal lacks. `_refuse_used_name` checks a journal without entries
        instead.
        """
        if not state.number:
            return None
        return find_lost_tail(self.job, state, self.known.listed, self.commits)

    def is_first_claim(self, state: JournalState) -> bool:
        """Return whether the claim is the first of its submission. Consents count only then."""
        return state.submission_id != self.submission_id


def _next_entry(request: _ClaimRequest, state: JournalState) -> Procedure[Claim | LossAccepted]:
    """Return the entry to write next: the claim, or before it the acceptance of a loss."""
    header = yield from header_after(state)
    if state.lost is not None and not state.accepted:
        return LossAccepted(**header, lost=state.lost.number, submission_id=request.submission_id)
    if not state.number:
        header["journal_id"] = yield from nonce()
    tail = request.lost_tail(state)
    return Claim(
        **header,
        submission_id=request.submission_id,
        restore=request.restore,
        fences_other_journals=request.take_over and not state.number,
        process_id=request.process_id,
        kafka_cluster=request.cluster,
        restore_to_other_cluster=request.restore_to_other_cluster and request.is_first_claim(state),
        lost_attempt=0 if tail is None else tail.attempt,
        producer=(yield from _claim_producer(request, state, header["journal_id"])),
    )


def _claim_producer(
    request: _ClaimRequest, state: JournalState, journal_id: str
) -> Procedure[ClaimProducer | None]:
    """Initialise the claim id, unless the attempt opens no ids. Return the claim's producer."""
    if not request.opens_transactions:
        return state.producer
    return (yield from initialise(request.job, journal_id, state, request.known))


def _refuse(request: _ClaimRequest, state: JournalState) -> Procedure[None]:
    """Refuse every claim that must not be made."""
    job, first_claim = request.job, request.is_first_claim(state)
    written = max(request.claimed_attempt, request.known.newest_proven)
    if state.attempt < written:
        raise JournalLostError(_lost_journal(job, state, written))
    if request.repeated and state.process_id != request.process_id:
        raise FencedError(
            f"Job {job!r} was claimed by another process, as attempt {state.attempt}: this one "
            "exits and claims nothing any more."
        )
    _refuse_ended(request, state)
    point = (
        restore_point(state, request.submission_id, request.restore) if request.restores else None
    )
    yield from _refuse_deleted(request, state, point)
    yield from refuse_other_cluster(
        job,
        state,
        point,
        request.cluster,
        first_claim=first_claim,
        consent=request.restore_to_other_cluster,
        accept_data_loss=request.accept_data_loss,
    )
    if not state.number and not request.take_over:
        _refuse_used_name(job, request.known.listed)
    tail = request.lost_tail(state)
    if tail is not None and not (first_claim and request.restore != "latest"):
        restored = None if point is None else (yield from load_manifest_if_readable(point))
        repeated = read_again(
            state.journal_id, () if restored is None else restored.splits, (), request.commits
        )
        message = _lost_tail_message(job, state, tail, repeated)
        raise RefusedError(message) if first_claim else JournalLostError(message)


def _lost_tail_message(job: JobName, state: JournalState, tail: LostTail, repeated: str) -> str:
    last = state.publication
    ends = "has no checkpoint" if last is None else f"ends with checkpoint {last.checkpoint}"
    found = "" if tail.checkpoint is None else f", and offsets of checkpoint {tail.checkpoint}"
    remedy = "none" if last is None else last.checkpoint
    records = f": {repeated}" if repeated else ""
    return (
        f"The journal of job {job!r} {ends} and attempt {state.attempt}, but Kafka knows attempt "
        f"{tail.attempt} of this journal{found}. Its newest entries are missing: the checkpoint "
        "storage is an older copy, such as a backup. Make the newest copy available again. To "
        f"continue from this one, add --restore {remedy}: records after that checkpoint are read "
        f"again and their output is written again{records}. What is open under ids of the missing "
        "attempts is then aborted."
    )


def _lost_journal(job: JobName, state: JournalState, claimed_attempt: int) -> str:
    found = f"ends with attempt {state.attempt}" if state.number else "is not there"
    return (
        f"The journal of job {job!r} {found} in checkpoint.dir, but attempt {claimed_attempt} "
        "has been written to it: the storage is lost, is not mounted, or is an older copy. Make "
        "the same storage available again, and the job continues. If that storage no longer "
        "exists, stop the job and submit it again."
    )


def _refuse_ended(request: _ClaimRequest, state: JournalState) -> None:
    first_claim = request.is_first_claim(state)
    if state.closed is not None and not first_claim:
        message = (
            f"Job {request.job!r} has ended ({state.closed.outcome}): its journal is closed, and "
            "only a new submit may begin it again."
        )
        raise JobClosedError(message, state.closed.outcome, state.closed.stopped)
    if (
        state.lost is not None
        and not state.accepted
        and not (first_claim and request.accept_data_loss)
    ):
        raise DataLossError(state.lost.statement)


def _refuse_deleted(
    request: _ClaimRequest, state: JournalState, point: PublicationRef | None
) -> Procedure[None]:
    """Refuse a checkpoint that was requested by its id and that the journal lists, but whose
    manifest is deleted.
    """
    if point is None or str(point.checkpoint) != request.restore:
        return
    there = set((yield from list_objects(manifest_folder(request.job))))
    if point.manifest in there:
        return
    kept = [str(ref.checkpoint) for ref in state.recent_checkpoints if ref.manifest in there]
    raise RefusedError(
        f"The files of checkpoint {request.restore!r} are not in the checkpoint storage any more; "
        f"those of {', '.join(kept) or 'none'} are. Give one of these, or `latest`, and set "
        "checkpoint.num_retained if more are to be kept."
    )


def _refuse_used_name(job: JobName, listed: tuple[TransactionalId, ...]) -> None:
    """Refuse a name of which Kafka knows transactional ids, while its journal has no entries."""
    others = sorted({journal_id for owner, journal_id, _ in list_attempts(listed) if owner == job})
    if others:
        message = (
            f"Job {job!r} has no journal in this checkpoint storage, but Kafka holds transactional "
            f"ids of that name, of journal {', '.join(others)}: the name is used by another job, "
            "or the checkpoint storage is not the one that the job was run with. Set "
            "checkpoint.dir to that one, choose another name, or, if nothing of that name "
            "runs any more, submit with --take-over: its open transactions are then aborted."
        )
        raise RefusedError(message)


def _read_back(job: JobName, own: Claim) -> Procedure[None]:
    """Check that the created claim can be read. If not, the creates of this storage
    order nothing.
    """
    found = yield from read_entry(job, own.number)
    if found != own:
        message = (
            f"Journal entry {entry_path(job, own.number)} was created, but reads back as "
            f"{'nothing' if found is None else 'another'}: this storage cannot hold a journal."
        )
        raise CorruptCheckpointError(message)
