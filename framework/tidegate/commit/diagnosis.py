"""The meaning of a cluster's transactions: which ones hang, what blocks readers, what may be
aborted.

These are pure functions of data that `ports/inspection.py` reads; nothing here sends a request to
Kafka. The module joins two views. Coordinators know transactions by transactional id; partition
leaders know open transactions by producer id. A transaction **hangs** (KIP-664) if it is open on a
leader and no coordinator will ever end it. Only an abort marker that an operator writes ends it. To
decide whether a coordinator will end a transaction on a partition, the module reads the
coordinator's list of partitions, as Kafka's own tool does. The epoch cannot decide: a coordinator
raises it first and writes the marker later.

A missing answer proves nothing. While a coordinator has not answered, a transaction that no other
coordinator knows is not reported as hanging.

For tidegate's own ids the module helps an operator to keep invariant 2. An operator must not abort
a transaction that a publication lists or may still list.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping, Sequence
from typing import Final

import msgspec

from tidegate.commit.journal.state import JournalState
from tidegate.commit.transactional_ids import parse_claim_id, parse_transactional_id
from tidegate.ids import JobName, TransactionalId
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
"""States in which the outcome is decided and the coordinator is still writing the markers."""
OPEN: Final = ENDING | {TransactionState.ONGOING}
"""States in which readers may have to wait for the transaction."""
TIMEOUT_SCAN_MS: Final = 20_000
"""The time in ms for which a transaction may stay open after its timeout. Coordinators look for
expired transactions every 10 s by default, and the abort itself also takes some time.
"""
MAX_TIMEOUT_MS: Final = 15 * 60_000
"""Kafka's default of `transaction.max.timeout.ms`. A younger transaction is not reported as
hanging, because its coordinator may merely not list it yet.
"""


class JournalStatus(enum.Enum):
    """The relation of a transactional id to the journal of the tidegate job that it belongs to."""

    NOT_TIDEGATE = "not_tidegate"
    """The id was not made by tidegate."""
    UNKNOWN = "unknown"
    """The job's journal was not found, is not the journal in the id, or does not have the id's
    attempt.
    """
    PENDING_COMMIT = "pending_commit"
    """An unsettled publication lists the id. Its records are promised, and an abort would lose
    them.
    """
    CURRENT_ATTEMPT = "current_attempt"
    """The id is of the newest attempt, and the attempt's next publication may list it."""
    UNREFERENCED = "unreferenced"
    """No publication lists the id and none will list it. The job's own recovery would abort it."""


class OpenReason(enum.Enum):
    """The reason why a transaction is open on a partition."""

    OPEN = "open"
    """Its producer has not ended it, and it is within its timeout."""
    OVERDUE = "overdue"
    """It is past its timeout, so its coordinator should have aborted it."""
    ENDING = "ending"
    """Its outcome is decided. The coordinator still has to write the marker to this partition."""
    HANGING = "hanging"
    """No coordinator will end it on this partition, and it is old enough to be sure."""
    POSSIBLY_HANGING = "possibly_hanging"
    """No coordinator lists it for this partition, but it is young: its marker may be on its way."""
    UNKNOWN = "unknown"
    """No coordinator that answered knows it, and at least one coordinator did not answer."""


class OpenTransaction(msgspec.Struct, frozen=True, kw_only=True):
    """A transaction that is open on a partition, with what is known about it."""

    topic_partition: TopicPartition
    producer: ProducerState
    transaction: Transaction | None
    """The transaction of this producer at its coordinator; None if no coordinator knows the
    producer. For a hanging transaction it may be a later transaction of the same producer.
    """
    cause: OpenReason
    age_ms: int
    """Milliseconds since the transaction began, by its coordinator. If the coordinator does not
    say, the milliseconds since the timestamp of the producer's last batch.
    """

    @property
    def committed(self) -> bool:
        """Whether this may be a committed transaction whose marker is missing here. Then an abort
        loses its records.

        Brokers of Kafka 4 complete a transaction without the marker of a partition that has no
        leader at that time, as if the partition were deleted (KAFKA-20734).
        """
        return (
            self.transaction is not None
            and self.transaction.state is TransactionState.COMPLETE_COMMIT
        )


class PartitionStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one partition for `read_committed` readers."""

    topic_partition: TopicPartition
    leader: int
    """The broker id of the partition's leader; -1 if there is no leader."""
    end_offsets: PartitionEndOffsets | None
    """The end offsets of the partition; None if the leader did not answer."""
    open_transactions: tuple[OpenTransaction, ...]
    """The open transactions. The first one holds back the last stable offset; the others are open
    behind it.
    """

    @property
    def waiting(self) -> int:
        """The number of offsets that are written but not readable: records, and transaction
        markers.
        """
        return (
            0
            if self.end_offsets is None
            else max(0, self.end_offsets.end - self.end_offsets.stable)
        )


class AbortOutcome(enum.Enum):
    """The outcome of a requested abort."""

    ABORTED = "aborted"
    ABORTING = "aborting"
    """The abort is decided; some markers are still to be written."""
    COMMITTED = "committed"
    """The producer committed the transaction before the abort."""
    CHANGED = "changed"
    """The id now has another transaction or another producer, which was not aborted."""


def classify(
    topic_partition: TopicPartition,
    producer: ProducerState,
    known: Mapping[int, Transaction],
    *,
    complete: bool,
    now_ms: int,
    max_timeout_ms: int = MAX_TIMEOUT_MS,
) -> OpenTransaction:
    """Return the open transaction with the reason why it is open on a partition.

    `known` has what the coordinators know, in any state, by producer id. `complete` tells whether
    all coordinators answered. The coordinators must be asked **after** the leader.
    """
    transaction = known.get(producer.producer_id)
    age_ms = max(0, now_ms - producer.last_ms)
    if transaction is not None and topic_partition in transaction.partitions:
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
        cause = OpenReason.HANGING if age_ms > max_timeout_ms else OpenReason.POSSIBLY_HANGING
    return OpenTransaction(
        topic_partition=topic_partition,
        producer=producer,
        transaction=transaction,
        cause=cause,
        age_ms=age_ms,
    )


def journal_status(
    transactional_id: TransactionalId, journal: JournalState | None
) -> JournalStatus:
    """Return the relation of an id to its job's journal (None if the journal could not be read)."""
    if parse_claim_id(transactional_id) is not None:
        return JournalStatus.UNREFERENCED
    parts = parse_transactional_id(transactional_id)
    if parts is None:
        return JournalStatus.NOT_TIDEGATE
    if journal is None or journal.journal_id != parts.journal_id or journal.attempt < parts.attempt:
        return JournalStatus.UNKNOWN
    if any(named.transactional_id == transactional_id for named in journal.pending_commits):
        return JournalStatus.PENDING_COMMIT
    if parts.attempt == journal.attempt and journal.closed is None:
        return JournalStatus.CURRENT_ATTEMPT
    return JournalStatus.UNREFERENCED


def abort_outcome(before: Transaction, after: Transaction | None) -> AbortOutcome:
    """Return the outcome of the abort of `before`, from the present description of its id.

    A transaction is identified by producer id and start time. An abort may raise the epoch, but it
    keeps these two.
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


def owning_job(transactional_id: TransactionalId) -> JobName | None:
    """Return the job of tidegate that an id belongs to; None for an id of another application."""
    parts, claims = parse_transactional_id(transactional_id), parse_claim_id(transactional_id)
    if parts is not None:
        return parts.job
    return None if claims is None else claims[0]


def select_transactions(
    transactions: Sequence[Transaction],
    *,
    job: str | None,
    topic_partitions: Collection[TopicPartition] | None,
    older_than_ms: int,
    now_ms: int,
) -> list[Transaction]:
    """Return the transactions of a job that write to one of these partitions and that began at
    least `older_than_ms` ago. A filter that is None or 0 selects all.

    They are sorted by start time, the oldest first. Transactions that never began are last.
    """
    found = []
    for each in transactions:
        if job is not None and job != owning_job(each.transactional_id):
            continue
        if topic_partitions is not None and not set(topic_partitions).intersection(each.partitions):
            continue
        if older_than_ms and (each.start_ms < 0 or now_ms - each.start_ms < older_than_ms):
            continue
        found.append(each)
    return sorted(found, key=lambda each: (each.start_ms < 0, each.start_ms, each.transactional_id))
