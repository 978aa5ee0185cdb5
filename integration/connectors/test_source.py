"""The source on real brokers: bounded splits end by position, whatever their last offsets hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from integration.connectors.test_kafka_drivers import prepared, under_test
from tests.contracts.kafka import TIMEOUT_S, KafkaUnderTest, eventually
from tests.drivers.kafka.surroundings import SubtaskHarness
from tidegate.api.connectors.kafka_records import ConsumerRecord
from tidegate.api.connectors.kafka_source import KafkaSource
from tidegate.api.records.formats import Json, Utf8
from tidegate.config import Config, KafkaSettings
from tidegate.dataplane.sources.kafka import KafkaSourceReader
from tidegate.drivers.kafka.embedded import EmbeddedKafka
from tidegate.errors import BadRecordError, KafkaError
from tidegate.ids import CheckpointId, Uid
from tidegate.protocol.subtask_snapshot import SourceSplit
from tidegate.stream_elements import TopicPartition

pytestmark = pytest.mark.kafka


@pytest.fixture
def cluster(any_kafka: EmbeddedKafka) -> Iterator[KafkaUnderTest]:
    made = under_test(any_kafka.bootstrap)
    yield made
    made.log.close()


class SourceBench:
    def __init__(self, cluster: KafkaUnderTest, source: KafkaSource[Any], *splits: SourceSplit):
        bootstrap = cluster.settings["bootstrap.servers"]
        self.job = cluster.unique("job")
        self.harness = SubtaskHarness(
            cluster.drivers,
            cluster.log,
            job=self.job,
            config=Config(kafka=KafkaSettings(bootstrap_servers=bootstrap)),
        )
        self.reader = KafkaSourceReader(source, Uid("src"), self.harness.context)
        self.reader.open(splits)
        self.values: dict[int, list[Any]] = {}

    def poll(self) -> None:
        for batch in self.reader.poll(0.2):
            assert batch.topic_partition is not None
            self.values.setdefault(batch.topic_partition.partition, []).extend(batch.values)

    def read_some(self) -> None:
        eventually(self.poll, lambda _: bool(self.values) or self.reader.finished())

    def read_to_the_end(self) -> dict[int, list[Any]]:
        eventually(self.poll, lambda _: self.reader.finished())
        return self.values


def splits_of(cluster: KafkaUnderTest, topic: str, partitions: int) -> list[SourceSplit]:
    """Make splits from the beginning to the present ends."""
    ends = cluster.admin.latest([TopicPartition(topic, number) for number in range(partitions)])
    return [
        SourceSplit(
            source=Uid("src"),
            topic=topic_partition.topic,
            partition=topic_partition.partition,
            offset=0,
            end_offset=end,
        )
        for topic_partition, end in ends.items()
    ]


def write(cluster: KafkaUnderTest, topic: str, *values: bytes | None) -> None:
    producer = cluster.producer(None)
    producer.send(topic, values, None)
    producer.flush(TIMEOUT_S)


def test_bounded_source_ends_after_markers_and_aborted_records(cluster: KafkaUnderTest) -> None:
    topic = cluster.make_topic(1)
    write(cluster, topic, b"a")
    cluster.commit(prepared(cluster, topic, b"b"))
    aborted = prepared(cluster, topic, b"never")
    cluster.log.fence(aborted)
    (split,) = splits_of(cluster, topic, 1)
    assert split.end_offset == 5
    write(cluster, topic, b"behind the end")
    bench = SourceBench(cluster, KafkaSource(topic, value=Utf8()), split)
    assert bench.read_to_the_end() == {0: ["a", "b"]}
    assert bench.reader.snapshot()[0].offset == 5
    bench.reader.close()


def test_a_source_without_an_end_passes_markers_and_aborted_records(
    cluster: KafkaUnderTest,
) -> None:
    """Otherwise retention would delete the offset at which a restart begins."""
    topic = cluster.make_topic(1)
    split = SourceSplit(source=Uid("src"), topic=topic, partition=0, offset=0)
    bench = SourceBench(cluster, KafkaSource(topic, value=Utf8()), split)
    cluster.commit(prepared(cluster, topic, b"a"))
    eventually(bench.poll, lambda _: bench.reader.snapshot()[0].offset == 2)
    aborted = prepared(cluster, topic, b"never")
    cluster.log.fence(aborted)
    eventually(bench.poll, lambda _: bench.reader.snapshot()[0].offset == 4)
    assert bench.values == {0: ["a"]}
    assert bench.reader.lag() == 0
    assert not bench.reader.finished()
    bench.reader.close()


def test_bounded_source_ends_where_an_open_transaction_begins(cluster: KafkaUnderTest) -> None:
    topic = cluster.make_topic(1)
    write(cluster, topic, b"a")
    open_one = prepared(cluster, topic, b"open")
    bench = SourceBench(cluster, KafkaSource(topic, value=Utf8()), *splits_of(cluster, topic, 1))
    assert bench.read_to_the_end() == {0: ["a"]}
    bench.reader.close()
    cluster.log.fence(open_one)


def test_bounded_source_of_empty_partitions_is_finished_at_once(cluster: KafkaUnderTest) -> None:
    topic = cluster.make_topic(3)
    bench = SourceBench(cluster, KafkaSource(topic, value=Utf8()), *splits_of(cluster, topic, 3))
    assert bench.reader.finished()
    bench.reader.close()


def test_a_snapshot_continues_without_gap_or_repetition(cluster: KafkaUnderTest) -> None:
    topic = cluster.make_topic(4)
    producer = cluster.producer(None)
    values = [b"%d" % number for number in range(5_000)]
    producer.send(topic, values, values)
    producer.flush(TIMEOUT_S)
    splits = splits_of(cluster, topic, 4)
    found: dict[int, list[str]] = {}
    source = KafkaSource(topic, value=Utf8())
    for _ in range(200):
        bench = SourceBench(cluster, source, *splits)
        bench.read_some()
        for _ in range(2):
            bench.poll()
        splits = list(bench.reader.snapshot())
        for partition, some in bench.values.items():
            found.setdefault(partition, []).extend(some)
        bench.reader.close()
        if bench.reader.finished():
            break
    assert sorted(int(value) for some in found.values() for value in some) == list(range(5_000))
    assert all(some == sorted(some, key=int) for some in found.values())


def test_source_gives_whole_records_lag_and_committed_offsets(cluster: KafkaUnderTest) -> None:
    topic = cluster.make_topic(1)
    producer = cluster.producer(None)
    producer.send_one(topic, b"7", b"k", [("h", b"x")], 5_000)
    producer.flush(TIMEOUT_S)
    source: KafkaSource[Any] = KafkaSource.records(topic, key=Utf8(), value=Json(int))
    split = SourceSplit(source=Uid("src"), topic=topic, partition=0, offset=0)
    bench = SourceBench(cluster, source, split)
    eventually(bench.poll, lambda _: bool(bench.values))
    assert bench.values == {0: [ConsumerRecord("k", 7, topic, 0, 0, 5_000, (("h", b"x"),))]}
    assert bench.reader.lag() == 0
    assert not bench.reader.finished()
    write(cluster, topic, b"nonsense")
    with pytest.raises(BadRecordError, match=f"{topic}-0 at offset 1 as Json.*no key"):
        eventually(bench.poll, lambda _: False)
    bench.reader.commit([split], CheckpointId.parse("2-7"))
    group = f"tidegate.{bench.job}.src"
    topic_partition = TopicPartition(topic, 0)
    eventually(
        lambda: cluster.admin.committed(group, [topic_partition])[topic_partition],
        lambda offset: offset == 0,
    )
    bench.reader.close()


def test_offset_that_is_not_in_the_log_raises_kafka_error(cluster: KafkaUnderTest) -> None:
    topic = cluster.make_topic(1)
    write(cluster, topic, b"a")
    split = SourceSplit(source=Uid("src"), topic=topic, partition=0, offset=50)
    bench = SourceBench(cluster, KafkaSource(topic, value=Utf8()), split)
    with pytest.raises(KafkaError, match="not in the log any more"):
        eventually(bench.poll, lambda _: False)
    bench.reader.close()
