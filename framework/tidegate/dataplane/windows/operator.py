"""The common part of the window operators: the watermark, bursts of firings, and late records.

The layouts of state differ (`table_operator.py`, `aligned.py`, `session_operator.py`,
`sliding_operator.py`); each is a subclass. This class computes the keys of a batch, keeps the
timers, and fires in pieces.

Theory of operation. A window is a row of state that says for which key and time it is. Its timer
is an entry of an index in memory; a table has one entry for all of its windows. The row is the
truth: an entry only says when to look at a row. So after a restore the rows are enough, and `open`
makes the index of them.

Bursts. A watermark may make a million windows due. `advance` notes it, and each `fire` emits the
results of about a thousand rows. The watermark is forwarded behind the last result. A barrier may
come between two pieces: the state then has the new watermark and the rows that have not fired yet.
After a restore these are due, and fire before the first record. A batch that comes meanwhile waits
until all that is due has fired, so a record is judged by a watermark whose windows have all fired.

The watermark `MAX_MS` (the end of the input) makes everything due, also windows of processing time.
It is never stored, because a later run could not take any record.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, cast

from tidegate.api.windows.triggers import Every, EveryCount, Repeat
from tidegate.api.windows.window_step import LATE, OPEN_WINDOWS, WindowStep
from tidegate.dataplane.columns import select
from tidegate.dataplane.counters import Counters
from tidegate.dataplane.keying import StepKeys
from tidegate.dataplane.operators.event_time import Advance, no_reader
from tidegate.dataplane.operators.keyed import KeyedStateLike
from tidegate.dataplane.operators.stateless import Emit
from tidegate.dataplane.refusals import Refusals
from tidegate.dataplane.state.window_tables import WindowTables
from tidegate.dataplane.time.timer_index import TimerIndex
from tidegate.dataplane.user_errors import call_lifecycle_method, user_code_error
from tidegate.dataplane.windows.accumulators import make_accumulators
from tidegate.dataplane.windows.firing import Firing
from tidegate.errors import PipelineError
from tidegate.graph.stream_graph import Node
from tidegate.stream_elements import MAX_MS, MIN_MS, RecordBatch, Watermark


class WindowState(KeyedStateLike, Protocol):
    """The keyed state of a step with windows."""

    def scan(self, name: str) -> Iterator[Any]:
        """Yield the stored values of a value state of all keys, before any row was read."""
        ...

    @property
    def tables(self) -> WindowTables | None:
        """The state that lies in tables, if the step declares some."""
        ...


class WindowOperator:
    """One step with windows in one subtask, with its state."""

    has_timers = True
    piece: int = 1_000
    """Number of due windows that one `fire` takes: 2 to 5 ms, so that a barrier waits no longer."""
    forward: Advance = staticmethod(no_reader)
    """Function that passes a watermark on to everything behind the step. The chain sets it."""

    def __init__(
        self,
        pipeline: str,
        node: Node,
        state: WindowState,
        emits: Mapping[str, Emit],
        counters: Counters,
        now_ms: Callable[[], int],
        key_refusals: Refusals | None = None,
    ) -> None:
        self._pipeline, self._node, self.state = pipeline, node, state
        self.step = cast("WindowStep", node.function)
        self._counters, self._now_ms = counters, now_ms
        self._keys = StepKeys(pipeline, node, key_refusals)
        self.accumulators = make_accumulators(self.step)
        self._emit_late = emits.get(LATE)
        self.watermark_ms = state.watermark_ms
        """The watermark of the step. With `MAX_MS` it is ahead of the one in the state."""
        self.processing_ms = MIN_MS
        """The processing time up to which timers have fired or are firing."""
        self.results = Firing(pipeline, node, self.accumulators, emits, self.watermark_ms)
        self.event_timers, self.processing_timers = TimerIndex(), TimerIndex()
        self._forwarded: Watermark | None = None
        """The watermark that is forwarded when all that it makes due has fired."""
        self.of_event_time = self.step.assigner.time == "event"
        self.end_timers = self.event_timers if self.of_event_time else self.processing_timers
        """The timers of the clock that the windows have."""
        self.before_end = 1 if self.of_event_time else 0
        """A window is due at its end minus this: a watermark includes its own millisecond."""
        self.lateness_ms = self.step.lateness_ms
        self._many = len(self.step.row_states) > 1

    def open(self) -> None:
        """Call the function's `open`, and find the timers of the restored windows."""
        if self.step.function is not None:
            call_lifecycle_method(self._pipeline, self._node, "open", self.step.function.open)
        for row in self.state.scan(OPEN_WINDOWS):
            self.restore(row)

    def close(self) -> None:
        """Call the function's `close`, and release the state."""
        try:
            function = self.step.function
            if function is not None:
                call_lifecycle_method(self._pipeline, self._node, "close", function.close)
        finally:
            self.state.close()

    def process(self, batch: RecordBatch) -> None:
        """Put each record into its windows, and emit what fires at once."""
        while self.firing:
            self.fire()
        batch, keys = self._keys.of(batch)
        if not batch.values:
            return
        if self.of_event_time:
            if batch.timestamps_ms is None:
                raise PipelineError(
                    f"{self._node.location}: step {self._node.id!r} got records without event "
                    "time. Give each source in front of it watermarks=."
                )
            times = batch.timestamps_ms
        else:
            times = [self.now_ms()] * len(batch)
        try:
            self.add_batch(batch, keys, times)
        except BaseException as error:
            raise self._keys.lookup_error(batch, keys, error) from error
        self.results.emit()

    def advance(self, watermark: Watermark) -> None:
        """Note the watermark and begin to fire what is due. The watermark is forwarded behind it.

        If nothing is due, it is forwarded at once.
        """
        if watermark.timestamp_ms > self.watermark_ms:
            self.watermark_ms = self.results.watermark_ms = watermark.timestamp_ms
            if watermark.timestamp_ms < MAX_MS:
                self.state.watermark_ms = watermark.timestamp_ms
            else:
                self.processing_ms = MAX_MS
        self._forwarded = watermark
        self._settle()

    def advance_processing_time(self, now_ms: int) -> None:
        """Note the processing time, and emit one piece of what is due."""
        self.processing_ms = max(self.processing_ms, now_ms)
        self.fire()

    @property
    def firing(self) -> bool:
        """Whether due results remain."""
        return self._due_timers() is not None

    @property
    def next_processing_ms(self) -> int:
        """The processing time of the next timer, or NEVER."""
        return self.processing_timers.next_ms

    def fire(self) -> None:
        """Emit one piece of what is due, and forward the watermark behind the last piece."""
        left = self.piece
        while left > 0 and (timers := self._due_timers()) is not None:
            for at_ms, keys in self.due(timers, left):
                left -= self.fire_due(
                    at_ms, list(dict.fromkeys(keys)), of_event_time=timers is self.event_timers
                )
        self.results.emit()
        self._settle()

    def set_piece(self, count: int) -> None:
        """Fire this number of windows together, and store as many together in a snapshot."""
        self.piece = count
        if self.state.tables is not None:
            self.state.tables.piece = count

    def due(self, timers: TimerIndex, limit: int) -> list[tuple[int, list[Any]]]:
        """Remove and return what is due next, as `TimerIndex.pop_due` does."""
        # One time after the other: a firing may add a timer that is due before the next time.
        return timers.pop_due(timers.next_ms, limit)

    @abstractmethod
    def restore(self, row: Any) -> None:
        """Add the timers of a row of the restored state."""

    @abstractmethod
    def add_batch(self, batch: RecordBatch, keys: list[Any], times: list[int]) -> None:
        """Put the records of a batch into their windows. `times` are those that count."""

    @abstractmethod
    def fire_due(self, at_ms: int, keys: list[Any], *, of_event_time: bool) -> int:
        """Fire what is due at the timers of one time. Each key comes once.

        Return how many windows were looked at. If there is more to do, the time has a timer again.
        """

    def now_ms(self) -> int:
        """Return the processing time. It is never before what has fired."""
        return max(self._now_ms(), self.processing_ms)

    def is_past(self, end_ms: int, lateness_ms: int = 0) -> bool:
        """Return whether a window that ends at `end_ms` has ended, `lateness_ms` ago or more."""
        return end_ms + lateness_ms <= self.past_ms

    def always_fires(self, window: Any) -> bool:
        """Return whether a window fires at its end also if it has no new records.

        A window without any cannot, if the trigger accumulates: one that discards has made it.
        """
        step = self.step
        return step.trigger.always_on_time and (window.filled or step.fires_empty)

    @property
    def past_ms(self) -> int:
        """The greatest end of a window that has ended."""
        now_ms = self.watermark_ms if self.of_event_time else self.processing_ms
        return now_ms + self.before_end

    def cells(self, keys: Sequence[Any]) -> tuple[list[Any], Sequence[Any]]:
        """Return the cell of the window of each key of a row, and the whole rows."""
        rows = self.state.rows(keys)
        return ([row[0] for row in rows] if self._many else cast("list[Any]", rows)), rows

    def function_cells(self, row: Any) -> Sequence[Any]:
        """Return the cells of the states of a window function."""
        return row[1:] if self._many else ()

    def clear(self, row: Any) -> None:
        """Delete a row of state."""
        for cell in row if self._many else (row,):
            cell.clear()

    def refuse_late(self, batch: RecordBatch, rows: Sequence[int]) -> None:
        """Count the records at these indexes as late, and emit them on the late port."""
        late = self._counters.late
        late[self._node.id] = late.get(self._node.id, 0) + len(rows)
        if self._emit_late is not None:
            self._emit_late(select(batch, rows))

    def guarded(self, batch: RecordBatch, fold: Callable[[Iterable[Any]], None]) -> None:
        """Call `fold` with an iterator over the values of a batch. An exception of a user's
        function becomes an error that names the record.
        """
        remaining = iter(batch.values)
        try:
            fold(remaining)
        except BaseException as error:
            raise user_code_error(self._pipeline, self._node, batch, remaining, error) from error

    def next_every(self, every: Every, time_ms: int) -> int:
        """Return when `Every` fires next for a record with this time."""
        period_ms = every.period_ms
        if every.time == "processing":
            return (self.now_ms() // period_ms + 1) * period_ms
        base_ms = max(time_ms, self.watermark_ms + 1)
        return (base_ms // period_ms + 1) * period_ms - 1

    def timers_of(self, every: Every) -> TimerIndex:
        """Return the timers of the clock of an `Every`."""
        return self.event_timers if every.time == "event" else self.processing_timers

    def _due_timers(self) -> TimerIndex | None:
        """Return the timers of which one is due, or None."""
        if self.event_timers.next_ms <= self.watermark_ms:
            return self.event_timers
        if self.processing_timers.next_ms <= self.processing_ms:
            return self.processing_timers
        return None

    def _settle(self) -> None:
        """Forward the watermark if all that it makes due has fired."""
        if self._forwarded is not None and not self.firing:
            forwarded, self._forwarded = self._forwarded, None
            self.forward(forwarded)


def counts(repeat: Repeat | None) -> int:
    """Return after how many records a trigger fires; 0 if it does not count."""
    return repeat.records if isinstance(repeat, EveryCount) else 0
