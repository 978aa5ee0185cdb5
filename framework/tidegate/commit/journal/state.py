"""The state that the entries of a journal add up to.

This is a pure fold: `JournalState.after(entry)` returns the state with one more entry, or refuses
an entry that cannot follow. The claim procedure folds all entries up to its own claim, so
everything that the attempt builds on was decided before the claim. The states after some entries
are stored as journal snapshots. So a claim need not read the whole journal, and the oldest entries
can be truncated. Entries never change, so the state after an entry stays true.
"""

from __future__ import annotations

from typing import Final

import msgspec

from tidegate.checkpoint.envelope import decode_file, encode_file
from tidegate.commit.journal.entries import (
    REMEDY,
    AnyEntry,
    Claim,
    ClaimProducer,
    Closed,
    LossAccepted,
    Lost,
    Publication,
    RolledBack,
    Settled,
)
from tidegate.errors import CorruptCheckpointError
from tidegate.ids import Attempt, CheckpointId, JournalNumber
from tidegate.protocol.subtask_snapshot import PreparedTransaction

RECENT_MAX: Final = 64
"""The number of publications that the state remembers, for retention and for the restore of an
older one.
"""

ROLLBACK_TARGETS_MAX: Final = 16
"""The most publications that can be rolled back one after another. Usually there is at most one.
There are more only if transactions stay uncommitted through further checkpoints.
"""


class PublicationRef(msgspec.Struct, frozen=True, kw_only=True):
    """A publication, without its transactions."""

    number: JournalNumber
    checkpoint: CheckpointId
    submission_id: str = msgspec.field(name="submission")
    manifest: str
    sha256: str
    final: bool


class RollbackTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A publication before the last one, as the job continues from it after a rollback."""

    publication: Publication
    pending_commits: tuple[PreparedTransaction, ...] = msgspec.field(name="named")
    introduced: tuple[PreparedTransaction, ...] = msgspec.field(name="own")
    irrevocable: bool = msgspec.field(name="firm")
    resolved: bool = msgspec.field(name="decided")
    """Whether it is settled or its loss is accepted."""


class JournalState(msgspec.Struct, frozen=True, kw_only=True):
    """The state after the entries up to `number`. The empty journal has number 0."""

    number: JournalNumber = JournalNumber(0)
    nonce: str = ""
    """The nonce of the last entry."""
    journal_id: str = msgspec.field(default="", name="name")
    """The journal's random id."""
    attempt: Attempt = Attempt(0)
    """The attempt of the newest claim."""
    process_id: str = msgspec.field(default="", name="claimant")
    """The process that made the newest claim."""
    submission_id: str = msgspec.field(default="", name="submission")
    """The submission of the newest claim."""
    fences_other_journals: bool = msgspec.field(default=False, name="took_over")
    """Whether some claim of this journal took over the job's name."""
    kafka_cluster: str = ""
    """The Kafka cluster of the newest claim; empty if that claim does not have it."""
    moved: JournalNumber = JournalNumber(0)
    """The number of the claim with the consent to restore checkpoints of another Kafka cluster on
    `kafka_cluster`; 0 without a consent.
    """
    lost_attempt: Attempt = Attempt(0)
    """The newest attempt of which Kafka may have traces and that the journal lacks, as a claim
    recorded. Ids of attempts up to this one belong to entries that were lost with the storage.
    """
    producer: ClaimProducer | None = None
    """The producer in the newest claim. Kafka has a later one if a later claim opens ids."""
    publication: Publication | None = None
    """The last publication."""
    settled: bool = False
    """Whether the last publication is settled."""
    lost: Lost | None = None
    """The stated loss of the last publication; None if no loss was stated."""
    accepted: bool = False
    """Whether that loss is accepted."""
    closed: Closed | None = None
    """The entry that closed the journal; None if it is not closed or a claim came after it."""
    recent_checkpoints: tuple[PublicationRef, ...] = msgspec.field(default=(), name="recent")
    """The last publications, oldest first, without those that were rolled back."""
    still_pending: tuple[PreparedTransaction, ...] | None = msgspec.field(
        default=None, name="carried"
    )
    """The transactions of the publication that may still be open, after a rollback. None: all that
    the publication lists.
    """
    introduced: tuple[PreparedTransaction, ...] = msgspec.field(default=(), name="own")
    """The transactions in `pending_commits` that the publication was the first to list."""
    irrevocable: bool = msgspec.field(default=True, name="firm")
    """Whether the publication cannot be rolled back: a transaction that it was the first to list
    is, or may be, committed. True also if this is not known, as in a journal snapshot of an earlier
    version.
    """
    rollback_targets: tuple[RollbackTarget, ...] = msgspec.field(default=(), name="earlier")
    """The publications to which the last one can be rolled back, oldest first. Empty: a rollback
    leaves no publication.
    """

    @property
    def pending_commits(self) -> tuple[PreparedTransaction, ...]:
        """The transactions that an unsettled publication lists. No process may fence them or use
        their ids again.
        """
        if self.publication is None or self.settled or self.accepted:
            return ()
        return self.publication.transactions if self.still_pending is None else self.still_pending

    @property
    def moved_to(self) -> str:
        """The Kafka cluster on which checkpoints of another cluster may be restored; empty without
        a consent.

        The consent lasts until a publication of the new cluster exists, or until a claim is made on
        yet another cluster.
        """
        last = self.recent_checkpoints[-1].number if self.recent_checkpoints else 0
        return self.kafka_cluster if last < self.moved else ""

    def after(self, entry: AnyEntry) -> JournalState:
        """Return the state with one more entry; CorruptCheckpointError if the entry
        cannot follow.
        """
        expected = self.number + 1
        _require(entry.number == expected, entry, f"it stands where number {expected} belongs")
        _require(entry.previous == self.nonce, entry, "it does not follow the entry before it")
        _require(
            entry.journal_id == self.journal_id or not self.number,
            entry,
            "it is of another journal",
        )
        _require(
            self.closed is None or isinstance(entry, Claim | LossAccepted),
            entry,
            "it follows the closing of the journal",
        )
        state = msgspec.structs.replace(self, number=entry.number, nonce=entry.nonce)
        match entry:
            case Claim():
                return _claimed(state, entry)
            case Publication():
                return _published(state, entry)
            case Settled():
                _require_last(state, entry, entry.attempt, entry.publication)
                return msgspec.structs.replace(state, settled=True)
            case Lost():
                _require_last(state, entry, entry.attempt, entry.publication)
                return msgspec.structs.replace(state, lost=entry)
            case RolledBack():
                _require_last(state, entry, entry.attempt, entry.publication)
                _require(not self.irrevocable, entry, "what it rolls back may be committed")
                return _rolled_back(state)
            case LossAccepted():
                known = self.lost is not None and self.lost.number == entry.lost
                _require(known, entry, f"it accepts entry {entry.lost}, which is not the last loss")
                return msgspec.structs.replace(state, accepted=True)
            case Closed():
                _require(entry.attempt == self.attempt, entry, _newer(self, entry.attempt))
                return msgspec.structs.replace(state, closed=entry)


def encode_snapshot(state: JournalState) -> bytes:
    """Return the content of the journal snapshot's file."""
    return encode_file(state)


def decode_snapshot(data: bytes, path: str) -> JournalState:
    """Return the state in a journal snapshot. CorruptCheckpointError if the file cannot be used;
    the reader then starts at the snapshot before it.
    """
    try:
        return msgspec.json.decode(
            decode_file(data, what=f"Journal snapshot {path}"), type=JournalState
        )
    except msgspec.MsgspecError as error:
        message = f"Journal snapshot {path} does not read as a state ({error})."
        raise CorruptCheckpointError(message) from error


def _claimed(state: JournalState, claim: Claim) -> JournalState:
    if claim.restore_to_other_cluster:
        moved = claim.number
    elif claim.kafka_cluster == state.kafka_cluster:
        moved = state.moved
    else:
        moved = JournalNumber(0)
    return msgspec.structs.replace(
        state,
        journal_id=claim.journal_id,
        attempt=Attempt(claim.number),
        process_id=claim.process_id,
        submission_id=claim.submission_id,
        fences_other_journals=state.fences_other_journals or claim.fences_other_journals,
        kafka_cluster=claim.kafka_cluster,
        moved=moved,
        lost_attempt=max(state.lost_attempt, Attempt(claim.lost_attempt)),
        producer=claim.producer,
        closed=None,
    )


