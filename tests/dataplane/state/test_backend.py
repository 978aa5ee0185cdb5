"""The write-back cache: what is kept, what is written, when, and what is refused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.dataplane.state.job import UID, Step, declare
from tidegate.api.state.state import ListState, MapState, State, ValueState
from tidegate.dataplane.state.backend import KeyedStateBackend
from tidegate.drivers.memory.store import MemoryStore
from tidegate.errors import (
    CorruptCheckpointError,
    InternalError,
    PipelineError,
    StateValueError,
    StorageError,
    UserCodeError,
)


class CountingStore(MemoryStore):
    """Notes what is read and written."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.reads: list[int] = []
        self.puts = 0
        self.deletes = 0
        self.broken = False

    def get_many(self, keys: Any) -> list[bytes | None]:
        self.reads.append(len(keys))
        return super().get_many(keys)

    def write(self, puts: Iterable[tuple[bytes, bytes]], deletes: Iterable[bytes]) -> None:
        if self.broken:
            raise StorageError("the disk is full")
        puts, deletes = list(puts), list(deletes)
        self.puts += len(puts)
        self.deletes += len(deletes)
        super().write(puts, deletes)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[CountingStore]:
    store = CountingStore(tmp_path / "store")
    yield store
    store.close()


def keyed(store: CountingStore, cache_entries: int = 100, **states: State) -> KeyedStateBackend:
    return KeyedStateBackend(UID, declare(**states), str, 8, range(8), store, cache_entries)


def total() -> ValueState[int]:
    return ValueState(int, default=0)


def values(state: KeyedStateBackend, keys: list[str]) -> list[Any]:
    return [cell.value for cell in state.rows(keys)]


def add(state: KeyedStateBackend, keys: list[str], amount: int = 1) -> None:
    for cell in state.rows(keys):
        cell.value += amount


def forget(state: KeyedStateBackend) -> None:
    """Empties the cache, as if more other keys had come since than it holds."""
    state._cache.clear()
    state._all_cached = False


def test_rows_of_a_batch_are_one_read_of_only_the_keys_not_in_the_cache(
    store: CountingStore,
) -> None:
    state = keyed(store, total=total())
    forget(state)
    state.rows(["a", "b", "a"])
    assert store.reads == [2]
    state.rows(["b", "c", "a"])
    assert store.reads == [2, 1]
    assert state.rows(["a", "b", "a"])[0] is state.rows(["a"])[0]
    assert store.reads == [2, 1]


def test_store_that_began_empty_is_not_read_until_the_cache_drops_a_row(
    store: CountingStore,
) -> None:
    state = keyed(store, 2, total=total(), log=ListState(int))
    for keys in (["a", "b"], ["a", "c"]):
        for cell, log in state.rows(keys):
            cell.value += 1
            log.append(cell.value)
    assert store.reads == []
    state.flush()  # "a" and "b" came first, and two stay
    assert [(cell.value, list(log)) for cell, log in state.rows(["d", "a"])] == [
        (0, []),
        (2, [1, 2]),
    ]
    assert store.reads == [4]


def test_restored_store_is_read_for_keys_not_in_the_cache(store: CountingStore) -> None:
    before = keyed(store, total=total())
    add(before, ["a"])
    before.flush()
    now = KeyedStateBackend(
        UID, declare(total=total()), str, 8, range(8), store, 100, before.schemas
    )
    assert values(now, ["a", "b"]) == [1, 0]
    assert store.reads == [2]


def test_new_and_known_keys_of_a_batch_each_get_their_own_cell(store: CountingStore) -> None:
    state = keyed(store, total=total())
    for key, amount in (("b", 2), ("d", 4)):
        add(state, [key], amount)
    new, known, again, other, twice = state.rows(["a", "b", "a", "c", "d"])
    assert new is again is state.rows(["a"])[0]
    assert other is state.rows(["c"])[0] is not new
    assert [each.value for each in (known, twice)] == [2, 4]


