"""Keyed process functions: the current key's cells are set on the function, then it is called.

For each batch, the operator computes the keys, loads the state that is not cached, and runs one
loop. For each record, it looks up the key's cells, sets one attribute for each declared state, and
calls the function. `dataplane/state` loads and saves the state. This module only moves cells into
place.

Invariant: a function sees the cells of exactly the record's key. After every batch, and so before
any barrier, the operator checks that the function has not assigned over a cell (`self.total = 5` in
place of `self.total.value = 5`).

Results are encoded after their batch. A result that is a value of the state, or holds one, would
show the changes that later records of the batch made to that value. If both types can change in
place, results are copied when the function gives them (`copied_ports`). If one type cannot change,
no copy is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final, Protocol, Self, cast

from tidegate.api.functions import Context, KeyedProcess, SideOutput
from tidegate.api.records.copying import copy_value, immutable
from tidegate.api.state.state import Cell, State
from tidegate.dataplane.keying import StepKeys
from tidegate.dataplane.operators.event_time import ForwardsTime, RecordTime, TimedContext
from tidegate.dataplane.operators.process import RefusableResults, SideOutputs, results_of
from tidegate.dataplane.operators.returned import results_guard
from tidegate.dataplane.operators.stateless import Emit
from tidegate.dataplane.refusals import Refusals
from tidegate.dataplane.time.timer_index import TimerIndex
from tidegate.dataplane.user_errors import (
    call_lifecycle_method,
    user_code_error,
)
from tidegate.errors import StateValueError, UserCodeError
from tidegate.graph.stream_graph import MAIN, Node
from tidegate.protocol.subtask_snapshot import KeyedSnapshot
from tidegate.stream_elements import MAX_MS, RecordBatch, Watermark


class Images:
    """The rows of a batch, one after the other, with an image of the row that was given last.

    `mutable` says for each declared state whether its values can change in place.

    Images are taken before each call, and only if the step has a policy (`on_error`) that lets the
    job continue. The image of a value that cannot change in place is a reference. The image of
    another value is a copy. A map keeps the changes of its calls separately, and copies entries
    when it returns them. The image of a map therefore costs as much as one call changes.
    """

    def __init__(self, rows: Iterable[Any], mutable: Sequence[bool]) -> None:
        self._rows, self._mutable = iter(rows), mutable
        self.row: Any = None
        """The row that was given last."""
        self._cells: Sequence[Cell] = ()
        self.images: list[object] = []
        """The images of the cells of that row."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        """Return the next row in the form that the loop takes: one cell, or a tuple of cells."""
        self._cells, self.images = (), []  # nothing to undo if an image cannot be taken
        row = self.row = next(self._rows)
        cells = row if isinstance(row, tuple) else (row,)
        pairs = zip(cells, self._mutable, strict=True)
        try:
            self.images = [cell.image(mutable=mutable) for cell, mutable in pairs]
        except StopIteration as error:  # raised by a value's `__deepcopy__`; it would end the batch
            raise RuntimeError("a copy raised StopIteration") from error
        self._cells = cells
        return row

    def undo(self) -> None:
        """Restore the cells of the last row to their state before its call."""
        for cell, image in zip(self._cells, self.images, strict=True):
            cell.restore(image)


Rows = Iterator[tuple[Any, Any, int, Any]]
"""Value, key, offset and the key's row of cells, for one record after the other."""

_NO_BATCH: Final = RecordBatch([], [], None)


class KeyedStateLike(Protocol):
    """The part of one step's keyed state in one subtask that this loop and the task use."""

    watermark_ms: int
    """The watermark of the step, which each snapshot holds. It never goes back."""

    @property
    def timers(self) -> Mapping[str, TimerIndex]:
        """The keys of the timers that are set, by name of their declaration."""
        ...

    def rows(self, keys: Sequence[Any]) -> Sequence[Any]:
        """Return the row of each key. The rows are valid until the next call.

        If one state is declared, a row is the key's cell. Otherwise it is a tuple of the key's
        cells, in the order of the declarations. All missing rows are loaded together.
        """
        ...

    def why_not(self, row: Any, images: Sequence[object]) -> str:
        """Return why a checkpoint could not store the changes in a row since the images of its
        cells were taken; empty if it could.
        """
        ...

    def snapshot(
        self, done: Callable[[KeyedSnapshot], None], failed: Callable[[str], None]
    ) -> None:
        """Freeze the present content, and store it in the background.

        `done`, or `failed` with the reason, is called in the mailbox thread.
        """
        ...

    def close(self) -> None:
        """Release the store."""
        ...


