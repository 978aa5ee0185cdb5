"""The contract of `ports/kafka.py` and of `KafkaAdmin`: what every driver of Kafka does, real or
fake.

A test class inherits it and gives a `cluster`. No test of its own runs from here.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import pytest

from tidegate.drivers.clock import SystemClock
from tidegate.errors import KafkaError, RecordTooLargeError, RefusedError, TransactionError
from tidegate.ids import TransactionalId
from tidegate.ports.clock import Clock
from tidegate.ports.drivers import KafkaAdmin
from tidegate.ports.kafka import (
    EndTxnResult,
    GroupCommit,
    PartitionReader,
    Producer,
    TransactionAdmin,
    TransactionDescription,
    TransactionState,
)
from tidegate.stream_elements import TopicPartition

T = TypeVar("T")
TIMEOUT_S = 30.0
REAL = SystemClock()
TRANSACTION_TIMEOUT_MS = 60_000

MURMUR2 = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"abc": 479470107,
}
"""Hashes of Kafka's Java client. Topics that tidegate writes must be partitioned the same way."""


class KafkaDrivers(Protocol):
    """The Kafka methods of `Drivers`. A fake cluster has no others."""

    def kafka_admin(self, kafka: Mapping[str, str]) -> KafkaAdmin: ...
    def transaction_admin(self, kafka: Mapping[str, str]) -> TransactionAdmin: ...
    def partition_reader(
        self, kafka: Mapping[str, str], group: str, *, with_end_of_partition: bool
    ) -> PartitionReader: ...
    def producer(
        self,
        kafka: Mapping[str, str],
        transactional_id: TransactionalId | None,
        transaction_timeout_ms: int,
    ) -> Producer: ...


class MakeTopic(Protocol):
    """Makes a topic with so many partitions; its name begins with `prefix`."""

    def __call__(self, partitions: int, prefix: str = "drivers") -> str: ...


@dataclass(kw_only=True)
class KafkaUnderTest:
    """A cluster, the drivers to it, and functions that make unused topics and names."""

    version: str
    """Kafka's, as `major.minor.patch`."""
    drivers: KafkaDrivers
    settings: dict[str, str]
    make_topic: MakeTopic
    delete_topic: Callable[[str], None]
    create_again: Callable[[str], None]
    """Makes a topic of this name, with one partition."""
    unique: Callable[[str], str]
    log: TransactionAdmin
    admin: KafkaAdmin
    clock: Clock = REAL

    def new_id(self) -> TransactionalId:
        return TransactionalId(self.unique("tidegate.job"))

    def producer(self, name: TransactionalId | None) -> Producer:
        return self.drivers.producer(self.settings, name, TRANSACTION_TIMEOUT_MS)

    def reader(self, topic: str, *, ends: bool = True, partitions: int = 1) -> PartitionReader:
        reader = self.drivers.partition_reader(
            self.settings, self.unique("tidegate.group"), with_end_of_partition=ends
        )
        reader.assign({TopicPartition(topic, number): 0 for number in range(partitions)})
        return reader

    def read(self, topic: str, partitions: int = 1) -> list[list[bytes | None]]:
        """Values that a read_committed reader sees, per partition, up to the present end."""
        reader = self.reader(topic, partitions=partitions)
        ends = self.admin.latest([TopicPartition(topic, number) for number in range(partitions)])
        found: dict[TopicPartition, list[bytes | None]] = {
            topic_partition: [] for topic_partition in ends
        }
        positions = dict.fromkeys(ends, 0)
        deadline = self.clock.monotonic() + TIMEOUT_S
        while any(positions[topic_partition] < end for topic_partition, end in ends.items()):
            assert self.clock.monotonic() < deadline, f"read up to {positions} of {ends}"
            for run in reader.poll(1000, 0.2):
                found[run.topic_partition] += [message.value() for message in run.messages]
                positions[run.topic_partition] = run.position
        reader.close()
        return list(found.values())

    def description(self, name: TransactionalId) -> TransactionDescription:
        found = self.log.describe(name)
        assert found is not None
        return found

    def commit(self, name: TransactionalId) -> None:
        description = self.description(name)
        self.eventually(
            lambda: self.log.end(name, description.producer_id, description.epoch, commit=True),
            lambda outcome: outcome is EndTxnResult.ACCEPTED,
        )
        self.settled(name)

    def settled(self, name: TransactionalId) -> TransactionDescription:
        return self.eventually(
            lambda: self.description(name),
            lambda description: (
                description.state
                in {
                    TransactionState.COMPLETE_COMMIT,
                    TransactionState.COMPLETE_ABORT,
                }
            ),
        )

    def eventually(self, ask: Callable[[], T], holds: Callable[[T], bool]) -> T:
        return eventually(ask, holds, self.clock)

    def runs(
        self, reader: PartitionReader, last: Callable[[tuple[object, object, int]], bool]
    ) -> list[Any]:
        """The runs that the reader brings, up to and including the first for which `last` holds."""
        found: list[Any] = []
        deadline = self.clock.monotonic() + TIMEOUT_S
        while True:
            assert self.clock.monotonic() < deadline, f"no more than {found}"
            for run in reader.poll(1000, 0.2):
                found.append(run)
                if last(run):
                    return found


