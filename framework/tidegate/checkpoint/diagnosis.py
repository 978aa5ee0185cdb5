"""What the transactions of a cluster mean: which hang, what holds readers back, which may be
aborted.

Pure functions of facts that `ports/inspection.py` brings; nothing here asks Kafka. Two views meet:
coordinators know transactions by id, partition leaders know open ones by producer id. A transaction
that a leader has open and no coordinator will ever end **hangs** (KIP-664): nothing but an abort
marker written by hand ends it. Whether a coordinator will is read as Kafka's own tool reads it, by
its list of partitions: by the epoch it cannot be, because a coordinator raises that first and
writes the marker later.

Nothing is concluded from an answer that is missing: with a coordinator unasked no transaction is
said to hang.

For tidegate's own ids it keeps invariant 2 from the operator's side: a transaction that a
publication names, or may yet come to name, is not for a hand to abort.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping, Sequence
from typing import Final

import msgspec

from tidegate.checkpoint.journal_state import JournalState
from tidegate.checkpoint.transactional_ids import parse_transactional_id
from tidegate.ids import TransactionalId
from tidegate.ports.inspection import PartitionEndOffsets, ProducerState, Transaction
from tidegate.ports.kafka import TransactionState
from tidegate.stream_elements import TopicPartition

ENDING: Final = frozenset(
    {
        TransactionState.PREPARE_COMMIT,
        TransactionState.PREPARE_ABORT,
        TransactionState.PREPARE_EPOCH_FENCE,
    }
)
"""The end is decided and its markers are on their way."""
OPEN: Final = ENDING | {TransactionState.ONGOING}
"""Readers may have to wait for a transaction in these states."""
TIMEOUT_SCAN_MS: Final = 20_000
"""After its timeout a transaction may be left alone for so long: coordinators look every 10 s by
default, and the abort itself takes a moment."""
MAX_TIMEOUT_MS: Final = 15 * 60_000
"""Kafka's default of `transaction.max.timeout.ms`: a younger transaction is not taken to hang,
because its coordinator may only not have told yet."""


class JournalStatus(enum.Enum):
    """How an id stands with the journal of the tidegate job that it belongs to."""

    FOREIGN = "foreign"
    """It is no id of tidegate."""
    UNKNOWN = "unknown"
    """The job's journal was not found, or is not the one that the id names."""
    NAMED = "named"
    """An unsettled publication names it: its records are promised, aborting it loses them."""
    CURRENT = "current"
    """It is of the newest attempt, whose next publication may name it at any moment."""
    FREE = "free"
    """No publication names it and none will: the job's own recovery would abort it."""


class OpenReason(enum.Enum):
    """Why a transaction is open on a partition."""

    OPEN = "open"
    """Its producer has not ended it, and it is within its timeout."""
    OVERDUE = "overdue"
    """Past its timeout: its coordinator should have aborted it."""
    ENDING = "ending"
    """Decided; the coordinator has still to write this partition's marker."""
    HANGING = "hanging"
    """No coordinator will end it here, and it is old enough to be sure."""
    UNCLAIMED = "unclaimed"
    """As hanging, but too young: its end may be on its way."""
    UNKNOWN = "unknown"
    """No coordinator that answered knows it, and not all did."""


class OpenTransaction(msgspec.Struct, frozen=True, kw_only=True):
    """A transaction that is open on a partition, as far as it is known."""

    origin: TopicPartition
    producer: ProducerState
    transaction: Transaction | None
    """Of its producer, where a coordinator knows it (a hanging one may be of an earlier life)."""
    cause: OpenReason
    age_ms: int
    """Since it began by its coordinator; else since its last batch by that batch's timestamp."""

    @property
    def committed(self) -> bool:
        """It may be a commit whose marker was forgotten here: then an abort loses its records.

        Brokers of Kafka 4 complete a transaction without the marker of a partition that has no
        leader just then, as if that were deleted (KAFKA-20734).
        """
        return (
            self.transaction is not None
            and self.transaction.state is TransactionState.COMPLETE_COMMIT
        )


class PartitionStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What a `read_committed` reader of one partition meets."""

    origin: TopicPartition
    leader: int
    """The broker's id, -1 where there is none."""
    ends: PartitionEndOffsets | None
    """None where the leader did not answer."""
    held: tuple[OpenTransaction, ...]
    """The first holds the last stable offset back; the others are open behind it."""

    @property
    def waiting(self) -> int:
        """Offsets that are written and not readable: records, and markers of transactions."""
        return 0 if self.ends is None else max(0, self.ends.end - self.ends.stable)


class AbortOutcome(enum.Enum):
    """What became of a transaction that was to be aborted."""

    ABORTED = "aborted"
    ABORTING = "aborting"
    """Decided; markers are still to be written."""
    COMMITTED = "committed"
    """Its producer was faster."""
    CHANGED = "changed"
    """The id has gone on to another transaction or producer, which was left alone."""


def classify(
    origin: TopicPartition,
    producer: ProducerState,
    known: Mapping[int, Transaction],
    *,
    complete: bool,
    now_ms: int,
    max_timeout_ms: int = MAX_TIMEOUT_MS,
) -> OpenTransaction:
    """Why a transaction is open on a partition.

    `known` is what coordinators know, in any state, by producer id; `complete` says that all of
    them were asked, **after** the leader.
    """
    transaction = known.get(producer.producer_id)
    age_ms = max(0, now_ms - producer.last_ms)
    if transaction is not None and origin in transaction.partitions:
        if transaction.start_ms >= 0:
            age_ms = max(0, now_ms - transaction.start_ms)
        if transaction.state in ENDING:
            cause = OpenReason.ENDING
        elif age_ms > transaction.timeout_ms + TIMEOUT_SCAN_MS:
            cause = OpenReason.OVERDUE
        else:
            cause = OpenReason.OPEN
    elif transaction is None and not complete:
        cause = OpenReason.UNKNOWN
    else:
        cause = OpenReason.HANGING if age_ms > max_timeout_ms else OpenReason.UNCLAIMED
    return OpenTransaction(
        origin=origin, producer=producer, transaction=transaction, cause=cause, age_ms=age_ms
    )


def standing(transactional_id: TransactionalId, journal: JournalState | None) -> JournalStatus:
    """How an id stands with its job's journal (None: it could not be read)."""
    parts = parse_transactional_id(transactional_id)
    if parts is None:
        return JournalStatus.FOREIGN
    if journal is None or journal.name != parts.journal or journal.attempt < parts.attempt:
        return JournalStatus.UNKNOWN
    if any(named.transactional_id == transactional_id for named in journal.named):
        return JournalStatus.NAMED
    if parts.attempt == journal.attempt and journal.closed is None:
        return JournalStatus.CURRENT
    return JournalStatus.FREE


def aborted(before: Transaction, after: Transaction | None) -> AbortOutcome:
    """What became of `before`, whose abort was asked for, by what its coordinator says now.

    By producer and start time: an end may have raised the epoch, and keeps both of these.
    """
    if (
        after is None
        or after.producer_id != before.producer_id
        or after.start_ms != before.start_ms
    ):
        return AbortOutcome.CHANGED
    match after.state:
        case TransactionState.COMPLETE_ABORT:
            return AbortOutcome.ABORTED
        case TransactionState.PREPARE_ABORT | TransactionState.PREPARE_EPOCH_FENCE:
            return AbortOutcome.ABORTING
        case TransactionState.COMPLETE_COMMIT | TransactionState.PREPARE_COMMIT:
            return AbortOutcome.COMMITTED
        case _:
            return AbortOutcome.CHANGED


def selected(
    transactions: Sequence[Transaction],
    *,
    job: str | None,
    origins: Collection[TopicPartition] | None,
    older_than_ms: int,
    now_ms: int,
) -> list[Transaction]:
    """Those of a job, that write to one of these partitions, and that began so long ago.

    Oldest first; those that never began are last.
    """
    found = []
    for each in transactions:
        parts = parse_transactional_id(each.transactional_id)
        if job is not None and (parts is None or parts.job != job):
            continue
        if origins is not None and not set(origins).intersection(each.partitions):
            continue
        if older_than_ms and (each.start_ms < 0 or now_ms - each.start_ms < older_than_ms):
            continue
        found.append(each)
    return sorted(found, key=lambda each: (each.start_ms < 0, each.start_ms, each.transactional_id))
