"""Undoing changes of stored cells: `image` and `restore` beneath the write-back cache.

A restored cell must be stored at the next flush as it was when its image was taken, whatever was
flushed before, and the count of map entries in memory must stay right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.state.job import UID, declare
from tidegate.api.state import ListState, MapState, State, ValueState
from tidegate.dataplane.operators.images import Images
from tidegate.dataplane.state.backend import KeyedState
from tidegate.drivers.memory_kv import MemoryStore

Change = Callable[[Any, int], None]


def set_value(cell: Any, number: int) -> None:
    cell.value += number


def append(cell: Any, number: int) -> None:
    cell.append(number)


def put(cell: Any, number: int) -> None:
    cell[number] = number
    cell[0] = number  # written again each time


def remove_and_read(cell: Any, number: int) -> None:
    put(cell, number)
    cell.get(number + 100)
    if number == 3:
        del cell[1]


def extend_in_place(cell: Any, number: int) -> None:
    cell.value.append(number)


def put_in_place(cell: Any, number: int) -> None:
    cell[0] = [*cell.get(0, []), number]
    cell[0].append(number)


CELLS: dict[str, tuple[Callable[[], State], Change, Callable[[Any], object]]] = {
    "value": (lambda: ValueState(int, default=0), set_value, lambda cell: cell.value),
    "mutable value": (
        lambda: ValueState(list[int], factory=list),
        extend_in_place,
        lambda cell: list(cell.value),
    ),
    "list": (lambda: ListState(int), append, list),
    "map": (lambda: MapState(int, int), put, lambda cell: dict(cell.items())),
    "map that is read": (
        lambda: MapState(int, int),
        remove_and_read,
        lambda cell: dict(cell.items()),
    ),
    "mutable map": (
        lambda: MapState(int, list[int]),
        put_in_place,
        lambda cell: {key: list(value) for key, value in cell.items()},
    ),
}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MemoryStore]:
    store = MemoryStore(tmp_path / "store")
    yield store
    store.close()


@pytest.mark.parametrize("kind", CELLS)
@pytest.mark.parametrize("flushed", [False, True], ids=["never flushed", "flushed before"])
def test_a_restored_cell_is_stored_as_it_was(store: MemoryStore, kind: str, flushed: bool) -> None:
    make, change, content = CELLS[kind]
    mutable = "mutable" in kind
    state = KeyedState(UID, declare(it=make()), str, 8, range(8), store, 100)

    def cell() -> Any:
        (row,) = state.rows(["ann"])
        return row

    change(cell(), 1)
    if flushed:
        state.flush()
    change(cell(), 2)
    before = content(cell())
    images = Images(state.rows(["ann"]), [mutable])
    row = next(images)
    change(row, 3)
    row.clear()
    change(row, 4)
    images.undo()
    assert content(cell()) == before
    state.flush()
    state._cache.clear()
    state._all_cached = False
    assert content(cell()) == before, "what was stored is what the image had"
    assert all(column.held >= 0 for column in state._columns)
    change(cell(), 5)
    assert content(cell()) != before


def test_nothing_is_undone_where_an_image_could_not_be_taken() -> None:
    class Broken:
        def image(self, *, mutable: bool) -> object:
            raise ValueError("cannot be copied")

    class Good:
        restored = 0

        def image(self, *, mutable: bool) -> object:
            return None

        def restore(self, image: object) -> None:
            self.restored += 1

    good = Good()
    images = Images([good, Broken()], [True])
    next(images)
    with pytest.raises(ValueError, match="copied"):
        next(images)
    images.undo()
    assert good.restored == 0
