"""What the fake Kafka does when requests are late, lost or refused, and processes stop.

No broker shows these at will; what they must lead to follows from the contract: what was sent may
arrive or not, once or twice, late, and after its sender's death.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from tests.drivers.kafka.clocks import SleepingClock
from tests.simulator.kafka.cluster import FakeKafka, FakeProcess
from tests.simulator.kafka.coordinator import EPOCH_LAST
from tests.simulator.kafka.faults import (
    PROCEED,
    Api,
    Call,
    Code,
    LostPart,
    Verdict,
    answer_lost,
    refused,
    unreachable,
)
from tests.simulator.kafka.log import Marker
from tidegate.errors import (
    InternalError,
    KafkaError,
    KafkaUnavailableError,
    TransactionError,
)
from tidegate.ids import TransactionalId
from tidegate.ports.kafka import EndTxnResult, Producer, TransactionDescription, TransactionState
from tidegate.stream_elements import TopicPartition

NAME = TransactionalId("tidegate.job.0")
TOPIC_PARTITION = TopicPartition("out", 0)
DAY_S = 86_400.0


@dataclass
class Script:
    """Verdicts by the kind of request, taken in order; without one a request proceeds."""

    planned: dict[Api, list[Verdict]] = field(default_factory=dict)
    always: dict[Api, Verdict] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)

    def decide(self, call: Call) -> Verdict:
        self.calls.append(call)
        planned = self.planned.get(call.api)
        if planned:
            return planned.pop(0)
        return self.always.get(call.api, PROCEED)


class World:
    """A cluster with one topic, a process that writes and one that controls."""

    def __init__(self, partitions: int = 1) -> None:
        self.clock, self.script = SleepingClock(), Script()
        self.kafka = FakeKafka(self.clock, faults=self.script)
        self.kafka.create_topic("out", partitions)
        self.writer = self.process("writer")
        self.control = self.process("control")
        self.log = self.control.transaction_admin({})
        self.admin = self.control.kafka_admin({})

    def process(self, name: str) -> FakeProcess:
        return self.kafka.process(name, self.clock)

    def begun(self, timeout_ms: int = 60_000) -> Producer:
        producer = self.writer.producer({}, NAME, timeout_ms)
        producer.begin()
        return producer

    def prepared(self, *values: bytes) -> Producer:
        producer = self.begun()
        producer.send("out", values or (b"a",), None)
        producer.flush(30)
        return producer

    def facts(self) -> TransactionDescription:
        found = self.log.describe(NAME)
        assert found is not None
        return found

    def commit(self) -> EndTxnResult:
        facts = self.facts()
        return self.log.end(NAME, facts.producer_id, facts.epoch, commit=True)

    def passes(self, seconds: float) -> None:
        self.clock.sleep(seconds)
        self.kafka.run_due()

    def written(self, partition: int = 0) -> list[bytes | bool | None]:
        """The content of the log: values, and for each marker whether it commits."""
        self.kafka.run_due()
        return [
            each.commit if isinstance(each, Marker) else each.value()
            for each in self.kafka.log(TopicPartition("out", partition)).everything()
        ]

    def visible(self, partition: int = 0) -> list[bytes | None]:
        self.kafka.run_due()
        found, _ = self.kafka.log(TopicPartition("out", partition)).read(0, 1000)
        return [each.value() for each in found]


@pytest.fixture
def world() -> World:
    return World()


class TestEnding:
    def test_end_takes_effect_if_only_its_answer_is_lost(self, world: World) -> None:
        world.prepared()
        world.script.planned[Api.END_TXN] = [answer_lost(noticed_s=3.0)]
        started = world.clock.now_s
        assert world.commit() is EndTxnResult.RETRY
        assert world.clock.now_s == started + 3.0
        assert world.visible() == [b"a"]
        assert world.commit() is EndTxnResult.ACCEPTED

    def test_end_has_no_effect_if_its_request_is_lost_or_refused(self, world: World) -> None:
        world.prepared()
        world.script.planned[Api.END_TXN] = [unreachable(1.0), refused(Code.NOT_COORDINATOR)]
        assert world.commit() is EndTxnResult.RETRY
        assert world.commit() is EndTxnResult.RETRY
        assert world.facts().state is TransactionState.ONGOING
        assert world.commit() is EndTxnResult.ACCEPTED

    def test_late_end_takes_effect_after_its_sender_gave_up_and_died(self, world: World) -> None:
        world.prepared()
        world.script.planned[Api.END_TXN] = [Verdict(request_s=15.0)]
        started = world.clock.now_s
        assert world.commit() is EndTxnResult.RETRY
        assert world.clock.now_s == started + 10.0
        assert world.facts().state is TransactionState.ONGOING
        world.control.kill()
        world.passes(6.0)
        assert world.visible() == [b"a"]

    def test_late_end_has_no_effect_if_it_was_dropped_with_its_sender(self, world: World) -> None:
        world.prepared()
        world.script.planned[Api.END_TXN] = [Verdict(request_s=15.0)]
        world.commit()
        world.control.kill(drop_in_flight=True)
        world.passes(6.0)
        assert world.visible() == []

    def test_commit_decision_stands_while_markers_arrive_one_by_one(self) -> None:
        world = World(2)
        producer = world.begun()
        producer.send("out", [b"a", b"b"], None)
        producer.flush(30)
        world.script.planned[Api.WRITE_MARKERS] = [PROCEED, Verdict(request_s=5.0)]
        assert world.commit() is EndTxnResult.ACCEPTED
        world.passes(1.0)
        assert world.facts().state is TransactionState.PREPARE_COMMIT
        assert sorted([len(world.visible(0)), len(world.visible(1))]) == [0, 1]
        facts = world.facts()
        of = (facts.producer_id, facts.epoch)
        assert world.log.end(NAME, *of, commit=True) is EndTxnResult.RETRY
        assert world.log.end(NAME, *of, commit=False) is EndTxnResult.REFUSED
        world.log.fence(NAME)  # waits until the markers are written
        assert world.facts().state is TransactionState.EMPTY
        assert len(world.visible(0)) == len(world.visible(1)) == 1

    def test_a_marker_whose_answer_is_lost_is_written_again(self, world: World) -> None:
        world.prepared()
        world.script.planned[Api.WRITE_MARKERS] = [answer_lost(), unreachable(), PROCEED]
        world.commit()
        world.passes(1.0)
        assert world.facts().state is TransactionState.COMPLETE_COMMIT
        assert world.written() == [b"a", True, True]
        assert world.visible() == [b"a"]


class TestAsking:
    @pytest.mark.parametrize(
        "code",
        [
            Code.NOT_COORDINATOR,
            Code.COORDINATOR_LOAD_IN_PROGRESS,
            Code.COORDINATOR_NOT_AVAILABLE,
        ],
    )
    def test_request_to_an_unavailable_coordinator_is_retried(
        self, world: World, code: Code
    ) -> None:
        world.prepared()
        world.script.planned[Api.DESCRIBE_TRANSACTIONS] = [refused(code)] * 3
        world.script.planned[Api.LIST_TRANSACTIONS] = [unreachable(0.1), refused(code)]
        assert world.facts().state is TransactionState.ONGOING
        assert world.log.list("tidegate.") == {NAME: TransactionState.ONGOING}

    @pytest.mark.parametrize(
        ("ask", "deadline_s"),
        [
            (lambda world: world.log.describe(NAME), 30.0),
            (lambda world: world.log.fence(NAME), 30.0),
            (lambda world: world.log.list(""), 30.0),
            (lambda world: world.log.cluster_id(), 30.0),
            (lambda world: world.admin.partitions("out"), 9.0),
            (lambda world: world.admin.latest([TOPIC_PARTITION]), 9.0),
            (lambda world: world.admin.committed("group", [TOPIC_PARTITION]), 9.0),
            (lambda world: world.writer.producer({}, NAME, 1000), 60.0),
        ],
    )
    def test_outage_longer_than_the_timeout_raises_kafka_unavailable_error(
        self, world: World, ask: Callable[[World], object], deadline_s: float
    ) -> None:
        world.script.always = dict.fromkeys(Api, unreachable(0.2))
        started = world.clock.now_s
        with pytest.raises(KafkaUnavailableError):
            ask(world)
        assert deadline_s - 1 < world.clock.now_s - started < deadline_s + 1

    def test_a_fence_whose_answer_is_lost_is_made_again(self, world: World) -> None:
        world.prepared()
        epoch = world.facts().epoch
        world.script.planned[Api.INIT_PRODUCER_ID] = [answer_lost(), answer_lost(0.1)]
        world.log.fence(NAME)
        assert world.facts().state is TransactionState.EMPTY
        assert world.facts().epoch == epoch + 3
        assert world.written() == [b"a", False]


class TestProducing:
    def test_a_batch_that_arrives_twice_is_taken_once(self, world: World) -> None:
        world.script.planned[Api.PRODUCE] = [answer_lost(noticed_s=0.5), answer_lost()]
        world.prepared(b"a", b"b")
        assert world.written() == [b"a", b"b"]

    def test_late_duplicate_of_a_batch_is_not_written_again(self, world: World) -> None:
        producer = world.begun()
        world.script.planned[Api.PRODUCE] = [Verdict(request_s=20.0)]
        producer.send("out", [b"a"], None)
        producer.flush(30)
        producer.send("out", [b"b"], None)
        producer.flush(30)
        world.passes(30.0)
        assert world.written() == [b"a", b"b"]

    def test_order_holds_while_a_batch_is_sent_again(self, world: World) -> None:
        producer = world.begun()
        world.script.planned[Api.PRODUCE] = [unreachable(0.5), refused(Code.NOT_LEADER_OR_FOLLOWER)]
        world.script.planned[Api.ADD_PARTITIONS] = [answer_lost(), unreachable()]
        for number in range(10):
            producer.send("out", [b"%d" % number], None)
            world.passes(0.05)
        producer.flush(30)
        assert world.written() == [b"%d" % number for number in range(10)]

    def test_producer_fails_permanently_if_a_record_is_not_delivered_in_time(
        self, world: World
    ) -> None:
        for api in (Api.ADD_PARTITIONS, Api.PRODUCE):
            world.script.always = {api: unreachable(0.1)}
            producer = world.begun(timeout_ms=5_000)
            producer.send("out", [b"a"], None)
            with pytest.raises(TransactionError, match="MSG_TIMED_OUT"):
                producer.flush(60)
            world.script.always = {}
            with pytest.raises(TransactionError, match="MSG_TIMED_OUT"):
                producer.flush(60)

    def test_producer_fails_permanently_after_a_flush_timeout(self, world: World) -> None:
        producer = world.begun()
        world.script.planned[Api.PRODUCE] = [Verdict(request_s=5.0)]
        producer.send("out", [b"a"], None)
        started = world.clock.now_s
        with pytest.raises(TransactionError, match="1 record acknowledged"):
            producer.flush(2.0)
        assert world.clock.now_s == started + 2.0
        world.passes(5.0)
        assert world.written() == [b"a"]
        with pytest.raises(TransactionError, match="1 record acknowledged"):
            producer.flush(2.0)

    def test_late_batch_of_a_fenced_producer_is_not_written(self, world: World) -> None:
        producer = world.prepared(b"a")
        world.script.planned[Api.PRODUCE] = [Verdict(request_s=1.0)]
        producer.send("out", [b"late"], None)
        world.passes(0.5)
        world.log.fence(NAME)
        successor = world.process("successor").producer({}, NAME, 60_000)
        successor.begin()
        successor.send("out", [b"b"], None)
        successor.flush(30)
        world.passes(2.0)
        assert world.written() == [b"a", False, b"b"]
        with pytest.raises(TransactionError, match="fenced"):
            producer.flush(1)

    def test_late_first_batch_of_a_fenced_producer_does_not_join_its_successors_transaction(
        self, world: World
    ) -> None:
        """The zombie's first batch is in order for a leader. Only the epoch distinguishes it from
        the successor's batch.
        """
        zombie = world.begun()
        world.script.planned[Api.PRODUCE] = [Verdict(request_s=1.0)]
        zombie.send("out", [b"late"], None)
        world.passes(0.5)
        world.log.fence(NAME)
        successor = world.process("successor").producer({}, NAME, 60_000)
        successor.begin()
        successor.send("out", [b"b"], None)
        successor.flush(0.1)
        world.passes(2.0)
        assert world.commit() is EndTxnResult.ACCEPTED
        world.passes(1.0)
        assert world.visible() == [b"b"]

    def test_batch_that_arrives_before_the_commit_marker_belongs_to_the_transaction(
        self, world: World
    ) -> None:
        """Real brokers do the same: leaders ask the coordinator for the first batch only."""
        producer = world.prepared(b"a")
        world.script.planned[Api.WRITE_MARKERS] = [Verdict(request_s=2.0)]
        assert world.commit() is EndTxnResult.ACCEPTED
        producer.send("out", [b"late"], None)
        producer.flush(1)
        world.passes(3.0)
        assert world.visible() == [b"a", b"late"]

    def test_send_waits_while_the_producer_queue_is_full(self, world: World) -> None:
        producer = world.writer.producer({"queue.buffering.max.messages": "2"}, None, 0)
        world.script.planned[Api.PRODUCE] = [Verdict(answer_s=3.0)]
        started = world.clock.now_s
        producer.send("out", [b"%d" % number for number in range(6)], None)
        assert world.clock.now_s - started > 2.9
        producer.flush(1)
        assert world.written() == [b"%d" % number for number in range(6)]


class TestStopping:
    def test_transaction_of_a_killed_process_stays_open_until_its_timeout(
        self, world: World
    ) -> None:
        world.prepared()
        world.writer.kill()
        world.passes(60.0)
        assert world.facts().state is TransactionState.ONGOING
        world.passes(10.0)
        assert world.facts().state is TransactionState.PREPARE_ABORT
        world.passes(0.1)
        assert world.facts().state is TransactionState.COMPLETE_ABORT

    @pytest.mark.parametrize(("drops", "written"), [(False, [b"a"]), (True, [])])
    def test_in_flight_batch_of_a_killed_process_arrives_unless_dropped(
        self, world: World, drops: bool, written: list[bytes]
    ) -> None:
        producer = world.begun()
        world.script.planned[Api.PRODUCE] = [Verdict(request_s=1.0)]
        producer.send("out", [b"a"], None)
        world.passes(0.01)
        producer.send("out", [b"b"], None)
        world.writer.kill(drop_in_flight=drops)
        world.passes(30.0)
        assert world.written() == written, "and what was only queued never does"

    def test_producer_sends_in_the_background_without_a_flush(self, world: World) -> None:
        producer = world.begun()
        producer.send("out", [b"a"], None)
        assert world.written() == []
        world.passes(0.01)
        assert world.written() == [b"a"]

    def test_a_frozen_process_sends_nothing_until_it_wakes(self, world: World) -> None:
        producer = world.begun()
        producer.send("out", [b"a"], None)
        world.writer.freeze()
        world.passes(10.0)
        assert world.written() == []
        world.writer.thaw()
        assert world.written() == [b"a"]

    def test_request_of_a_killed_process_raises_internal_error(self, world: World) -> None:
        world.control.kill()
        with pytest.raises(InternalError, match="control"):
            world.log.describe(NAME)


class TestIds:
    def test_idle_transactional_id_is_forgotten_after_a_week(self, world: World) -> None:
        world.prepared()
        facts = world.facts()
        world.commit()
        world.passes(7 * DAY_S)
        assert world.facts().state is TransactionState.COMPLETE_COMMIT
        world.passes(1.0)
        assert world.log.describe(NAME) is None
        assert world.log.list("") == {}
        outcome = world.log.end(NAME, facts.producer_id, facts.epoch, commit=True)
        assert outcome is EndTxnResult.REFUSED
        world.log.fence(NAME)
        assert world.facts().producer_id != facts.producer_id

    def test_transactional_id_with_an_open_transaction_is_not_forgotten(self) -> None:
        clock = SleepingClock()
        kafka = FakeKafka(clock, max_timeout_ms=2**31 - 1)
        kafka.create_topic("out", 1)
        process = kafka.process("p", clock)
        producer = process.producer({}, NAME, 2**31 - 1)
        producer.begin()
        producer.send("out", [b"a"], None)
        producer.flush(30)
        clock.sleep(20 * DAY_S)
        assert process.transaction_admin({}).list("") == {NAME: TransactionState.ONGOING}

    def test_new_producer_id_is_assigned_when_the_epochs_are_used_up(self, world: World) -> None:
        world.log.fence(NAME)
        before = world.facts().producer_id
        world.kafka.coordinator.set_epoch(NAME, EPOCH_LAST - 1)
        world.log.fence(NAME)
        assert (world.facts().producer_id, world.facts().epoch) == (before, EPOCH_LAST)
        world.log.fence(NAME)
        assert world.facts().producer_id > before
        assert world.facts().epoch == 0
        again = world.facts().producer_id
        world.kafka.coordinator.set_epoch(NAME, EPOCH_LAST - 1)
        world.prepared()
        assert (world.facts().producer_id, world.facts().epoch) == (again, EPOCH_LAST)
        world.log.fence(NAME)
        assert world.facts().producer_id > again
        assert world.facts().epoch == 0
        assert world.visible() == []

    def test_transaction_timeouts_are_checked_every_ten_seconds(self, world: World) -> None:
        world.passes(3.0)
        producer = world.begun(timeout_ms=1_000)
        producer.send("out", [b"a"], None)
        producer.flush(30)
        world.passes(6.9)
        assert world.facts().state is TransactionState.ONGOING
        world.passes(0.2)
        assert world.facts().state is TransactionState.COMPLETE_ABORT


class TestReading:
    def test_a_late_fetch_holds_back_its_own_partition_only(self) -> None:
        world = World(2)
        plain = world.writer.producer({}, None, 0)
        plain.send("out", [b"0", b"1"], None)
        plain.flush(30)
        reader = world.control.partition_reader({}, "group", with_end_of_partition=False)
        reader.assign({TopicPartition("out", 0): 0, TopicPartition("out", 1): 0})
        world.script.planned[Api.FETCH] = [Verdict(answer_s=5.0)]
        (first,) = reader.poll(10, 1.0)
        assert reader.poll(10, 1.0) == []
        (second,) = reader.poll(10, 10.0)
        assert {first.topic_partition.partition, second.topic_partition.partition} == {0, 1}

    def test_a_fetch_without_an_answer_is_made_again(self, world: World) -> None:
        plain = world.writer.producer({}, None, 0)
        plain.send("out", [b"a"], None)
        plain.flush(30)
        reader = world.control.partition_reader({}, "group", with_end_of_partition=False)
        reader.assign({TOPIC_PARTITION: 0})
        world.script.planned[Api.FETCH] = [unreachable(2.0), refused(Code.NOT_LEADER_OR_FOLLOWER)]
        assert reader.poll(10, 1.0) == []
        (run,) = reader.poll(10, 5.0)
        assert [each.value() for each in run.messages] == [b"a"]

    def test_read_below_the_log_start_raises_kafka_error(self, world: World) -> None:
        plain = world.writer.producer({}, None, 0)
        plain.send("out", [b"a", b"b"], None)
        plain.flush(30)
        world.kafka.log(TOPIC_PARTITION).start = 1
        assert world.admin.earliest([TOPIC_PARTITION]) == {TOPIC_PARTITION: 1}
        reader = world.control.partition_reader({}, "group", with_end_of_partition=False)
        reader.assign({TOPIC_PARTITION: 0})
        with pytest.raises(KafkaError, match=r"out-0 .* offset 0"):
            reader.poll(10, 1.0)

    def test_failed_offset_commit_raises_no_error(self, world: World) -> None:
        reader = world.control.partition_reader({}, "group", with_end_of_partition=False)
        world.script.planned[Api.OFFSET_COMMIT] = [unreachable(), Verdict(request_s=1.0)]
        reader.commit({TOPIC_PARTITION: 5})
        assert world.admin.committed("group", [TOPIC_PARTITION]) == {TOPIC_PARTITION: None}
        reader.commit({TOPIC_PARTITION: 6})
        world.passes(1.0)
        assert world.admin.committed("group", [TOPIC_PARTITION]) == {TOPIC_PARTITION: 6}


def test_fault_hook_sees_every_request_with_its_process_and_transactional_id(world: World) -> None:
    world.prepared()
    world.commit()
    world.passes(1.0)
    assert [(call.api, call.process) for call in world.script.calls] == [
        (Api.INIT_PRODUCER_ID, "writer"),
        (Api.ADD_PARTITIONS, "writer"),
        (Api.PRODUCE, "writer"),
        (Api.DESCRIBE_TRANSACTIONS, "control"),
        (Api.END_TXN, "control"),
        (Api.WRITE_MARKERS, ""),
    ]
    assert {call.transactional_id for call in world.script.calls} == {NAME}
    assert world.script.calls[2].topic_partition == TOPIC_PARTITION


def test_lost_marker_is_written_later(world: World) -> None:
    world.prepared()
    world.script.planned[Api.WRITE_MARKERS] = [Verdict(request_s=1.0, lost=LostPart.REQUEST)]
    world.commit()
    world.passes(1.0)
    assert world.written() == [b"a"]
    world.passes(1.0)
    assert world.written() == [b"a", True]
