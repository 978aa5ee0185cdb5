"""Windows of a calendar: the local hour, day, week, month or year of a time.

A window is a span of real time, between two local times. So a day on which clocks change has 23 or
25 hours, and if clocks change at midnight, it begins with the first minute that has its date. An
hour ends where clocks change, because an hour that clocks repeat is a window of its own.

Pure: the zone is an argument. Invariant: the spans of one `LocalTime` do not overlap and leave no
gap, and each time lies in its span.
"""

from __future__ import annotations

import bisect
from datetime import UTC, date, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from tidegate.api.windows.windows import Unit
from tidegate.errors import UserCodeError

SPANS_MAX: Final = 1_000
"""Number of spans that are cached. A time in a cached span costs a binary search."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)
_HOUR_MS: Final = 3_600_000


class LocalTime:
    """The windows of one unit in one zone."""

    def __init__(self, zone: ZoneInfo, unit: Unit) -> None:
        self._zone, self._unit = zone, unit
        self._starts: list[int] = []
        self._spans: list[tuple[int, int]] = []
        """The cached spans, and their begins, in order."""

    def span(self, time_ms: int) -> tuple[int, int]:
        """Return begin and end of the window of a time. UserCodeError if the calendar ends before
        it.
        """
        index = bisect.bisect_right(self._starts, time_ms) - 1
        if index >= 0 and time_ms < self._spans[index][1]:
            return self._spans[index]
        try:
            span = self._hour(time_ms) if self._unit == "hour" else self._days(time_ms)
        except (OverflowError, ValueError):
            raise UserCodeError(
                f"The event time {time_ms} is outside of the calendar, which has the years 2 to "
                "9998. Refuse such records at the source: give its watermarks max_ahead=, or check "
                "the event time."
            ) from None
        if len(self._spans) >= SPANS_MAX:
            self._starts.clear()
            self._spans.clear()
        index = bisect.bisect_right(self._starts, time_ms)
        self._starts.insert(index, span[0])
        self._spans.insert(index, span)
        return span

    def _days(self, time_ms: int) -> tuple[int, int]:
        first = self._first_day(self._local(time_ms).date())
        # Where clocks go back over midnight, the date of a time may be the one before.
        while time_ms < self._midnight(first):
            first = self._first_day(first - timedelta(days=1))
        while time_ms >= self._midnight(self._next(first)):
            first = self._next(first)
        return self._midnight(first), self._midnight(self._next(first))

    def _hour(self, time_ms: int) -> tuple[int, int]:
        shift_ms = self._shift_ms(time_ms)
        start = (time_ms + shift_ms) // _HOUR_MS * _HOUR_MS - shift_ms
        end = start + _HOUR_MS
        if self._shift_ms(start) != shift_ms:
            start = self._change(start, time_ms)
        if self._shift_ms(end - 1) != shift_ms:
            end = self._change(time_ms, end - 1)
        return start, end

    def _change(self, before_ms: int, after_ms: int) -> int:
        """Return the first millisecond with the shift of `after_ms`, which differs from the one of
        `before_ms`.
        """
        shift_ms = self._shift_ms(after_ms)
        while after_ms - before_ms > 1:
            middle = (before_ms + after_ms) // 2
            if self._shift_ms(middle) == shift_ms:
                after_ms = middle
            else:
                before_ms = middle
        return after_ms

    def _first_day(self, day: date) -> date:
        """Return the first day of the window of a day."""
        match self._unit:
            case "week":
                return day - timedelta(days=day.weekday())
            case "month":
                return day.replace(day=1)
            case "year":
                return day.replace(month=1, day=1)
            case _:
                return day

    def _next(self, first: date) -> date:
        """Return the first day of the next window."""
        match self._unit:
            case "week":
                return first + timedelta(days=7)
            case "month":
                return (first + timedelta(days=31)).replace(day=1)
            case "year":
                return first.replace(year=first.year + 1)
            case _:
                return first + timedelta(days=1)

    def _midnight(self, day: date) -> int:
        """Return the time at which a day begins. If clocks skip its midnight, the day begins with
        the change.
        """
        local = datetime(day.year, day.month, day.day, tzinfo=self._zone)
        return (local.astimezone(UTC) - _EPOCH) // _MS

    def _shift_ms(self, time_ms: int) -> int:
        """Return by how much local time is ahead of UTC."""
        shift = self._local(time_ms).utcoffset()
        return 0 if shift is None else shift // _MS

    def _local(self, time_ms: int) -> datetime:
        return (_EPOCH + timedelta(milliseconds=time_ms)).astimezone(self._zone)
