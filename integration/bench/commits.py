"""Finds the first and the last commit of a run in the offsets that the run has committed.

A loop sends its offsets with each transaction. tidegate commits the offsets of each checkpoint to
its consumer group, right after it has committed the transactions. Both commits are records of the
topic `__consumer_offsets`, each with the time at which the broker took it. So this module reads the
same figures of both kinds of run, after the run, and asks the broker nothing while it runs.

The commits of a run are those for its input since its start. Runs with the same input must not
overlap.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import Consumer, TopicPartition

TOPIC: Final = "__consumer_offsets"
OFFSET_VERSIONS: Final = frozenset({0, 1})
"""Versions of the key of a committed offset. Other records of the topic describe the groups."""
READ_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Commit:
    """One offset that was committed: the next record to read from a partition."""

    at_s: float
    """Seconds since the Unix epoch."""
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Span:
    """The time between the first and the last commit of a run, and the records between both."""

    first_s: float
    last_s: float
    records: int


def span(commits: Iterable[Commit], partitions: int) -> Span | None:
    """Return the span of commits in the order of their times. None if there are fewer than two.

    The first commit is the one after which records of each partition are committed. The first
    checkpoint of a job may come before its first record, and the first commit of a loop has some.
    Subtasks commit the offsets of one checkpoint a few milliseconds apart.
    """
    offsets: dict[int, int] = {}
    first: tuple[float, int] | None = None
    last_s = 0.0
    for commit in commits:
        if commit.offset > 0:
            offsets[commit.partition] = commit.offset
        last_s = commit.at_s
        if first is None and len(offsets) == partitions:
            first = commit.at_s, sum(offsets.values())
    if first is None or first[0] == last_s:
        return None
    return Span(first[0], last_s, sum(offsets.values()) - first[1])


def read_commits(bootstrap: str, source: str, since_s: float) -> list[Commit]:
    """Return the offsets that were committed for a topic since a time, in the order of the times.

    Offsets of transactions that were aborted are left out.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench-commits",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    try:
        known = consumer.list_topics(TOPIC, READ_S).topics[TOPIC].partitions
        consumer.assign([TopicPartition(TOPIC, number, 0) for number in known])
        found: list[Commit] = []
        unread = set(known)
        while unread:
            messages = consumer.consume(1, READ_S)
            if not messages:
                raise RuntimeError(f"{TOPIC} at {bootstrap} could not be read to its end.")
            for message in messages + consumer.consume(5000, 0):
                if message.error() is not None:
                    unread.discard(message.partition())
                elif (commit := _commit_of(message, source)) is not None:
                    found.append(commit)
    finally:
        consumer.close()
    return sorted((each for each in found if each.at_s >= since_s), key=lambda each: each.at_s)


def _commit_of(message: Any, source: str) -> Commit | None:
    """Return the commit in a record, or None if the record is not about the topic `source`."""
    key, value = message.key(), message.value()
    if key is None or value is None or struct.unpack_from(">h", key)[0] not in OFFSET_VERSIONS:
        return None
    _, at = _text(key, 2)  # the group
    topic, at = _text(key, at)
    if topic != source:
        return None
    (partition,) = struct.unpack_from(">i", key, at)
    (offset,) = struct.unpack_from(">q", value, 2)
    return Commit(message.timestamp()[1] / 1000, partition, offset)


def _text(data: bytes, at: int) -> tuple[str, int]:
    """Return a text of Kafka's protocol, and the place behind it."""
    (length,) = struct.unpack_from(">h", data, at)
    return data[at + 2 : at + 2 + length].decode(), at + 2 + length
