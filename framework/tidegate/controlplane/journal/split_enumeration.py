"""Split enumeration: the partitions that a job reads, and the offsets where each read may start.

The JobMaster enumerates at the start of each attempt, before anything is deployed. Subtasks only
read the splits that they receive (sources assign, they never subscribe). `checkpoint/restore`
decides how these offsets combine with the positions of a checkpoint. Every position is resolved to
a number before a checkpoint can hold it. If "latest" were resolved twice, the records in between
would be lost.

Partitions that are added while an attempt runs are found at the start of the next attempt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

from tidegate.api.connectors.kafka_names import consumer_group, topic_of
from tidegate.api.connectors.kafka_source import KafkaSource
from tidegate.checkpoint.partition_offsets import PartitionOffsets, StartKind
from tidegate.checkpoint.source_changes import end_beyond_log_error
from tidegate.commit.lost_tail import SplitKey
from tidegate.config import Config
from tidegate.errors import RefusedError
from tidegate.graph.stream_graph import StreamGraph
from tidegate.ids import JobName, Uid
from tidegate.ports.drivers import KafkaAdmin
from tidegate.ports.kafka import GroupCommit
from tidegate.protocol.submission import PartitionEnd
from tidegate.stream_elements import TopicPartition


def source_topics(graph: StreamGraph, config: Config) -> frozenset[str]:
    """Return the topics of all sources."""
    return frozenset(topic_of(config, node) for node in graph if node.kind == "source")


def enumerate_partitions(
    graph: StreamGraph,
    config: Config,
    job: JobName,
    admin: KafkaAdmin,
    topic_ids: Mapping[str, str],
    *,
    bounded: bool,
) -> tuple[PartitionOffsets, ...]:
    """Return every partition of every source as Kafka has it now. `checkpoint.restore` makes splits
    of them.

    `topic_ids` must be requested before this call. If a topic is then created again, its offsets
    are stored with the old topic id, and the first publication finds the difference.

    TopicAbsentError if a topic does not exist, NotAllowedError if the job may not read it,
    KafkaError if brokers do not answer.
    """
    found: list[PartitionOffsets] = []
    for node in graph:
        if node.kind != "source":
            continue
        topic = topic_of(config, node)
        try:
            count = admin.partitions(topic)
        except RefusedError as error:
            raise type(error)(
                f"The topic of source {node.id!r} ({node.location}) cannot be read: {error}"
            ) from error
        topic_partitions = [TopicPartition(topic, partition) for partition in range(count)]
        earliest = admin.earliest(topic_partitions)
        source = cast("KafkaSource[object]", node.declaration)
        group = consumer_group(job, node.id)
        starts, kinds = _first_positions(source, group, topic_partitions, earliest, admin)
        # The ends are requested last. A log only grows, so no start lies after its end.
        ends = starts if source.starting_offsets == "latest" else admin.latest(topic_partitions)
        highs = admin.high_watermarks(topic_partitions) if bounded else ends
        found += [
            PartitionOffsets(
                source=Uid(node.id),
                topic=topic,
                partition=topic_partition.partition,
                start=starts[topic_partition],
                earliest=earliest[topic_partition],
                end=max(ends[topic_partition], starts[topic_partition]) if bounded else None,
                latest=ends[topic_partition],
                hidden=max(0, highs[topic_partition] - ends[topic_partition]),
                start_kind=kinds[topic_partition],
                topic_id=topic_ids.get(topic, ""),
            )
            for topic_partition in topic_partitions
        ]
    return tuple(found)


def with_chosen_ends(
    found: Sequence[PartitionOffsets], ends: Sequence[PartitionEnd]
) -> tuple[PartitionOffsets, ...]:
    """Return `found` with the ends that the client has chosen, or unchanged if it has chosen none.
    A partition that was added after that choice is not read.

    SourceChangedError if a log does not reach its chosen end: the run would wait for records that
    are gone.
    """
    if not ends:
        return tuple(found)
    chosen = {(end.source, end.topic, end.partition): end.offset for end in ends}
    return tuple(
        _ending_at(
            offsets,
            chosen.get((offsets.source, offsets.topic, offsets.partition), offsets.earliest),
        )
        for offsets in found
    )


def _ending_at(offsets: PartitionOffsets, end: int) -> PartitionOffsets:
    """Return the partition with another end. Offsets that an open transaction hides count only if
    the run reads up to the present end of the log.
    """
    if offsets.latest is not None and offsets.latest < end:
        raise end_beyond_log_error(offsets, end)
    return replace(offsets, end=end, hidden=offsets.hidden if end == offsets.latest else 0)


def group_commits(
    graph: StreamGraph, job: JobName, admin: KafkaAdmin
) -> dict[SplitKey, GroupCommit]:
    """Return the commits of the consumer groups of all sources."""
    return {
        (Uid(node.id), topic_partition.topic, topic_partition.partition): commit
        for node in graph
        if node.kind == "source"
        for topic_partition, commit in admin.group_commits(consumer_group(job, node.id)).items()
    }


def _first_positions(
    source: KafkaSource[object],
    group: str,
    topic_partitions: list[TopicPartition],
    earliest: Mapping[TopicPartition, int],
    admin: KafkaAdmin,
) -> tuple[Mapping[TopicPartition, int], Mapping[TopicPartition, StartKind]]:
    """Return the first positions of a source without a checkpoint, according to its
    `starting_offsets`, and the kind of each start.
    """
    start = source.starting_offsets
    if start == "latest":
        return admin.latest(topic_partitions), dict.fromkeys(topic_partitions, "latest")
    if start == "committed":
        committed = admin.committed(group, topic_partitions)
        given = {topic_partition: at for topic_partition, at in committed.items() if at is not None}
        return {**earliest, **given}, _kinds(topic_partitions, given, "group")
    if isinstance(start, int):
        return admin.at_time(topic_partitions, start), dict.fromkeys(topic_partitions, "timestamp")
    if isinstance(start, Mapping):
        unknown = sorted(
            start.keys() - {topic_partition.partition for topic_partition in topic_partitions}
        )
        if unknown:
            raise RefusedError(
                f"{source.location}: starting_offsets= of topic {source.topic!r} names partition "
                f"{unknown[0]}, and the topic has partitions 0 to {len(topic_partitions) - 1}. "
                "Correct the mapping."
            )
        given = {
            each: start[each.partition] for each in topic_partitions if each.partition in start
        }
        return {**earliest, **given}, _kinds(topic_partitions, given, "offset")
    return earliest, dict.fromkeys(topic_partitions, "earliest")


def _kinds(
    topic_partitions: list[TopicPartition], given: Mapping[TopicPartition, int], kind: StartKind
) -> dict[TopicPartition, StartKind]:
    """Return `kind` for partitions with a given start, and "earliest" for the others."""
    return {
        topic_partition: kind if topic_partition in given else "earliest"
        for topic_partition in topic_partitions
    }
