"""Undoing changes of stored cells: `image` and `restore` beneath the write-back cache.

The next flush must store a restored cell as it was when its image was taken, also if another flush
came before. The count of map entries in memory must stay right.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.dataplane.state.job import UID, declare
from tidegate.api.state.state import ListState, MapState, State, ValueState
from tidegate.dataplane.operators.keyed import Images
from tidegate.dataplane.state.backend import KeyedStateBackend
from tidegate.drivers.memory.store import MemoryStore

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
def test_cell_restored_from_an_image_is_stored_with_the_content_of_the_image(
    store: MemoryStore, kind: str, flushed: bool
) -> None:
    make, change, content = CELLS[kind]
    mutable = "mutable" in kind
    state = KeyedStateBackend(UID, declare(it=make()), str, 8, range(8), store, 100)

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
    assert all(accessor.cached_count >= 0 for accessor in state._accessors)
    change(cell(), 5)
    assert content(cell()) != before


def test_undo_restores_no_cell_if_an_image_could_not_be_taken() -> None:
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


def go_through(cell: Any, number: int) -> None:
    for key, value in cell.items():
        if number % 2 and isinstance(value, list):
            value.append(number)
        if key == number % 5:
            del cell[key]


MAP_CALLS: list[Change] = [
    lambda cell, number: cell.__setitem__(number % 7, [number]),
    lambda cell, number: cell.__setitem__(number % 5, [number, number]),
    lambda cell, number: cell.get(number % 5),
    lambda cell, number: cell.get(number % 7, []).append(number),
    lambda cell, number: cell.__delitem__(number % 7) if number % 7 in cell else None,
    lambda cell, _: cell.clear(),
    go_through,
]


class Formed:
    """A cell, or the dict that it is compared with, which takes values of the declared type."""

    def __init__(self, of: Any, *, mutable: bool) -> None:
        self._of, self._mutable = of, mutable

    def __setitem__(self, key: int, value: list[int]) -> None:
        self._of[key] = value if self._mutable else tuple(value)

    def __delitem__(self, key: int) -> None:
        del self._of[key]

    def __contains__(self, key: int) -> bool:
        return key in self._of

    def get(self, key: int, default: Any = None) -> Any:
        found = self._of.get(key, default)
        return found if self._mutable else []

    def items(self) -> Iterator[tuple[int, Any]]:
        items = self._of.items()
        return iter(sorted(items) if isinstance(self._of, dict) else items)

    def clear(self) -> None:
        self._of.clear()


@pytest.mark.parametrize("mutable", [False, True])
@pytest.mark.parametrize("seed", range(150))
def test_map_state_after_undo_equals_a_dict_without_the_undone_calls(
    store: MemoryStore, seed: int, mutable: bool
) -> None:
    rng = random.Random(seed)
    of: Any = list[int] if mutable else tuple[int, ...]
    state = KeyedStateBackend(UID, declare(it=MapState(int, of)), str, 8, range(8), store, 100)
    expected: dict[int, Any] = {}
    for number in range(rng.randrange(60)):
        if rng.random() < 0.1:
            state.flush()
        images = Images(state.rows(["ann"]), [mutable])
        row = next(images)
        after = copy.deepcopy(expected)
        for _ in range(rng.randrange(1, 4)):
            call, argument = rng.choice(MAP_CALLS), number + rng.randrange(9)
            call(Formed(row, mutable=mutable), argument)
            call(Formed(after, mutable=mutable), argument)
        if rng.random() < 0.4:
            images.undo()
        else:
            expected = after
        if rng.random() < 0.3:
            assert dict(row.items()) == expected
    state.flush()
    assert [accessor.cached_count for accessor in state._accessors] == [0]
    (row,) = state.rows(["ann"])
    assert dict(row.items()) == expected


def test_map_image_copies_only_the_entries_that_calls_change(
    store: MemoryStore,
) -> None:
    state = KeyedStateBackend(
        UID, declare(it=MapState(int, Counted)), str, 8, range(8), store, 10_000
    )
    entries = 500
    for number in range(entries):
        images = Images(state.rows(["ann"]), [True])
        row = next(images)
        row[number] = Counted(number)
        row.get(number // 2)
        assert len(row.changed_since(images.images[0], mutable=True)) <= 2
    assert Counted.copies <= 2 * entries
    image, again = row.image(mutable=True), row.image(mutable=True)
    assert image.entries is again.entries, "nothing was copied"
    row[0] = Counted(-1)
    assert dict(row.held_entries())[0] == Counted(-1)
    row.restore(again)
    assert dict(row.held_entries())[0] == Counted(0), "to list the entries leaves the image alone"


@dataclass
class Counted:
    """A value that can change in place, which counts how often one is copied."""

    number: int
    copies: ClassVar[int] = 0

    def __deepcopy__(self, _: object) -> Counted:
        Counted.copies += 1
        return Counted(self.number)
