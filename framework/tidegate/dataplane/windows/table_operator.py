"""Tumbling, calendar and global windows in tables: one dict of windows for each open span.

A batch mostly lies in one span, so the loop folds it into one dict. A table has one timer, and it
fires in pieces. When its last window has fired, the whole table is dropped. The tables and their
place in checkpoints are in `dataplane/state/window_tables.py`.

All windows of a table are in memory. When there are more than the cache of the step may hold, the
largest tables become rows, as in `aligned.py`, whose class this one extends. Such a span stays in
rows until it has ended. So the layout follows from the number of open windows alone, and triggers
and lateness have the same meaning in both.

A window of a table is changed only after `touch` of its key, because a snapshot may need it as it
was. The last firing of a window changes nothing in it. But its results may share objects with it,
and a step behind may change them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice, repeat
from operator import length_hint
from typing import Any

from tidegate.api.records.copying import immutable
from tidegate.api.windows.triggers import Every, Repeat
from tidegate.dataplane.columns import select
from tidegate.dataplane.state.window_tables import Span, Table
from tidegate.dataplane.windows.aligned import AlignedWindows, RowKey
from tidegate.errors import InternalError
from tidegate.stream_elements import RecordBatch

MOVED_AT_ONCE = 1_000
"""Number of windows that become rows with one request to the backend."""


class TableWindows(AlignedWindows):
    """The operator of such windows."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        tables = self.state.tables
        if tables is None:
            raise InternalError(f"step {self._node.id!r} has no tables")
        self._tables = tables
        self._in_rows: set[Span] = set()
        """The spans whose windows are rows."""
        fields = (of for each in self.step.fields for _, of in each)
        self._shares = not all(map(immutable, fields))
        """Whether the results of a last firing may share objects that can change with a window."""

    def open(self) -> None:
        """Find the timers of the restored rows and tables."""
        super().open()
        self._tables.restore()
        for table in list(self._tables.tables.values()):
            if table.span in self._in_rows:  # of another subtask, before the restore
                self._move_to_rows(table)
            else:
                self._restore_table(table)
        self._make_room()

    def restore(self, row: Any) -> None:
        """Add the timers of a row, and note that its span is in rows."""
        super().restore(row)
        self._in_rows.add((row.start_ms, row.end_ms))

    def _restore_table(self, table: Table) -> None:
        windows = table.windows.values()
        self._add_end_timer(table, past=all(window.past for window in windows))
        for key, window in table.windows.items():
            every = self._trigger.late if window.past else self._trigger.early
            if window.at_ms is not None and isinstance(every, Every):
                self.timers_of(every).add(window.at_ms, (key, *table.span))

    def add_batch(self, batch: RecordBatch, keys: list[Any], times: list[int]) -> None:
        """Put each record into its window."""
        self._make_room()
        starts, ends, first_end_ms = self._spans(times)
        if isinstance(starts, repeat):
            if not self._add(batch, keys, times, (next(starts), first_end_ms)):
                self.refuse_late(batch, range(len(batch)))
            return
        late: list[int] = []
        for span, rows in self.parts(zip(starts, ends, strict=False)):
            part_keys, part_times = [keys[row] for row in rows], [times[row] for row in rows]
            if not self._add(select(batch, rows), part_keys, part_times, span):
                late += rows
        if late:
            self.refuse_late(batch, sorted(late))

    def _add(self, batch: RecordBatch, keys: list[Any], times: list[int], span: Span) -> bool:
        """Put records into the windows of one span. Return False if all are late."""
        past = self.is_past(span[1])
        if past and self.is_past(span[1], self.lateness_ms):
            return False
        repeats = self._trigger.late if past else self._trigger.early
        table = self._tables.tables.get(span)
        if table is None and span in self._in_rows:
            row_keys = [(key, *span) for key in keys]
            if past:
                self._add_one_by_one(batch, row_keys, times, repeats)
            else:
                self._add_to_open(batch, row_keys, times)
            return True
        if table is None:
            table = self._tables.new(span)
            self._add_end_timer(table, past=past)
        windows = table.windows
        self._tables.touch(table, keys)
        before = len(windows)
        if past or repeats is not None:
            self._add_each(table, batch, keys, times, repeats, past=past)
        else:
            add_to_table, again = self.accumulators.add_to_table, self._begin_again
            self.guarded(
                batch, lambda values: add_to_table(windows, keys, values, times, *span, again)
            )
        self._tables.window_count += len(windows) - before
        return True

    def _add_each(
        self,
        table: Table,
        batch: RecordBatch,
        keys: Sequence[Any],
        times: Sequence[int],
        repeats: Repeat | None,
        *,
        past: bool,
    ) -> None:
        """Add records to windows that may fire for each of them."""
        windows, span = table.windows, table.span

        def fold(values: Iterable[Any]) -> None:
            for key, value, time in zip(keys, values, times, strict=False):
                window: Any = windows.get(key)
                if window is None:
                    fresh = (key, *span, 0, 0, False, past, None, *self._no_parts)
                    window = windows[key] = self._make(*fresh)
                if window.pending:
                    self.accumulators.add(window, value, time)
                    window.pending += 1
                else:
                    self._begin_again(window, value, time)
                self._repeat(window, (), (key, *span), time, repeats)

        self.guarded(batch, fold)

    def fire_due(self, at_ms: int, keys: list[Any], *, of_event_time: bool) -> int:
        """Fire a piece of each table that is due, and the windows with timers of their own."""
        of_ends = of_event_time == self.of_event_time
        count, row_keys, tables = 0, [], self._tables.tables
        for key in keys:
            if isinstance(key, Table):
                count += 1 if key.dropped else self._fire_table(key, at_ms)
            elif (table := tables.get(key[1:])) is None:
                row_keys.append(key)
            else:
                self._fire_window(table, key, at_ms, of_ends=of_ends)
                count += 1
        if row_keys:
            count += super().fire_due(at_ms, row_keys, of_event_time=of_event_time)
        return count

    def _fire_table(self, table: Table, at_ms: int) -> int:
        """Fire a piece of a table whose end has come. Return the number of windows."""
        removed_ms = table.span[1] - self.before_end + self.lateness_ms
        is_last = at_ms >= removed_ms
        if table.burst is None:
            table.burst = iter(table.windows.items())
        piece = list(islice(table.burst, self.piece))
        if is_last:
            if self._shares:
                self._tables.keep(table, [key for key, _ in piece])
            self.results.finish_table(piece, table.span)
            self._tables.fired(table, len(piece))
        else:
            ending = [(key, window) for key, window in piece if not window.past]
            self._tables.touch(table, [key for key, _ in ending])
            for _, window in ending:
                self._end(window, ())
        if length_hint(table.burst):
            self.end_timers.add(at_ms, table)
        elif is_last:
            self._tables.drop(table)
        else:
            table.burst = None
            self.end_timers.add(removed_ms, table)
        return len(piece)

    def _fire_window(self, table: Table, key: RowKey, at_ms: int, *, of_ends: bool) -> None:
        """Fire a window at a timer of `Every`. At its end, the firing at the end comes first."""
        window = table.windows.get(key[0])
        end_ms = key[2] - self.before_end
        removing = of_ends and at_ms >= end_ms + self.lateness_ms
        if window is None or removing or table.fired_count:
            return
        self._tables.touch(table, [key[0]])
        if of_ends and at_ms >= end_ms and not window.past:
            self._end(window, ())
        if window.at_ms == at_ms:
            self._fire_every(window, ())

    def _add_end_timer(self, table: Table, *, past: bool) -> None:
        """Add the timer of a table's end, or of its removal if all of its windows are past."""
        end_ms = table.span[1] - self.before_end
        self.end_timers.add(end_ms + self.lateness_ms if past else end_ms, table)

    def _make_room(self) -> None:
        """Move the largest tables to rows until the others may stay in memory."""
        while self._tables.too_many:
            self._move_to_rows(max(self._tables.tables.values(), key=lambda t: len(t.windows)))

    def _move_to_rows(self, table: Table) -> None:
        """Make the windows of a table rows of the backend."""
        ended = [span for span in self._in_rows if self.is_past(span[1], self.lateness_ms)]
        self._in_rows.difference_update(ended)
        windows = iter(self._tables.take(table))
        while some := list(islice(windows, MOVED_AT_ONCE)):
            cells, _ = self.cells([self._restored_key(window) for window in some])
            for cell, window in zip(cells, some, strict=True):
                cell.value = window
                self.restore(window)
