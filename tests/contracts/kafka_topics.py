"""The contract of topic ids and leader epochs: what tells a topic that was created again, and a log
that was truncated, from what a job has read.
"""

from __future__ import annotations

import pytest

from tests.contracts.kafka import KafkaUnderTest, write
from tidegate.stream_elements import TopicPartition


class TopicContract:
    """Inherit, and override the fixture `cluster`."""

    @pytest.fixture
    def cluster(self) -> KafkaUnderTest:
        raise NotImplementedError

    def test_topic_ids_are_returned_for_existing_topics_only(self, cluster: KafkaUnderTest) -> None:
        one, other = cluster.make_topic(1), cluster.make_topic(2)
        found = cluster.log.topic_ids({one, other, cluster.unique("absent")})
        assert found.keys() == {one, other}
        assert len({found[one], found[other]}) == 2
        assert all(len(each) == 22 for each in found.values()), "Kafka's notation"
        assert cluster.log.topic_ids({one}) == {one: found[one]}, "it stays"

    def test_a_topic_that_is_created_again_has_another_id(self, cluster: KafkaUnderTest) -> None:
        topic = cluster.make_topic(1)
        before = cluster.log.topic_ids({topic})
        cluster.delete_topic(topic)
        cluster.eventually(lambda: cluster.log.topic_ids({topic}), lambda found: not found)
        cluster.create_again(topic)
        after = cluster.eventually(lambda: cluster.log.topic_ids({topic}), bool)
        assert after[topic] not in {"", before[topic]}

    def test_current_leader_epoch_ends_at_the_end_of_the_log(self, cluster: KafkaUnderTest) -> None:
        topic = cluster.make_topic(2)
        full, empty, absent = (
            TopicPartition(topic, 0),
            TopicPartition(topic, 1),
            TopicPartition(topic, 2),
        )
        producer = cluster.producer(None)
        producer.send_one(topic, b"1", None, (), None)
        write(producer, topic, *[b"%d" % number for number in range(200)])
        ends = cluster.admin.latest([full, empty])
        asked = dict.fromkeys((full, empty, absent), 0)
        assert cluster.log.epoch_end_offsets(asked) == ends
        elsewhere = TopicPartition(cluster.unique("absent"), 0)
        assert cluster.log.epoch_end_offsets({elsewhere: 0}) == {}

    def test_an_epoch_that_the_leader_does_not_know_has_no_end(
        self, cluster: KafkaUnderTest
    ) -> None:
        topic_partition = TopicPartition(cluster.make_topic(1), 0)
        write(cluster.producer(None), topic_partition.topic, b"a")
        assert cluster.log.epoch_end_offsets({topic_partition: 7}) == {topic_partition: -1}

    def test_leader_epoch_of_a_position_does_not_end_before_the_position(
        self, cluster: KafkaUnderTest
    ) -> None:
        topic = cluster.make_topic(1)
        topic_partition = TopicPartition(topic, 0)
        write(cluster.producer(None), topic, b"a", b"b", b"c")
        reader = cluster.reader(topic)
        cluster.runs(reader, lambda run: run[2] == 3)
        position = reader.positions()[topic_partition]
        assert position.offset == 3
        assert cluster.log.epoch_end_offsets({topic_partition: position.leader_epoch}) == {
            topic_partition: 3
        }
        reader.close()
