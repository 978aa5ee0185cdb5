"""Records that one place of a pipeline cannot process, and what its policy does with them.

A step, an edge by key and a sink each have a `Refusals`, which carries out `on_error=` of that
place: the record is counted and left out ("skip"), or counted and written to a topic with its
provenance and the reason ("dead_letter"). A dead letter is an ordinary record of the sink that
takes it: it goes there within the call that refused the record, so before the next barrier, and
belongs to the same checkpoint. Under the policy "fail" nothing comes here: the caller raises.

Nothing here is called for a record that works.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Any, Final

import msgspec

from tidegate.api.declaration_checks import OnError
from tidegate.api.kafka import (
    ERROR,
    ORIGIN_OFFSET,
    ORIGIN_PARTITION,
    ORIGIN_TOPIC,
    STEP,
    ProducerRecord,
)
from tidegate.dataplane.counters import Counters
from tidegate.dataplane.sizes import DEFAULT_MAX_BYTES, fitting
from tidegate.errors import (
    ResourceExhaustedError,
    StateValueError,
    TidegateError,
    encodable,
    from_foreign,
)
from tidegate.stream_elements import RecordBatch

REASON_LENGTH_MAX: Final = 1000
"""Characters of an exception's text that go into a header; some quote the whole record."""
LOGGED_ALL: Final = 10
"""So many refused records of a place are logged one by one; then each time their number doubles."""

_log = logging.getLogger(__name__)


class Refusals:
    """The policy of one place in one subtask. `where` names the place in logs and dead letters;
    `emit` leads to the sink of the dead letters, where the policy has one.
    """

    def __init__(
        self,
        where: str,
        policy: OnError = "fail",
        counters: Counters | None = None,
        emit: Callable[[RecordBatch], None] | None = None,
        bytes_max: int = DEFAULT_MAX_BYTES,
    ) -> None:
        self.tolerant = policy != "fail"
        """Whether the job goes on without a record that fails here."""
        self._where, self._counters = where, Counters() if counters is None else counters
        self._emit = emit if policy == "dead_letter" else None
        self._bytes_max = bytes_max
        self._refused = 0

    def takes(self, error: Exception) -> bool:
        """Whether the policy covers an error of user code: not one of tidegate itself (the storage
        of state, say) unless it is about a value that the record has put into state, and not a
        resource that the system refused, which is about the host.
        """
        if isinstance(error, StateValueError):
            return self.tolerant
        if not self.tolerant or isinstance(error, TidegateError):
            return False
        return not isinstance(from_foreign(error), ResourceExhaustedError)

    def refuse(self, batch: RecordBatch, index: int, reason: str) -> None:
        """Count a record, and write its dead letter where the policy says so."""
        origin, offset, reason = batch.origin, batch.offsets[index], encodable(reason)
        self._refused += 1
        if self._refused <= LOGGED_ALL or self._refused & (self._refused - 1) == 0:
            _log.warning(
                "a record is refused",
                extra={
                    "step": self._where,
                    "policy": "skip" if self._emit is None else "dead_letter",
                    "topic": origin.topic,
                    "partition": origin.partition,
                    "offset": offset,
                    "error": reason,
                    "refused": self._refused,
                },
            )
        if self._emit is None:
            self._counters.skipped += 1
            return
        self._counters.dead_letters += 1
        provenance = (
            (ORIGIN_TOPIC, origin.topic),
            (ORIGIN_PARTITION, str(origin.partition)),
            (ORIGIN_OFFSET, str(offset)),
            (STEP, self._where),
            (ERROR, reason),
        )
        letter: ProducerRecord[Any, Any] = ProducerRecord(
            key=None if batch.keys is None else batch.keys[index],
            value=_as_bytes(batch.values[index]),
            headers=tuple((name, encodable(text).encode()) for name, text in provenance),
        )
        self._emit(RecordBatch([fitting(letter, self._bytes_max)], [offset], origin))


def reason_of(error: Exception) -> str:
    """An exception as a header and a log have it."""
    text = f"{type(error).__name__}: {error}"
    return text if len(text) <= REASON_LENGTH_MAX else text[:REASON_LENGTH_MAX] + "…"


def without(batch: RecordBatch, refused: Collection[int]) -> RecordBatch:
    """The batch without some of its records."""
    if not refused:
        return batch
    kept = [index for index in range(len(batch)) if index not in refused]
    return RecordBatch(
        [batch.values[index] for index in kept],
        [batch.offsets[index] for index in kept],
        batch.origin,
        None if batch.keys is None else [batch.keys[index] for index in kept],
    )


def _as_bytes(value: Any) -> bytes:
    """The record as the place got it: bytes and text as they are, else as JSON, else its repr."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode(errors="backslashreplace")
    try:
        return msgspec.json.encode(value, enc_hook=repr)
    except Exception:  # noqa: BLE001  # whatever an encoder says of a value that failed already
        return repr(value).encode(errors="backslashreplace")
