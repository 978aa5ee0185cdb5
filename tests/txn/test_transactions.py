"""How the transactions of a cluster are looked at: in which order, and what is concluded where
something ends meanwhile, or does not answer.

Method: an inspector that answers from tables, one after the other, and keeps what it was asked.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec
import pytest

from tidegate.commit.diagnosis import MAX_TIMEOUT_MS, AbortOutcome, OpenReason
from tidegate.errors import RefusedError
from tidegate.ids import TransactionalId
from tidegate.ports.inspection import (
    AbortResult,
    ClusterTransactions,
    OpenTransactions,
    PartitionEndOffsets,
    ProducerState,
    Progress,
    Transaction,
    TransactionInspector,
    no_progress,
)
from tidegate.ports.kafka import TransactionState
from tidegate.stream_elements import TopicPartition
from tidegate.txn import transactions as tool

NOW = 10_000_000_000
HERE, THERE = TopicPartition("orders", 0), TopicPartition("orders", 1)


def producer(id_: int, start: int, age_ms: int = MAX_TIMEOUT_MS + 1) -> ProducerState:
    return ProducerState(
        producer_id=id_, epoch=0, coordinator_epoch=-1, last_ms=NOW - age_ms, start_offset=start
    )


def transaction(id_: int, **fields: Any) -> Transaction:
    made = Transaction(
        transactional_id=TransactionalId(f"app-{id_}"),
        coordinator=1,
        state=TransactionState.ONGOING,
        producer_id=id_,
        epoch=0,
        start_ms=NOW - 1_000,
        timeout_ms=60_000,
        partitions=(HERE,),
    )
    return msgspec.structs.replace(made, **fields)


class Tables:
    """Answers in turn, the last of each for ever."""

    def __init__(
        self,
        *looks: Mapping[TopicPartition, Collection[ProducerState]],
        known: Collection[Transaction] = (),
        end_offsets: Mapping[TopicPartition, PartitionEndOffsets] | None = None,
        unreachable: tuple[str, ...] = (),
        described: Collection[Transaction | None] = (),
    ) -> None:
        self.looks, self.known = list(looks), known
        self.table, self.silent = dict(end_offsets or {}), unreachable
        self.described = list(described)
        self.asked: list[str] = []

    def cluster_id(self) -> str:
        return "c"

    def brokers(self) -> dict[int, str]:
        return {1: "h:1"}

    def find_transactions(
        self,
        *,
        prefix: str = "",
        states: Collection[TransactionState] = (),
        producer_ids: Collection[int] = (),
        progress: Progress,
    ) -> ClusterTransactions:
        assert not states, "an id that has gone on is found in any state"
        self.asked.append("survey")
        found = tuple(each for each in self.known if each.producer_id in producer_ids)
        return ClusterTransactions(transactions=found, unreachable=self.silent)

    def describe(self, transactional_id: TransactionalId) -> Transaction | None:
        self.asked.append("describe")
        return self.described.pop(0) if len(self.described) > 1 else self.described[0]

    def partitions(self, topic: str | None = None) -> dict[TopicPartition, int]:
        return {HERE: 1, THERE: 2}

    def open_transactions(
        self, leaders: Mapping[TopicPartition, int], *, progress: Progress
    ) -> OpenTransactions:
        self.asked.append("open")
        look = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
        found = {
            topic_partition: tuple(row)
            for topic_partition, row in look.items()
            if topic_partition in leaders
        }
        silent = tuple(f"{each.topic}-{each.partition}" for each in leaders.keys() - look.keys())
        return OpenTransactions(producers=found, unreachable=silent)

    def end_offsets(
        self, leaders: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, PartitionEndOffsets]:
        self.asked.append("ends")
        return {
            topic_partition: end_offsets
            for topic_partition, end_offsets in self.table.items()
            if topic_partition in leaders
        }

    def abort(self, transaction: Transaction) -> AbortResult:
        self.asked.append("abort")
        return AbortResult.ACCEPTED

    def write_abort_marker(self, topic_partition: TopicPartition, producer: ProducerState) -> None:
        self.asked.append(f"marker {topic_partition.partition} {producer.producer_id}")

    def close(self) -> None:
        pass


class StillClock:
    """A clock that advances only during a sleep."""

    def __init__(self) -> None:
        self.slept_s = 0.0

    def monotonic(self) -> float:
        return self.slept_s

    def now_ms(self) -> int:
        return NOW

    def sleep(self, seconds: float) -> None:
        self.slept_s += seconds


def causes(inspector: TransactionInspector) -> list[OpenReason]:
    opened = tool.open_transactions(inspector, {HERE: 1}, StillClock(), progress=no_progress)
    return [each.cause for each in opened.open_transactions.get(HERE, ())]


def test_unclaimed_transaction_is_looked_up_at_leaders_then_coordinators_then_leaders() -> None:
    tables = Tables({HERE: [producer(7, 0)]})
    assert causes(tables) == [OpenReason.HANGING]
    assert tables.asked == ["open", "survey", "open"]


def test_leaders_are_not_asked_again_if_a_coordinator_knows_every_transaction() -> None:
    tables = Tables({HERE: [producer(7, 0)]}, known=[transaction(7)])
    assert causes(tables) == [OpenReason.OPEN]
    assert tables.asked == ["open", "survey"]


def test_coordinators_are_not_asked_if_no_transaction_is_open() -> None:
    tables = Tables({HERE: []})
    assert causes(tables) == []
    assert tables.asked == ["open"]


def test_transaction_that_ended_before_the_second_look_is_not_hanging() -> None:
    tables = Tables({HERE: [producer(7, 0), producer(8, 5)]}, {HERE: [producer(8, 5)]})
    assert causes(tables) == [OpenReason.HANGING]


def test_newer_transaction_of_the_same_producer_is_not_hanging() -> None:
    tables = Tables({HERE: [producer(7, 0)]}, {HERE: [producer(7, 9)]})
    assert causes(tables) == []


def test_transaction_stays_hanging_if_the_leader_does_not_answer_the_second_look() -> None:
    tables = Tables({HERE: [producer(7, 0)]}, {})
    assert causes(tables) == [OpenReason.HANGING]


def test_no_transaction_is_called_hanging_while_a_coordinator_is_unreachable() -> None:
    tables = Tables(
        {HERE: [producer(7, 0), producer(8, 5)]}, known=[transaction(8)], unreachable=("b",)
    )
    assert causes(tables) == [OpenReason.UNKNOWN, OpenReason.OPEN]
    found, unreachable = tool.hanging(
        tables, {HERE: 1}, StillClock(), max_timeout_ms=0, progress=no_progress
    )
    assert (found, unreachable) == ([], ("b",))


def test_hanging_transactions_are_sorted_by_partition_and_offset() -> None:
    tables = Tables({THERE: [producer(9, 3)], HERE: [producer(8, 2), producer(7, 5)]})
    found, _ = tool.hanging(
        tables, {HERE: 1, THERE: 2}, StillClock(), max_timeout_ms=0, progress=no_progress
    )
    assert [(each.topic_partition, each.producer.start_offset) for each in found] == [
        (HERE, 2),
        (HERE, 5),
        (THERE, 3),
    ]


class TestWhyStuck:
    def report(self, tables: Tables) -> tool.StuckReport:
        return tool.why_stuck(tables, {HERE: 1, THERE: 2}, StillClock(), progress=no_progress)

    def test_why_stuck_lists_open_transactions_from_the_stable_offset_on(self) -> None:
        tables = Tables(
            {HERE: [producer(7, 4), producer(8, 6)], THERE: []},
            known=[transaction(7), transaction(8)],
            end_offsets={
                HERE: PartitionEndOffsets(stable=4, end=20),
                THERE: PartitionEndOffsets(stable=3, end=3),
            },
        )
        here, there = self.report(tables).partitions
        assert (here.waiting, there.waiting) == (16, 0)
        assert [each.producer.producer_id for each in here.open_transactions] == [7, 8]
        assert there.open_transactions == ()
        assert tables.asked[-1] == "ends"

    def test_why_stuck_omits_transactions_below_the_stable_offset(self) -> None:
        tables = Tables(
            {HERE: [producer(7, 4), producer(8, 6)], THERE: []},
            known=[transaction(7), transaction(8)],
            end_offsets={
                HERE: PartitionEndOffsets(stable=6, end=20),
                THERE: PartitionEndOffsets(stable=3, end=3),
            },
        )
        here, _ = self.report(tables).partitions
        assert [each.producer.producer_id for each in here.open_transactions] == [8]

    def test_why_stuck_reports_unreachable_partitions(self) -> None:
        tables = Tables({HERE: []}, end_offsets={HERE: PartitionEndOffsets(stable=3, end=3)})
        report = self.report(tables)
        assert report.unreachable == ("orders-1",)
        assert [each.end_offsets for each in report.partitions] == [
            PartitionEndOffsets(stable=3, end=3),
            None,
        ]


class TestAbort:
    def test_abort_waits_until_the_markers_are_written(self) -> None:
        aborting = transaction(7, state=TransactionState.PREPARE_ABORT, epoch=1)
        done = transaction(7, state=TransactionState.COMPLETE_ABORT, epoch=1)
        tables = Tables({}, described=[aborting, aborting, done])
        clock = StillClock()
        assert tool.abort(tables, transaction(7), clock) == (AbortOutcome.ABORTED, done)
        assert tables.asked == ["abort", *["describe"] * 3]
        assert clock.slept_s == pytest.approx(2 * tool.ABORT_PAUSE_S)

    def test_abort_stops_waiting_after_its_time_limit(self) -> None:
        aborting = transaction(7, state=TransactionState.PREPARE_ABORT, epoch=1)
        clock = StillClock()
        outcome, _ = tool.abort(Tables({}, described=[aborting]), transaction(7), clock)
        assert outcome is AbortOutcome.ABORTING
        assert clock.slept_s <= tool.ABORT_S_MAX + 1


def find(tables: Tables, offset: int = 0, max_timeout_ms: int = MAX_TIMEOUT_MS) -> Any:
    return tool.find_hanging(tables, HERE, offset, StillClock(), max_timeout_ms=max_timeout_ms)


def test_find_hanging_returns_the_hanging_transaction() -> None:
    found = find(Tables({HERE: [producer(7, 0)]}))
    assert (found.topic_partition, found.producer.producer_id) == (HERE, 7)


@pytest.mark.parametrize(
    ("tables", "offset", "said"),
    [
        (lambda: Tables({HERE: [producer(7, 4)]}), 0, "begin at: 4"),
        (lambda: Tables({HERE: []}), 0, "begin at: none"),
        (lambda: Tables({HERE: [producer(7, 0, age_ms=5_000)]}), 0, "only 5 s old"),
        (lambda: Tables({HERE: [producer(7, 0)]}, unreachable=("broker 2",)), 0, "broker 2"),
        (lambda: Tables({HERE: [producer(7, 0)]}, known=[transaction(7)]), 0, "abort app-7"),
        (
            lambda: Tables(
                {HERE: [producer(7, 0)]},
                known=[transaction(7, state=TransactionState.PREPARE_COMMIT)],
            ),
            0,
            "does not hang",
        ),
        (lambda: Tables({}), 0, "orders-0"),
    ],
)
def test_find_hanging_refuses_a_transaction_that_does_not_hang(
    tables: Callable[[], Tables], offset: int, said: str
) -> None:
    made = tables()
    with pytest.raises(RefusedError, match="Nothing was aborted") as refused:
        find(made, offset)
    assert said in str(refused.value)
    assert not [each for each in made.asked if each.startswith("marker")]


def test_leaders_of_refuses_a_partition_that_does_not_exist() -> None:
    with pytest.raises(RefusedError, match="no partition 5: it has 2"):
        tool.leaders_of(Tables({}), "orders", 5)
    assert tool.leaders_of(Tables({}), "orders", 1) == {THERE: 2}
    assert tool.leaders_of(Tables({}), None, None) == {HERE: 1, THERE: 2}


def test_end_hanging_checks_whether_the_marker_ended_the_transaction() -> None:
    held = producer(7, 0)
    still = Tables({HERE: [held]})
    found = find(still)
    clock = StillClock()
    assert not tool.end_hanging(still, found, clock)
    assert clock.slept_s <= tool.ABORT_S_MAX + 1
    gone = Tables({HERE: [held]}, {}, {HERE: []})
    assert tool.end_hanging(gone, found, StillClock())
    assert gone.asked == ["marker 0 7", "open", "open", "open"]
