"""Split enumeration: which partitions a job reads, from where, and for a bounded run up to where.

JobMaster does it at the start of each attempt, before anything is deployed; subtasks only read what
they are given (sources assign, never subscribe). What a checkpoint holds is taken as it is; a partition
that it does not know was added since and is read from its beginning, whatever the source's start says,
because records that were written to it since must not be skipped (Flink's rule). Every position is a
number before the first checkpoint can hold it: "latest" resolved twice would lose what lies between.

Partitions that are added while an attempt runs are found at the start of the next one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from tidegate.api.kafka import KafkaSource
from tidegate.config import Config
from tidegate.elements import Origin
from tidegate.errors import RefusedError
from tidegate.graph.logical import Graph, Node
from tidegate.ids import JobName, Uid
from tidegate.ports.drivers import KafkaAdmin
from tidegate.protocol.snapshots import SourceSplit


def consumer_group(job: JobName, source: str) -> str:
    """The group under which positions are shown to lag monitors: `tidegate.<job>.<source>`."""
    return f"tidegate.{job}.{source}"


def source_topic(config: Config, node: Node) -> str:
    """The topic of a source: the configuration's override, or the declaration's."""
    override = config.sources.get(node.id)
    declared = cast("KafkaSource[object]", node.declaration).topic
    return override.topic if override is not None and override.topic is not None else declared


def enumerate_splits(
    graph: Graph,
    config: Config,
    job: JobName,
    admin: KafkaAdmin,
    *,
    restored: tuple[SourceSplit, ...] | None,
    bounded: bool,
    keep_ends: bool,
) -> tuple[SourceSplit, ...]:
    """All splits of a job, for one attempt.

    `restored` are the positions of the checkpoint that the attempt stands on, None without one.
    `keep_ends`: a restart of the same bounded run stops where it first said; a new run asks anew.
    Raises RefusedError for a topic that is not there, KafkaError for brokers that do not answer.
    """
    splits: list[SourceSplit] = []
    for node in graph:
        if node.kind == "source":
            splits += _of_source(node, config, job, admin, restored)
    ends = _ends(splits, admin) if bounded else {}
    return tuple(
        SourceSplit(
            source=split.source,
            topic=split.topic,
            partition=split.partition,
            offset=split.offset,
            end_offset=_end(split, ends, keep=keep_ends) if bounded else None,
        )
        for split in splits
    )


def _of_source(
    node: Node,
    config: Config,
    job: JobName,
    admin: KafkaAdmin,
    restored: tuple[SourceSplit, ...] | None,
) -> list[SourceSplit]:
    topic = source_topic(config, node)
    origins = [Origin(topic, partition) for partition in range(admin.partitions(topic))]
    known = {split.origin: split for split in restored or () if split.source == node.id}
    new = [origin for origin in origins if origin not in known]
    if known:
        starts: Mapping[Origin, int] = admin.earliest(new) if new else {}
    else:
        source = cast("KafkaSource[object]", node.declaration)
        starts = _first_positions(source, consumer_group(job, node.id), new, admin)
    return [
        known[origin]
        if origin in known
        else SourceSplit(
            source=Uid(node.id),
            topic=topic,
            partition=origin.partition,
            offset=starts[origin],
        )
        for origin in origins
    ]


def _first_positions(
    source: KafkaSource[object], group: str, origins: list[Origin], admin: KafkaAdmin
) -> Mapping[Origin, int]:
    """Where a source without a checkpoint begins, as its `start` says."""
    start = source.start
    if start == "latest":
        return admin.latest(origins)
    if start == "group":
        earliest = admin.earliest(origins)
        committed = admin.committed(group, origins)
        return {
            origin: earliest[origin] if (offset := committed.get(origin)) is None else offset
            for origin in origins
        }
    if isinstance(start, int):
        return admin.at_time(origins, start)
    earliest = admin.earliest(origins)
    if isinstance(start, Mapping):
        unknown = sorted(start.keys() - {origin.partition for origin in origins})
        if unknown:
            raise RefusedError(
                f"{source.place}: start= of topic {source.topic!r} names partition {unknown[0]}, and "
                f"the topic has partitions 0 to {len(origins) - 1}. Correct the mapping."
            )
        return {origin: start.get(origin.partition, earliest[origin]) for origin in origins}
    return earliest


def _ends(splits: list[SourceSplit], admin: KafkaAdmin) -> dict[Origin, int]:
    return admin.latest(sorted({split.origin for split in splits}))


def _end(split: SourceSplit, ends: Mapping[Origin, int], *, keep: bool) -> int:
    if keep and split.end_offset is not None:
        return split.end_offset
    return max(ends[split.origin], split.offset)
