"""Process functions without a key: one call per record; results and side outputs leave as batches.

The loop does only what is necessary for each record. Exception handling is set up once per batch.
The length hint of the input iterator gives the position of a failing record.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, cast

from tidegate.api.functions import Process, ProcessContext, SideOutput
from tidegate.dataplane.columns import with_results
from tidegate.dataplane.operators.event_time import ForwardsTime, RecordTime, TimedContext
from tidegate.dataplane.operators.returned import results_guard
from tidegate.dataplane.operators.stateless import Emit
from tidegate.dataplane.refusals import Refusals
from tidegate.dataplane.user_errors import call_lifecycle_method, user_code_error
from tidegate.errors import UserCodeError
from tidegate.graph.stream_graph import MAIN, Node
from tidegate.stream_elements import RecordBatch, Watermark
from tidegate.user_exceptions import described


class SideOutputs:
    """The values that a function sends to its side outputs during a batch. At the end of the batch,
    each side output gets one batch.
    """

    __slots__ = ("_collected", "_declared", "_emits")

    def __init__(self, declared: Mapping[str, SideOutput[Any]], emits: Mapping[str, Emit]) -> None:
        self._declared, self._emits = declared, emits
        self._collected: dict[str, tuple[list[Any], list[int]]] = {}

    def add(self, tag: SideOutput[Any], value: object, offset: int) -> None:
        """Keep a value for the end of the batch. Raise UserCodeError for another function's tag."""
        if self._declared.get(tag.name) is not tag:
            names = ", ".join(sorted(self._declared)) or "none"
            message = (
                f"Side output {tag.name!r} is not declared by this function; it declares {names}."
            )
            raise UserCodeError(message)
        values, offsets = self._collected.setdefault(tag.name, ([], []))
        values.append(value)
        offsets.append(offset)

    def drop(self, offset: int) -> None:
        """Drop the values that the last record has sent, because the record is refused."""
        for values, offsets in self._collected.values():
            drop_results(offset, values, offsets)

    def emit(self, batch: RecordBatch, *, by_row: bool) -> None:
        """Send the values collected for a batch downstream. Values of an output without a reader
        are dropped.

        With `by_row`, the values were collected with row numbers of the batch in place of offsets.
        """
        if self._collected:
            collected, self._collected = self._collected, {}
            for name, (values, offsets) in collected.items():
                if name in self._emits and values:
                    self._emits[name](results_of(batch, values, offsets, by_row=by_row))


class RefusableResults:
    """The results of a function for a batch, each with the position of its record.

    The record of the last call may be refused, and its results are then dropped.
    """

    __slots__ = ("_batch", "_remaining", "_side", "positions", "values")

    def __init__(self, batch: RecordBatch, remaining: Iterator[Any], side: SideOutputs) -> None:
        """Start without results. `remaining` gives the records for which no call was made yet."""
        self._batch, self._remaining, self._side = batch, remaining, side
        self.values: list[Any] = []
        self.positions: list[int] = []

    def refuse_last(self, refusals: Refusals, error: BaseException) -> None:
        """Drop the results of the record whose call raised, and refuse the record."""
        position = len(self._batch) - operator.length_hint(self._remaining) - 1
        drop_results(position, self.values, self.positions)
        self._side.drop(position)
        refusals.refuse(self._batch, position, described(error))

    def emit(self, emit: Emit) -> None:
        """Emit the results that were not refused, then the side outputs."""
        if self.values:
            emit(results_of(self._batch, self.values, self.positions, by_row=True))
        self._side.emit(self._batch, by_row=True)


class _Context(TimedContext, ProcessContext):
    __slots__ = ("offset", "side", "time")

    def __init__(self, side: SideOutputs, now_ms: Callable[[], int]) -> None:
        self.side, self.offset = side, -1
        self.time = RecordTime(now_ms)

    def output(self, tag: SideOutput[Any], value: Any) -> None:
        self.side.add(tag, value, self.offset)


