"""Session windows: records of a key that are at most a gap apart.

State has one row for each key, which holds its few open sessions. So two sessions that merge change
one row, and no set of merged windows is needed. A record joins its sessions first, and is judged
late only then: a record behind the watermark may join a session that is still open.

A record that extends a session moves no timer. Invariant: the earliest end of a key's sessions has
an entry at that time or earlier. When it is popped, the key gets an entry at its next end.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

from tidegate.api.triggers import Every, EveryCount, Repeat, positive_ms
from tidegate.api.windows import Session, Window
from tidegate.dataplane.windows.firing import EARLY, LATE_FIRING, ON_TIME, Label
from tidegate.dataplane.windows.operator import WindowOperator
from tidegate.dataplane.windows.sessions import touched
from tidegate.stream_elements import RecordBatch

GAPS_MAX = 1_000
"""Number of texts of durations whose milliseconds are cached."""


class SessionWindows(WindowOperator):
    """The operator of session windows."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        assigner = self.step.assigner
        assert isinstance(assigner, Session)  # noqa: S101 - narrows the type
        self._gap_ms, self._gap_of = assigner.gap_ms, assigner.gap_of
        self._location = assigner.location
        self._gaps: dict[Any, int] = {}
        self._trigger = self.step.trigger
        self._make, self._make_row = self.step.window_class, self.step.row_class
        self._no_parts = (None,) * sum(map(len, self.step.fields))
        self._length = 0
        self._remaining: Any = iter(())
        """The records of the present batch that were not taken yet."""
        self._late: list[int] = []
        """The indexes of its late records."""

    def restore(self, row: Any) -> None:
        """Add the timers of the sessions of a key."""
        key = row.key if self.step.by_key else 0
        for session in row.sessions:
            self._add_end_timer(session, key)
            repeat = self._trigger.late if session.past else self._trigger.early
            if session.at_ms is not None and isinstance(repeat, Every):
                self.timers_of(repeat).add(session.at_ms, key)

    def add_batch(self, batch: RecordBatch, keys: list[Any], times: list[int]) -> None:
        """Put each record into its session."""
        cells, _ = self.cells(keys)
        self._length, self._late = len(batch), []
        gap_ms = self._gap_ms
        add_to_sessions = self.accumulators.add_to_sessions

        def fold(values: Iterable[Any]) -> None:
            self._remaining = values
            if self._trigger.early is None and gap_ms is not None:
                add_to_sessions(cells, keys, values, times, gap_ms, self._join)
                return
            for cell, key, value, time in zip(cells, keys, values, times, strict=False):
                self._join(cell, key, value, time)

        self.guarded(batch, fold)
        if self._late:
            self.refuse_late(batch, self._late)

    def _join(self, cell: Any, key: Any, value: Any, time: int) -> None:
        """Add a record to the sessions that it touches, or begin one. It may be late."""
        row = cell.value
        end_ms = time + (self._gap_ms or self._gap(value))
        sessions: list[Any] = [] if row is None else row.sessions
        found = touched(sessions, time, end_ms)
        if found:
            session = self._merged(sessions, found)
            session.start_ms = min(session.start_ms, time)
            session.end_ms = max(session.end_ms, end_ms)
            if session.past and not self.is_past(session.end_ms):
                session.past = False
                self._add_end_timer(session, key)
        elif self.is_past(end_ms, self.lateness_ms):
            self._late.append(self._length - operator.length_hint(self._remaining) - 1)
            return
        else:
            session = self._make(time, end_ms, 0, 0, False, False, None, *self._no_parts)
            sessions.insert(found.start, session)
            if row is None:
                cell.value = self._make_row(key, sessions)
            self._add_end_timer(session, key)
        if session.filled:
            self.accumulators.add(session, value, time)
        else:
            self.accumulators.start(session, value, time)
            session.filled = True
        session.pending += 1
        self._after_record(session, key, time)

    def _merged(self, sessions: list[Any], found: range) -> Any:
        """Merge sessions into the first of them, and return it."""
        first = sessions[found.start]
        for later in sessions[found.start + 1 : found.stop]:
            if first.filled and later.filled:
                self.accumulators.merge(first, later)
            elif later.filled:
                for name in self._part_names:
                    setattr(first, name, getattr(later, name))
                first.filled = True
            first.end_ms = max(first.end_ms, later.end_ms)
            first.number += later.number
            first.pending += later.pending
            first.past = first.past and later.past
            due = [at for at in (first.at_ms, later.at_ms) if at is not None]
            first.at_ms = min(due, default=None)
        del sessions[found.start + 1 : found.stop]
        return first

    @property
    def _part_names(self) -> Sequence[str]:
        return [name for fields in self.step.fields for name, _ in fields]

    def _after_record(self, session: Any, key: Any, time: int) -> None:
        if not session.past and self.is_past(session.end_ms):
            session.past = True
            self._add_end_timer(session, key)
        repeat: Repeat | None = self._trigger.late if session.past else self._trigger.early
        if isinstance(repeat, EveryCount):
            if session.pending >= repeat.records:
                label: Label = LATE_FIRING if session.past else EARLY
                self._fire(session, key, label, stays=True)
        elif isinstance(repeat, Every) and session.at_ms is None:
            session.at_ms = self.next_every(repeat, time)
            self.timers_of(repeat).add(session.at_ms, key)

    def fire_due(self, at_ms: int, keys: list[Any], *, of_event_time: bool) -> None:
        """Fire the sessions of these timers, or remove them."""
        cells, rows = self.cells(keys)
        of_ends = of_event_time == self.of_event_time
        for key, cell, row in zip(keys, cells, rows, strict=True):
            if cell.value is None:  # all sessions are removed
                continue
            sessions = cell.value.sessions
            if of_ends:
                sessions[:] = [one for one in sessions if not self._end(one, key, at_ms)]
            for session in sessions:
                if session.at_ms == at_ms:
                    self._fire_every(session, key)
            if not sessions:
                self.clear(row)
            elif of_ends:
                self.end_timers.add(min(map(self._end_timer, sessions)), key)

    def _end(self, session: Any, key: Any, at_ms: int) -> bool:
        """Fire a session whose end has come. Return whether it is removed."""
        end_ms = session.end_ms - self.before_end
        if at_ms >= end_ms + self.lateness_ms:
            if session.pending:
                self._fire(session, key, LATE_FIRING if session.past else ON_TIME, stays=False)
            return True
        if at_ms >= end_ms and not session.past:
            if session.pending and self._trigger.on_time:
                self._fire(session, key, ON_TIME, stays=True)
            session.past = True
        return False

    def _add_end_timer(self, session: Any, key: Any) -> None:
        self.end_timers.add(self._end_timer(session), key)

    def _end_timer(self, session: Any) -> int:
        """Return the time at which the end of a session is handled, or the session is removed."""
        end_ms: int = session.end_ms - self.before_end
        return end_ms + self.lateness_ms if session.past else end_ms

    def _fire_every(self, session: Any, key: Any) -> None:
        session.at_ms = None
        if session.pending:
            self._fire(session, key, LATE_FIRING if session.past else EARLY, stays=True)

    def _fire(self, session: Any, key: Any, label: Label, *, stays: bool) -> None:
        owner = key if self.step.by_key else None
        shown: Window[Any] = Window(owner, session.start_ms, session.end_ms, label, session.number)
        self.results.add(shown, self.accumulators.parts(session), stays=stays)
        session.number += 1
        session.pending = 0
        session.at_ms = None
        if not self._trigger.accumulate:
            self.accumulators.purge(session)
            session.filled = False

    def _gap(self, value: Any) -> int:
        """Return the gap behind a record in milliseconds."""
        if self._gap_of is None:
            return 0
        gap = self._gap_of(value)
        known = self._gaps.get(gap)
        if known is None:
            if len(self._gaps) >= GAPS_MAX:
                self._gaps.clear()
            known = self._gaps[gap] = positive_ms(gap, f"{self._location}: Session, gap")
        return known
