"""Tumbling, calendar and global windows in rows: each window has a row of its own.

Windows that keep records lie in rows, and those for which tables have no room
(`table_operator.py`). The key of a row is (key, begin, end). So a checkpoint stores only the
windows that have changed, and not all open windows of a key. The end is part of the key, so windows
that were open when the size was changed end as they began, next to the new ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, TypeVar

from tidegate.api.windows.triggers import Every, EveryCount, Repeat
from tidegate.api.windows.windows import Window
from tidegate.dataplane.columns import select
from tidegate.dataplane.windows.assigners import spans_of
from tidegate.dataplane.windows.firing import EARLY, LATE_FIRING, ON_TIME, Label
from tidegate.dataplane.windows.operator import WindowOperator
from tidegate.stream_elements import RecordBatch

T = TypeVar("T")

RowKey = tuple[Any, int, int]
"""Key, begin and end."""


class AlignedWindows(WindowOperator):
    """The operator of such windows."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._spans = spans_of(self.step.assigner)
        self._trigger = self.step.trigger
        repeats = (self._trigger.early, self._trigger.late)
        self._counts = any(isinstance(each, EveryCount) for each in repeats)
        """Whether a record may fire its window at once."""
        self._make = self.step.window_class
        self._no_parts = (None,) * sum(map(len, self.step.fields))

    def restore(self, row: Any) -> None:
        """Add the timers of a window."""
        key = self._restored_key(row)
        end_ms = row.end_ms - self.before_end
        self.end_timers.add(end_ms + self.lateness_ms if row.past else end_ms, key)
        repeat = self._trigger.late if row.past else self._trigger.early
        if row.at_ms is not None and isinstance(repeat, Every):
            self.timers_of(repeat).add(row.at_ms, key)

    def _restored_key(self, row: Any) -> RowKey:
        key = row.key if self.step.by_key else 0
        return (key, row.start_ms, row.end_ms)

    def add_batch(self, batch: RecordBatch, keys: list[Any], times: list[int]) -> None:
        """Put each record into its window."""
        starts, ends, first_end_ms = self._spans(times)
        row_keys = list(zip(keys, starts, ends, strict=False))
        if not self.is_past(first_end_ms):
            self._add_to_open(batch, row_keys, times)
            return
        marks = ((self.is_past(end), self.is_past(end, self.lateness_ms)) for _, _, end in row_keys)
        late: list[int] = []
        for (is_past, is_late), rows in self.parts(marks):
            if is_late:
                late += rows
                continue
            part = select(batch, rows)
            part_keys, part_times = [row_keys[row] for row in rows], [times[row] for row in rows]
            if is_past:
                self._add_one_by_one(part, part_keys, part_times, self._trigger.late)
            else:
                self._add_to_open(part, part_keys, part_times)
        if late:
            self.refuse_late(batch, sorted(late))

    def parts(self, marks: Iterable[T]) -> Iterable[tuple[T, list[int]]]:
        """Return the rows of a batch that have the same mark, for each mark.

        If a record may fire its window at once, return runs of such rows: the results of a key then
        have the order of its records, however the input was cut into batches.
        """
        if self._counts:
            runs = groupby(enumerate(marks), key=itemgetter(1))
            return ((mark, [row for row, _ in run]) for mark, run in runs)
        rows_of: dict[T, list[int]] = {}
        for row, mark in enumerate(marks):
            rows_of.setdefault(mark, []).append(row)
        return rows_of.items()

    def _add_to_open(
        self, batch: RecordBatch, row_keys: list[RowKey], times: Sequence[int]
    ) -> None:
        if self._trigger.early is not None:
            self._add_one_by_one(batch, row_keys, times, self._trigger.early)
            return
        cells, _ = self.cells(row_keys)
        add_all, begin = self.accumulators.add_all, self._begin
        self.guarded(batch, lambda values: add_all(cells, row_keys, values, times, begin))

    def _begin(self, cell: Any, key: RowKey, value: Any, time: int) -> None:
        """Add a record to a window that has no new records, or make the window."""
        window = cell.value
        if window is None:
            owner, start_ms, end_ms = key
            window = self._make(
                owner,
                start_ms,
                end_ms,
                0,
                1,
                True,
                False,
                None,
                *self._no_parts,
            )
            self.accumulators.start(window, value, time)
            cell.value = window
            self.end_timers.add(end_ms - self.before_end, key)
            return
        self._begin_again(window, value, time)

    def _begin_again(self, window: Any, value: Any, time: int) -> None:
        """Add a record to a window that has no new records."""
        if window.filled:
            self.accumulators.add(window, value, time)
        else:
            self.accumulators.start(window, value, time)
            window.filled = True
        window.pending = 1

    def _add_one_by_one(
        self,
        batch: RecordBatch,
        row_keys: list[RowKey],
        times: Sequence[int],
        repeat: Repeat | None,
    ) -> None:
        """Add records to windows that may fire for each of them."""
        cells, rows = self.cells(row_keys)

        def fold(values: Iterable[Any]) -> None:
            for cell, row, key, value, time in zip(
                cells, rows, row_keys, values, times, strict=False
            ):
                window = cell.value
                if window is None or not window.pending:
                    self._begin(cell, key, value, time)
                    window = cell.value
                else:
                    self.accumulators.add(window, value, time)
                    window.pending += 1
                self._mark_past(window, key)
                self._repeat(window, row, key, time, repeat)

        self.guarded(batch, fold)

    def _mark_past(self, window: Any, key: RowKey) -> None:
        """Mark a window that a late record has made as past."""
        if not window.past and self.is_past(window.end_ms):
            window.past = True
            end_ms = window.end_ms - self.before_end
            self.end_timers.add(end_ms + self.lateness_ms, key)

    def _repeat(self, window: Any, row: Any, key: RowKey, time: int, repeat: Repeat | None) -> None:
        """Fire after a record, or set the timer of the next firing, as the trigger says."""
        if isinstance(repeat, EveryCount):
            if window.pending >= repeat.records:
                self._fire(window, row, LATE_FIRING if window.past else EARLY, stays=True)
        elif isinstance(repeat, Every) and window.at_ms is None:
            window.at_ms = self.next_every(repeat, time)
            self.timers_of(repeat).add(window.at_ms, key)

    def fire_due(self, at_ms: int, keys: list[Any], *, of_event_time: bool) -> int:
        """Fire the windows of these timers, or remove them."""
        cells, rows = self.cells(keys)
        of_ends = of_event_time == self.of_event_time
        for key, cell, row in zip(keys, cells, rows, strict=True):
            window = cell.value
            if window is None:  # removed since
                continue
            end_ms = window.end_ms - self.before_end
            if of_ends and at_ms >= end_ms + self.lateness_ms:
                if window.pending or (not window.past and self.always_fires(window)):
                    self._fire(window, row, LATE_FIRING if window.past else ON_TIME, stays=False)
                self.clear(row)
                continue
            if of_ends and at_ms >= end_ms and not window.past:
                self._end(window, row)
                self.end_timers.add(end_ms + self.lateness_ms, key)
            if window.at_ms == at_ms:
                self._fire_every(window, row)
        return len(keys)

    def _end(self, window: Any, row: Any) -> None:
        """Fire a window at its end that takes late records afterwards."""
        if self.always_fires(window) or (window.pending and self._trigger.on_time):
            self._fire(window, row, ON_TIME, stays=True)
        window.past = True

    def _fire_every(self, window: Any, row: Any) -> None:
        if window.pending:
            self._fire(window, row, LATE_FIRING if window.past else EARLY, stays=True)
        window.at_ms = None

    def _fire(self, window: Any, row: Any, label: Label, *, stays: bool) -> None:
        shown: Window[Any] = Window(
            window.key if self.step.by_key else None,
            window.start_ms,
            window.end_ms,
            label,
            window.number,
        )
        cells = self.function_cells(row)
        if stays:
            self.results.add(shown, self.accumulators.parts(window), cells)
        else:
            self.results.add_last(shown, window, cells)
        window.number += 1
        window.pending = 0
        window.at_ms = None
        if not self._trigger.accumulate:
            self.accumulators.purge(window)
            window.filled = False