class ProcessOperator(ForwardsTime):
    """One `Process` function of one subtask."""

    def __init__(
        self,
        pipeline: str,
        node: Node,
        emits: Mapping[str, Emit],
        refusals: Refusals | None = None,
        *,
        now_ms: Callable[[], int],
    ) -> None:
        self._pipeline, self._node = pipeline, node
        self._refusals = Refusals(node.id) if refusals is None else refusals
        self._function = cast("Process[Any, Any]", node.function)
        self._emit = emits[MAIN]
        self._context = _Context(SideOutputs(type(self._function).declared_outputs, emits), now_ms)
        self._process = self._function.process
        self._guard = results_guard(type(self._function).result_type())

    def open(self) -> None:
        """Call the function's `open`, in which it makes its clients."""
        call_lifecycle_method(self._pipeline, self._node, "open", self._function.open)

    def close(self) -> None:
        """Call the function's `close`, in which it closes its clients."""
        call_lifecycle_method(self._pipeline, self._node, "close", self._function.close)

    def advance(self, watermark: Watermark) -> None:
        """Show the watermark to the function from now on, and forward it."""
        self._context.time.advance(watermark)
        self.forward(watermark)

    def process(self, batch: RecordBatch) -> None:
        """Call the function for each record; emit results, then side outputs."""
        self._context.time.timestamps_ms = batch.timestamps_ms
        if self._refusals.tolerant:
            self._process_tolerantly(batch)
            return
        values: list[Any] = []
        offsets: list[int] = []
        remaining = iter(batch.values)
        by_row = batch.timestamps_ms is not None
        try:
            self._loop(remaining, range(len(batch)) if by_row else batch.offsets, values, offsets)
        except BaseException as error:
            raise user_code_error(self._pipeline, self._node, batch, remaining, error) from error
        if values:
            self._emit(results_of(batch, values, offsets, by_row=by_row))
        self._context.side.emit(batch, by_row=by_row)

    def _process_tolerantly(self, batch: RecordBatch) -> None:
        """Do the same, with positions in place of offsets (`FusedSteps` says why)."""
        remaining, numbers = iter(batch.values), iter(range(len(batch)))
        results = RefusableResults(batch, remaining, self._context.side)
        while True:
            try:
                self._loop(remaining, numbers, results.values, results.positions)
                break
            except BaseException as error:
                if not self._refusals.covers(error):
                    raise user_code_error(
                        self._pipeline, self._node, batch, remaining, error
                    ) from error
                results.refuse_last(self._refusals, error)
        results.emit(self._emit)

    def _loop(
        self,
        remaining: Iterator[Any],
        offsets: Iterable[int],
        out_values: list[Any],
        out_offsets: list[int],
    ) -> None:
        add_value, add_offset = out_values.append, out_offsets.append
        process, context, guard = self._process, self._context, self._guard
        checked_class: type | None = None
        for value, offset in zip(remaining, offsets, strict=False):
            context.offset = offset
            results = process(value, context)
            if results.__class__ is not checked_class:
                checked_class = guard(results)
            for result in results:
                add_value(result)
                add_offset(offset)


def results_of(
    batch: RecordBatch, values: list[Any], offsets: list[int], *, by_row: bool
) -> RecordBatch:
    """Return the results of a function for a batch. They do not have the keys of the records.

    `offsets[i]` is the offset of the record of `values[i]`, or with `by_row` its row number. A
    batch whose only other column is that of the offsets needs no row numbers.
    """
    if by_row:
        return with_results(batch, values, offsets, keep_keys=False)
    return RecordBatch(values, offsets, batch.topic_partition)


def drop_results(position: int, values: list[Any], positions: list[int]) -> None:
    """Drop the results that the record at `position` has yielded, from the ends of the lists."""
    while positions and positions[-1] == position:
        positions.pop()
        values.pop()
