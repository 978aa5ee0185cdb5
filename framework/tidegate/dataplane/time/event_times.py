"""The column of event times of a batch: from Kafka's timestamps, a header, or the user's function.

A source uses `EventTimes`. A step in the middle of a pipeline has a function only, and uses
`times_of` and `time_of`.

Kafka's timestamp needs no code of the user. A function runs once for each record, in one pass over
the batch. Only if a result is not usable does a slow path call it again for each record. A record
without a usable time is a bad record: the source's policy decides about it, and it never moves a
watermark.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tidegate.api.time.watermarks import (
    TIME_MAX_MS,
    HeaderTime,
    Instant,
    UnusableTimeError,
    instant_ms,
)
from tidegate.errors import check_complete
from tidegate.ports.kafka import RawRecord
from tidegate.user_exceptions import process_ends

EventTime = Callable[[Any], Instant] | HeaderTime | None
"""The `event_time` of a source. None: Kafka's timestamp."""


class EventTimes:
    """The event times of the records of one source."""

    def __init__(self, event_time: EventTime, max_ahead_ms: int | None) -> None:
        self._event_time, self._max_ahead_ms = event_time, max_ahead_ms

    def column(self, messages: Sequence[RawRecord], values: Sequence[Any]) -> list[int] | None:
        """Return the event time of each record in ms; None if a record may have no usable time."""
        try:
            found = usable_times(self._times(messages, values), len(messages))
            if found is None:
                return None
            if self._max_ahead_ms is not None and self._event_time is not None:
                ahead = self._max_ahead_ms
                kafka = map(kafka_time_ms, messages)
                if any(time - own > ahead for time, own in zip(found, kafka, strict=True)):
                    return None
        except process_ends():
            raise
        except BaseException:  # noqa: BLE001 - `of` finds the record and the reason
            return None
        return found

    def of(self, message: RawRecord, value: Any) -> int:
        """Return the event time of one record. Raise UnusableTimeError, or the exception of
        the user's function, if it has no usable time.
        """
        time_ms = instant_ms(self._times([message], [value])[0])
        if self._max_ahead_ms is not None and self._event_time is not None:
            try:
                ahead_ms = time_ms - kafka_time_ms(message)
            except UnusableTimeError as error:
                raise UnusableTimeError(
                    f"{error}, and max_ahead compares its event time with that timestamp"
                ) from None
            if ahead_ms > self._max_ahead_ms:
                raise UnusableTimeError(
                    f"its event time is {ahead_ms} ms ahead of Kafka's timestamp, and max_ahead "
                    f"allows {self._max_ahead_ms} ms"
                )
        return time_ms

    def _times(self, messages: Sequence[RawRecord], values: Sequence[Any]) -> list[Any]:
        event_time = self._event_time
        if event_time is None:
            return list(map(kafka_time_ms, messages))
        if isinstance(event_time, HeaderTime):
            return [event_time.time_ms(message.headers() or ()) for message in messages]
        return list(map(event_time, values))


def times_of(event_time: Callable[[Any], Instant], values: Sequence[Any]) -> list[int] | None:
    """Return the event time of each record in ms; None if a record may have no usable time."""
    try:
        return usable_times(list(map(event_time, values)), len(values))
    except process_ends():
        raise
    except BaseException:  # noqa: BLE001 - `time_of` finds the record and the reason
        return None


def time_of(event_time: Callable[[Any], Instant], value: Any) -> int:
    """Return the event time of one record in ms. Raise UnusableTimeError, or the exception of the
    function, if it has no usable time.
    """
    return instant_ms(event_time(value))


def kafka_time_ms(message: RawRecord) -> int:
    """Return Kafka's timestamp of a record. UnusableTimeError if it has none."""
    kind, time_ms = message.timestamp()
    # A record of an old message format has no kind. A producer that sets no time writes -1, and
    # Kafka's clients give no meaning to any other negative time.
    if not kind or time_ms < 0:
        raise UnusableTimeError("Kafka has no timestamp of it")
    return time_ms


def usable_times(found: list[Any], count: int) -> list[int] | None:
    """Return the `count` instants in `found` as milliseconds; None if one of them is unusable.

    The error of `check_complete` if there are fewer: user code raised StopIteration, which ends a
    `map`.
    """
    check_complete(len(found), count)
    if set(map(type, found)) - {int}:
        try:
            return list(map(instant_ms, found))
        except UnusableTimeError:
            return None
    if found and not (min(found) >= -TIME_MAX_MS and max(found) <= TIME_MAX_MS):
        return None
    return found