class _KeyedContext(TimedContext, Context[Any]):
    __slots__ = ("copied", "offset", "side", "time")

    def __init__(self, side: SideOutputs, copied: frozenset[str], time: RecordTime) -> None:
        self.side, self.offset, self.time = side, -1, time
        self.copied = copied
        """Names of the side outputs whose values may be shared with state."""

    def output(self, tag: SideOutput[Any], value: Any) -> None:
        if tag.name in self.copied:
            value = copy_value(value)
        self.side.add(tag, value, self.offset)


class KeyedOperator(ForwardsTime):
    """One `KeyedProcess` function of one subtask, with its state."""

    methods: ClassVar[tuple[str, ...]] = ("process",)
    """The methods of the function that process records, one for each input of the step."""

    def __init__(
        self,
        pipeline: str,
        node: Node,
        state: KeyedStateLike,
        emits: Mapping[str, Emit],
        refusals: Refusals | None = None,
        key_refusals: Refusals | None = None,
        *,
        now_ms: Callable[[], int],
    ) -> None:
        """Create the operator. `key_refusals` is the policy of the key_by. It is None if the policy
        is "fail", or if a record writer in front of the step applies the policy. `now_ms` is the
        clock of the slot.
        """
        self._pipeline, self._node, self.state = pipeline, node, state
        self._refusals = Refusals(node.id) if refusals is None else refusals
        self._function = cast("KeyedProcess[Any, Any, Any]", node.function)
        kind = type(self._function)
        self._names = tuple(kind.declared_states)
        self._mutable = tuple(map(_changes_in_place, kind.declared_states.values()))
        self._emit = emits[MAIN]
        copied = copied_ports(kind)
        side = SideOutputs(kind.declared_outputs, emits)
        self._context = _KeyedContext(side, copied, RecordTime(now_ms, state.watermark_ms))
        self._guard = results_guard(kind.result_type())
        self._copies_results = MAIN in copied
        self._loop = self._loop_one_state if len(self._names) == 1 else self._loop_many_states
        self._images = Images((), ())
        self._tolerates = True
        """Whether the policy covers errors now. It covers those of calls for records."""
        self._batch = _NO_BATCH
        """The batch that is processed, without the records whose keys were refused."""
        self._sides = [
            (
                StepKeys(pipeline, node, key_refusals, side),
                self._prepared(getattr(self._function, method)),
            )
            for side, method in enumerate(self.methods)
        ]
        """The keys and the method of each input."""
        self._keys, self._process = self._sides[0]

    def open(self) -> None:
        """Call the function's `open`, in which it makes its clients."""
        call_lifecycle_method(self._pipeline, self._node, "open", self._function.open)

    def close(self) -> None:
        """Call the function's `close`, in which it closes its clients, and release the state."""
        try:
            call_lifecycle_method(self._pipeline, self._node, "close", self._function.close)
        finally:
            self.state.close()

    def advance(self, watermark: Watermark) -> None:
        """Show the watermark to the function from now on, keep it for the checkpoint, and forward
        it.
        """
        self._note(watermark)
        self.forward(watermark)

    def _note(self, watermark: Watermark) -> None:
        self._context.time.advance(watermark)
        if watermark.timestamp_ms < MAX_MS:  # the end of the input is the end of this run only
            self.state.watermark_ms = self._context.time.watermark_ms

    def process(self, batch: RecordBatch) -> None:
        """Call the function for each record with its key's state in place, and emit what it
        returns.
        """
        batch, keys = self._keys.of(batch)
        self._context.time.timestamps_ms = batch.timestamps_ms
        self._batch = batch
        try:
            rows = self.state.rows(keys)
        except BaseException as error:
            raise self._keys.lookup_error(batch, keys, error) from error
        if self._refusals.tolerant:
            self._process_tolerantly(batch, keys, rows)
        else:
            self._process_strictly(batch, keys, rows)
        # The caller frees the batch now, while the caches of the processor hold its records. If it
        # were freed at the next batch, each of its records would be visited in memory.
        self._batch = _NO_BATCH

    def _process_strictly(
        self, batch: RecordBatch, keys: Sequence[Any], rows: Sequence[Any]
    ) -> None:
        values: list[Any] = []
        offsets: list[int] = []
        remaining = iter(batch.values)
        by_row = batch.timestamps_ms is not None
        numbers = range(len(batch)) if by_row else batch.offsets
        try:
            self._loop(zip(remaining, keys, numbers, rows, strict=True), values, offsets)
        except BaseException as error:
            raise user_code_error(self._pipeline, self._node, batch, remaining, error) from error
        self._check_cells()
        if values:
            self._emit(results_of(batch, values, offsets, by_row=by_row))
        self._context.side.emit(batch, by_row=by_row)

    def _process_tolerantly(
        self, batch: RecordBatch, keys: Sequence[Any], rows: Sequence[Any]
    ) -> None:
        """Do the same, with positions in place of offsets (`FusedSteps` says why).

        An image of the key's cells is taken before each call. It undoes the changes of a call that
        raises.
        """
        remaining = iter(batch.values)
        results = RefusableResults(batch, remaining, self._context.side)
        images = self._images = Images(rows, self._mutable)
        # The images come last. If an image cannot be taken, the other iterators have already
        # advanced by one.
        records = zip(remaining, keys, range(len(batch)), images, strict=True)
        while True:
            try:
                self._loop(records, results.values, results.positions)
                break
            except BaseException as error:
                if not (self._tolerates and self._refusals.covers(error)):
                    raise user_code_error(
                        self._pipeline, self._node, batch, remaining, error
                    ) from error
                self._check_cells()
                images.undo()
                results.refuse_last(self._refusals, error)
        self._check_cells()
        results.emit(self._emit)

    def _prepared(self, method: Callable[..., Iterable[Any]]) -> Callable[..., Iterable[Any]]:
        """Return a method of the function, with the copies and checks that the step needs."""
        if self._copies_results:
            method = copying(method, self._guard)
        if self._refusals.tolerant and self._names:
            method = self._checking_state(method)
        return method

    def _checking_state(
        self, process: Callable[..., Iterable[Any]]
    ) -> Callable[..., Iterable[Any]]:
        """Return `process` with a check after its last result.

        The check raises if the state of the key can no longer be stored. So the record is refused,
        and the checkpoint does not fail.
        """

        def then_check(results: Iterable[Any]) -> Iterator[Any]:
            yield from results
            # `_check_cells` finds assignments over a cell. They do not change the cells of the row.
            if reason := self.state.why_not(self._images.row, self._images.images):
                raise StateValueError(reason)

        def checked(*arguments: Any) -> Iterable[Any]:
            results = process(*arguments)
            self._guard(results)
            return then_check(results)

        return checked

    def _loop_one_state(self, rows: Rows, out_values: list[Any], out_offsets: list[int]) -> None:
        add_value, add_offset = out_values.append, out_offsets.append
        process, context, guard = self._process, self._context, self._guard
        checked_class: type | None = None
        attributes, name = self._function.__dict__, self._names[0]
        for value, key, offset, cell in rows:
            attributes[name] = cell
            context.key = key
            context.offset = offset
            results = process(value, context)
            if results.__class__ is not checked_class:
                checked_class = guard(results)
            for result in results:
                add_value(result)
                add_offset(offset)

    def _loop_many_states(self, rows: Rows, out_values: list[Any], out_offsets: list[int]) -> None:
        add_value, add_offset = out_values.append, out_offsets.append
        process, context, guard = self._process, self._context, self._guard
        checked_class: type | None = None
        attributes, names = self._function.__dict__, self._names
        for value, key, offset, cells in rows:
            attributes.update(zip(names, cells, strict=True))
            context.key = key
            context.offset = offset
            results = process(value, context)
            if results.__class__ is not checked_class:
                checked_class = guard(results)
            for result in results:
                add_value(result)
                add_offset(offset)

    def _check_cells(self) -> None:
        attributes = self._function.__dict__
        for name in self._names:
            # A function has no cells before its first call. Policies may refuse any number of
            # records before it.
            if name in attributes and not isinstance(attributes[name], Cell):
                message = (
                    f"{self._pipeline}: step uid {self._node.uid!r} ({self._node.location}) "
                    f"assigned over its state: write self.{name}.value = ... for self.{name} = ..."
                )
                raise UserCodeError(message)


def copied_ports(kind: type[KeyedProcess[Any, Any, Any]]) -> frozenset[str]:
    """Return the ports of a keyed function whose values are copied when the function gives them."""
    if not any(map(_changes_in_place, kind.declared_states.values())):
        return frozenset()
    types = {MAIN: kind.result_type()} | {
        n: tag.record_type for n, tag in kind.declared_outputs.items()
    }
    return frozenset(port for port, of in types.items() if not immutable(of))


def _changes_in_place(state: State) -> bool:
    return any(not info.immutable for info in state.types)


def copying(
    process: Callable[..., Iterable[Any]], guard: Callable[[object], type]
) -> Callable[..., Iterable[Any]]:
    """Return a function whose results are copies."""

    def copied(*arguments: Any) -> Iterable[Any]:
        results = process(*arguments)
        guard(results)
        return map(copy_value, results)

    return copied
