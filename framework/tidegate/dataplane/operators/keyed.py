"""Keyed process functions: the current key's cells are hung on the function, then it is called.

Per batch: the keys, one load of the state that is not cached, one loop. Per record: one look-up of
the key's cells, one attribute for each declared state, the call. State is loaded and saved by
`dataplane/state`; this module only moves cells into place.

Invariant: a function sees the cells of exactly the record's key; whether it assigned over a cell
(`self.total = 5` for `self.total.value = 5`) is checked after every batch, before a barrier can be.

Results are encoded when their batch is done, so a result that is a state's value, or holds one,
would show what later records of the batch did to it. Where both types can change in place, results
are copied as they are given; where one cannot, there is nothing to share.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, cast

from tidegate.api.functions import Context, KeyedProcess, SideOutput
from tidegate.api.state import Cell, State
from tidegate.api.types import type_info
from tidegate.dataplane.operators.failures import user_code_error
from tidegate.dataplane.operators.process import SideOutputs, guard_text_results
from tidegate.dataplane.operators.stateless import Emit
from tidegate.elements import RecordBatch
from tidegate.errors import PipelineError, UserCodeError, check
from tidegate.graph.logical import MAIN, UNKNOWN, Node
from tidegate.protocol.snapshots import KeyedSnapshot

Rows = Iterator[tuple[Any, Any, Any, int]]
"""Value, key, the key's row of cells and the offset, record by record."""


class KeyedStateLike(Protocol):
    """The keyed state of one step in one subtask, as far as this loop and the task use it."""

    def rows(self, keys: Sequence[Any]) -> Sequence[Any]:
        """The row of each key: its cell where one state is declared, else a tuple of its cells in
        the order of the declarations; what is missing is loaded together. Valid until the next
        call.
        """
        ...

    def snapshot(
        self, done: Callable[[KeyedSnapshot], None], failed: Callable[[str], None]
    ) -> None:
        """Take the content of this moment, and store it in the background; `done` or `failed` (with
        the reason) is called in the mailbox thread.
        """
        ...

    def close(self) -> None:
        """Release the store."""
        ...


class _KeyedContext(Context[Any]):
    __slots__ = ("copied", "offset", "side")

    def __init__(self, side: SideOutputs, copied: frozenset[str]) -> None:
        self.side, self.offset = side, -1
        self.copied = copied
        """Side outputs whose values may be shared with state."""

    def output(self, tag: SideOutput[Any], value: Any) -> None:
        if tag.name in self.copied:
            value = copy.deepcopy(value)
        self.side.add(tag, value, self.offset)


class KeyedOperator:
    """One `KeyedProcess` function of one subtask, with its state."""

    def __init__(
        self, pipeline: str, node: Node, state: KeyedStateLike, emits: Mapping[str, Emit]
    ) -> None:
        self._pipeline, self._node, self.state = pipeline, node, state
        self._function = cast("KeyedProcess[Any, Any, Any]", node.function)
        kind = type(self._function)
        self._names = tuple(kind.declared_states)
        self._emit = emits[MAIN]
        changes = any(map(_changes_in_place, kind.declared_states.values()))
        outputs = kind.declared_outputs
        copied = frozenset(name for name, tag in outputs.items() if changes and _mutable(tag.of))
        self._context = _KeyedContext(SideOutputs(outputs, emits), copied)
        self._process = guard_text_results(kind.result_type(), self._function.process)
        if changes and _mutable(kind.result_type()):
            self._process = _copying(self._process)
        key = node.inputs[0].key
        check(
            key is not None and all(edge.key is key for edge in node.inputs),
            f"all inputs of keyed step {node.id!r} have the key function of its key_by",
        )
        self._key_of = cast("Callable[[Any], Any]", key)

    def open(self) -> None:
        """Let the function make its clients."""
        self._function.open()

    def close(self) -> None:
        """Let the function close them; release the state."""
        self._function.close()
        self.state.close()

    def process(self, batch: RecordBatch) -> None:
        """Call the function for each record with its key's state in place; emit what it returns."""
        keys = self._keys(batch)
        rows = self.state.rows(keys)
        values: list[Any] = []
        offsets: list[int] = []
        remaining = iter(batch.values)
        loop = self._loop_one_state if len(self._names) == 1 else self._loop_many_states
        try:
            loop(zip(remaining, keys, rows, batch.offsets, strict=False), values, offsets)
        except Exception as error:
            raise user_code_error(self._pipeline, self._node, batch, remaining, error) from error
        self._check_cells()
        if values:
            self._emit(RecordBatch(values, offsets, batch.origin))
        self._context.side.emit(batch.origin)

    def _keys(self, batch: RecordBatch) -> list[Any]:
        # Behind a shuffle for the second time: `KeyOutlet.emit` says why.
        remaining = iter(batch.values)
        try:
            return list(map(self._key_of, remaining))
        except Exception as error:
            raise user_code_error(self._pipeline, self._node, batch, remaining, error) from error

    def _loop_one_state(self, rows: Rows, out_values: list[Any], out_offsets: list[int]) -> None:
        add_value, add_offset = out_values.append, out_offsets.append
        process, context = self._process, self._context
        hang, name = self._function.__dict__, self._names[0]
        for value, key, cell, offset in rows:
            hang[name] = cell
            context.key = key
            context.offset = offset
            for result in process(value, context):
                add_value(result)
                add_offset(offset)

    def _loop_many_states(self, rows: Rows, out_values: list[Any], out_offsets: list[int]) -> None:
        add_value, add_offset = out_values.append, out_offsets.append
        process, context = self._process, self._context
        hang, names = self._function.__dict__, self._names
        for value, key, cells, offset in rows:
            hang.update(zip(names, cells, strict=True))
            context.key = key
            context.offset = offset
            for result in process(value, context):
                add_value(result)
                add_offset(offset)

    def _check_cells(self) -> None:
        for name in self._names:
            if not isinstance(self._function.__dict__[name], Cell):
                message = (
                    f"{self._pipeline}: step uid {self._node.uid!r} ({self._node.place}) assigned "
                    f"over its state: write self.{name}.value = ... for self.{name} = ..."
                )
                raise UserCodeError(message)


def _changes_in_place(state: State) -> bool:
    return any(not info.immutable for info in state.types)


def _mutable(of: object) -> bool:
    """Whether a value of a type may change in place; of one that cannot be described, it may."""
    if of is UNKNOWN:
        return True
    try:
        return not type_info(of).immutable
    except PipelineError:
        return True


def _copying(process: Callable[..., Iterable[Any]]) -> Callable[..., Iterable[Any]]:
    def copied(*arguments: Any) -> Iterable[Any]:
        return map(copy.deepcopy, process(*arguments))

    return copied
