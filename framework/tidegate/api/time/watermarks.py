"""Event time of a source: where its times come from, and what its watermarks promise.

A watermark w promises that no record with an event time of w or earlier is expected. A strategy
says, for each partition, how the watermark follows from the records. The declarations here are
data; `dataplane/sources/watermarks.py` has one generator for each partition and combines them.

Example:
    sales = KafkaSource(
        "sales", value=Json(Sale), event_time=lambda sale: sale.sold_at_ms,
        watermarks=BoundedOutOfOrderness("10 s", idle_after="1 min"),
    )
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Final, Generic, Literal, Protocol, TypedDict, TypeVar, Unpack

from tidegate.api.declarations.declaration_checks import check_choice, refuse_unknown
from tidegate.api.declarations.location import user_location
from tidegate.api.time.times import Duration, to_ms
from tidegate.errors import PipelineError

T_contra = TypeVar("T_contra", contravariant=True)

Instant = int | datetime
"""A point in time: milliseconds since the Unix epoch, or a datetime with a zone."""

TIME_MAX_MS: Final = 1 << 62
"""The largest event time; the smallest one is its negative. Sums with durations stay in 64 bits."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)


class UnusableTimeError(ValueError):
    """A record has no event time that can be used. The text is the reason: "its event time ..."."""


class WatermarkOptions(TypedDict, total=False):
    """Keywords of every strategy."""

    idle_after: Duration | None
    max_ahead: Duration


class WatermarkGenerator(Protocol):
    """The watermark of one partition."""

    def resume(self, watermark_ms: int, /) -> None:
        """Continue from the watermark of a checkpoint, before the first record."""
        ...

    def observe(self, records: Sequence[Any], times_ms: Sequence[int], /) -> int | None:
        """Note a batch of records with their event times. Return the watermark in milliseconds;
        None if it is as before.
        """
        ...


class WatermarkStrategy(Generic[T_contra]):
    """The rule by which the watermark of a partition follows from its records.

    `idle_after`: a partition from which nothing came for this time, although it was read to its
    end, does not hold back the others. With None (the default) a silent partition holds back the
    watermark, and the status names it.
    `max_ahead`: a record whose `event_time` is further ahead of Kafka's own timestamp than this is
    a bad record, and `on_bad_record` of the source decides about it. It never moves the watermark.

    PipelineError for a duration that is malformed or negative.
    """

    def __init__(self, **options: Unpack[WatermarkOptions]) -> None:
        self.location = user_location()
        where = f"{self.location}: {type(self).__name__}"
        refuse_unknown(where, options, WatermarkOptions.__optional_keys__)
        idle_after, max_ahead = options.get("idle_after"), options.get("max_ahead")
        self.idle_after_ms = (
            None if idle_after is None else to_ms(idle_after, f"{where}, idle_after")
        )
        self.max_ahead_ms = None if max_ahead is None else to_ms(max_ahead, f"{where}, max_ahead")

    @abstractmethod
    def generator(self) -> WatermarkGenerator:
        """Return the generator of one partition."""


class BoundedOutOfOrderness(WatermarkStrategy[object]):
    """A record comes at most `delay` later than a record of its partition with a newer event time.

    The watermark is the highest event time of the partition, minus `delay`, minus 1 ms.
    """

    def __init__(self, delay: Duration, **options: Unpack[WatermarkOptions]) -> None:
        super().__init__(**options)
        self.delay_ms = to_ms(delay, f"{self.location}: {type(self).__name__}, delay")

    def generator(self) -> WatermarkGenerator:
        """Return the generator of one partition."""
        return _Bounded(self.delay_ms)


class Monotonous(WatermarkStrategy[object]):
    """The event times of a partition never go back. It is `BoundedOutOfOrderness("0 s")`."""

    def generator(self) -> WatermarkGenerator:
        """Return the generator of one partition."""
        return _Bounded(0)


class Punctuated(WatermarkStrategy[T_contra]):
    """Marker records carry the watermark.

    `of` returns the watermark that a record carries, or None. PipelineError if it is not callable.
    """

    def __init__(
        self, of: Callable[[T_contra], Instant | None], **options: Unpack[WatermarkOptions]
    ) -> None:
        super().__init__(**options)
        if not callable(of):
            raise PipelineError(
                f"{self.location}: Punctuated({of!r}) takes a function from a record to its "
                "watermark or None, as in Punctuated(lambda mark: mark.at_ms)."
            )
        self.of = of

    def generator(self) -> WatermarkGenerator:
        """Return the generator of one partition."""
        return _Punctuated(self.of)


