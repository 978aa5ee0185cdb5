"""A snapshot that is saved while batches continue holds the state at its barrier, and nothing that
came later.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.dataplane.state.job import Step, declare
from tests.dataplane.state.test_model import IN_MEMORY, KEYS, Model, Operations
from tidegate.api.state.state import ListState, MapState, ValueState
from tidegate.dataplane.state import pending_rows
from tidegate.dataplane.state.backend import KeyedStateBackend
from tidegate.dataplane.state.pending_rows import PendingRows
from tidegate.errors import InternalError, StorageError
from tidegate.protocol.subtask_snapshot import KeyedSnapshot

OPERATIONS = sorted(name for name in vars(Operations) if name.split("_")[0] in {"count", "bag"})
LIST_OPERATIONS = sorted(
    name for name in vars(Operations) if name.split("_")[0] in {"log", "boxes"}
)
EXAMPLES = settings().max_examples


def states() -> Any:
    return declare(
        count=ValueState(int, default=0),
        bag=ValueState(list[int], factory=list),
        log=ListState(int),
        boxes=ListState(list[int]),
    )


@pytest.fixture(autouse=True, scope="module")
def few_rows_at_a_time() -> Any:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(pending_rows, "ROWS", 2)
        yield


class Run:
    """A history, applied to a step and to the model; a barrier's content is compared by restoring
    it, some batches later.
    """

    def __init__(self, folder: Path, backend: str) -> None:
        self.step = Step(folder, states(), backend=backend, cache_entries=2)
        self.step.start(1)
        self.model: dict[str, Model] = {}
        self.saved: tuple[list[KeyedSnapshot], dict[str, Model]] = ([], {})
        self.barrier: dict[str, Model] | None = None

    @property
    def state(self) -> KeyedStateBackend:
        return self.step.subtasks[0]

    def apply(self, event: Any) -> None:
        match event:
            case ("barrier",):
                while self.barrier is not None:
                    self.advance()
                self.barrier = copy.deepcopy(self.model)
                self.state.begin_snapshot()
            case ("advance",):
                self.advance()
            case ("flush",):
                self.state.flush()
            case ("kill",):
                self.barrier = None
                snapshots, model = self.saved
                self.step.start(1, snapshots)
                self.model = copy.deepcopy(model)
            case batch:
                keys = [key for _, key, _ in batch]
                rows = self.state.rows(keys)
                for cells, (operation, key, n) in zip(rows, batch, strict=True):
                    held = self.model.setdefault(key, Model())
                    getattr(Operations, operation)(cells, held, n, "")

    def advance(self) -> None:
        if self.barrier is not None and (frozen := self.state.save_next()) is not None:
            uploader = self.step.uploaders[0]
            snapshot = uploader.upload(frozen, self.state.schemas, {})
            self.saved = ([snapshot], self.barrier)
            self.barrier = None

    def compare(self) -> None:
        for key in {*KEYS, *self.model}:
            cells: Any = self.step.cells(key)
            count, bag, log, boxes = cells
            found = Model(count.value, bag.value, list(log), list(boxes))
            assert found == self.model.get(key, Model()), key


@st.composite
def histories(draw: st.DrawFn) -> list[Any]:
    operations = draw(st.sampled_from([OPERATIONS, LIST_OPERATIONS]))
    keys = draw(st.lists(st.sampled_from(KEYS), min_size=1, max_size=5))
    change = st.tuples(st.sampled_from(operations), st.sampled_from(keys), st.integers(-3, 3))
    batch = st.lists(change, min_size=1, max_size=4)
    other = st.sampled_from(
        [("barrier",), ("barrier",), ("advance",), ("advance",), ("flush",), ("kill",)]
    )
    return draw(st.lists(st.one_of(batch, batch, other, other), min_size=10, max_size=40))


def run(events: list[Any], backend: str) -> None:
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        whole = Run(Path(folder), backend)
        try:
            for event in [*events, ("barrier",), *events[:5]]:
                whole.apply(event)
            while whole.barrier is not None:
                whole.advance()
            whole.compare()
            whole.apply(("kill",))
            whole.compare()
        finally:
            whole.step.stop()


@settings(max_examples=2 * EXAMPLES)
@given(histories())
def test_memory_backend_snapshot_holds_the_state_at_its_barrier(events: list[Any]) -> None:
    run(events, "memory")


@settings(max_examples=max(10, EXAMPLES // 4))
@given(histories())
def test_rocksdb_backend_snapshot_holds_the_state_at_its_barrier(events: list[Any]) -> None:
    run(events, "rocksdb")


def add(state: KeyedStateBackend, keys: list[str], amount: int = 1) -> None:
    for cell in state.rows(keys):
        cell.value += amount


@pytest.fixture
def step(tmp_path: Path) -> Any:
    step = Step(tmp_path, declare(total=ValueState(int, default=0)), cache_entries=100)
    step.start(1)
    yield step
    step.stop()


def test_begin_snapshot_writes_no_rows(step: Step) -> None:
    """A barrier therefore delays no batch, however much has changed."""
    (state,) = step.subtasks
    add(state, [str(number) for number in range(50)])
    writes: list[int] = []
    write: Callable[..., None] = state._store.write

    def counted(puts: Any, deletes: Any) -> None:
        writes.append(len(puts))
        write(puts, deletes)

    state._store.write = counted  # type: ignore[method-assign]
    state.begin_snapshot()
    assert writes == []
    assert state.save_next() is None
    assert writes == [2]
    add(state, ["49", "0", "new"])
    assert writes == [2, 1], "49 is about to change; 0 is saved, and new is new"


def test_a_step_with_a_map_saves_everything_at_its_barrier(tmp_path: Path) -> None:
    step = Step(tmp_path, declare(total=ValueState(int, default=0), seen=MapState(str, int)))
    step.start(1)
    (state,) = step.subtasks
    for total, seen in state.rows(["a", "b", "c", "d", "e"]):
        total.value += 1
        seen["k"] = 1
    state.begin_snapshot()
    assert state.save_next() is not None
    step.stop()


def test_snapshot_that_failed_half_way_cannot_be_finished(step: Step) -> None:
    (state,) = step.subtasks
    add(state, ["a", "b", "c"])
    state.begin_snapshot()

    def broken(puts: Any, deletes: Any) -> None:
        raise StorageError("the disk is full")

    write, state._store.write = state._store.write, broken  # type: ignore[method-assign]
    with pytest.raises(StorageError):
        state.save_next()
    state._store.write = write  # type: ignore[method-assign]
    for _ in range(3):
        with pytest.raises(InternalError, match="not whole"):
            state.save_next()


def test_cache_keeps_rows_changed_after_the_barrier_when_it_drops_saved_rows(step: Step) -> None:
    state = step.subtasks[0]
    state._limit = 2
    add(state, ["a", "b", "c", "d"])
    state.begin_snapshot()
    add(state, ["a"], 10)
    while state.save_next() is None:
        pass
    assert list(state._cache) == ["a", "d"]
    assert [cell.value for cell in state.rows(["a", "b", "c", "d"])] == [11, 1, 1, 1]


def test_pending_rows_are_taken_once_and_in_order() -> None:
    first, second, third = object(), object(), object()
    rows = PendingRows(iter([first, second, first, third, second]))
    assert list(rows.some()) == [first, second]
    assert list(rows.take([third, third, first])) == [third]
    assert not rows.some()
    assert not rows.exhausted
    assert not rows.some()
    assert rows.exhausted
