"""Sessions in one table: a dict from key to the row of its sessions.

The rows are those of `by_key.py`. The table and its place in checkpoints are in
`dataplane/state/window_tables.py`. A row of the table is changed only after `touch` of its key,
because a snapshot may need it as it was. The last firing of a session changes nothing in it.

The entries of the timers are the rows themselves, and not keys. So a firing finds a row without a
lookup. The entry of a row that was removed does nothing, because its key has another row or none.
If sessions fire at their ends only, the times of the timers are rounded to ticks (`TICKS`).

All rows of the table are in memory. When they are more than the cache of the step may hold, all of
them become rows of the backend, as `session_operator.py` has them, whose class this one extends.
The entries of the timers are keys then.
They stay there until the step restores a checkpoint without such rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, islice
from typing import Any, Final

from tidegate.dataplane.state.window_tables import Table
from tidegate.dataplane.time.timer_index import TimerIndex
from tidegate.dataplane.windows.session_operator import SessionWindows
from tidegate.errors import InternalError
from tidegate.stream_elements import RecordBatch

SPAN: Final = (0, 0)
"""The span of the table. Its rows have the spans of the sessions."""

TICKS: Final = 16
"""Number of ticks in a gap. The timer of a session is at the tick before its end, where many rows
are looked at together. Most sessions are longer by then. The others get a timer at their end, if
the clock is not there yet.
"""

MOVED_AT_ONCE: Final = 1_000
"""Number of rows that go to the backend with one request."""


class _TableCell:
    """The place of a key in the table, with the methods of a cell of the backend."""

    __slots__ = ("_key", "_windows")

    def __init__(self, windows: dict[Any, Any], key: Any) -> None:
        self._windows, self._key = windows, key

    @property
    def value(self) -> Any:
        return self._windows.get(self._key)

    @value.setter
    def value(self, row: Any) -> None:
        self._windows[self._key] = row


class TableSessions(SessionWindows):
    """The operator of sessions that keep no records."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        tables = self.state.tables
        if tables is None:
            raise InternalError(f"step {self._node.id!r} has no tables")
        self._tables = tables
        self._table: Table | None = None
        """The table; None if the rows are in the backend."""
        self._rows_restored = False
        self._is_plain = self.fires_once and self.trigger.early is None
        """Whether a session fires at its end and at no other time."""
        self._tick_ms = max(1, self.gap_ms // TICKS) if self._is_plain and self.gap_ms else 1
        """The unit of the timers. If it is longer than 1 ms, what is due fires in no order of time.
        """

    def open(self) -> None:
        """Find the timers of the restored rows, in the backend and in the table."""
        super().open()
        self._tables.restore()
        self._table = self._tables.tables.get(SPAN) or self._tables.new(SPAN)
        if self._rows_restored:  # perhaps of another subtask, before the restore
            self._move_to_rows(self._table)
            return
        for row in self._table.windows.values():
            super().restore(row)
        self._make_room()

    def restore(self, row: Any) -> None:
        """Add the timers of a row, and note that the backend has rows."""
        super().restore(row)
        self._rows_restored = True

    def add_batch(self, batch: RecordBatch, keys: list[Any], times: list[int]) -> None:
        """Put each record into its session."""
        self._make_room()
        table = self._table
        if table is None:
            super().add_batch(batch, keys, times)
            return
        windows = table.windows
        add_to_session_table = self.accumulators.add_to_session_table

        def join(key: Any, value: Any, time: int) -> None:
            self.join(_TableCell(windows, key), key, value, time)

        def add_fast(values: Iterable[Any]) -> None:
            add_to_session_table(
                *(windows, keys, values, times, self.gap_ms, self.back_ms, self.past_ms),
                *(join, self.end_timers.add, self.before_end, self._tick_ms),
            )

        def add_each(values: Iterable[Any]) -> None:
            for key, value, time in zip(keys, values, times, strict=False):
                join(key, value, time)

        self._tables.touch(table, keys)
        before = len(windows)
        self.fold_batch(batch, add_fast, add_each)
        self._tables.window_count += len(windows) - before

    def add_timer(self, timers: TimerIndex, at_ms: int, key: Any) -> None:
        """Look at the row of a key at a time."""
        table = self._table
        timers.add(at_ms, key if table is None else table.windows[key])

    def due(self, timers: TimerIndex, limit: int) -> list[tuple[int, list[Any]]]:
        """Remove and return the rows to look at next, with their time."""
        if self._table is None or self._tick_ms == 1:
            return super().due(timers, limit)
        now_ms = self.past_ms - self.before_end
        rows = chain.from_iterable(rows for _, rows in timers.pop_due(now_ms, limit))
        return [(now_ms, list(rows))]

    def fire_due(self, at_ms: int, keys: list[Any], *, of_event_time: bool) -> int:
        """Fire the windows of these rows whose end has come, or remove them."""
        table = self._table
        if table is None:
            return super().fire_due(at_ms, keys, of_event_time=of_event_time)
        known, of_ends = table.windows.get, of_event_time == self.of_event_time
        is_plain = self._is_plain and of_ends
        timer = (self.end_timers.add, self.before_end, self._tick_ms)
        past_ms = at_ms + self.before_end
        ended, left = list[Any](), keys
        if is_plain:
            ended, left = self.results.finish_sessions(left, known, past_ms, *timer)
        left = [row for row in left if known(row.key) is row]
        if left:
            self._tables.touch(table, [row.key for row in left])
            if is_plain:
                ended += self.results.finish_several(left, past_ms, *timer)
            else:
                ended += [
                    row.key for row in left if self.fire_row(row, row.key, at_ms, of_ends=of_ends)
                ]
        if ended:
            self._tables.remove(table, ended)
        return len(keys)

    def _make_room(self) -> None:
        """Move the table to the backend if it has more rows than the cache may hold."""
        if self._table is not None and self._tables.too_many:
            self.event_timers.clear()  # their entries are rows of the table
            self.processing_timers.clear()
            self._move_to_rows(self._table)

    def _move_to_rows(self, table: Table) -> None:
        """Make the rows of the table rows of the backend."""
        self._table = None
        rows = iter(self._tables.take(table))
        while some := list(islice(rows, MOVED_AT_ONCE)):
            cells, _ = self.cells([row.key for row in some])
            for cell, row in zip(cells, some, strict=True):
                cell.value = row
                super().restore(row)