class CustomWatermarks(WatermarkStrategy[T_contra]):
    """A strategy of your own: derive a class and implement `observe`.

    Each partition has its own copy of the declared object.
    """

    def resume(self, watermark_ms: int, /) -> None:
        """Continue from the watermark of a checkpoint, before the first record."""

    @abstractmethod
    def observe(self, records: Sequence[T_contra], times_ms: Sequence[int], /) -> int | None:
        """Note a batch of records with their event times in ms. Return the watermark in ms; None if
        it is as before. A watermark that goes back is ignored and counted.
        """

    def generator(self) -> WatermarkGenerator:
        """Return the copy of one partition."""
        return copy.deepcopy(self)


class HeaderTime:
    """The event time is in a header of the Kafka record, as text.

    `unit`: "s", "ms" (the default) or "us" since the Unix epoch, or "iso" for ISO 8601 with a zone.
    If a record has several headers of this name, the last one counts. PipelineError for another
    unit or an empty name.
    """

    UNITS: ClassVar[tuple[str, ...]] = ("s", "ms", "us", "iso")

    def __init__(self, name: str, *, unit: Literal["s", "ms", "us", "iso"] = "ms") -> None:
        where = f"{user_location()}: HeaderTime({name!r})"
        if not name:
            raise PipelineError(f"{where}: the name of the header is empty.")
        check_choice(where, "unit", unit, self.UNITS)
        self.name, self.unit = name, unit

    def time_ms(self, headers: Sequence[tuple[str, bytes | None]]) -> int:
        """Return the event time in ms. UnusableTimeError if the header is missing or malformed."""
        found = [value for name, value in headers if name == self.name]
        if not found or found[-1] is None:
            raise UnusableTimeError(f"it has no header {self.name!r}")
        try:
            if self.unit == "iso":
                return instant_ms(datetime.fromisoformat(found[-1].decode()))
            number = int(found[-1])
        except UnusableTimeError:
            raise
        except ValueError:
            message = f"its header {self.name!r} has {found[-1]!r}, not a time in {self.unit!r}"
            raise UnusableTimeError(message) from None
        return number * 1000 if self.unit == "s" else number // (1000 if self.unit == "us" else 1)


def instant_ms(instant: object) -> int:
    """Return an Instant in milliseconds since the Unix epoch, rounded down.

    UnusableTimeError for None, a datetime without a zone, another type, or a time out of range.
    """
    if isinstance(instant, datetime):
        if instant.tzinfo is None:
            raise UnusableTimeError(f"its event time {instant} has no zone")
        return (instant - _EPOCH) // _MS
    if not isinstance(instant, int) or isinstance(instant, bool):
        found = "None" if instant is None else f"a {type(instant).__name__}"
        raise UnusableTimeError(
            f"its event time is {found}, not milliseconds or a datetime with a zone"
        )
    if not -TIME_MAX_MS <= instant <= TIME_MAX_MS:
        raise UnusableTimeError(f"its event time {instant} is out of range")
    return instant


def watermark_ms(found: object) -> int:
    """Return the watermark that a strategy has returned. UnusableTimeError if it is not an integer
    in milliseconds, or out of range.
    """
    if not isinstance(found, int) or isinstance(found, bool):
        raise UnusableTimeError(f"it returned a {type(found).__name__}, not milliseconds as an int")
    if not -2 * TIME_MAX_MS <= found <= TIME_MAX_MS:
        raise UnusableTimeError(f"it returned {found}, which is out of range")
    return found


class _Bounded:
    """The watermark is the highest time, minus the delay, minus 1 ms."""

    def __init__(self, delay_ms: int) -> None:
        self._behind_ms = delay_ms + 1
        self._watermark_ms = -TIME_MAX_MS - 1

    def resume(self, watermark_ms: int, /) -> None:
        self._watermark_ms = watermark_ms

    def observe(self, _records: Sequence[Any], times_ms: Sequence[int], /) -> int:
        self._watermark_ms = max(self._watermark_ms, max(times_ms) - self._behind_ms)
        return self._watermark_ms


class _Punctuated:
    """The watermark is the highest of the marker records. So it does not depend on batches."""

    def __init__(self, of: Callable[[Any], Instant | None]) -> None:
        self._of = of

    def resume(self, _watermark_ms: int, /) -> None:
        """Do nothing: the next marker record has the next watermark."""

    def observe(self, records: Sequence[Any], _times_ms: Sequence[int], /) -> int | None:
        marks = (mark for mark in map(self._of, records) if mark is not None)
        return max(map(instant_ms, marks), default=None)