def test_flush_writes_only_changed_values(store: CountingStore) -> None:
    state = keyed(store, total=total())
    add(state, ["a", "b"])
    values(state, ["c"])
    state.flush()
    assert (store.puts, store.deletes) == (2, 0)
    add(state, ["a"])
    add(state, ["b"], 0)
    state.flush()
    assert (store.puts, store.deletes) == (3, 0)
    state.flush()
    assert (store.puts, store.deletes) == (3, 0)


def test_untouched_default_is_not_stored(store: CountingStore) -> None:
    state = keyed(
        store, bag=ValueState(list[int], factory=list), log=ListState(int), seen=MapState(str, int)
    )
    state.rows(["a"])
    state.flush()
    assert (store.puts, store.deletes) == (0, 0)


def test_flush_writes_a_value_changed_in_place_but_not_a_value_that_was_only_read(
    store: CountingStore,
) -> None:
    state = keyed(store, bag=ValueState(list[int], factory=list))
    values(state, ["a"])[0].append(1)
    state.flush()
    assert store.puts == 1
    assert values(state, ["a"]) == [[1]]
    state.flush()
    assert store.puts == 1
    values(state, ["a"])[0].append(2)
    state.flush()
    assert store.puts == 2


def test_clear_deletes_only_stored_values(store: CountingStore) -> None:
    state = keyed(store, total=total(), log=ListState(int))
    for _ in range(2):
        for cell in state.rows(["a"])[0]:
            cell.clear()
        state.flush()
        assert (store.puts, store.deletes) == (0, 0)
    count, log = state.rows(["a"])[0]
    count.value = 1
    log.append(1)
    state.flush()
    for cell in state.rows(["a"])[0]:
        cell.clear()
    state.flush()
    assert (store.puts, store.deletes) == (2, 2)
    assert list(store.scan(b"", b"\xff")) == []


def test_value_set_after_a_clear_is_stored(store: CountingStore) -> None:
    state = keyed(store, total=total())
    add(state, ["a"])
    state.flush()
    (cell,) = state.rows(["a"])
    cell.clear()
    cell.value = 5
    state.flush()
    assert len(list(store.scan(b"", b"\xff"))) == 1
    assert values(state, ["a"]) == [5]


def test_after_a_flush_the_cache_is_within_its_limit(store: CountingStore) -> None:
    state = keyed(store, cache_entries=3, total=total())
    add(state, ["a", "b", "c", "d"])
    state.flush()
    store.reads.clear()
    values(state, ["d", "c", "b"])
    assert store.reads == []
    assert values(state, ["a"]) == [1]
    assert store.reads == [1]


def test_between_flushes_changed_values_are_written_before_they_are_dropped(
    store: CountingStore,
) -> None:
    state = keyed(store, cache_entries=2, total=total())
    for key in "abcdefgh":
        add(state, [key])
    assert store.puts > 0
    assert len(state._cache) <= 5
    assert values(state, list("abcdefgh")) == [1] * 8


def test_map_entries_count_against_the_limit(store: CountingStore) -> None:
    state = keyed(store, cache_entries=10, seen=MapState(str, int))
    for n in range(100):
        (cell,) = state.rows(["a"])
        cell[f"k{n}"] = n
    assert store.puts >= 60
    (cell,) = state.rows(["a"])
    assert dict(cell.items()) == {f"k{n}": n for n in range(100)}


def test_a_large_map_is_read_entry_by_entry(store: CountingStore) -> None:
    state = keyed(store, seen=MapState(str, int))
    (cell,) = state.rows(["a"])
    for n in range(50):
        cell[f"k{n}"] = n
    state.flush()
    store.reads.clear()
    (cell,) = state.rows(["a"])
    assert cell["k7"] == 7
    assert "k8" in cell
    assert "none" not in cell
    assert "none" not in cell
    assert store.reads == [1, 1, 1]


def test_map_cleared_during_iteration_raises_runtime_error(store: CountingStore) -> None:
    state = keyed(store, seen=MapState(str, int))
    (cell,) = state.rows(["a"])
    cell["a"], cell["b"] = 1, 2
    entries = iter(cell)
    next(entries)
    cell.clear()
    with pytest.raises(RuntimeError, match="cleared"):
        next(entries)


