"""The encoding of a batch for a producer: columns of keys and values as bytes.

The loops are `list.extend` over `map`. Per record, the only Python code is the user's `record_key`
and the code of the format. If one of these raises, the length of the list identifies the record.
`sinks/kafka.py` calls this module in the mailbox thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from tidegate.api.connectors.kafka_records import ProducerRecord
from tidegate.api.connectors.kafka_sink import KafkaSink
from tidegate.api.records.formats import Format, Raw
from tidegate.api.records.values import ClassCheck, article, class_check, declared_name
from tidegate.dataplane.columns import origin_of, slice_batch, without
from tidegate.dataplane.refusals import Refusals
from tidegate.dataplane.sizes import DEFAULT_MAX_BYTES, record_bytes
from tidegate.errors import (
    PipelineError,
    UserCodeError,
    check_complete,
    passes_through,
)
from tidegate.ids import Uid
from tidegate.message_text import clause
from tidegate.stream_elements import RecordBatch
from tidegate.user_exceptions import described

RECORD_OVERHEAD_BYTES: Final = 100
"""Bytes that a buffered record takes in addition to its content: two objects and their list
entries.
"""

SMALL_BYTES: Final = 100
"""Bytes: more than Kafka's record format adds to the key and value of a record without headers."""

Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(slots=True)
class Encoded:
    """A batch as bytes. `extras` holds headers and timestamps; None if no record has any."""

    values: list[bytes | None]
    keys: list[bytes | None] | None
    extras: list[tuple[Headers, int | None]] | None = None

    def __len__(self) -> int:
        return len(self.values)

    def size(self) -> int:
        """Return the approximate size in memory, in bytes. This takes a loop, so only batches that
        are buffered are measured.
        """
        return (
            len(self.values) * RECORD_OVERHEAD_BYTES
            + sum(map(len, filter(None, self.values)))
            + sum(map(len, filter(None, self.keys or ())))
        )


