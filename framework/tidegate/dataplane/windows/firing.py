"""Firing: the results of the windows that fire during a batch or a piece of a burst.

A result of `into` or of a window function gets the time of its window, the end minus 1 ms. It comes
from no single record, so it has no partition and no offset. The results are emitted together.

Invariant: a result of a window that stays shares nothing with the state that can change in place.
Otherwise a later record of the same batch would change a result that is not encoded yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import length_hint
from typing import Any, Final, Literal, cast

from tidegate.api.functions import SideOutput
from tidegate.api.records.copying import copy_value, immutable
from tidegate.api.state.state import Cell
from tidegate.api.windows.window_step import WindowStep
from tidegate.api.windows.windows import Window, WindowContext
from tidegate.dataplane.operators.process import SideOutputs, results_of
from tidegate.dataplane.operators.returned import results_guard
from tidegate.dataplane.operators.stateless import Emit
from tidegate.dataplane.user_errors import NotResultsError
from tidegate.dataplane.windows.accumulators import Accumulators, Parts
from tidegate.errors import UserCodeError, passes_through
from tidegate.graph.stream_graph import MAIN, Node
from tidegate.message_text import clause
from tidegate.stream_elements import NO_OFFSET, RecordBatch
from tidegate.user_exceptions import described, repr_of

Label = Literal["early", "on_time", "late"]

EARLY: Final[Label] = "early"
ON_TIME: Final[Label] = "on_time"
LATE_FIRING: Final[Label] = "late"


class _Context(WindowContext[Any]):
    __slots__ = ("copied", "firing", "side")

    def __init__(self, firing: Firing, side: SideOutputs, *, copied: bool) -> None:
        self.firing, self.side, self.copied = firing, side, copied

    def output(self, tag: SideOutput[Any], value: Any) -> None:
        self.side.add(tag, copy_value(value) if self.copied else value, self.firing.row)

    @property
    def timestamp_ms(self) -> int:
        return self.window.end_ms - 1

    @property
    def watermark_ms(self) -> int:
        return self.firing.watermark_ms


class Firing:
    """The results of one operator since they were last emitted."""

    def __init__(
        self,
        pipeline: str,
        node: Node,
        accumulators: Accumulators,
        emits: Mapping[str, Emit],
        watermark_ms: int,
    ) -> None:
        self.watermark_ms = watermark_ms
        """The watermark that a window function sees."""
        self._pipeline, self._node = pipeline, node
        self._accumulators = accumulators
        step = cast("WindowStep", node.function)
        self._step = step
        self._emit = emits[MAIN]
        self._values: list[Any] = []
        self._rows: list[int] = []
        """The number of the firing of each result, in `_times`."""
        self._times: list[int] = []
        self._into = step.into
        self._function: Any = step.function
        outputs = {} if step.function is None else type(step.function).declared_outputs
        self._side = SideOutputs(outputs, emits)
        states = () if step.function is None else type(step.function).declared_states.values()
        copied = any(not info.immutable for state in states for info in state.types)
        self._context = _Context(self, self._side, copied=copied)
        self._copied = copied and not immutable(node.record_type)
        self._names = tuple(step.row_states)[1:]
        self._guard = results_guard(node.record_type)

    @property
    def row(self) -> int:
        """The number of the present firing."""
        return len(self._times) - 1

    def add(self, window: Window[Any], parts: Parts, cells: Sequence[Cell] = ()) -> None:
        """Add the results of a window whose state is used further on. `cells` are those of the
        states of a window function.
        """
        self._add(window, self._accumulators.copied_results, parts, cells)

    def add_last(self, window: Window[Any], row: Any, cells: Sequence[Cell] = ()) -> None:
        """Add the results of a window that is removed. `row` is the window in state."""
        self._add(window, self._accumulators.window_results, row, cells)

    def finish_table(self, items: Sequence[tuple[Any, Any]], span: tuple[int, int]) -> None:
        """Add the results of windows of one table that are removed, of those with new records.
        `items` are pairs of key and window. The step has `into`.
        """
        before = len(self._values)
        remaining = iter(items)
        try:
            self._accumulators.finish_table(remaining, self._into, self._values.append)
        except passes_through():
            raise
        except BaseException as error:
            key, window = items[len(items) - length_hint(remaining) - 1]
            label = LATE_FIRING if window.past else ON_TIME
            owner = key if self._step.by_key else None
            raise self._error(Window(owner, *span, label, window.number), error) from error
        self._times.extend([span[1] - 1] * (len(self._values) - before))

    def finish_all(
        self, cells: Sequence[Any], keys: Sequence[Any], end_ms: int
    ) -> list[tuple[Any, Any]]:
        """Add the results of windows that end now and are removed, each the only one of its row.
        Return the pairs of cell and key for which there is more to do. The step has `into`.
        """
        before = len(self._values)
        remaining = iter(keys)
        left: list[tuple[Any, Any]] = []
        finish_all, append = self._accumulators.finish_all, self._values.append
        try:
            finish_all(cells, remaining, end_ms, self._into, append, left)
        except passes_through():
            raise
        except BaseException as error:
            index = len(keys) - length_hint(remaining) - 1
            row, key = cells[index].value, keys[index] if self._step.by_key else None
            shown: Window[Any] = Window(key, row.start_ms, end_ms, ON_TIME, row.number)
            raise self._error(shown, error) from error
        self._times.extend([end_ms - 1] * (len(self._values) - before))
        return left

    def finish_sessions(
        self,
        rows: Sequence[Any],
        known: Callable[[Any], Any],
        past_ms: int,
        *timer: Any,
    ) -> tuple[list[Any], list[Any]]:
        """Add the results of sessions of a table that end at `past_ms` or earlier, each the only
        one of its row. `timer` are the last arguments of `Accumulators.finish_sessions`.

        Return their keys, and the rows for which there is more to do. The step has `into`.
        """
        ended: list[Any] = []
        left: list[Any] = []

        def finish(remaining: Iterator[Any]) -> None:
            self._accumulators.finish_sessions(
                *(remaining, known, past_ms, self._into, self._values.append, self._times.append),
                *(ended.append, left.append, *timer),
            )

        self._finish(rows, finish)
        return ended, left

    def finish_several(self, rows: Sequence[Any], past_ms: int, *timer: Any) -> list[Any]:
        """Add the results of the sessions of rows that end at `past_ms` or earlier. Return the keys
        whose sessions have all ended. `timer` is as for `finish_sessions`. The step has `into`.
        """
        ended: list[Any] = []

        def finish(remaining: Iterator[Any]) -> None:
            self._accumulators.finish_several(
                *(remaining, past_ms, self._into, self._values.append, self._times.append),
                *(ended.append, *timer),
            )

        self._finish(rows, finish)
        return ended

    def _finish(self, rows: Sequence[Any], finish: Callable[[Iterator[Any]], None]) -> None:
        """Call a function with an iterator over rows. An exception of the user's function becomes
        an error that names the row's newest session.
        """
        remaining = iter(rows)
        try:
            finish(remaining)
        except passes_through():
            raise
        except BaseException as error:
            row = rows[len(rows) - length_hint(remaining) - 1]
            owner = row.key if self._step.by_key else None
            shown: Window[Any] = Window(owner, row.start_ms, row.end_ms, ON_TIME, row.number)
            raise self._error(shown, error) from error

    def _add(
        self,
        window: Window[Any],
        results_of: Callable[[Any], Parts],
        of: Any,
        cells: Sequence[Cell],
    ) -> None:
        self._times.append(window.end_ms - 1)
        try:
            if self._into is not None:
                self._values.append(self._into(window, *results_of(of)))
            else:
                self._call(window, results_of(of)[0], cells)
        except passes_through():
            raise
        except BaseException as error:
            raise self._error(window, error) from error

    def emit(self) -> None:
        """Emit all results, then the side outputs."""
        if not self._times:
            return
        times, self._times = self._times, []
        values, self._values = self._values, []
        rows, self._rows = self._rows, []
        has_times = self._node.event_time
        firings = RecordBatch(
            times, [NO_OFFSET] * len(times), None, None, times if has_times else None
        )
        if values:
            if self._into is not None:  # one result for each firing
                self._emit(RecordBatch(values, firings.offsets, None, None, firings.timestamps_ms))
            else:
                self._emit(results_of(firings, values, rows, by_row=True))
        self._side.emit(firings, by_row=True)

    def _call(self, window: Window[Any], records: list[Any], cells: Sequence[Cell]) -> None:
        self._function.__dict__.update(zip(self._names, cells, strict=True))
        self._context.window = window
        results: Iterable[Any] = self._function.process(records, self._context)
        self._guard(results)
        copy: Callable[[Any], Any] | None = copy_value if self._copied else None
        before = len(self._values)
        self._values.extend(results if copy is None else map(copy, results))
        self._rows.extend([self.row] * (len(self._values) - before))
        for name in self._names:
            if not isinstance(self._function.__dict__[name], Cell):
                raise UserCodeError(
                    f"{self._pipeline}: step uid {self._node.uid!r} ({self._node.location}) "
                    f"assigned over its state: write self.{name}.value = ... for self.{name} = ..."
                )

    def _error(self, window: Window[Any], error: BaseException) -> UserCodeError:
        what = f"raised {clause(described(error))}"
        if isinstance(error, NotResultsError):
            what = f"{error.what}. {error.remedy}"
        return UserCodeError(
            f"{self._pipeline}: step uid {self._node.uid!r} ({self._node.location}) {what}, for "
            f"the window of key {repr_of(window.key)} from {window.start_ms} to {window.end_ms}. "
            "Correct the code; the job restarts from its last checkpoint as the restart strategy "
            "says."
        )
