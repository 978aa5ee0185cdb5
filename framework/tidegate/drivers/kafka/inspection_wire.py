"""The requests of an inspector and how their answers read: kafka-python's classes on one side,
`ports/inspection.py` on the other, and nothing that is sent.

Versions are pinned where a later one would mean something else.
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
"""In one request. Kafka's own tool asks for as many: an answer stays far below a megabyte."""
LATEST: Final = -1
"""The timestamp that asks for the end."""
READ_UNCOMMITTED: Final = 0
READ_COMMITTED: Final = 1
ABORT_TIMEOUT_MS: Final = 60_000
"""What an aborted id is left with at most: Kafka's default. Its next producer sets its own."""
MARKER_VERSION: Final = 1
"""Of WriteTxnMarkers. From version 2 on a marker may claim to be of KIP-890's protocol, and must
then have a higher epoch than the records that it ends: nobody knows one for what hangs."""

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
"""Errors of one partition that a move of its leader explains."""


def metadata(topics: Sequence[str] | None) -> Any:
    """Brokers and these topics, or all; never creates one."""
    row = MetadataRequest.MetadataRequestTopic
    return MetadataRequest(
        topics=None if topics is None else [row(name=name) for name in topics],
        allow_auto_topic_creation=False,
    )


def list_transactions(states: Collection[TransactionState], producer_ids: Collection[int]) -> Any:
    """Empty means any. Filters by age and pattern are not used: brokers before 4.1 lack them."""
    return ListTransactionsRequest(
        state_filters=[state.value for state in states],
        producer_id_filters=list(producer_ids),
        max_version=1,
    )


def describe_transactions(names: Sequence[TransactionalId]) -> Any:
    """What a coordinator knows of its ids."""
    return DescribeTransactionsRequest(transactional_ids=list(names))


def describe_producers(origins: Sequence[TopicPartition]) -> Any:
    """Active producers of partitions, asked of their leader."""
    return DescribeProducersRequest(
        topics=[
            DescribeProducersRequest.TopicRequest(name=topic, partition_indexes=numbers)
            for topic, numbers in by_topic(origins)
        ]
    )


def list_ends(origins: Sequence[TopicPartition], isolation: int) -> Any:
    """Ends of partitions for readers of one isolation level."""
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
            for name, numbers in by_topic(origins)
        ],
        min_version=4,
        max_version=7,
    )


def continue_producer(transaction: Transaction) -> Any:
    """InitProducerId of this very producer: a coordinator refuses it for a newer one (KIP-360)."""
    return InitProducerIdRequest(
        transactional_id=transaction.transactional_id,
        transaction_timeout_ms=min(transaction.timeout_ms, ABORT_TIMEOUT_MS),
        producer_id=transaction.producer_id,
        producer_epoch=transaction.epoch,
        min_version=4,
        max_version=4,
    )


def abort_marker(origin: TopicPartition, producer: ProducerState) -> Any:
    """WriteTxnMarkers as Kafka's tool sends it.

    A producer that has never seen a marker here has no coordinator epoch: 0 is then not above any
    that the next true coordinator may have.
    """
    marker = WriteTxnMarkersRequest.WritableTxnMarker
    where = marker.WritableTxnMarkerTopic(name=origin.topic, partition_indexes=[origin.partition])
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
    """A row of DescribeTransactions."""
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
    """Of DescribeProducers' rows those with a transaction open, by its first offset."""
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
    """The partitions of each leader, as many as one request takes."""
    in_turn = sorted(leaders, key=lambda origin: (leaders[origin], origin))
    for leader, origins in groupby(in_turn, key=leaders.__getitem__):
        while batch := list(islice(origins, PARTITIONS_AT_ONCE)):
            yield leader, batch


def by_topic(origins: Sequence[TopicPartition]) -> Iterator[tuple[str, list[int]]]:
    """Partition numbers of each topic."""
    for topic, of_topic in groupby(sorted(origins), key=lambda origin: origin.topic):
        yield topic, [origin.partition for origin in of_topic]
