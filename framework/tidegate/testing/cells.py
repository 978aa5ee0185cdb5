"""Keyed state in plain memory, for tests: cells by canonical key, and nothing that outlives them.

It stands where `dataplane/state` stands in a job, under the real operators. After each batch every
touched cell is encoded as a checkpoint would, so that a value that could not be stored fails the
test and not the job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tidegate.api.functions import KeyedProcess
from tidegate.api.keys import check_key, key_encoder
from tidegate.api.state import Cell, ListCell, MapCell, ValueCell
from tidegate.api.wire import value_codec
from tidegate.errors import InternalError
from tidegate.protocol.snapshots import KeyedSnapshot


class CellsByKey:
    """The state of one keyed function; `key_of` is the type of its keys."""

    def __init__(self, function: KeyedProcess[Any, Any, Any], key_of: object, where: str) -> None:
        self._states = tuple(function.declared_states.values())
        self._names = tuple(function.declared_states)
        self._codecs = [
            tuple(value_codec(info.python) for info in state.types) for state in self._states
        ]
        self._key_of, self._where = key_of, where
        self._key_bytes = key_encoder(key_of)
        self._cells: dict[bytes, tuple[Cell, ...]] = {}
        self._touched: dict[bytes, None] = {}

    def rows(self, keys: Sequence[Any]) -> list[Any]:
        """The row of each key; a key that is not of the declared type is refused."""
        cells = [self._entry(key) for key in keys]
        return [row[0] for row in cells] if len(self._states) == 1 else cells

    def cell(self, name: str, key: Any) -> Any:
        """The cell of one declared state, to be looked at; a new one if the key was never seen."""
        position = self._names.index(name)
        cells = self._cells.get(self._key_bytes(key))
        return self._states[position].new_cell() if cells is None else cells[position]

    def _entry(self, key: Any) -> tuple[Cell, ...]:
        check_key(key, self._key_of, self._where)
        key_bytes = self._key_bytes(key)
        self._touched[key_bytes] = None
        cells = self._cells.get(key_bytes)
        if cells is None:
            cells = self._cells[key_bytes] = tuple(state.new_cell() for state in self._states)
        return cells

    def encode_touched(self) -> None:
        """Encode what a checkpoint would, and throw the bytes away."""
        for key_bytes in self._touched:
            for cell, codecs in zip(self._cells[key_bytes], self._codecs, strict=True):
                for stored in _stored(cell):
                    for codec, value in zip(codecs, stored, strict=True):
                        codec.encode(value)
        self._touched.clear()

    def snapshot(
        self, done: Callable[[KeyedSnapshot], None], failed: Callable[[str], None]
    ) -> None:
        """Never called: a test takes no checkpoint."""
        raise InternalError(f"a checkpoint of a test's state, for {done} or {failed}")

    def close(self) -> None:
        """Nothing to release."""


def _stored(cell: Cell) -> Iterable[tuple[Any, ...]]:
    """What a cell would store, as one tuple for each stored entry, in the order of the state's
    types.
    """
    if isinstance(cell, ValueCell):
        return ((cell.value,),)
    if isinstance(cell, ListCell):
        return [(item,) for item in cell]
    return list(cell.items()) if isinstance(cell, MapCell) else ()