def _published(state: JournalState, publication: Publication) -> JournalState:
    attempt, checkpoint = publication.attempt, publication.checkpoint
    _require(attempt == state.attempt, publication, _newer(state, attempt))
    _require(checkpoint.attempt == attempt, publication, f"{checkpoint} is not its checkpoint")
    last = state.publication
    _require(
        last is None or last.checkpoint < checkpoint,
        publication,
        f"checkpoint {checkpoint} follows {last and last.checkpoint}",
    )
    _require(state.lost is None or state.accepted, publication, "it follows a loss")
    ref = PublicationRef(
        number=publication.number,
        checkpoint=checkpoint,
        submission_id=publication.submission_id,
        manifest=publication.manifest,
        sha256=publication.sha256,
        final=publication.final,
    )
    return msgspec.structs.replace(
        state,
        publication=publication,
        settled=False,
        lost=None,
        accepted=False,
        recent_checkpoints=(*state.recent_checkpoints, ref)[-RECENT_MAX:],
        still_pending=None,
        introduced=tuple(
            txn for txn in publication.transactions if txn not in state.pending_commits
        ),
        irrevocable=False,
        rollback_targets=_rollback_targets(state),
    )


def _rollback_targets(state: JournalState) -> tuple[RollbackTarget, ...]:
    """Return the publications to which the next publication can be rolled back."""
    if state.publication is None:
        return ()
    resolved = state.settled or state.accepted
    last = RollbackTarget(
        publication=state.publication,
        pending_commits=state.pending_commits,
        introduced=state.introduced,
        irrevocable=state.irrevocable or resolved,
        resolved=resolved,
    )
    if last.irrevocable:
        return (last,)  # it is never rolled back itself
    below = (*state.rollback_targets, last)
    if len(below) > ROLLBACK_TARGETS_MAX:
        bottom = msgspec.structs.replace(below[-ROLLBACK_TARGETS_MAX], irrevocable=True)
        below = (bottom, *below[1 - ROLLBACK_TARGETS_MAX :])
    return below


def _rolled_back(state: JournalState) -> JournalState:
    """Return the state without the last publication."""
    if not state.rollback_targets:
        return msgspec.structs.replace(
            state,
            publication=None,
            still_pending=None,
            introduced=(),
            irrevocable=True,
            recent_checkpoints=(),
        )
    *below, last = state.rollback_targets
    # A transaction that the rolled-back publication did not list any more was seen committed. Its
    # id may be in use again.
    pending = frozenset(state.pending_commits)
    return msgspec.structs.replace(
        state,
        publication=last.publication,
        settled=last.resolved,
        still_pending=tuple(txn for txn in last.pending_commits if txn in pending),
        introduced=tuple(txn for txn in last.introduced if txn in pending),
        irrevocable=last.irrevocable or any(txn not in pending for txn in last.introduced),
        rollback_targets=tuple(below),
        recent_checkpoints=state.recent_checkpoints[:-1],
    )


def _require_last(state: JournalState, entry: AnyEntry, attempt: Attempt, publication: int) -> None:
    _require(attempt == state.attempt, entry, _newer(state, attempt))
    last = None if state.publication is None else state.publication.number
    _require(publication == last, entry, f"it names entry {publication}, not {last}")
    _require(not state.settled and state.lost is None, entry, "that was decided before")


def _newer(state: JournalState, attempt: Attempt) -> str:
    return f"it is of attempt {attempt}, but the newest claim is {state.attempt}"


def _require(holds: bool, entry: AnyEntry, why: str) -> None:
    if not holds:
        kind = entry.__struct_config__.tag  # the kind as it is in the entry's file
        message = f"Journal entry {entry.number} ({kind}) is not valid: {why}. {REMEDY}"
        raise CorruptCheckpointError(message)
