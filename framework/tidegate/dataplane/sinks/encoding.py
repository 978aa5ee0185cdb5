"""From a batch of values to what a producer sends: columns of keys and values as bytes.

The loops are `list.extend` over `map`, so that no Python code runs per record but the user's
`key_by` and the format's own; where one raises, the list's length names the record. Called by
`sinks/kafka.py` in the mailbox thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from tidegate.api.formats import Format, Raw
from tidegate.api.kafka import KafkaSink, OutgoingRecord
from tidegate.elements import RecordBatch
from tidegate.errors import TidegateError, UserCodeError
from tidegate.ids import Uid

RECORD_OVERHEAD_BYTES: Final = 100
"""What a buffered record costs beside its bytes: two objects and their places in lists."""

Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(slots=True)
class Encoded:
    """A batch as bytes. `extras` is None where no record has headers or a timestamp."""

    values: list[bytes | None]
    keys: list[bytes | None] | None
    extras: list[tuple[Headers, int | None]] | None = None

    def __len__(self) -> int:
        return len(self.values)

    def size(self) -> int:
        """Bytes in memory, roughly; costs a loop, so it is asked only of what is buffered."""
        return (
            len(self.values) * RECORD_OVERHEAD_BYTES
            + sum(map(len, filter(None, self.values)))
            + sum(map(len, filter(None, self.keys or ())))
        )


class BatchEncoder:
    """Encodes for one sink. UserCodeError names the sink and the source record of a failure."""

    def __init__(self, sink: KafkaSink[Any], uid: Uid) -> None:
        self._sink, self._uid = sink, uid
        self._encode_value = _encoder(sink.value)
        self._encode_key = None if sink.key is None else _encoder(sink.key)

    def encode(self, batch: RecordBatch) -> Encoded:
        """Keys and values as bytes.

        Without `key_by` the records' own keys are kept where the batch carries them.
        """
        if self._sink.whole:
            return self._whole(batch)
        raw = isinstance(self._sink.value, Raw) and set(map(type, batch.values)) == {bytes}
        values = (
            batch.values if raw else self._map(batch, "encode", self._encode_value, batch.values)
        )
        if self._sink.key_by is None:
            return Encoded(values, batch.keys)
        keys = self._map(batch, "take the key (key_by) of", self._sink.key_by, batch.values)
        if self._encode_key is not None:
            return Encoded(values, self._map(batch, "encode the key of", self._encode_key, keys))
        return Encoded(values, self._map(batch, "encode the key of", _text_or_bytes(keys), keys))

    def _whole(self, batch: RecordBatch) -> Encoded:
        encode_value = self._encode_value
        encode_key = self._encode_key or _plain_key

        def columns(record: OutgoingRecord[Any, Any]) -> tuple[bytes | None, bytes | None]:
            return (
                None if record.value is None else encode_value(record.value),
                None if record.key is None else encode_key(record.key),
            )

        pairs = self._map(batch, "encode", columns, batch.values)
        values, keys = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        if any(record.headers or record.timestamp_ms is not None for record in batch.values):
            extras = [(record.headers, record.timestamp_ms) for record in batch.values]
            return Encoded(values, keys, extras)
        return Encoded(values, keys)

    def _map(
        self, batch: RecordBatch, what: str, function: Callable[[Any], Any], over: Iterable[Any]
    ) -> list[Any]:
        done: list[Any] = []
        try:
            done.extend(map(function, over))
        except TidegateError:
            raise
        except Exception as error:
            topic, partition = batch.origin
            value = batch.values[len(done)]
            raise UserCodeError(
                f"Sink {self._uid!r} ({self._sink.place}) could not {what} a value of type "
                f"{type(value).__name__}: {type(error).__name__}: {error}. It came from "
                f"{topic}-{partition} at offset {batch.offsets[len(done)]}. Correct the step that "
                "made the value, or the sink's format or key_by; the job restarts from its last "
                "checkpoint as the restart strategy says."
            ) from error
        return done


def _encoder(of: Format[Any]) -> Callable[[Any], bytes]:
    return _only_bytes if isinstance(of, Raw) else of.encoder()


def _only_bytes(value: Any) -> bytes:
    if isinstance(value, bytes):  # `bytes` itself would make five zeros of the number 5
        return value
    raise TypeError(f"Raw() takes bytes, not {type(value).__name__}")


def _text_or_bytes(keys: list[Any]) -> Callable[[Any], bytes]:
    """How keys without a format become bytes, without a Python call per key where all are text."""
    return str.encode if set(map(type, keys)) == {str} else _plain_key


def _plain_key(key: Any) -> bytes:
    if isinstance(key, bytes):
        return key
    if isinstance(key, str):
        return key.encode()
    raise TypeError(f"a key of type {type(key).__name__} needs a format: give the sink key=...")