class BatchEncoder:
    """The encoder of one sink. A UserCodeError names the sink and the source record of a failure.

    The encoder checks keys, and the values of full records (`ProducerRecord`). Other values are
    checked where they leave their step (`operators/checking.py`).
    """

    def __init__(
        self,
        sink: KafkaSink[Any],
        uid: Uid,
        refusals: Refusals | None = None,
        bytes_max: int = DEFAULT_MAX_BYTES,
    ) -> None:
        """Create the encoder. `bytes_max` limits the size of a record; it is checked only if
        `refusals` has a policy for such records.
        """
        self._sink, self._bytes_max = sink, bytes_max
        self._named = f"Sink {uid!r} for {sink.target} ({sink.location})"
        self._refusals = Refusals(uid) if refusals is None else refusals
        self._with_event_time = sink.timestamps == "event_time"
        self._encode_value = _encoder(sink.value)
        self._encode_key = None if sink.key is None else _encoder(sink.key)
        self._value_check = class_check(_or_absent(sink, sink.value))
        self._key_check = None if sink.key is None else class_check(_or_absent(sink, sink.key))

    def encode(self, batch: RecordBatch) -> Encoded:
        """Return keys and values as bytes, without the records that the sink's policy refuses.

        Without `record_key`, records keep their own keys if the batch carries them.
        """
        if not self._refusals.tolerant:
            return self._encoded(batch)
        try:
            encoded = self._encoded(batch)
        except (UserCodeError, PipelineError):
            return self._encoded(self.encodable(batch))
        return self._encoded(self.encodable(batch)) if self._may_be_too_large(encoded) else encoded

    def encodable(self, batch: RecordBatch) -> RecordBatch:
        """Return the batch without the records that cannot be written, and refuse these records."""
        refused = set()
        for index in range(len(batch)):
            one = slice_batch(batch, index, index + 1)
            try:
                encoded = self._encoded(one)
            except (UserCodeError, PipelineError) as error:
                cause = error.__cause__
                if cause is not None and not self._refusals.covers(cause):
                    raise
                reason = described(error if cause is None else cause)
            else:
                size = _record_bytes(encoded)
                if size <= self._bytes_max:
                    continue
                reason = f"the record takes {size} bytes in its topic, the limit is "
                reason += str(self._bytes_max)
            refused.add(index)
            self._refusals.refuse(batch, index, reason)
        return without(batch, refused)

    def _may_be_too_large(self, encoded: Encoded) -> bool:
        if any(headers for headers, _ in encoded.extras or ()):
            return True
        keys = max(map(len, filter(None, encoded.keys or ())), default=0)
        values = max(map(len, filter(None, encoded.values)), default=0)
        return keys + values + SMALL_BYTES > self._bytes_max

    def _encoded(self, batch: RecordBatch) -> Encoded:
        if self._sink.full_record:
            return self._whole(batch)
        raw = isinstance(self._sink.value, Raw) and set(map(type, batch.values)) == {bytes}
        values = (
            batch.values if raw else self._map(batch, "encode", self._encode_value, batch.values)
        )
        if not self._with_event_time or batch.timestamps_ms is None:
            return Encoded(values, self._keys(batch))
        self._check_times(batch, batch.timestamps_ms)
        extras: list[tuple[Headers, int | None]] = [
            ((), time_ms) for time_ms in batch.timestamps_ms
        ]
        return Encoded(values, self._keys(batch), extras)

    def _keys(self, batch: RecordBatch) -> list[bytes | None] | None:
        if self._sink.record_key is None:
            return batch.keys
        keys = self._map(batch, "take the key (record_key) of", self._sink.record_key, batch.values)
        if self._encode_key is not None:
            self._check(batch, "key", self._key_check, keys)
            return self._map(batch, "encode the key of", self._encode_key, keys)
        return self._map(batch, "encode the key of", _text_or_bytes(keys), keys)

    def _check_times(self, batch: RecordBatch, times_ms: list[int]) -> None:
        """Raise UserCodeError for a timestamp that Kafka cannot store. It takes 0 as "now"."""
        for index, time_ms in enumerate(times_ms):
            if time_ms <= 0:
                raise UserCodeError(
                    f"{self._named} cannot write the event time "
                    f"{time_ms} ms as timestamp: Kafka stores no time at or before 1970-01-01 "
                    f"00:00 UTC. The record came from {origin_of(batch, index)}. Filter such "
                    "records out, or remove timestamps='event_time'; the job restarts from its "
                    "last checkpoint as the restart strategy says."
                )

    def _whole(self, batch: RecordBatch) -> Encoded:
        encode_key = self._encode_key or _plain_key
        records: list[ProducerRecord[Any, Any]] = batch.values
        given = [record.value for record in records]
        self._check(batch, "value", self._value_check, given)
        values = self._map(batch, "encode", _or_none(self._encode_value), given)
        given = [record.key for record in records]
        self._check(batch, "key", self._key_check, given)
        keys = self._map(batch, "encode the key of", _or_none(encode_key), given)
        if self._with_event_time and batch.timestamps_ms is not None:
            times_ms = [
                time_ms if record.timestamp_ms is None else record.timestamp_ms
                for record, time_ms in zip(records, batch.timestamps_ms, strict=True)
            ]
            self._check_times(batch, times_ms)
            headers = [record.headers for record in records]
            return Encoded(values, keys, list(zip(headers, times_ms, strict=True)))
        if any(record.headers or record.timestamp_ms is not None for record in records):
            extras = [(record.headers, record.timestamp_ms) for record in records]
            return Encoded(values, keys, extras)
        return Encoded(values, keys)

    def _check(
        self, batch: RecordBatch, what: str, check: ClassCheck | None, values: list[Any]
    ) -> None:
        index = None if check is None else check.first_wrong(values)
        if check is None or index is None:
            return
        raise UserCodeError(
            f"{self._named} got a {what} that is "
            f"{article(type(values[index]).__name__)}, and its format takes "
            f"{declared_name(check.type)}. It came from {origin_of(batch, index)}. Correct the "
            "step or the record_key that made it, or declare its type in the format; the job "
            "restarts from its last checkpoint as the restart strategy says."
        )

    def _map(
        self, batch: RecordBatch, what: str, function: Callable[[Any], Any], over: Iterable[Any]
    ) -> list[Any]:
        done: list[Any] = []
        try:
            done.extend(map(function, over))
            check_complete(len(done), len(batch.values))
        except passes_through():
            raise
        except BaseException as error:
            value = batch.values[len(done)]
            raise UserCodeError(
                f"{self._named} could not {what} a value of type "
                f"{type(value).__name__}: {clause(described(error))}. It came from "
                f"{origin_of(batch, len(done))}. Correct the step that "
                "made the value, or the sink's format or record_key; the job restarts from its "
                "last checkpoint as the restart strategy says."
            ) from error
        return done


def _record_bytes(encoded: Encoded) -> int:
    """Return the size in bytes of the only record that was encoded."""
    key = None if encoded.keys is None else encoded.keys[0]
    headers = () if encoded.extras is None else encoded.extras[0][0]
    return record_bytes(key, encoded.values[0], headers)


def _or_absent(sink: KafkaSink[Any], of: Format[Any]) -> object:
    """Return the type of keys or values. In full records they may also be None."""
    declared: Any = of.value_type
    return declared | None if sink.full_record else declared


def _or_none(encode: Callable[[Any], bytes]) -> Callable[[Any], bytes | None]:
    return lambda value: None if value is None else encode(value)


def _encoder(of: Format[Any]) -> Callable[[Any], bytes]:
    return _only_bytes if isinstance(of, Raw) else of.encoder()


def _only_bytes(value: Any) -> bytes:
    if isinstance(value, bytes):  # `bytes(5)` would give five zero bytes
        return value
    raise TypeError(f"Raw() takes bytes, not {type(value).__name__}")


def _text_or_bytes(keys: list[Any]) -> Callable[[Any], bytes]:
    """Return the encoder of keys without a format. It makes no Python call per key if all keys are
    text.
    """
    return str.encode if set(map(type, keys)) == {str} else _plain_key


def _plain_key(key: Any) -> bytes:
    if isinstance(key, bytes):
        return key
    if isinstance(key, str):
        return key.encode()
    raise TypeError(f"a key of type {type(key).__name__} needs a format: give the sink key=...")
