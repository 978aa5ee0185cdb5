"""Limits of record sizes, and the shortening of dead letters that exceed them.

Kafka's limit (`max.message.bytes` of a topic) applies to a batch of records after compression.
librdkafka's limit (`message.max.bytes`) applies to one record before compression. The client must
not refuse a record that fits in the topic, so the client's limit follows the limit of the topic. A
dead letter must always fit, because no record may be lost without a trace. It always has the
provenance of its record and says how many bytes were left out.

This module is pure. Sources, operators and sinks call it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tidegate.api.connectors.kafka_records import (
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
"""The largest `message.max.bytes` that librdkafka accepts. Then only the brokers limit records."""
CLIENT_LEAST_BYTES: Final = 1_000
"""The smallest `message.max.bytes` that librdkafka accepts. A topic may have a smaller limit, with
which the brokers refuse the records."""
BATCH_BYTES: Final = 1_000_000
"""librdkafka's default of `batch.size`."""

_BATCH_HEAD: Final = 61
"""Number of bytes of a record batch (format 2) before its records."""
_SIZES: Final = "message.max.bytes", "message.bytes.max"
_COMPRESSIONS: Final = "compression.type", "compression.codec"


def size_settings(settings: Mapping[str, str], topic_max: int | None) -> dict[str, str]:
    """Return librdkafka settings with the size limits of a topic's records added.

    A limit that the user has set takes precedence. If records are compressed or the topic's limit
    is not known, the client refuses no record and the broker decides. A batch of several records
    never exceeds the topic's limit.
    """
    limits: dict[str, str] = {}
    if not any(name in settings for name in _SIZES):
        known = topic_max if topic_max is not None and not _compressed(settings) else None
        limits["message.max.bytes"] = str(max(known or CLIENT_MAX_BYTES, CLIENT_LEAST_BYTES))
    if topic_max is not None and topic_max < BATCH_BYTES:
        limits["batch.size"] = str(topic_max)
    return {**limits, **settings}


def record_size_limit(settings: Mapping[str, str], topic_max: int | None) -> int:
    """Return the size in bytes of the largest batch of one record that the sink may write.

    This is the smaller of the client's limit and the topic's limit. Kafka's default replaces the
    topic's limit if that is not known.
    """
    given = [int(settings[name]) for name in _SIZES if name in settings]
    return min([*given, DEFAULT_MAX_BYTES if topic_max is None else topic_max])


def record_bytes(key: bytes | None, value: bytes | None, headers: Headers = ()) -> int:
    """Return the size in bytes of an uncompressed batch that holds only this record."""
    # The attributes and the two deltas take one byte each. Both deltas are 0 in the first record of
    # a batch.
    size = 3 + _field(key) + _field(value) + _varint(len(headers))
    for name, content in headers:
        size += _field(name.encode()) + _field(content)
    return _BATCH_HEAD + _varint(size) + size


def shorten_dead_letter(
    letter: ProducerRecord[Any, Any], bytes_max: int
) -> ProducerRecord[Any, Any]:
    """Return the dead letter, shortened until it fits into `bytes_max`.

    The function leaves out the value first, then the key, then the headers that the record came
    with. A header of tidegate's own says how many bytes each of them had.
    """
    key, value, headers = letter.key, letter.value, letter.headers
    if record_bytes(key, value, headers) <= bytes_max:
        return letter
    # The value is empty and not None: a letter must not be a tombstone in a compacted topic.
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
    """Return the size of a length and the content after it. The length of None is -1."""
    return 1 if content is None else _varint(len(content)) + len(content)


def _varint(value: int) -> int:
    """Return the bytes that Kafka's encoding of a number >= 0 takes: zigzag, seven bits a byte."""
    return max(1, ((value << 1).bit_length() + 6) // 7)
