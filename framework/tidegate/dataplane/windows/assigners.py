"""The windows of a column of event times, for windows that do not depend on other records.

Pure functions of times. A batch often lies in one window as a whole; then two comparisons replace
the arithmetic for each record.

`spans` returns the begin and the end of each record's window as two columns. Every time lies in its
window, and two windows of one assigner are equal or do not overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from typing import Any, Final

from tidegate.api.time.watermarks import TIME_MAX_MS
from tidegate.api.windows.windows import Assigner, Calendar, Global, Sliding, Tumbling
from tidegate.dataplane.windows.calendars import LocalTime
from tidegate.errors import InternalError

Spans = tuple[Iterable[int], Iterable[int], int]
"""The columns of begins and of ends, and the earliest end. The columns may be endless."""

SpansOf = Callable[[Sequence[int]], Spans]

GLOBAL_START_MS: Final = -TIME_MAX_MS
GLOBAL_END_MS: Final = TIME_MAX_MS + 1
"""The bounds of the global window: every event time is in it."""


def spans_of(assigner: Assigner[Any]) -> SpansOf:
    """Return the function from times to the columns of their windows."""
    match assigner:
        case Tumbling():
            return tumbling(assigner.size_ms, assigner.offset_ms)
        case Sliding():  # the panes
            return tumbling(assigner.pane_ms, assigner.offset_ms)
        case Calendar():
            return calendar(LocalTime(assigner.zone, assigner.unit))
        case Global():
            return lambda _: (repeat(GLOBAL_START_MS), repeat(GLOBAL_END_MS), GLOBAL_END_MS)
        case _:
            raise InternalError(f"windows of the kind {assigner.kind!r} have no columns")


def tumbling(size_ms: int, offset_ms: int) -> SpansOf:
    """Return the function for windows of one size, one after the other."""

    def spans(times: Sequence[int]) -> Spans:
        least, greatest = min(times), max(times)
        start = least - (least - offset_ms) % size_ms
        end = start + size_ms
        if greatest < end:
            return repeat(start), repeat(end), end
        starts = [time - (time - offset_ms) % size_ms for time in times]
        return starts, [start + size_ms for start in starts], end

    return spans


def calendar(local: LocalTime) -> SpansOf:
    """Return the function for windows of a calendar."""

    def spans(times: Sequence[int]) -> Spans:
        start, end = local.span(min(times))
        if max(times) < end:
            return repeat(start), repeat(end), end
        starts, ends = zip(*map(local.span, times), strict=True)
        return starts, ends, end

    return spans
