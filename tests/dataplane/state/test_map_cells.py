"""Map cells between two flushes: what is stored and what is pending, seen as one map."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.dataplane.state.job import UID, declare, open_store
from tidegate.api.state.state import MapState
from tidegate.dataplane.state.backend import KeyedStateBackend


@pytest.fixture(params=["memory", "rocksdb"])
def state(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[KeyedStateBackend]:
    """Key "a" has the stored entries b, d, f; its neighbours in the store have theirs."""
    store = open_store(request.param, tmp_path / "store")
    state = KeyedStateBackend(UID, declare(seen=MapState(str, int)), str, 8, range(8), store, 100)
    for key in ("a", "ab", ""):
        for map_key in ("b", "d", "f"):
            cell(state, key)[map_key] = 1
    state.flush()
    yield state
    state.close()


def cell(state: KeyedStateBackend, key: str = "a") -> Any:
    return state.rows([key])[0]


def test_map_iteration_yields_pending_entries_in_key_order(state: KeyedStateBackend) -> None:
    seen = cell(state)
    for map_key in ("a", "c", "d", "g"):
        seen[map_key] = 2
    del seen["b"]
    assert list(seen.items()) == [("a", 2), ("c", 2), ("d", 2), ("f", 1), ("g", 2)]
    assert list(seen) == list(seen.keys()) == ["a", "c", "d", "f", "g"]
    state.flush()
    assert list(cell(state).items()) == [("a", 2), ("c", 2), ("d", 2), ("f", 1), ("g", 2)]


def test_a_cleared_map_is_empty_at_once(state: KeyedStateBackend) -> None:
    seen = cell(state)
    assert seen["b"] == 1
    seen.clear()
    assert "b" not in seen
    assert "d" not in seen
    assert seen.get("f", 7) == 7
    assert list(seen.items()) == []
    with pytest.raises(KeyError):
        del seen["d"]


def test_map_has_only_entries_set_after_a_clear(state: KeyedStateBackend) -> None:
    seen = cell(state)
    seen.clear()
    seen["d"] = seen["e"] = seen["x"] = 3
    del seen["x"]
    assert list(seen.items()) == [("d", 3), ("e", 3)]
    state.flush()
    assert list(cell(state).items()) == [("d", 3), ("e", 3)]
    for key in ("ab", ""):
        assert list(cell(state, key).items()) == [("b", 1), ("d", 1), ("f", 1)]


def test_deleted_map_entry_stays_deleted_after_a_flush(state: KeyedStateBackend) -> None:
    del cell(state)["d"]
    assert "d" not in cell(state)
    with pytest.raises(KeyError):
        cell(state)["d"]
    state.flush()
    assert list(cell(state)) == ["b", "f"]


def test_entries_may_change_during_iteration(state: KeyedStateBackend) -> None:
    seen, met = cell(state), []
    for map_key, value in seen.items():
        met.append((map_key, value))
        if map_key == "b":
            del seen["d"]
            seen["f"] = 9
    assert met == [("b", 1), ("f", 9)]
