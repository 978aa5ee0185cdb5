"""Records that one place of a pipeline cannot process, and the policy that handles them.

A place is a step, a key edge or a sink. Each place has a `Refusals` object, which carries out the
`on_error=` of the place. "skip" counts the record and drops it. "dead_letter" counts the record and
writes it to a topic, with its provenance and the reason. A dead letter is an ordinary record of the
sink that writes it. The call that refuses a record also passes the dead letter to that sink. This
happens before the next barrier, so the dead letter belongs to the same checkpoint. Under the policy
"fail" no record is refused: the caller raises.

No code of this module runs for a record that is processed without an error.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from tidegate.api.connectors.kafka_records import (
    ERROR,
    ORIGIN_OFFSET,
    ORIGIN_PARTITION,
    ORIGIN_TOPIC,
    STEP,
    ProducerRecord,
)
from tidegate.api.declarations.declaration_checks import OnError
from tidegate.api.records.finite import json_of_any
from tidegate.dataplane.counters import Counters
from tidegate.dataplane.sizes import DEFAULT_MAX_BYTES, shorten_dead_letter
from tidegate.errors import StateValueError, passes_through, refused_resource
from tidegate.stream_elements import RecordBatch
from tidegate.user_exceptions import encodable, process_ends, repr_of

LOGGED_ALL: Final = 10
"""Number of refused records of a place that are logged one by one. Later records are logged only
when their number is a power of two.
"""

_log = logging.getLogger(__name__)


class Refusals:
    """The policy of one place in one subtask.

    `where` names the place in logs and dead letters. `emit` leads to the sink of the dead letters,
    if the policy has one.
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
        """Whether the job continues without a record that fails at this place."""
        self._where, self._counters = where, Counters() if counters is None else counters
        self._emit = emit if policy == "dead_letter" else None
        self._bytes_max = bytes_max
        self._refused = 0

    def covers(self, error: BaseException) -> bool:
        """Return whether the policy covers an error of user code.

        It covers every exception, also one that does not derive from `Exception`. It covers a
        StateValueError, which concerns a value that the record has put into state. It covers no
        other error of tidegate itself, such as an error of the state's storage. It does not cover
        a resource that the system refused, such as memory, because that is a problem of the host.
        """
        if isinstance(error, StateValueError):
            return self.tolerant
        if not self.tolerant or isinstance(error, passes_through()):
            return False
        return refused_resource(error) is None

    def refuse(self, batch: RecordBatch, index: int, reason: str) -> None:
        """Count a record, and write its dead letter if the policy says so."""
        reason = encodable(reason)
        self._refused += 1
        if self._refused <= LOGGED_ALL or self._refused & (self._refused - 1) == 0:
            _log.warning(
                "a record is refused",
                extra={
                    "step": self._where,
                    "policy": "skip" if self._emit is None else "dead_letter",
                    **_log_fields(batch, index),
                    "error": reason,
                    "refused": self._refused,
                },
            )
        if self._emit is None:
            self._counters.skipped += 1
            return
        self._counters.dead_letters += 1
        provenance = (*_provenance(batch, index), (STEP, self._where), (ERROR, reason))
        letter: ProducerRecord[Any, Any] = ProducerRecord(
            key=None if batch.keys is None else batch.keys[index],
            value=_as_bytes(batch.values[index]),
            headers=tuple((name, encodable(text).encode()) for name, text in provenance),
        )
        short = shorten_dead_letter(letter, self._bytes_max)
        self._emit(RecordBatch([short], [batch.offsets[index]], batch.topic_partition))


def _log_fields(batch: RecordBatch, index: int) -> dict[str, object]:
    """Return the fields of a log line that say where a record came from."""
    if batch.topic_partition is None:
        return {}
    topic, partition = batch.topic_partition
    return {"topic": topic, "partition": partition, "offset": batch.offsets[index]}


def _provenance(batch: RecordBatch, index: int) -> tuple[tuple[str, str], ...]:
    """Return the headers that say where a record came from; none if no single record led to it."""
    if batch.topic_partition is None:
        return ()
    topic, partition = batch.topic_partition
    return (
        (ORIGIN_TOPIC, topic),
        (ORIGIN_PARTITION, str(partition)),
        (ORIGIN_OFFSET, str(batch.offsets[index])),
    )


def _as_bytes(value: Any) -> bytes:
    """Return the record as the place received it, as bytes.

    Bytes and text stay as they are. Other values become JSON, or their repr if JSON fails. NaN and
    infinity are texts.
    """
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode(errors="backslashreplace")
    try:
        return json_of_any(value, repr)
    except process_ends():
        raise
    except BaseException:  # noqa: BLE001  # an encoder may raise anything for such a value
        return _repr(value).encode(errors="backslashreplace")


def _repr(value: Any) -> str:
    try:
        return repr(value)
    except process_ends():
        raise
    except BaseException:  # noqa: BLE001  # the record's own `__repr__` may raise anything
        return repr_of(value)