def eventually(ask: Callable[[], T], holds: Callable[[T], bool], clock: Clock = REAL) -> T:
    """The first answer of which `holds`; asked often, for TIMEOUT_S."""
    deadline = clock.monotonic() + TIMEOUT_S
    while not holds(found := ask()):
        assert clock.monotonic() < deadline, f"still {found}"
        clock.sleep(0.01)
    return found


def write(producer: Producer, topic: str, *values: bytes | None) -> None:
    """Sends and flushes: either call may report a failure."""
    producer.send(topic, values, None)
    producer.flush(TIMEOUT_S)


class KafkaContract:
    """Inherit, and override the fixture `cluster`."""

    @pytest.fixture
    def cluster(self) -> KafkaUnderTest:
        raise NotImplementedError

    # --- a transaction's life ---

    def test_transaction_is_invisible_until_it_is_committed(self, cluster: KafkaUnderTest) -> None:
        topic, name = cluster.make_topic(1), cluster.new_id()
        producer = cluster.producer(name)
        made = cluster.description(name)
        assert (made.state, made.start_ms) == (TransactionState.EMPTY, -1)
        producer.begin()
        producer.send(topic, [b"a", b"b", None], [b"k", None, b"k"])
        producer.send_one(topic, b"c", b"k", [("h", b"1"), ("none", None)], 123_456)
        producer.flush(TIMEOUT_S)
        ongoing = cluster.description(name)
        assert ongoing.state is TransactionState.ONGOING
        assert (ongoing.producer_id, ongoing.epoch) == (made.producer_id, made.epoch)
        assert ongoing.start_ms > 0
        topic_partition = TopicPartition(topic, 0)
        assert cluster.admin.latest([topic_partition]) == {topic_partition: 0}
        assert cluster.read(topic) == [[]]
        cluster.commit(name)
        assert cluster.read(topic) == [[b"a", b"b", None, b"c"]]
        ended = cluster.description(name)
        assert ended.state is TransactionState.COMPLETE_COMMIT
        assert (ended.producer_id, ended.epoch, ended.start_ms) == (
            ongoing.producer_id,
            ongoing.epoch,
            ongoing.start_ms,
        )
        again = cluster.log.end(name, ended.producer_id, ended.epoch, commit=True)
        assert again is EndTxnResult.ACCEPTED, "a repeated end is harmless"
        assert cluster.read(topic) == [[b"a", b"b", None, b"c"]]

    def test_dropping_a_producer_leaves_its_transaction_open(self, cluster: KafkaUnderTest) -> None:
        topic, name = cluster.make_topic(1), cluster.new_id()
        producer = cluster.producer(name)
        producer.begin()
        producer.send(topic, [b"a"], None)
        producer.flush(TIMEOUT_S)
        assert not hasattr(producer, "close")
        assert not hasattr(producer, "__exit__")
        del producer
        gc.collect()
        cluster.clock.sleep(0.2)
        assert cluster.description(name).state is TransactionState.ONGOING
        cluster.commit(name)
        assert cluster.read(topic) == [[b"a"]]

    def test_readers_skip_an_aborted_transaction(self, cluster: KafkaUnderTest) -> None:
        topic, name = cluster.make_topic(1), cluster.new_id()
        producer = cluster.producer(name)
        producer.begin()
        producer.send(topic, [b"never"], None)
        producer.flush(TIMEOUT_S)
        description = cluster.description(name)
        outcome = cluster.log.end(name, description.producer_id, description.epoch, commit=False)
        assert outcome is EndTxnResult.ACCEPTED
        assert cluster.settled(name).state is TransactionState.COMPLETE_ABORT
        assert cluster.read(topic) == [[]]
        assert cluster.log.end(name, description.producer_id, description.epoch, commit=True) is (
            EndTxnResult.REFUSED
        )

    @pytest.mark.parametrize("wrong", ["epoch", "producer", "id", "empty"])
    def test_end_that_does_not_match_the_open_transaction_is_refused(
        self, cluster: KafkaUnderTest, wrong: str
    ) -> None:
        topic, name = cluster.make_topic(1), cluster.new_id()
        producer = cluster.producer(name)
        if wrong != "empty":
            producer.begin()
            producer.send(topic, [b"a"], None)
            producer.flush(TIMEOUT_S)
        description = cluster.description(name)
        outcome = cluster.log.end(
            cluster.new_id() if wrong == "id" else name,
            description.producer_id + (wrong == "producer"),
            description.epoch + (wrong == "epoch"),
            commit=True,
        )
        assert outcome is EndTxnResult.REFUSED
        assert cluster.description(name) == description
        assert cluster.read(topic) == [[]]
        cluster.log.fence(name)

    def test_unused_transactional_id_is_unknown(self, cluster: KafkaUnderTest) -> None:
        assert cluster.log.describe(cluster.new_id()) is None

    # --- fencing ---

    @pytest.mark.parametrize("by", ["fence", "producer"])
    def test_initialising_a_transactional_id_aborts_and_fences_the_old_producer(
        self, cluster: KafkaUnderTest, by: str
    ) -> None:
        topic, name = cluster.make_topic(1), cluster.new_id()
        zombie = cluster.producer(name)
        zombie.begin()
        zombie.send(topic, [b"a"], None)
        zombie.flush(TIMEOUT_S)
        before = cluster.description(name)
        if by == "fence":
            cluster.log.fence(name)
        else:
            cluster.producer(name)
        after = cluster.description(name)
        assert after.state is TransactionState.EMPTY
        assert (after.producer_id, after.epoch) > (before.producer_id, before.epoch)
        outcome = cluster.log.end(name, before.producer_id, before.epoch, commit=True)
        assert outcome is EndTxnResult.REFUSED
        with pytest.raises(TransactionError):
            _write_on(zombie, topic)
        assert cluster.read(topic) == [[]]

    def test_fenced_producer_raises_an_error_when_it_writes_on(
        self, cluster: KafkaUnderTest
    ) -> None:
        """The client knows of it before the next record is handed over, and refuses that."""
        topic, name = cluster.make_topic(1), cluster.new_id()
        zombie = cluster.producer(name)
        zombie.begin()
        write(zombie, topic, b"a")
        cluster.log.fence(name)
        zombie.send(topic, [b"b"], None)

        def send_on() -> None:
            for _ in range(int(TIMEOUT_S)):
                cluster.clock.sleep(1.0)
                zombie.send(topic, [b"c"], None)

        for call in (send_on, send_on, lambda: zombie.flush(TIMEOUT_S)):
            with pytest.raises(TransactionError, match=name):
                call()

    def test_producer_that_has_written_nothing_is_fenced_too(self, cluster: KafkaUnderTest) -> None:
        topic, name = cluster.make_topic(1), cluster.new_id()
        zombie = cluster.producer(name)
        cluster.log.fence(name)
        zombie.begin()
        with pytest.raises(TransactionError):
            _write_on(zombie, topic)
        with pytest.raises(TransactionError):
            zombie.flush(TIMEOUT_S)
        assert cluster.description(name).state is not TransactionState.ONGOING

    def test_list_finds_transactional_ids_by_prefix_in_every_state(
        self, cluster: KafkaUnderTest
    ) -> None:
        topic, job = cluster.make_topic(1), cluster.unique("tidegate.list")
        names = [TransactionalId(f"{job}.{number}") for number in range(3)]
        producers = [cluster.producer(name) for name in names]
        for producer in producers[1:]:
            producer.begin()
            producer.send(topic, [b"a"], None)
            producer.flush(TIMEOUT_S)
        cluster.commit(names[2])
        assert cluster.log.list(f"{job}.") == {
            names[0]: TransactionState.EMPTY,
            names[1]: TransactionState.ONGOING,
            names[2]: TransactionState.COMPLETE_COMMIT,
        }
        assert cluster.log.list(f"{job}x") == {}
        cluster.log.fence(names[1])

    # --- producers ---

    def test_a_refused_record_fails_the_producer_for_good(self, cluster: KafkaUnderTest) -> None:
        """Where a flush alone would report success, and the broker would commit the rest."""
        topic, name = cluster.make_topic(1), cluster.new_id()
        settings = {**cluster.settings, "message.max.bytes": "8000000"}
        producer = cluster.drivers.producer(settings, name, TRANSACTION_TIMEOUT_MS)
        producer.begin()
        producer.send(topic, [b"fine"], None)
        producer.flush(TIMEOUT_S)
        with pytest.raises(RecordTooLargeError, match=topic):
            write(producer, topic, b"x" * 3_000_000)
        for _ in range(3):
            with pytest.raises(RecordTooLargeError, match=topic):
                producer.flush(TIMEOUT_S)
        with pytest.raises(RecordTooLargeError, match=topic):
            producer.send(topic, [b"more"], None)
        assert cluster.description(name).state is TransactionState.ONGOING, (
            "Describe would not tell"
        )
        cluster.log.fence(name)

    def test_producer_error_gives_the_first_cause_and_not_a_later_error(
        self, cluster: KafkaUnderTest
    ) -> None:
        """The client knows of the refusal before its owner asks; what is handed over then meets a
        failed transaction, and what was behind the record in the queue is dropped.
        """
        topic, name = cluster.make_topic(1), cluster.new_id()
        settings = {**cluster.settings, "message.max.bytes": "8000000", "linger.ms": "0"}
        producer = cluster.drivers.producer(settings, name, TRANSACTION_TIMEOUT_MS)
        producer.begin()

        def send_on() -> None:
            producer.send(topic, [b"x" * 3_000_000, *[b"fine"] * 5_000], None)
            for _ in range(int(TIMEOUT_S)):
                cluster.clock.sleep(1.0)
                producer.send_one(topic, b"more", None, (), None)

        with pytest.raises(RecordTooLargeError, match=topic):
            send_on()
        with pytest.raises(RecordTooLargeError, match=topic):
            producer.flush(TIMEOUT_S)
        cluster.log.fence(name)

    def test_records_keep_their_order(self, cluster: KafkaUnderTest) -> None:
        topic = cluster.make_topic(1)
        producer = cluster.producer(None)
        values = [b"%06d" % number for number in range(20_000)]
        for start in range(0, len(values), 1000):
            producer.send(topic, values[start : start + 1000], None)
        producer.flush(TIMEOUT_S)
        assert cluster.read(topic) == [values]

    def test_more_records_than_the_producer_queue_holds_are_sent_without_loss(
        self, cluster: KafkaUnderTest
    ) -> None:
        topic = cluster.make_topic(1)
        settings = {**cluster.settings, "queue.buffering.max.messages": "500"}
        producer = cluster.drivers.producer(settings, None, 0)
        values = [b"%06d" % number for number in range(5_000)]
        producer.send(topic, values, None)
        producer.flush(TIMEOUT_S)
        assert cluster.read(topic) == [values]

    def test_keys_are_partitioned_as_the_java_client_does(self, cluster: KafkaUnderTest) -> None:
        topic = cluster.make_topic(4)
        producer = cluster.producer(None)
        producer.send(topic, list(MURMUR2), list(MURMUR2))
        producer.flush(TIMEOUT_S)
        expected: list[list[bytes | None]] = [[], [], [], []]
        for key, hashed in MURMUR2.items():
            expected[(hashed & 0x7FFFFFFF) % 4].append(key)
        assert cluster.read(topic, 4) == expected

    # --- readers ---

    def test_message_has_the_written_value_key_headers_and_timestamp(
        self, cluster: KafkaUnderTest
    ) -> None:
        topic = cluster.make_topic(1)
        producer = cluster.producer(None)
        producer.send_one(topic, b"v", b"k", [("h", b"1"), ("none", None)], 123_456)
        producer.send_one(topic, None, None, (), None)
        producer.flush(TIMEOUT_S)
        reader = cluster.reader(topic)
        messages = []
        for run in cluster.runs(reader, lambda run: run[2] == 2):
            messages += run.messages
        first, second = messages
        assert (first.value(), first.key(), first.offset()) == (b"v", b"k", 0)
        assert first.headers() == [("h", b"1"), ("none", None)]
        assert first.timestamp() == (1, 123_456)
        assert (second.value(), second.key(), second.offset()) == (None, None, 1)
        assert not second.headers()
        reader.close()

    def test_poll_returns_no_more_records_than_asked_in_runs_of_one_partition(
        self, cluster: KafkaUnderTest
    ) -> None:
        topic = cluster.make_topic(2)
        producer = cluster.producer(None)
        for number in range(100):
            producer.send(topic, [b"%d" % number], [b"%d" % number])
        producer.flush(TIMEOUT_S)
        reader = cluster.reader(topic, ends=False, partitions=2)
        positions = {TopicPartition(topic, 0): 0, TopicPartition(topic, 1): 0}
        deadline = cluster.clock.monotonic() + TIMEOUT_S
        while sum(positions.values()) < 100:
            assert cluster.clock.monotonic() < deadline
            runs = reader.poll(30, 0.5)
            assert sum(len(run.messages) for run in runs) <= 30
            for topic_partition, messages, position in runs:
                offsets = [message.offset() for message in messages]
                assert offsets == list(range(positions[topic_partition], position))
                positions[topic_partition] = position
        assert reader.high_watermarks() == positions
        reader.close()

    def test_end_of_a_partition_is_reported_after_its_transaction_markers(
        self, cluster: KafkaUnderTest
    ) -> None:
        topic, name = cluster.make_topic(1), cluster.new_id()
        producer = cluster.producer(name)
        producer.begin()
        producer.send(topic, [b"a"], None)
        producer.flush(TIMEOUT_S)
        cluster.commit(name)
        topic_partition = TopicPartition(topic, 0)
        end = cluster.admin.latest([topic_partition])[topic_partition]
        assert end == 2, "a record and the transaction's marker"
        reader = cluster.reader(topic)
        *_, last = cluster.runs(reader, lambda run: run[2] == end)
        assert (last.topic_partition, list(last.messages)) == (topic_partition, [])
        reader.close()

    def test_paused_partition_delivers_no_new_records(self, cluster: KafkaUnderTest) -> None:
        topic = cluster.make_topic(1)
        reader = cluster.reader(topic)
        cluster.runs(reader, lambda run: run[2] == 0)
        reader.pause([TopicPartition(topic, 0)])
        producer = cluster.producer(None)
        producer.send(topic, [b"a"], None)
        producer.flush(TIMEOUT_S)
        assert [run for run in reader.poll(10, 1.0) if run.messages] == []
        reader.close()

    def test_an_offset_that_is_not_in_the_log_is_an_error(self, cluster: KafkaUnderTest) -> None:
        topic = cluster.make_topic(1)
        reader = cluster.reader(topic)
        reader.assign({TopicPartition(topic, 0): 77})
        with pytest.raises(KafkaError, match=rf"{topic}-0 .* offset 77"):
            cluster.runs(reader, lambda _: False)
        reader.close()

    def test_committed_offsets_are_seen_by_the_admin(self, cluster: KafkaUnderTest) -> None:
        topic, group = cluster.make_topic(2), cluster.unique("tidegate.group")
        topic_partitions = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
        assert cluster.admin.committed(group, topic_partitions) == dict.fromkeys(topic_partitions)
        reader = cluster.drivers.partition_reader(
            cluster.settings, group, with_end_of_partition=False
        )
        reader.assign(dict.fromkeys(topic_partitions, 0))
        reader.commit({topic_partitions[1]: 5}, "beside it")
        found = cluster.eventually(
            lambda: (reader.poll(1, 0.05), cluster.admin.committed(group, topic_partitions))[1],
            lambda committed: committed[topic_partitions[1]] is not None,
        )
        assert found == {topic_partitions[0]: None, topic_partitions[1]: 5}
        commits = cluster.admin.group_commits(group)
        assert commits == {topic_partitions[1]: GroupCommit(5, "beside it")}
        assert cluster.admin.group_commits(cluster.unique("nobody")) == {}
        reader.close()

    # --- admin ---

    def test_error_names_a_missing_topic(self, cluster: KafkaUnderTest) -> None:
        name = cluster.unique("absent")
        for _ in range(2):
            with pytest.raises(RefusedError, match=name):
                cluster.admin.partitions(name)
        assert cluster.admin.partitions(cluster.make_topic(3)) == 3

    def test_admin_finds_offsets_by_time_and_the_earliest_and_latest_offsets(
        self, cluster: KafkaUnderTest
    ) -> None:
        topic = cluster.make_topic(1)
        producer = cluster.producer(None)
        for at in (1000, 2000, 3000):
            producer.send_one(topic, b"x", None, (), at)
        producer.flush(TIMEOUT_S)
        topic_partition = TopicPartition(topic, 0)
        assert cluster.admin.at_time([topic_partition], 1500) == {topic_partition: 1}
        assert cluster.admin.at_time([topic_partition], 9000) == {topic_partition: 3}
        assert cluster.admin.earliest([topic_partition]) == {topic_partition: 0}
        assert cluster.admin.latest([topic_partition]) == {topic_partition: 3}
        assert cluster.admin.latest([]) == {}

    def test_transaction_log_and_admin_report_the_same_cluster_id(
        self, cluster: KafkaUnderTest
    ) -> None:
        assert cluster.log.cluster_id() == cluster.admin.cluster_id()
        assert cluster.admin.transaction_max_timeout_ms() == 900_000

    def test_admin_returns_the_maximum_message_size_of_existing_topics(
        self, cluster: KafkaUnderTest
    ) -> None:
        topics = [cluster.make_topic(1), cluster.make_topic(2)]
        asked = [*topics, cluster.unique("no-such-topic")]
        assert cluster.admin.max_message_bytes(asked) == dict.fromkeys(topics, 1_048_588)
        assert cluster.admin.max_message_bytes([]) == {}

    def test_record_of_the_maximum_size_of_its_topic_is_written(
        self, cluster: KafkaUnderTest
    ) -> None:
        topic = cluster.make_topic(1)
        settings = {**cluster.settings, "message.max.bytes": "1048588"}
        value = bytes(1_048_500)
        producer = cluster.drivers.producer(settings, None, TRANSACTION_TIMEOUT_MS)
        producer.send(topic, [b"small", value, b"small"], None)
        producer.flush(TIMEOUT_S)
        assert cluster.read(topic) == [[b"small", value, b"small"]]


def _write_on(producer: Producer, topic: str) -> None:
    write(producer, topic, b"late")
    producer.send(topic, [b"later"], None)
