"""Any sequence of operations on cells, flushes, evictions, checkpoints, kills and restores at
another parallelism or in the other backend leaves what a plain dict would hold.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.dataplane.state.job import Step, declare
from tidegate.api.state.state import ListState, MapState, ValueState

KEYS = ["", "a", "b", "c" * 200, "d", "é"]
MAP_KEYS = ["", "k", "kk", "l"]


@dataclass
class Model:
    """The state of a key."""

    count: int = 0
    bag: list[int] = field(default_factory=list)
    log: list[int] = field(default_factory=list)
    boxes: list[list[int]] = field(default_factory=list)
    seen: dict[str, int] = field(default_factory=dict)
    groups: dict[str, list[int]] = field(default_factory=dict)


def states() -> Any:
    return declare(
        count=ValueState(int, default=0),
        bag=ValueState(list[int], factory=list),
        log=ListState(int),
        boxes=ListState(list[int]),
        seen=MapState(str, int),
        groups=MapState(str, list[int]),
    )


class Operations:
    """Each method does the same to cells and to the model; `n` and `k` are arguments."""

    @staticmethod
    def count_add(cells: Any, model: Model, n: int, k: str) -> None:
        cells[0].value += n
        model.count += n

    @staticmethod
    def count_clear(cells: Any, model: Model, n: int, k: str) -> None:
        cells[0].clear()
        model.count = 0

    @staticmethod
    def count_default(cells: Any, model: Model, n: int, k: str) -> None:
        cells[0].value = model.count = 0

    @staticmethod
    def bag_append(cells: Any, model: Model, n: int, k: str) -> None:
        cells[1].value.append(n)
        model.bag.append(n)

    @staticmethod
    def bag_clear(cells: Any, model: Model, n: int, k: str) -> None:
        cells[1].clear()
        model.bag = []

    @staticmethod
    def log_append(cells: Any, model: Model, n: int, k: str) -> None:
        cells[2].append(n)
        model.log.append(n)

    @staticmethod
    def log_replace(cells: Any, model: Model, n: int, k: str) -> None:
        cells[2].replace([n, n])
        model.log = [n, n]

    @staticmethod
    def log_clear(cells: Any, model: Model, n: int, k: str) -> None:
        cells[2].clear()
        model.log = []

    @staticmethod
    def boxes_append(cells: Any, model: Model, n: int, k: str) -> None:
        cells[3].append([n])
        model.boxes.append([n])

    @staticmethod
    def boxes_change_in_place(cells: Any, model: Model, n: int, k: str) -> None:
        for box in (*cells[3], *model.boxes):
            box.append(n)

    @staticmethod
    def seen_set(cells: Any, model: Model, n: int, k: str) -> None:
        cells[4][k] = model.seen[k] = n

    @staticmethod
    def seen_delete(cells: Any, model: Model, n: int, k: str) -> None:
        if k in model.seen:
            del model.seen[k], cells[4][k]
        else:
            with pytest.raises(KeyError):
                del cells[4][k]

    @staticmethod
    def seen_clear(cells: Any, model: Model, n: int, k: str) -> None:
        cells[4].clear()
        model.seen = {}

    @staticmethod
    def seen_get(cells: Any, model: Model, n: int, k: str) -> None:
        assert (k in cells[4]) == (k in model.seen)
        assert cells[4].get(k) == model.seen.get(k)
        assert cells[4].get(k, n) == model.seen.get(k, n)

    @staticmethod
    def seen_items_with_changes(cells: Any, model: Model, n: int, k: str) -> None:
        for key, value in cells[4].items():
            assert model.seen[key] == value
            if n % 2:
                cells[4][key] = model.seen[key] = value + n
            else:
                del cells[4][key], model.seen[key]

    @staticmethod
    def groups_set(cells: Any, model: Model, n: int, k: str) -> None:
        cells[5][k], model.groups[k] = [n], [n]

    @staticmethod
    def groups_change_in_place(cells: Any, model: Model, n: int, k: str) -> None:
        if k in model.groups:
            cells[5][k].append(n)
            model.groups[k].append(n)

    @staticmethod
    def groups_change_while_iterating(cells: Any, model: Model, n: int, k: str) -> None:
        for key, value in cells[5].items():
            value.append(n)
            model.groups[key].append(n)

    @staticmethod
    def groups_clear(cells: Any, model: Model, n: int, k: str) -> None:
        cells[5].clear()
        model.groups = {}


OPERATIONS = sorted(name for name in vars(Operations) if not name.startswith("_"))

THEMES = sorted({name.split("_")[0] for name in OPERATIONS})
OTHER_EVENTS = st.one_of(
    st.just(("snapshot",)),
    st.just(("flush",)),
    st.tuples(st.just("kill"), st.integers(1, 5)),
    st.tuples(st.just("rescale"), st.integers(1, 5)),
    st.tuples(st.just("backend"), st.integers(1, 5)),
)


@st.composite
def histories(draw: st.DrawFn) -> list[Any]:
    """Each of one state, or two, and of few keys: with all of them at once, the few operations that
    matter together would hardly ever meet.
    """
    themes = draw(st.lists(st.sampled_from(THEMES), min_size=1, max_size=2))
    operations = [name for name in OPERATIONS if name.split("_")[0] in themes]
    keys = draw(st.lists(st.sampled_from(KEYS), min_size=1, max_size=3))
    map_keys = draw(st.lists(st.sampled_from(MAP_KEYS), min_size=1, max_size=3))
    change = st.tuples(
        st.sampled_from(operations),
        st.sampled_from(keys),
        st.integers(-3, 3),
        st.sampled_from(map_keys),
    )
    return draw(st.lists(st.one_of(change, change, change, OTHER_EVENTS), min_size=10, max_size=40))


class Run:
    """A history, applied to a step and to the model."""

    def __init__(self, folder: Path, backend: str) -> None:
        self.step = Step(folder, states(), backend=backend)
        self.model: dict[str, Model] = {}
        self.step.start(2)
        self.saved: tuple[Any, dict[str, Model]] = ((), {})

    def apply(self, event: Any) -> None:
        match event:
            case ("snapshot",):
                self.save()
            case ("flush",):
                for state in self.step.subtasks:
                    state.flush()
            case ("kill", parallelism):
                self.restore(parallelism)
            case ("rescale", parallelism):
                self.save()
                self.restore(parallelism)
            case ("backend", parallelism):
                self.save()
                self.step.backend = "memory" if self.step.backend == "rocksdb" else "rocksdb"
                self.restore(parallelism)
            case _:
                operation, key, n, map_key = event
                model = self.model.setdefault(key, Model())
                getattr(Operations, operation)(self.step.cells(key), model, n, map_key)

    def save(self) -> None:
        self.saved = (self.step.snapshot(), copy.deepcopy(self.model))

    def restore(self, parallelism: int) -> None:
        snapshots, model = self.saved
        self.step.start(parallelism, snapshots)
        self.model = copy.deepcopy(model)

    def compare(self) -> None:
        for key in {*KEYS, *self.model}:
            assert content(self.step.cells(key)) == self.model.get(key, Model()), key


def content(cells: Any) -> Model:
    """The content of cells, with maps in the order of their keys."""
    count, bag, log, boxes, seen, groups = cells
    for cell in (seen, groups):
        assert list(cell) == sorted(cell, key=str.encode)
    return Model(
        count.value, bag.value, list(log), list(boxes), dict(seen.items()), dict(groups.items())
    )


EXAMPLES = settings().max_examples
IN_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Hundreds of stores are opened here, and what syncs cost on a busy disk is not what is tested."""


