"""Keyed state in plain memory for tests: a dictionary from the encoded key to its state cells.

The real operators of the data plane use it in place of the backend in `dataplane/state`. The state
ends with the test. After each batch, the test drivers check and encode every touched cell as a
checkpoint would. A value that cannot be stored therefore fails in the test and not in the job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from tidegate.api.state.keys import check_key, key_encoder
from tidegate.api.state.state import Cell, ListCell, MapCell, State, ValueCell
from tidegate.api.state.wire import state_codec
from tidegate.api.time.timers import TimerCell, TimerDeclaration, TimersCell, for_keys
from tidegate.dataplane.state.storable import Storable
from tidegate.dataplane.time.timer_index import TimerIndex
from tidegate.errors import InternalError, StateValueError
from tidegate.protocol.subtask_snapshot import KeyedSnapshot
from tidegate.stream_elements import MIN_MS


class CellsByKey:
    """The state of one step with the declared states. `key_of` is the type of its keys."""

    def __init__(self, declared: Mapping[str, State], key_of: object, where: str) -> None:
        self.watermark_ms = MIN_MS
        """The watermark of the step."""
        self._states = tuple(for_keys(declared, key_of).values())
        self._names = tuple(declared)
        self.timers = {name: TimerIndex() for name in self._names}
        """The keys of the timers that are set, by name of their declaration."""
        self._storable = [
            Storable(state, state_codec(state.stored_type, 0, {})) for state in self._states
        ]
        self._mutable = [any(not info.immutable for info in state.types) for state in self._states]
        self._key_of, self._where = key_of, where
        self._key_bytes = key_encoder(key_of)
        self._cells: dict[bytes, tuple[Cell, ...]] = {}
        self._touched: dict[bytes, Any] = {}

    def rows(self, keys: Sequence[Any]) -> list[Any]:
        """Return the row of each key. Reject a key that is not of the declared type."""
        cells = [self._entry(key) for key in keys]
        return [row[0] for row in cells] if len(self._states) == 1 else cells

    def cell(self, name: str, key: Any) -> Any:
        """Return the cell of one declared state, for reading. An unknown key has a new cell."""
        position = self._names.index(name)
        cells = self._cells.get(self._key_bytes(key))
        return self._new_cell(position, key) if cells is None else cells[position]

    def _entry(self, key: Any) -> tuple[Cell, ...]:
        check_key(key, self._key_of, self._where)
        key_bytes = self._key_bytes(key)
        self._touched[key_bytes] = key
        cells = self._cells.get(key_bytes)
        if cells is None:
            cells = self._cells[key_bytes] = tuple(
                self._new_cell(position, key) for position in range(len(self._states))
            )
        return cells

    def _new_cell(self, position: int, key: Any) -> Cell:
        state = self._states[position]
        if isinstance(state, TimerDeclaration):
            return state.timer_cell(self.timers[state.name], key)
        return state.new_cell()

    def check_storable(self) -> None:
        """Check that a checkpoint could store the cells touched since the last call.

        Raise StateValueError for a value that cannot be stored.
        """
        touched, self._touched = self._touched, {}
        for key_bytes, key in touched.items():
            cells = zip(self._names, self._cells[key_bytes], self._storable, strict=True)
            for name, cell, storable in cells:
                for value in _stored(cell):
                    if reason := storable.why_not(value):
                        raise StateValueError(
                            f"State {name!r} of {self._where} cannot be stored for key {key!r}: "
                            f"{reason}"
                        )

    def scan(self, name: str) -> Iterator[Any]:
        """Yield nothing: the state of a test begins empty."""
        del name
        return iter(())

    def why_not(self, row: Any, images: Sequence[object]) -> str:
        """Return why a checkpoint could not store the changes in a row since the images of its
        cells were taken. The text is empty if it could.
        """
        cells = row if len(self._states) > 1 else (row,)
        for position, (cell, image) in enumerate(zip(cells, images, strict=True)):
            for value in cell.changed_since(image, mutable=self._mutable[position]):
                if reason := self._storable[position].why_not(value):
                    return f"state {self._names[position]!r} cannot be stored: {reason}"
        return ""

    def snapshot(
        self, done: Callable[[KeyedSnapshot], None], failed: Callable[[str], None]
    ) -> None:
        """Raise InternalError: a test takes no checkpoint, so this is never called."""
        raise InternalError(f"a checkpoint of a test's state, for {done} or {failed}")

    def close(self) -> None:
        """Do nothing: the state holds no resources."""


def _stored(cell: Cell) -> Iterable[Any]:
    """Return the values that a cell would store, one for each stored entry."""
    if isinstance(cell, ValueCell):
        return (cell.value,)
    if isinstance(cell, ListCell):
        return (list(cell),)
    if isinstance(cell, TimerCell | TimersCell):
        return () if cell.stored() is None else ((cell.key, cell.stored()),)
    return cell.held_entries() if isinstance(cell, MapCell) else ()
