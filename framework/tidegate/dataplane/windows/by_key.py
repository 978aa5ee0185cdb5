"""Sessions in the row of their key: their timers and firings.

The row of a key is the newest of its open sessions, and has a list of the others, which are few.
`session_operator.py` adds records to them, and has the class of the operator.

A record that extends a session moves no timer. Invariant: the earliest end of a key's sessions has
an entry at that time or earlier. When it is popped, the key gets an entry at its next end. The
newest session of a key is the last to be removed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tidegate.api.windows.triggers import Every, EveryCount, Repeat
from tidegate.api.windows.window_step import NO_OTHERS
from tidegate.api.windows.windows import Window
from tidegate.dataplane.time.timer_index import TimerIndex
from tidegate.dataplane.windows.firing import EARLY, LATE_FIRING, ON_TIME, Label
from tidegate.dataplane.windows.operator import WindowOperator


class WindowsByKey(WindowOperator):
    """The part of the operator that knows timers and firings, and not how sessions merge."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.trigger = self.step.trigger
        self._counts_early = self.trigger.early is not None
        self._make, self._make_row = self.step.window_class, self.step.row_class
        self._no_parts = (None,) * sum(map(len, self.step.fields))
        self.fires_once = self.lateness_ms == 0 and self.step.into is not None
        """Whether a window fires for the last time at its end."""
        stored = [name for fields in self.step.fields for name, _ in fields]
        self._names = (
            "start_ms",
            "end_ms",
            "number",
            "pending",
            "filled",
            "past",
            "at_ms",
            *stored,
        )

    def restore(self, row: Any) -> None:
        """Add the timers of the windows of a key."""
        for window in (*row.others, row):
            self.add_end_timer(window, row.key)
            repeat = self.trigger.late if window.past else self.trigger.early
            if window.at_ms is not None and isinstance(repeat, Every):
                self.add_timer(self.timers_of(repeat), window.at_ms, row.key)

    def new_window(self, cell: Any, key: Any, start_ms: int, end_ms: int) -> Any:
        """Return a new window of a key, which has no record yet."""
        row = cell.value
        fresh = (start_ms, end_ms, 0, 0, False, False, None, *self._no_parts)
        if row is None:
            window = cell.value = self._make_row(key, *fresh, NO_OTHERS)
        elif (end_ms, start_ms) > (row.end_ms, row.start_ms):
            row.others = [*row.others, self.accumulators.demoted(row)]
            for name, value in zip(self._names, fresh, strict=True):
                setattr(row, name, value)
            window = row
        else:
            window = self._make(*fresh)
            row.others = sorted([*row.others, window], key=_by_end)
        self.add_end_timer(window, key)
        return window

    def fold(self, window: Any, value: Any, time: int) -> None:
        """Fold a record into a window that may be empty.

        Where nothing fires before the end, new records are noted and not counted, because the fast
        path does not count them. So the state does not depend on the path that a record takes.
        """
        if window.filled:
            self.accumulators.add(window, value, time)
        else:
            self.accumulators.start(window, value, time)
            window.filled = True
        window.pending = window.pending + 1 if window.past or self._counts_early else 1

    def after_record(self, window: Any, key: Any, time: int) -> None:
        """Fire after a record, or set the timer of the next firing, as the trigger says."""
        if not window.past and self.is_past(window.end_ms):
            window.past = True
            self.add_end_timer(window, key)
        repeat: Repeat | None = self.trigger.late if window.past else self.trigger.early
        if isinstance(repeat, EveryCount):
            if window.pending >= repeat.records:
                self._fire(window, key, LATE_FIRING if window.past else EARLY, stays=True)
        elif isinstance(repeat, Every) and window.at_ms is None:
            window.at_ms = self.next_every(repeat, time)
            self.add_timer(self.timers_of(repeat), window.at_ms, key)

    def add_end_timer(self, window: Any, key: Any) -> None:
        """Add the timer of a window's end, or of its removal if its end has come."""
        self.add_timer(self.end_timers, self._end_timer(window), key)

    def add_timer(self, timers: TimerIndex, at_ms: int, key: Any) -> None:
        """Look at the row of a key at a time."""
        timers.add(at_ms, key)

    def fire_due(self, at_ms: int, keys: list[Any], *, of_event_time: bool) -> int:
        """Fire the windows of these keys whose end has come, or remove them."""
        cells, _ = self.cells(keys)
        due: Iterable[tuple[Any, Any]] = zip(cells, keys, strict=True)
        of_ends = of_event_time == self.of_event_time
        if self.fires_once and of_ends:
            due = self.results.finish_all(cells, keys, at_ms + self.before_end)
        for cell, key in due:
            row = cell.value  # None if all windows are removed
            if row is not None and self.fire_row(row, key, at_ms, of_ends=of_ends):
                cell.clear()
        return len(keys)

    def fire_row(self, row: Any, key: Any, at_ms: int, *, of_ends: bool) -> bool:
        """Fire the windows of a key that are due. Return whether all of them are removed."""
        if of_ends:
            if row.others:
                left = [one for one in row.others if not self._end(one, key, at_ms)]
                row.others = left or NO_OTHERS
            if self._end(row, key, at_ms):
                return True
        windows = [*row.others, row] if row.others else (row,)
        for window in windows:
            if window.at_ms == at_ms:
                self._fire_every(window, key)
        if of_ends:
            self.add_timer(self.end_timers, min(map(self._end_timer, windows)), key)
        return False

    def _end(self, window: Any, key: Any, at_ms: int) -> bool:
        """Fire a window whose end has come. Return whether it is removed."""
        end_ms = window.end_ms - self.before_end
        if at_ms < end_ms:
            return False
        if at_ms >= end_ms + self.lateness_ms:
            if window.pending or (not window.past and self.always_fires(window)):
                self._fire(window, key, LATE_FIRING if window.past else ON_TIME, stays=False)
            return True
        if not window.past:
            if self.always_fires(window) or (window.pending and self.trigger.on_time):
                self._fire(window, key, ON_TIME, stays=True)
            window.past = True
        return False

    def _end_timer(self, window: Any) -> int:
        """Return the time at which the end of a window is handled, or the window is removed."""
        end_ms: int = window.end_ms - self.before_end
        return end_ms + self.lateness_ms if window.past else end_ms

    def _fire_every(self, window: Any, key: Any) -> None:
        window.at_ms = None
        if window.pending:
            self._fire(window, key, LATE_FIRING if window.past else EARLY, stays=True)

    def _fire(self, window: Any, key: Any, label: Label, *, stays: bool) -> None:
        owner = key if self.step.by_key else None
        shown: Window[Any] = Window(owner, window.start_ms, window.end_ms, label, window.number)
        if not stays:
            self.results.add_last(shown, window)
            return
        self.results.add(shown, self.accumulators.parts(window))
        window.number += 1
        window.pending = 0
        window.at_ms = None
        if not self.trigger.accumulate:
            self.accumulators.purge(window)
            window.filled = False


def _by_end(window: Any) -> tuple[int, int]:
    return window.end_ms, window.start_ms