def run(events: list[Any], backend: str) -> None:
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        whole = Run(Path(folder), backend)
        try:
            for event in events:
                whole.apply(event)
            whole.compare()
            whole.save()
            whole.restore(3)
            whole.compare()
        finally:
            whole.step.stop()


@settings(max_examples=2 * EXAMPLES)
@given(histories())
def test_memory_backend_equals_a_dict_for_any_history(events: list[Any]) -> None:
    run([event for event in events if event[0] != "backend"], "memory")


@settings(max_examples=2 * EXAMPLES // 5, suppress_health_check=[HealthCheck.too_slow])
@given(histories())
def test_rocksdb_backend_equals_a_dict_for_any_history(events: list[Any]) -> None:
    run(events, "rocksdb")


@pytest.fixture(params=["memory", "rocksdb"])
def one(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Run]:
    whole = Run(tmp_path, request.param)
    yield whole
    whole.step.stop()


def test_every_state_operation_survives_a_restore(one: Run) -> None:
    """Not left to chance: each operation, on a key of its own and of known content."""
    for key in OPERATIONS:
        for before in ("count_add", "bag_append", "log_append", "boxes_append"):
            one.apply((before, key, 2, "k"))
        for map_key in MAP_KEYS:
            one.apply(("seen_set", key, 1, map_key))
            one.apply(("groups_set", key, 1, map_key))
    one.apply(("rescale", 3))
    for operation in OPERATIONS:
        one.apply((operation, operation, 1, "k"))
    one.apply(("rescale", 2))
    one.compare()