def test_flush_writes_all_changes_of_batches_with_repeated_keys(store: CountingStore) -> None:
    """More was handed out than is cached: the flush looks through the cache."""
    state = keyed(store, total=total())
    for _ in range(5):
        add(state, ["a", "b", "a"])
    state.flush()
    assert store.puts == 2
    add(state, ["b"])
    add(state, ["c", "d"])
    state.flush()
    assert store.puts == 5
    forget(state)
    assert values(state, ["a", "b", "c", "d"]) == [10, 6, 1, 1]


@pytest.mark.parametrize("states", [("total",), ("total", "seen", "marks")])
def test_cells_of_equal_content_are_each_saved(
    store: CountingStore, states: tuple[str, ...]
) -> None:
    """The flush looks at each cell that was handed out once: not at each content."""
    declared = declare(total=total(), seen=ListState(int), marks=MapState(str, int))
    chosen = {name: declared[name] for name in states}
    state = KeyedStateBackend(UID, chosen, str, 8, range(8), store, 100)

    def totals(keys: str) -> list[Any]:
        rows = state.rows(list(keys))
        return rows if len(states) == 1 else [row[0] for row in rows]

    for cell in totals("abcdefgh"):  # more is cached than is handed out from now on
        cell.value = 1
    state.flush()
    for cell in (*totals("a"), *totals("ba")):
        cell.value = 7
    state.flush()
    forget(state)
    assert [cell.value for cell in totals("abc")] == [7, 7, 1]


def test_key_of_another_subtask_raises_internal_error(store: CountingStore) -> None:
    state = KeyedStateBackend(UID, declare(total=total()), str, 8, range(2), store, 10)
    with pytest.raises(InternalError, match="key group 6 came to 'running-total'"):
        state.rows(["ann"])


def test_snapshot_is_refused_after_a_failed_flush(store: CountingStore) -> None:
    """The changes that the flush took from the cells are lost, so a later snapshot must not pass
    for whole.
    """
    state = keyed(store, total=total())
    add(state, ["a"])
    store.broken = True
    with pytest.raises(StorageError):
        state.flush()
    store.broken = False
    with pytest.raises(InternalError, match="not whole"):
        state.begin_snapshot()


def test_closed_state_backend_refuses_to_give_rows(store: CountingStore) -> None:
    state = keyed(store, total=total())
    add(state, ["a"])
    state.close()
    with pytest.raises(InternalError, match="the state of 'running-total' is closed"):
        state.rows(["a"])


def test_error_of_a_value_of_another_type_names_uid_and_state(store: CountingStore) -> None:
    state = keyed(store, total=total(), when=ValueState(Decimal, default=Decimal(0)))
    _, when = state.rows(["a"])[0]
    when.value = object()
    with pytest.raises(StateValueError, match=r"State 'when' of step 'running-total' .* key 'a'"):
        state.flush()


def test_error_of_an_unreadable_stored_value_names_uid_and_state(store: CountingStore) -> None:
    state = keyed(store, total=total())
    (cell,) = state.rows(["a"])
    cell.value = 5
    state.flush()
    forget(state)
    ((key, _),) = store.scan(b"", b"\xff")
    store.write([(key, b"\x00\xa4text")], [])  # as an earlier version could
    with pytest.raises(CorruptCheckpointError, match="state 'total' of step 'running-total'"):
        state.rows(["a"])


def test_error_of_a_key_of_another_type_names_the_step(store: CountingStore) -> None:
    state = keyed(store, total=total())
    with pytest.raises(UserCodeError, match="'running-total' was given a key"):
        state.rows([5])


def test_a_state_of_an_unknown_kind_is_refused(store: CountingStore) -> None:
    class OtherState(State):
        kind = "other"

    with pytest.raises(PipelineError, match="state 'odd' of step 'running-total' is a OtherState"):
        keyed(store, odd=OtherState(int))


def test_a_step_without_states_has_empty_rows(tmp_path: Path) -> None:
    step = Step(tmp_path, {})
    step.start(1)
    assert step.cells("a") == ()
    step.snapshot()
    step.stop()
