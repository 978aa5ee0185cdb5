"""Topic ids and end offsets of leader epochs, requested over the coordinator connection.

confluent-kafka has no OffsetForLeaderEpoch request. The ids of topics are needed before each
publication: they take one Metadata request for all topics, over a connection that is open anyway.
`checkpoint/source_changes` evaluates the answers; this module makes no decision.
"""

from __future__ import annotations

import base64
from collections.abc import Collection, Mapping
from itertools import groupby
from typing import Any, Final
from uuid import UUID

import kafka.errors as theirs
from kafka.protocol.consumer.offsets import OffsetForLeaderEpochRequest

from tidegate.drivers.kafka import inspection_wire as wire
from tidegate.drivers.kafka.coordinator_connection import CoordinatorConnection, raise_for_code
from tidegate.errors import KafkaNotAuthorisedError
from tidegate.stream_elements import TopicPartition

ABSENT: Final = theirs.UnknownTopicOrPartitionError.errno
DENIED: Final = theirs.TopicAuthorizationFailedError.errno
MOVED: Final = wire.MOVED | {
    theirs.UnknownLeaderEpochError.errno,
    theirs.FencedLeaderEpochError.errno,
}
CONSUMER: Final = -1
"""The replica id of a client. The leader does not show it records that are not replicated yet."""
UNKNOWN_EPOCH: Final = -1
"""The value for the current leader epoch that makes a leader of any epoch answer."""


def topic_ids(connection: CoordinatorConnection, topics: Collection[str]) -> dict[str, str]:
    """See `TransactionAdmin.topic_ids`."""

    def once() -> dict[str, str]:
        rows = _metadata(connection, topics).topics
        return {row.name: _notation(row.topic_id) for row in rows if row.error_code != ABSENT}

    return connection.run_with_retries("describe the topics of the job", once, None)


def epoch_end_offsets(
    connection: CoordinatorConnection, epochs: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """See `TransactionAdmin.epoch_end_offsets`."""

    def once() -> dict[TopicPartition, int]:
        leaders = _leaders(
            _metadata(connection, {topic_partition.topic for topic_partition in epochs}), epochs
        )
        found: dict[TopicPartition, int] = {}
        for leader, topic_partitions in wire.batches(leaders):
            answer = _sent(
                connection,
                _request(
                    {
                        topic_partition: epochs[topic_partition]
                        for topic_partition in topic_partitions
                    }
                ),
                leader,
            )
            for topic in answer.topics:
                for row in topic.partitions:
                    _check(row.error_code)
                    found[TopicPartition(topic.topic, row.partition)] = row.end_offset
        return found

    return connection.run_with_retries("tell where leader epochs end", once, None)


def _metadata(connection: CoordinatorConnection, topics: Collection[str]) -> Any:
    answer = _sent(connection, wire.metadata(sorted(topics)))
    for row in answer.topics:
        if row.error_code == DENIED:
            raise KafkaNotAuthorisedError(
                f"Kafka at {connection.servers} does not allow tidegate to describe topic "
                f"{row.name!r}. Grant the job's principal READ on it."
            )
        if row.error_code != ABSENT:
            _check(row.error_code)
    return answer


def _leaders(metadata: Any, wanted: Collection[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the leaders of those wanted partitions that exist. Raise a retriable error while one
    of them has no leader.
    """
    leaders = {}
    for topic in metadata.topics:
        for row in topic.partitions:
            topic_partition = TopicPartition(topic.name, row.partition_index)
            if topic_partition in wanted:
                if row.leader_id < 0:
                    raise theirs.StaleMetadata(
                        f"{topic_partition.topic}-{topic_partition.partition} has no leader"
                    )
                leaders[topic_partition] = row.leader_id
    return leaders


def _check(error_code: int) -> None:
    """Raise the error of a code, if it is one. Raise a retriable error if the code can be caused by
    a leader election.
    """
    if error_code in MOVED:
        raise theirs.StaleMetadata("a leader is being elected")
    raise_for_code(error_code)


def _request(epochs: Mapping[TopicPartition, int]) -> Any:
    topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    return OffsetForLeaderEpochRequest(
        replica_id=CONSUMER,
        topics=[
            topic(
                topic=name,
                partitions=[
                    topic.OffsetForLeaderPartition(
                        partition=topic_partition.partition,
                        current_leader_epoch=UNKNOWN_EPOCH,
                        leader_epoch=epochs[topic_partition],
                    )
                    for topic_partition in topic_partitions
                ],
            )
            for name, topic_partitions in groupby(
                sorted(epochs), key=lambda topic_partition: topic_partition.topic
            )
        ],
    )


def _sent(connection: CoordinatorConnection, request: Any, node_id: int | None = None) -> Any:
    manager = connection.client()._manager

    async def send() -> Any:
        return await manager.send(request, node_id=node_id)

    return manager.run(send)


def _notation(topic_id: UUID | None) -> str:
    """Return a topic id in Kafka's notation, the 16 bytes in URL-safe base64. Empty if the topic
    has no id.
    """
    if topic_id is None or not topic_id.int:
        return ""
    return base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")
