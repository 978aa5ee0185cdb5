"""Sliding windows, in panes: state has one row for each key and pane, under (key, begin).

The windows of a key fire one after the other. In memory, each key has the begins of its panes and
the running combination of the windows that slide over them (`panes.py`). Both follow from the rows,
so a restore makes them again. The oldest row of a key notes the end of the last window that has
fired (`at_ms`), because a barrier may come between the firings of two keys.

A record that is behind the watermark belongs to windows that have fired and to windows that have
not. It is added to its pane once, and each window that has fired and still takes records fires
again. The row of the last pane of such a window counts its firings (`number`).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from itertools import compress
from typing import Any

from tidegate.api.windows.windows import Sliding, Window
from tidegate.dataplane.columns import select
from tidegate.dataplane.windows.assigners import spans_of
from tidegate.dataplane.windows.firing import LATE_FIRING, ON_TIME
from tidegate.dataplane.windows.operator import WindowOperator
from tidegate.dataplane.windows.panes import AllPanes, PaneSequence, PaneTimes, TwoStacks
from tidegate.stream_elements import MIN_MS, NEVER, RecordBatch


class KeyPanes:
    """The panes of one key, in memory."""

    __slots__ = (
        "fired_end",
        "gone_end",
        "marks",
        "next_end",
        "pushed_before",
        "sequence",
        "starts",
    )

    def __init__(self, sequence: PaneSequence) -> None:
        self.starts: list[int] = []
        """The begins of the panes with records, in order."""
        self.marks: list[int] = []
        """The begins of rows without records, which only count firings."""
        self.sequence = sequence
        self.pushed_before = MIN_MS
        """Panes that begin before this are in `sequence`, or have left it."""
        self.fired_end = MIN_MS
        """The end of the last window that has fired. All before it have fired too."""
        self.gone_end = MIN_MS
        """The last end of a row whose timer was set last."""
        self.next_end = NEVER
        """The end of the next window that fires."""


class SlidingWindows(WindowOperator):
    """The operator of sliding windows."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        assigner = self.step.assigner
        assert isinstance(assigner, Sliding)  # noqa: S101 - narrows the type
        self._spans = spans_of(assigner)
        self._times = PaneTimes(
            size_ms=assigner.size_ms,
            every_ms=assigner.every_ms,
            offset_ms=assigner.offset_ms,
            pane_ms=assigner.pane_ms,
        )
        self._make = self.step.window_class
        self._no_parts = (None,) * sum(map(len, self.step.fields))
        self._keys_panes: dict[Any, KeyPanes] = {}

    def open(self) -> None:
        """Make the panes of all keys again from the rows of the state, and their timers."""
        super().open()
        for key, panes in self._keys_panes.items():
            panes.starts.sort()
            self._schedule(key, panes)

    def restore(self, row: Any) -> None:
        """Note the pane of a row."""
        key = row.key if self.step.by_key else 0
        panes = self._panes(key)
        (panes.starts if row.filled else panes.marks).append(row.start_ms)
        if row.at_ms is not None:
            panes.fired_end = max(panes.fired_end, row.at_ms)

    def add_batch(self, batch: RecordBatch, keys: list[Any], times: list[int]) -> None:
        """Put each record into its pane."""
        starts, _, _ = self._spans(times)
        row_keys = list(zip(keys, starts, strict=False))
        first_end = self._times.first_end
        if not self.is_past(first_end(min(start for _, start in row_keys))):
            self._add_to_open(batch, row_keys, times)
            return
        past = [self.is_past(first_end(start)) for _, start in row_keys]
        last_end = self._times.last_end
        late = [self.is_past(last_end(start), self.lateness_ms) for _, start in row_keys]
        groups = (
            (self._add_to_open, [not one for one in past]),
            (self._add_to_past, [one and not two for one, two in zip(past, late, strict=True)]),
        )
        for add, chosen in groups:
            rows = list(compress(range(len(batch)), chosen))
            if rows:
                part_keys = list(compress(row_keys, chosen))
                add(select(batch, rows), part_keys, list(compress(times, chosen)))
        if any(late):
            self.refuse_late(batch, list(compress(range(len(batch)), late)))

    def _add_to_open(
        self, batch: RecordBatch, row_keys: list[tuple[Any, int]], times: Sequence[int]
    ) -> None:
        cells, _ = self.cells(row_keys)
        add_all, begin = self.accumulators.add_all, self._begin
        self.guarded(batch, lambda values: add_all(cells, row_keys, values, times, begin))

    def _add_to_past(
        self, batch: RecordBatch, row_keys: list[tuple[Any, int]], times: Sequence[int]
    ) -> None:
        """Add records whose pane is in windows that have ended."""

        def fold(values: Iterable[Any]) -> None:
            for (key, start), value, time in zip(row_keys, values, times, strict=False):
                panes = self._panes(key)
                had_records = self._windows_with_records(panes, start)
                (cell,), _ = self.cells([(key, start)])
                if cell.value is None or not cell.value.filled:
                    self._begin(cell, (key, start), value, time)
                else:
                    self.accumulators.add(cell.value, value, time)
                # The running combination does not have the record: it begins again.
                panes.sequence = self._new_sequence()
                panes.pushed_before = MIN_MS
                self._fire_again(key, panes, start, had_records)

        self.guarded(batch, fold)

    def _begin(self, cell: Any, key: tuple[Any, int], value: Any, time: int) -> None:
        """Make a pane with its first record."""
        owner, start_ms = key
        panes = self._panes(owner)
        window = cell.value
        if window is None:
            end_ms = start_ms + self._times.pane_ms
            window = cell.value = self._make(
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
        window.filled, window.pending = True, 1
        self.accumulators.start(window, value, time)
        insort(panes.starts, start_ms)
        if self.is_past(self._times.first_end(start_ms)):
            # The ends that have passed are not due: a late record fires them.
            now_ms = self.watermark_ms if self.of_event_time else self.processing_ms
            passed = self._times.next_end(now_ms + self.before_end) - self._times.every_ms
            window.at_ms = panes.fired_end = max(panes.fired_end, passed)
        if self._times.first_end(start_ms) < panes.next_end:
            self._schedule(owner, panes)

    def _windows_with_records(self, panes: KeyPanes, start: int) -> set[int]:
        """Return the ends of the windows with the pane at `start` that have a record already."""
        times = self._times
        ends = range(times.first_end(start), times.last_end(start) + 1, times.every_ms)
        found = set()
        for end in ends:
            index = bisect_left(panes.starts, end - times.size_ms)
            if index < len(panes.starts) and panes.starts[index] < end:
                found.add(end)
        return found

    def _fire_again(self, key: Any, panes: KeyPanes, start: int, had_records: set[int]) -> None:
        """Fire the windows with a pane that have ended and still take records."""
        times, sequence, pushed = self._times, self._new_sequence(), MIN_MS
        for end in range(times.first_end(start), times.last_end(start) + 1, times.every_ms):
            if not self.is_past(end) or self.is_past(end, self.lateness_ms):
                continue
            pushed = max(pushed, end - times.size_ms)
            self._push(key, panes, sequence, range(pushed, end))
            pushed = end
            sequence.evict(end - times.size_ms)
            mark = end - times.pane_ms
            (cell,), _ = self.cells([(key, mark)])
            if cell.value is None:
                cell.value = self._make(
                    key,
                    mark,
                    end,
                    0,
                    0,
                    False,
                    False,
                    None,
                    *self._no_parts,
                )
                panes.marks.append(mark)
            number = max(cell.value.number, int(end in had_records))
            cell.value.number = number + 1
            self._fire(key, end, sequence, LATE_FIRING, number)

    def fire_due(self, at_ms: int, keys: list[Any], *, of_event_time: bool) -> int:
        """Fire the windows of these keys that end now, and remove the panes behind them."""
        del of_event_time  # a sliding window has no other timers
        for key in keys:
            panes = self._keys_panes.get(key)
            if panes is not None:
                self._fire_key(key, panes, at_ms)
        return len(keys)

    def _fire_key(self, key: Any, panes: KeyPanes, at_ms: int) -> None:
        size_ms, end = self._times.size_ms, at_ms + self.before_end
        fires = panes.next_end == end
        if fires:
            span = range(max(panes.pushed_before, end - size_ms), end)
            self._push(key, panes, panes.sequence, span)
            panes.pushed_before = panes.fired_end = end
            panes.sequence.evict(end - size_ms)
            self._fire(key, end, panes.sequence, ON_TIME, 0)
        removes = self._remove(key, panes, at_ms)
        if not panes.starts and not panes.marks:
            del self._keys_panes[key]
            return
        if (fires or removes) and panes.starts and panes.fired_end > MIN_MS:
            (cell,), _ = self.cells([(key, panes.starts[0])])
            cell.value.at_ms = panes.fired_end
        self._schedule(key, panes)

    def _schedule(self, key: Any, panes: KeyPanes) -> None:
        """Set the timer of a key: its next window, or the time at which its oldest row goes."""
        times = self._times
        following = MIN_MS if panes.fired_end == MIN_MS else panes.fired_end + times.every_ms
        index = bisect_left(panes.starts, following - times.size_ms)
        panes.next_end = NEVER
        if index < len(panes.starts):
            panes.next_end = max(following, times.first_end(panes.starts[index]))
            self.end_timers.add(panes.next_end - self.before_end, key)
        if self.lateness_ms or panes.next_end == NEVER:
            last = min(map(times.last_end, [*panes.starts[:1], *panes.marks]))
            if last != panes.gone_end:
                panes.gone_end = last
                self.end_timers.add(last - self.before_end + self.lateness_ms, key)

    def _remove(self, key: Any, panes: KeyPanes, at_ms: int) -> bool:
        """Remove the rows of panes that are in no window any more. Return whether any were."""
        gone_at = at_ms + self.before_end - self.lateness_ms
        count, last_end = 0, self._times.last_end
        while count < len(panes.starts) and last_end(panes.starts[count]) <= gone_at:
            count += 1
        gone, panes.starts = panes.starts[:count], panes.starts[count:] if count else panes.starts
        if panes.marks:
            gone += [mark for mark in panes.marks if last_end(mark) <= gone_at]
            panes.marks = [mark for mark in panes.marks if last_end(mark) > gone_at]
        if gone:
            for row in self.state.rows([(key, start) for start in gone]):
                self.clear(row)
        return bool(gone)

    def _push(self, key: Any, panes: KeyPanes, sequence: PaneSequence, span: range) -> None:
        """Add the panes that begin in a span of time to a sequence."""
        first = bisect_left(panes.starts, span.start)
        starts = panes.starts[first : bisect_left(panes.starts, span.stop, first)]
        if starts:
            cells, _ = self.cells([(key, start) for start in starts])
            for start, cell in zip(starts, cells, strict=True):
                sequence.push(start, self.accumulators.parts(cell.value))

    def _fire(self, key: Any, end: int, sequence: PaneSequence, label: Any, number: int) -> None:
        parts = sequence.query()
        if parts is not None:
            owner = key if self.step.by_key else None
            shown: Window[Any] = Window(owner, end - self._times.size_ms, end, label, number)
            self.results.add(shown, parts)

    def _panes(self, key: Any) -> KeyPanes:
        panes = self._keys_panes.get(key)
        if panes is None:
            panes = self._keys_panes[key] = KeyPanes(self._new_sequence())
        return panes

    def _new_sequence(self) -> PaneSequence:
        if self.step.function is not None:
            return AllPanes()
        return TwoStacks(self.accumulators.combine)
