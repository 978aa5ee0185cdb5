"""Inspects the transactions of a Kafka cluster and aborts one: the work behind `tidegate txn`.

The order of the requests makes a conclusion possible. The module asks the leaders of partitions
first, and then the coordinators. It asks the leaders again about transactions that no coordinator
lists. A transaction that was only ending during the first request is gone at the last one.
`commit/diagnosis.py` draws the conclusions. The callers read the journals of jobs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from tidegate.commit.diagnosis import (
    ENDING,
    MAX_TIMEOUT_MS,
    AbortOutcome,
    OpenReason,
    OpenTransaction,
    PartitionStatus,
    abort_outcome,
    classify,
)
from tidegate.errors import RefusedError
from tidegate.ports.clock import Clock
from tidegate.ports.inspection import (
    ProducerState,
    Progress,
    Transaction,
    TransactionInspector,
    no_progress,
)
from tidegate.stream_elements import TopicPartition

ABORT_S_MAX: Final = 30.0
"""Longest wait for transaction markers, in seconds. Brokers write markers within milliseconds, or
as soon as the partition has a leader again."""
ABORT_PAUSE_S: Final = 0.05

_WITHOUT_COORDINATOR: Final = frozenset(
    {OpenReason.HANGING, OpenReason.POSSIBLY_HANGING, OpenReason.UNKNOWN}
)


class OpenTransactionList(msgspec.Struct, frozen=True, kw_only=True):
    """The open transactions of each partition, ordered by their first offsets."""

    open_transactions: dict[TopicPartition, tuple[OpenTransaction, ...]]
    """Open transactions of every partition that could be queried."""
    unreachable: tuple[str, ...]
    """Brokers and partitions that could not be queried, one phrase each."""


class StuckReport(msgspec.Struct, frozen=True, kw_only=True):
    """The reasons why readers of some partitions wait."""

    partitions: tuple[PartitionStatus, ...]
    unreachable: tuple[str, ...]


def leaders_of(
    inspector: TransactionInspector, topic: str | None, partition: int | None
) -> dict[TopicPartition, int]:
    """Return the leaders of one partition, of a topic's partitions, or of all partitions.

    Raise RefusedError if the topic has no such partition.
    """
    leaders = inspector.partitions(topic)
    if topic is None or partition is None:
        return leaders
    topic_partition = TopicPartition(topic, partition)
    if topic_partition not in leaders:
        raise RefusedError(
            f"Topic {topic!r} has no partition {partition}: it has {len(leaders)}, numbered from "
            f"0 to {len(leaders) - 1}."
        )
    return {topic_partition: leaders[topic_partition]}


def open_transactions(
    inspector: TransactionInspector,
    leaders: Mapping[TopicPartition, int],
    clock: Clock,
    *,
    max_timeout_ms: int = MAX_TIMEOUT_MS,
    progress: Progress,
) -> OpenTransactionList:
    """Return every transaction that is open on these partitions, with the reason."""
    seen = inspector.open_transactions(leaders, progress=progress)
    producer_ids = {each.producer_id for row in seen.producers.values() for each in row}
    known: dict[int, Transaction] = {}
    unreachable = seen.unreachable
    complete = True
    if producer_ids:
        listed = inspector.find_transactions(producer_ids=producer_ids, progress=progress)
        known = {each.producer_id: each for each in listed.transactions}
        complete = not listed.unreachable
        unreachable += listed.unreachable
    now_ms = clock.now_ms()
    open_transactions = {
        topic_partition: tuple(
            classify(
                topic_partition,
                each,
                known,
                complete=complete,
                now_ms=now_ms,
                max_timeout_ms=max_timeout_ms,
            )
            for each in row
        )
        for topic_partition, row in seen.producers.items()
    }
    return OpenTransactionList(
        open_transactions=_without_ended(inspector, leaders, open_transactions),
        unreachable=unreachable,
    )


def hanging(
    inspector: TransactionInspector,
    leaders: Mapping[TopicPartition, int],
    clock: Clock,
    *,
    max_timeout_ms: int,
    progress: Progress,
) -> tuple[list[OpenTransaction], tuple[str, ...]]:
    """Return the hanging transactions, which no coordinator will end, and what was not queried.

    The transactions are ordered by topic, partition and first offset.
    """
    opened = open_transactions(
        inspector, leaders, clock, max_timeout_ms=max_timeout_ms, progress=progress
    )
    found = [
        each
        for row in opened.open_transactions.values()
        for each in row
        if each.cause is OpenReason.HANGING
    ]
    found.sort(key=lambda each: (each.topic_partition, each.producer.start_offset))
    return found, opened.unreachable


def why_stuck(
    inspector: TransactionInspector,
    leaders: Mapping[TopicPartition, int],
    clock: Clock,
    *,
    max_timeout_ms: int = MAX_TIMEOUT_MS,
    progress: Progress,
) -> StuckReport:
    """Return the transactions that hold back the last stable offset of each partition.

    The offsets are queried last. A transaction that has ended before that holds back nothing.
    """
    opened = open_transactions(
        inspector, leaders, clock, max_timeout_ms=max_timeout_ms, progress=progress
    )
    end_offsets = inspector.end_offsets(leaders)
    found = []
    for topic_partition in sorted(leaders):
        stable = end_offsets[topic_partition].stable if topic_partition in end_offsets else 0
        row = opened.open_transactions.get(topic_partition, ())
        found.append(
            PartitionStatus(
                topic_partition=topic_partition,
                leader=leaders[topic_partition],
                end_offsets=end_offsets.get(topic_partition),
                open_transactions=tuple(
                    each for each in row if each.producer.start_offset >= stable
                ),
            )
        )
    return StuckReport(partitions=tuple(found), unreachable=opened.unreachable)


def abort(
    inspector: TransactionInspector, transaction: Transaction, clock: Clock
) -> tuple[AbortOutcome, Transaction | None]:
    """Ask the coordinator to abort a transaction, and wait for the end of the abort.

    The coordinator fences the producer. Return the outcome and the last description of the
    transaction. The wait lasts at most ABORT_S_MAX.
    """
    inspector.abort(transaction)  # the description below shows the result
    end_s = clock.monotonic() + ABORT_S_MAX
    while True:
        after = inspector.describe(transaction.transactional_id)
        if after is None or after.state not in ENDING or clock.monotonic() > end_s:
            break
        clock.sleep(ABORT_PAUSE_S)
    return abort_outcome(transaction, after), after


def find_hanging(
    inspector: TransactionInspector,
    topic_partition: TopicPartition,
    start_offset: int,
    clock: Clock,
    *,
    max_timeout_ms: int,
) -> OpenTransaction:
    """Return the transaction that begins at this offset, if it hangs.

    Otherwise raise RefusedError, which says what the transaction is. A marker by hand ends the
    transaction on one partition without its coordinator. If the coordinator will still end the
    transaction itself, such a marker would break its atomicity.
    """
    leaders = leaders_of(inspector, topic_partition.topic, topic_partition.partition)
    opened = open_transactions(
        inspector, leaders, clock, max_timeout_ms=max_timeout_ms, progress=no_progress
    )
    where = f"{topic_partition.topic}-{topic_partition.partition}"
    if topic_partition not in opened.open_transactions:
        raise RefusedError(
            f"Nothing was aborted: {'; '.join(opened.unreachable)}. Try again when it answers."
        )
    row = {each.producer.start_offset: each for each in opened.open_transactions[topic_partition]}
    found = row.get(start_offset)
    if found is None:
        others = ", ".join(str(offset) for offset in row) or "none"
        raise RefusedError(
            f"Nothing was aborted: no transaction that is open on {where} begins at offset "
            f"{start_offset}. Those that are begin at: {others}."
        )
    if found.cause is OpenReason.HANGING:
        return found
    if found.cause is OpenReason.POSSIBLY_HANGING:
        raise RefusedError(
            f"Nothing was aborted: the transaction at offset {start_offset} of {where} is known to "
            f"no coordinator, but its last record is only {found.age_ms // 1000} s old: its end "
            f"may be on its way. Wait until it is {max_timeout_ms // 1000} s old, or lower "
            "--max-transaction-timeout to what the brokers' transaction.max.timeout.ms is."
        )
    if found.cause is OpenReason.UNKNOWN:
        raise RefusedError(
            f"Nothing was aborted: the coordinator of the transaction at offset {start_offset} of "
            f"{where} may be one that did not answer ({'; '.join(opened.unreachable)}). Try again "
            "when all do."
        )
    name = "" if found.transaction is None else found.transaction.transactional_id
    raise RefusedError(
        f"Nothing was aborted: the transaction at offset {start_offset} of {where} does not hang. "
        f"Its coordinator knows it as {name}: abort it with: tidegate txn abort {name}"
    )


def end_hanging(inspector: TransactionInspector, found: OpenTransaction, clock: Clock) -> bool:
    """Write the abort marker. Return whether the transaction has then ended on the partition."""
    inspector.write_abort_marker(found.topic_partition, found.producer)
    leaders = leaders_of(inspector, found.topic_partition.topic, found.topic_partition.partition)
    end_s = clock.monotonic() + ABORT_S_MAX
    while clock.monotonic() <= end_s:
        row = inspector.open_transactions(leaders, progress=no_progress).producers.get(
            found.topic_partition
        )
        if row is not None and _key(found.producer) not in {_key(each) for each in row}:
            return True
        clock.sleep(ABORT_PAUSE_S)
    return False


def _without_ended(
    inspector: TransactionInspector,
    leaders: Mapping[TopicPartition, int],
    open_transactions: dict[TopicPartition, tuple[OpenTransaction, ...]],
) -> dict[TopicPartition, tuple[OpenTransaction, ...]]:
    """Remove transactions that had no coordinator only because they ended between two queries."""
    doubtful = {
        topic_partition: leaders[topic_partition]
        for topic_partition, row in open_transactions.items()
        if any(each.cause in _WITHOUT_COORDINATOR for each in row)
    }
    if not doubtful:
        return open_transactions
    again = inspector.open_transactions(doubtful, progress=no_progress).producers
    still = {
        (topic_partition, _key(each))
        for topic_partition, producers in again.items()
        for each in producers
    }
    return {
        topic_partition: tuple(
            each
            for each in row
            if each.cause not in _WITHOUT_COORDINATOR
            or topic_partition not in again
            or (topic_partition, _key(each.producer)) in still
        )
        for topic_partition, row in open_transactions.items()
    }


def _key(producer: ProducerState) -> tuple[int, int]:
    return producer.producer_id, producer.start_offset
