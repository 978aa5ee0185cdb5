"""Split enumeration: which partitions a job reads, and where each may be read from.

JobMaster does it at the start of each attempt, before anything is deployed; subtasks only read what
they are given (sources assign, never subscribe). What becomes of these facts beside a checkpoint's
positions is decided in `checkpoint/restore`. Every position is a number before a checkpoint can
hold it: "latest" resolved twice would lose what lies between.

Partitions that are added while an attempt runs are found at the start of the next one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from tidegate.api.kafka import KafkaSource
from tidegate.api.topics import consumer_group, topic_of
from tidegate.checkpoint.restore import PartitionFacts
from tidegate.config import Config
from tidegate.elements import Origin
from tidegate.errors import RefusedError
from tidegate.graph.logical import Graph
from tidegate.ids import JobName, Uid
from tidegate.ports.drivers import KafkaAdmin


def enumerate_partitions(
    graph: Graph, config: Config, job: JobName, admin: KafkaAdmin, *, bounded: bool
) -> tuple[PartitionFacts, ...]:
    """Every partition of every source as Kafka has it now; `checkpoint.restore` makes splits of
    them.

    Raises RefusedError for a topic that is not there, KafkaError for brokers that do not answer.
    """
    found: list[PartitionFacts] = []
    for node in graph:
        if node.kind != "source":
            continue
        topic = topic_of(config, node)
        try:
            count = admin.partitions(topic)
        except RefusedError as error:
            raise RefusedError(
                f"The topic of source {node.id!r} ({node.place}) cannot be read: {error}"
            ) from error
        origins = [Origin(topic, partition) for partition in range(count)]
        earliest = admin.earliest(origins)
        source = cast("KafkaSource[object]", node.declaration)
        given = source.start == "group" or isinstance(source.start, Mapping)
        ends = admin.latest(origins) if bounded or given else {}
        group = consumer_group(job, node.id)
        starts = _first_positions(source, group, origins, earliest, admin)
        found += [
            PartitionFacts(
                source=Uid(node.id),
                topic=topic,
                partition=origin.partition,
                start=starts[origin],
                earliest=earliest[origin],
                end=max(ends[origin], starts[origin]) if bounded else None,
                latest=ends[origin] if given else None,
            )
            for origin in origins
        ]
    return tuple(found)


def _first_positions(
    source: KafkaSource[object],
    group: str,
    origins: list[Origin],
    earliest: Mapping[Origin, int],
    admin: KafkaAdmin,
) -> Mapping[Origin, int]:
    """Where a source without a checkpoint begins, as its `start` says."""
    start = source.start
    if start == "latest":
        return admin.latest(origins)
    if start == "group":
        committed = admin.committed(group, origins)
        return {
            origin: earliest[origin] if (offset := committed.get(origin)) is None else offset
            for origin in origins
        }
    if isinstance(start, int):
        return admin.at_time(origins, start)
    if isinstance(start, Mapping):
        unknown = sorted(start.keys() - {origin.partition for origin in origins})
        if unknown:
            raise RefusedError(
                f"{source.place}: start= of topic {source.topic!r} names partition {unknown[0]}, "
                f"and the topic has partitions 0 to {len(origins) - 1}. Correct the mapping."
            )
        return {origin: start.get(origin.partition, earliest[origin]) for origin in origins}
    return earliest
