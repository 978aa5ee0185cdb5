"""The contract of `read_committed` readers: what they see of transactions, in which order and when,
and at which offsets.

A test class inherits it together with `KafkaContract` and gives a `cluster`. The behaviour was
measured first on Apache Kafka 3.9.1 and 4.3.0.
"""

from __future__ import annotations

import pytest

from tests.contracts.kafka import TIMEOUT_S, KafkaUnderTest, write
from tests.contracts.kafka_transactions import end, opened
from tidegate.stream_elements import TopicPartition


def keyed(partition: int) -> bytes:
    """A key of that partition among three."""
    return {0: b"f", 1: b"a", 2: b"b"}[partition]


class VisibilityContract:
    """Inherit, and override the fixture `cluster`."""

    @pytest.fixture
    def cluster(self) -> KafkaUnderTest:
        raise NotImplementedError

    def test_the_oldest_open_transaction_holds_readers_back(self, cluster: KafkaUnderTest) -> None:
        topic = cluster.make_topic(1)
        topic_partition = TopicPartition(topic, 0)
        plain = cluster.producer(None)
        write(plain, topic, b"0")
        first, one = opened(cluster, topic, b"1")
        second, _ = opened(cluster, topic, b"2")
        write(plain, topic, b"3")
        write(one, topic, b"4")
        third, _ = opened(cluster, topic, b"5")
        reader = cluster.reader(topic)
        cluster.runs(reader, lambda run: run[2] == 1)
        assert reader.high_watermarks() == {topic_partition: 6}, (
            "the end of the log, not of what is seen"
        )
        reader.close()
        assert cluster.read(topic) == [[b"0"]]
        end(cluster, second, commit=True)
        assert cluster.admin.latest([topic_partition]) == {topic_partition: 1}
        assert cluster.read(topic) == [[b"0"]]
        end(cluster, first, commit=False)
        assert cluster.admin.latest([topic_partition]) == {topic_partition: 5}
        assert cluster.read(topic) == [[b"0", b"2", b"3"]]
        end(cluster, third, commit=True)
        assert cluster.admin.latest([topic_partition]) == {topic_partition: 9}, (
            "6 records and 3 markers"
        )
        assert cluster.read(topic) == [[b"0", b"2", b"3", b"5"]]

    def test_reader_may_start_at_any_offset(self, cluster: KafkaUnderTest) -> None:
        """Also at a marker and within what was aborted; and take one record at a time."""
        topic = cluster.make_topic(1)
        topic_partition = TopicPartition(topic, 0)
        for value, commit in ((b"0", True), (b"2", False), (b"4", True)):
            name, _ = opened(cluster, topic, value)
            end(cluster, name, commit=commit)
        plain = cluster.producer(None)
        write(plain, topic, b"6", b"7")
        seen = {0: b"0", 4: b"4", 6: b"6", 7: b"7"}
        for start in range(9):
            reader = cluster.reader(topic)
            reader.assign({topic_partition: start})
            found = []
            position = -1
            while position < 8:
                for run in reader.poll(1, 1.0):
                    assert len(run.messages) <= 1
                    found += [(each.offset(), each.value()) for each in run.messages]
                    assert run.position == run.messages[-1].offset() + 1 if run.messages else 8
                    position = run.position
            assert found == [(offset, value) for offset, value in seen.items() if offset >= start]
            reader.close()

    def test_end_of_a_partition_is_reported_once_for_each_position(
        self, cluster: KafkaUnderTest
    ) -> None:
        topic = cluster.make_topic(1)
        ends, plain = cluster.reader(topic), cluster.reader(topic, ends=False)
        producer = cluster.producer(None)
        cluster.runs(ends, lambda run: run[2] == 0)
        assert ends.poll(10, 0.5) == []
        write(producer, topic, b"a")
        runs = cluster.runs(ends, lambda run: run[2] == 1 and not run[1])
        assert [len(run.messages) for run in runs] == [1, 0]
        assert ends.poll(10, 0.5) == []
        name, _ = opened(cluster, topic, b"never")
        end(cluster, name, commit=False)
        cluster.runs(ends, lambda run: run[2] == 3 and not run[1])
        (run,) = cluster.eventually(lambda: plain.poll(10, 0.5), bool)
        assert run.position == 1
        assert [each.value() for each in run.messages] == [b"a"]
        assert plain.poll(10, 0.5) == [], "nothing is told of markers and ends"
        ends.close()
        plain.close()

    def test_position_of_a_reader_passes_markers_and_aborted_records(
        self, cluster: KafkaUnderTest
    ) -> None:
        topic = cluster.make_topic(1)
        topic_partition = TopicPartition(topic, 0)
        reader = cluster.reader(topic, ends=False)
        assert reader.positions() == {}
        write(cluster.producer(None), topic, b"a")
        (run,) = cluster.eventually(lambda: reader.poll(10, 0.5), bool)
        assert (
            reader.positions() == {topic_partition: (run.position, 0)} == {topic_partition: (1, 0)}
        )
        for at, commit in ((1, True), (3, False)):
            name, _ = opened(cluster, topic, b"b")
            reader.poll(10, 0.5)
            assert reader.positions() == {topic_partition: (at, 0)}, "it is still open"
            end(cluster, name, commit=commit)
            found = cluster.eventually(
                lambda: (reader.poll(10, 0.5), reader.positions()[topic_partition].offset)[1],
                at.__lt__,
            )
            assert found == at + 2
        reader.close()

    def test_a_transaction_becomes_visible_in_all_its_partitions(
        self, cluster: KafkaUnderTest
    ) -> None:
        topic, name = cluster.make_topic(3), cluster.new_id()
        topic_partitions = [TopicPartition(topic, number) for number in range(3)]
        producer = cluster.producer(name)
        producer.begin()
        for partition in (0, 2, 2):
            producer.send(topic, [b"%d" % partition], [keyed(partition)])
        producer.flush(TIMEOUT_S)
        assert cluster.admin.latest(topic_partitions) == dict.fromkeys(topic_partitions, 0)
        end(cluster, name, commit=True)
        assert cluster.read(topic, 3) == [[b"0"], [], [b"2", b"2"]]
        assert list(cluster.admin.latest(topic_partitions).values()) == [2, 0, 3], (
            "markers where it wrote"
        )

    def test_offsets_by_time_are_found_only_up_to_the_last_stable_offset(
        self, cluster: KafkaUnderTest
    ) -> None:
        topic = cluster.make_topic(1)
        topic_partition = TopicPartition(topic, 0)
        plain = cluster.producer(None)
        plain.send_one(topic, b"x", None, (), 1000)
        plain.flush(TIMEOUT_S)
        name = cluster.new_id()
        producer = cluster.producer(name)
        producer.begin()
        producer.send_one(topic, b"y", None, (), 2000)
        producer.send_one(topic, b"z", None, (), 3000)
        producer.flush(TIMEOUT_S)
        assert cluster.admin.at_time([topic_partition], 2000) == {topic_partition: 1}
        assert cluster.admin.at_time([topic_partition], 3000) == {topic_partition: 1}, (
            "the end, as it is now"
        )
        assert cluster.admin.at_time([topic_partition], 500) == {topic_partition: 0}
        end(cluster, name, commit=True)
        assert cluster.admin.at_time([topic_partition], 2000) == {topic_partition: 1}
        assert cluster.admin.at_time([topic_partition], 3000) == {topic_partition: 2}
        assert cluster.admin.at_time([topic_partition], 4000) == {topic_partition: 3}, (
            "the marker's own time"
        )
        assert cluster.admin.latest([topic_partition]) == {topic_partition: 4}
