"""Session windows: records of a key that are at most a gap apart.

The row of a key holds its few open sessions. So two sessions that merge change one row, and no set
of merged windows is needed. A record joins its sessions first, and is judged late only then: a
record behind the watermark may join a session that is still open.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from tidegate.api.windows.triggers import positive_ms
from tidegate.api.windows.window_step import NO_OTHERS
from tidegate.api.windows.windows import Session
from tidegate.dataplane.windows.by_key import WindowsByKey
from tidegate.stream_elements import RecordBatch


class Span(Protocol):
    """A session; `end_ms` is its last record's time plus the gap."""

    start_ms: int
    end_ms: int


def touched(sessions: Sequence[Span], start_ms: int, end_ms: int) -> range:
    """Return the indexes of the sessions that a span touches. An empty range begins where a new
    session belongs.

    Pure. The sessions of a key are few, and in order of time. Invariant: two sessions of a key do
    not touch. A session that ends when another one begins touches it, as in Flink, so records that
    are exactly the gap apart are in one session.
    """
    first = len(sessions)
    while first and sessions[first - 1].end_ms >= start_ms:
        first -= 1
    stop = first
    while stop < len(sessions) and sessions[stop].start_ms <= end_ms:
        stop += 1
    return range(first, stop)


GAPS_MAX = 1_000
"""Number of texts of durations whose milliseconds are cached."""


class SessionWindows(WindowsByKey):
    """The operator of session windows."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        assigner = self.step.assigner
        assert isinstance(assigner, Session)  # noqa: S101 - narrows the type
        self.gap_ms, self._gap_of = assigner.gap_ms, assigner.gap_of
        self._location = assigner.location
        self.back_ms = self.gap_ms or 0
        """Time before the end of any session in which it has its last record or a later time. It is
        the gap, unless a restored session is shorter because an earlier run had a smaller gap.
        """
        self._gaps: dict[Any, int] = {}
        self._length = 0
        self._remaining: Any = iter(())
        """The records of the present batch that were not taken yet."""
        self._late: list[int] = []
        """The indexes of its late records."""
        self._part_names = [name for fields in self.step.fields for name, _ in fields]

    @property
    def is_fast(self) -> bool:
        """Whether no record fires a window, and all gaps are the same."""
        return self.trigger.early is None and self.gap_ms is not None

    def restore(self, row: Any) -> None:
        """Add the timers of a row, and note how short its sessions are."""
        super().restore(row)
        shortest_ms = min(window.end_ms - window.start_ms for window in (*row.others, row))
        self.back_ms = min(self.back_ms, shortest_ms)

    def add_batch(self, batch: RecordBatch, keys: list[Any], times: list[int]) -> None:
        """Put each record into its session."""
        cells, _ = self.cells(keys)
        add_to_sessions = self.accumulators.add_to_sessions

        def add_fast(values: Iterable[Any]) -> None:
            add_to_sessions(
                *(cells, keys, values, times, self.gap_ms, self.back_ms, self.past_ms),
                *(self.join, self.end_timers.add, self.before_end),
            )

        def add_each(values: Iterable[Any]) -> None:
            for cell, key, value, time in zip(cells, keys, values, times, strict=False):
                self.join(cell, key, value, time)

        self.fold_batch(batch, add_fast, add_each)

    def fold_batch(
        self,
        batch: RecordBatch,
        add_fast: Callable[[Iterable[Any]], None],
        add_each: Callable[[Iterable[Any]], None],
    ) -> None:
        """Call one of two functions with the values of a batch, and emit those that were late.

        `add_fast` is for steps that are fast (`is_fast`).
        """
        self._length, self._late = len(batch), []

        def fold(values: Iterable[Any]) -> None:
            self._remaining = values
            (add_fast if self.is_fast else add_each)(values)

        self.guarded(batch, fold)
        if self._late:
            self.refuse_late(batch, self._late)

    def join(self, cell: Any, key: Any, value: Any, time: int) -> None:
        """Add a record to the sessions that it touches, or begin one. It may be late."""
        row = cell.value
        end_ms = time + (self._gap(value) if self.gap_ms is None else self.gap_ms)
        sessions: list[Any] = [] if row is None else [*row.others, row]
        found = touched(sessions, time, end_ms)
        if found:
            session = self._merged(row, [sessions[index] for index in found])
            session.start_ms = min(session.start_ms, time)
            session.end_ms = max(session.end_ms, end_ms)
            if session.past and not self.is_past(session.end_ms):
                session.past = False
                self.add_end_timer(session, key)
        elif self.is_past(end_ms, self.lateness_ms):
            self._late.append(self._length - operator.length_hint(self._remaining) - 1)
            return
        else:
            session = self.new_window(cell, key, time, end_ms)
        self.fold(session, value, time)
        self.after_record(session, key, time)

    def _merged(self, row: Any, sessions: list[Any]) -> Any:
        """Merge sessions of a row into the newest of them, and return it."""
        newest = sessions[-1]
        for earlier in reversed(sessions[:-1]):
            if newest.filled and earlier.filled:
                self.accumulators.merge(newest, earlier)
            elif earlier.filled:
                for name in self._part_names:
                    setattr(newest, name, getattr(earlier, name))
                newest.filled = True
            newest.start_ms = min(newest.start_ms, earlier.start_ms)
            newest.number += earlier.number
            newest.pending += earlier.pending
            newest.past = newest.past and earlier.past
            due = [at for at in (newest.at_ms, earlier.at_ms) if at is not None]
            newest.at_ms = min(due, default=None)
        merged = set(map(id, sessions[:-1]))
        row.others = [one for one in row.others if id(one) not in merged] or NO_OTHERS
        return newest

    def _gap(self, value: Any) -> int:
        """Return the gap behind a record in milliseconds."""
        gap: Any = None if self._gap_of is None else self._gap_of(value)
        known = self._gaps.get(gap)
        if known is None:
            if len(self._gaps) >= GAPS_MAX:
                self._gaps.clear()
            known = self._gaps[gap] = positive_ms(gap, f"{self._location}: Session, gap")
        return known
