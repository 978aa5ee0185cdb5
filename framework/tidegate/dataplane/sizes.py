"""How large a record may be, and what is left out of a dead letter that is larger.

Kafka's limit (`max.message.bytes` of a topic) is one of a batch of records after compression, and
librdkafka's (`message.max.bytes`) is one of a record before it. A record that fits in the topic
must not be refused by the client: so the client's limit follows the topic's. A dead letter must
always fit, because nothing may be lost without a trace: it has the provenance of its record in any
case, and says how much was left out.

Pure; called by sources, operators and sinks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tidegate.api.kafka import (
    LEFT_OUT_HEADERS,
    LEFT_OUT_KEY,
    LEFT_OUT_VALUE,
    PREFIX,
    Headers,
    ProducerRecord,
)

DEFAULT_MAX_BYTES: Final = 1_048_588
"""Kafka's own default of `max.message.bytes`: 1 MiB and the 12 bytes of an old batch's header."""
CLIENT_MAX_BYTES: Final = 1_000_000_000
"""The largest `message.max.bytes` that librdkafka takes: the brokers decide."""
BATCH_BYTES: Final = 1_000_000
"""librdkafka's default of `batch.size`."""

_BATCH_HEAD: Final = 61
"""Bytes of a record batch (format 2) in front of its records."""
_SIZES: Final = "message.max.bytes", "message.bytes.max"
_COMPRESSIONS: Final = "compression.type", "compression.codec"


def size_settings(settings: Mapping[str, str], topic_max: int | None) -> dict[str, str]:
    """Librdkafka settings with the limits of a topic's records in place.

    What the user has set wins. Where records are compressed or the topic's limit is not known, the
    client refuses nothing and the broker decides. Batches of many records never exceed the topic's
    limit.
    """
    limits: dict[str, str] = {}
    if not any(name in settings for name in _SIZES):
        known = topic_max if topic_max is not None and not _compressed(settings) else None
        limits["message.max.bytes"] = str(known or CLIENT_MAX_BYTES)
    if topic_max is not None and topic_max < BATCH_BYTES:
        limits["batch.size"] = str(topic_max)
    return {**limits, **settings}


def largest_record(settings: Mapping[str, str], topic_max: int | None) -> int:
    """Bytes of a batch with one record that the sink may write: the smaller of both limits, or
    Kafka's default where neither is known.
    """
    given = [int(settings[name]) for name in _SIZES if name in settings]
    return min([*given, DEFAULT_MAX_BYTES if topic_max is None else topic_max])


def record_bytes(key: bytes | None, value: bytes | None, headers: Headers = ()) -> int:
    """Bytes of a batch that holds this record alone, without compression."""
    # Attributes and the two deltas, which are 0 in the first record of a batch, take a byte each.
    size = 3 + _field(key) + _field(value) + _varint(len(headers))
    for name, content in headers:
        size += _field(name.encode()) + _field(content)
    return _BATCH_HEAD + _varint(size) + size


def fitting(letter: ProducerRecord[Any, Any], bytes_max: int) -> ProducerRecord[Any, Any]:
    """The dead letter, with as much left out as it must be: first the value, then the key, then the
    headers that the record came with. Headers of ours say how many bytes each had.
    """
    key, value, headers = letter.key, letter.value, letter.headers
    if record_bytes(key, value, headers) <= bytes_max:
        return letter
    # Empty and not None: a letter must be no tombstone in a topic that is compacted.
    headers = (*headers, (LEFT_OUT_VALUE, _count(len(value or b""))))
    value = b""
    if record_bytes(key, value, headers) > bytes_max and key is not None:
        headers = (*headers, (LEFT_OUT_KEY, _count(len(key))))
        key = None
    if record_bytes(key, value, headers) > bytes_max:
        theirs = [each for each in headers if not each[0].startswith(PREFIX)]
        size = sum(len(name.encode()) + len(content or b"") for name, content in theirs)
        ours = (each for each in headers if each[0].startswith(PREFIX))
        headers = (*ours, (LEFT_OUT_HEADERS, _count(size)))
    return ProducerRecord(key, value, headers, letter.timestamp_ms)


def _compressed(settings: Mapping[str, str]) -> bool:
    return any(settings.get(name, "none") not in {"none", "inherit"} for name in _COMPRESSIONS)


def _count(size: int) -> bytes:
    return str(size).encode()


def _field(content: bytes | None) -> int:
    """A length and what it counts; -1 for None."""
    return 1 if content is None else _varint(len(content)) + len(content)


def _varint(value: int) -> int:
    """Bytes of a number that is not negative, as Kafka writes it: zigzag, seven bits a byte."""
    return max(1, ((value << 1).bit_length() + 6) // 7)
