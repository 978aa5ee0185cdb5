"""The requests of an inspector, and the decoding of their answers. The module translates between
kafka-python's classes and `ports/inspection.py`, and sends nothing.

The version of a request is fixed where a later version would have another meaning.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import groupby, islice
from typing import Any, Final

import kafka.errors as theirs
from kafka.protocol.admin.transactions import (
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    ListTransactionsRequest,
)
from kafka.protocol.consumer.offsets import ListOffsetsRequest
from kafka.protocol.metadata import MetadataRequest
from kafka.protocol.producer.transaction import InitProducerIdRequest, WriteTxnMarkersRequest

from tidegate.ids import TransactionalId
from tidegate.ports.inspection import ProducerState, Transaction
from tidegate.ports.kafka import TransactionState
from tidegate.stream_elements import TopicPartition

IDS_AT_ONCE: Final = 500
PARTITIONS_AT_ONCE: Final = 500
"""The maximum number of partitions in one request, as in Kafka's own tool. An answer stays far
below a megabyte.
"""
LATEST: Final = -1
"""The timestamp that requests the end offset."""
READ_UNCOMMITTED: Final = 0
READ_COMMITTED: Final = 1
ABORT_TIMEOUT_MS: Final = 60_000
"""The maximum transaction timeout of an id after an abort, in milliseconds: Kafka's default. The
next producer of the id sets its own timeout.
"""
MARKER_VERSION: Final = 1
"""The version of WriteTxnMarkers. From version 2 on, a marker may belong to the protocol of
KIP-890. It must then have a higher epoch than the records that it ends, and no such epoch is known
for a hanging transaction.
"""

MOVED: Final = frozenset(
    error.errno
    for error in (
        theirs.NotLeaderForPartitionError,
        theirs.LeaderNotAvailableError,
        theirs.UnknownTopicOrPartitionError,
        theirs.ReplicaNotAvailableError,
        theirs.OffsetNotAvailableError,
    )
)
"""The errors of one partition that a move of its leader can cause."""


def metadata(topics: Sequence[str] | None) -> Any:
    """Return a request for the brokers and these topics, or all topics. It creates no topic."""
    row = MetadataRequest.MetadataRequestTopic
    return MetadataRequest(
        topics=None if topics is None else [row(name=name) for name in topics],
        allow_auto_topic_creation=False,
    )


def list_transactions(states: Collection[TransactionState], producer_ids: Collection[int]) -> Any:
    """Return a request for the ids in these states and of these producers; an empty argument means
    any. It does not filter by age or pattern, because brokers before 4.1 lack those filters.
    """
    return ListTransactionsRequest(
        state_filters=[state.value for state in states],
        producer_id_filters=list(producer_ids),
        max_version=1,
    )


def describe_transactions(names: Sequence[TransactionalId]) -> Any:
    """Return a request for the transactions of ids, to be sent to their coordinator."""
    return DescribeTransactionsRequest(transactional_ids=list(names))


def describe_producers(topic_partitions: Sequence[TopicPartition]) -> Any:
    """Return a request for the active producers of partitions, to be sent to their leader."""
    return DescribeProducersRequest(
        topics=[
            DescribeProducersRequest.TopicRequest(name=topic, partition_indexes=numbers)
            for topic, numbers in by_topic(topic_partitions)
        ]
    )


def list_end_offsets(topic_partitions: Sequence[TopicPartition], isolation: int) -> Any:
    """Return a request for the end offsets of partitions, as readers of one isolation level see
    them.
    """
    topic = ListOffsetsRequest.ListOffsetsTopic
    return ListOffsetsRequest(
        replica_id=-1,
        isolation_level=isolation,
        topics=[
            topic(
                name=name,
                partitions=[
                    topic.ListOffsetsPartition(partition_index=number, timestamp=LATEST)
                    for number in numbers
                ],
            )
            for name, numbers in by_topic(topic_partitions)
        ],
        min_version=4,
        max_version=7,
    )


def continue_producer(transaction: Transaction) -> Any:
    """Return an InitProducerId that continues this producer. A coordinator refuses it if the id has
    a newer producer (KIP-360).
    """
    return InitProducerIdRequest(
        transactional_id=transaction.transactional_id,
        transaction_timeout_ms=min(transaction.timeout_ms, ABORT_TIMEOUT_MS),
        producer_id=transaction.producer_id,
        producer_epoch=transaction.epoch,
        min_version=4,
        max_version=4,
    )


def abort_marker(topic_partition: TopicPartition, producer: ProducerState) -> Any:
    """Return a WriteTxnMarkers request as Kafka's tool sends it.

    If the partition has no marker of the producer yet, no coordinator epoch is known. The request
    then uses 0, which is not higher than the epoch of any real coordinator.
    """
    marker = WriteTxnMarkersRequest.WritableTxnMarker
    where = marker.WritableTxnMarkerTopic(
        name=topic_partition.topic, partition_indexes=[topic_partition.partition]
    )
    return WriteTxnMarkersRequest(
        markers=[
            marker(
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                transaction_result=False,
                topics=[where],
                coordinator_epoch=max(producer.coordinator_epoch, 0),
            )
        ],
        max_version=MARKER_VERSION,
    )


def transaction(row: Any, coordinator: int) -> Transaction:
    """Return the transaction in a row of DescribeTransactions."""
    return Transaction(
        transactional_id=TransactionalId(row.transactional_id),
        coordinator=coordinator,
        state=TransactionState(row.transaction_state),
        producer_id=row.producer_id,
        epoch=row.producer_epoch,
        start_ms=row.transaction_start_time_ms,
        timeout_ms=row.transaction_timeout_ms,
        partitions=tuple(
            sorted(
                TopicPartition(each.topic, number)
                for each in row.topics
                for number in each.partitions
            )
        ),
    )


def open_producers(rows: Sequence[Any]) -> tuple[ProducerState, ...]:
    """Return the producers with an open transaction among rows of DescribeProducers, sorted by the
    first offset of the transaction.
    """
    found = [
        ProducerState(
            producer_id=row.producer_id,
            epoch=row.producer_epoch,
            coordinator_epoch=row.coordinator_epoch,
            last_ms=row.last_timestamp,
            start_offset=row.current_txn_start_offset,
        )
        for row in rows
        if row.current_txn_start_offset >= 0
    ]
    return tuple(sorted(found, key=lambda each: each.start_offset))


def batches(leaders: Mapping[TopicPartition, int]) -> Iterator[tuple[int, list[TopicPartition]]]:
    """Yield each leader with its partitions, split into as many as one request may have."""
    in_turn = sorted(
        leaders, key=lambda topic_partition: (leaders[topic_partition], topic_partition)
    )
    for leader, topic_partitions in groupby(in_turn, key=leaders.__getitem__):
        while batch := list(islice(topic_partitions, PARTITIONS_AT_ONCE)):
            yield leader, batch


def by_topic(topic_partitions: Sequence[TopicPartition]) -> Iterator[tuple[str, list[int]]]:
    """Yield each topic with its partition numbers."""
    for topic, of_topic in groupby(
        sorted(topic_partitions), key=lambda topic_partition: topic_partition.topic
    ):
        yield topic, [topic_partition.partition for topic_partition in of_topic]
