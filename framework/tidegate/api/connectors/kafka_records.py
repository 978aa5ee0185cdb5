"""Records with their parts in Kafka, and the headers of dead letters.

`ConsumerRecord` is a record of a source with its topic, partition and offset. `ProducerRecord` is a
record for a sink with key, headers and timestamp. Both are plain data.
"""

from __future__ import annotations

from typing import Final, Generic, TypeVar

import msgspec

K = TypeVar("K")
V = TypeVar("V")

Headers = tuple[tuple[str, bytes | None], ...]

ORIGIN_TOPIC: Final = "tidegate.source.topic"
ORIGIN_PARTITION: Final = "tidegate.source.partition"
ORIGIN_OFFSET: Final = "tidegate.source.offset"
ORIGIN_TIMESTAMP: Final = "tidegate.source.timestamp"
STEP: Final = "tidegate.step"
ERROR: Final = "tidegate.error"
LEFT_OUT_VALUE: Final = "tidegate.left-out.value"
LEFT_OUT_KEY: Final = "tidegate.left-out.key"
LEFT_OUT_HEADERS: Final = "tidegate.left-out.headers"
"""Headers that a dead letter has in addition to the record's own.

The values are UTF-8 text, numbers in decimal. The last three are present only if the dead letter
would have been larger than its topic allows: they give the numbers of bytes of the record that it
does not contain.
"""
PREFIX: Final = "tidegate."
"""Prefix of the names of these headers."""


class ConsumerRecord(msgspec.Struct, Generic[K, V], frozen=True):
    """A record with its topic, partition and offset, from `KafkaSource.records`.

    `timestamp_ms` is the record's timestamp in Kafka, in ms since the epoch. The producer or the
    broker sets it, as the topic is configured. It is -1 if the record has no timestamp.
    """

    key: K
    value: V
    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    headers: Headers = ()


class ProducerRecord(msgspec.Struct, Generic[K, V], frozen=True):
    """A record with key and headers, for `KafkaSink.records`. A value of None is a tombstone.

    `timestamp_ms` is in ms since the epoch; None means the time at which the record is sent.
    """

    key: K | None
    value: V | None
    headers: Headers = ()
    timestamp_ms: int | None = None
