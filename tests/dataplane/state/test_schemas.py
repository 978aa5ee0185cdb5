"""State that was written under other declarations: numbers continue, values are read or refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, make_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from tests.dataplane.state.job import Step, declare
from tidegate.api.state.evolution import state_conflict
from tidegate.api.state.state import ListState, MapState, State, ValueState
from tidegate.api.state.stored import state_text
from tidegate.errors import PipelineError
from tidegate.protocol.subtask_snapshot import KEY_TYPE


@dataclass(frozen=True)
class Old:
    name: str = ""
    count: int = 0


@dataclass(frozen=True)
class New:
    count: int = 0
    city: str = "nowhere"
    tags: tuple[str, ...] = field(default=())


@dataclass(frozen=True)
class Wrong:
    name: int = 0


@pytest.fixture(params=["memory", "rocksdb"])
def step(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Step]:
    step = Step(tmp_path, {}, backend=request.param)
    yield step
    step.stop()


def start(step: Step, snapshots: Any = (), parallelism: int = 1, **states: State) -> None:
    step.states = declare(**states)
    step.start(parallelism, snapshots)


def user(of: Any) -> ValueState[Any]:
    return ValueState(of, default=of())


def schemas(step: Step, name: str) -> list[Any]:
    return [json.loads(schema) for schema in step.subtasks[0].schemas[name]]


def test_stored_value_is_read_with_the_schema_that_it_was_written_with(step: Step) -> None:
    start(step, user=user(Old))
    for key in ("a", "b"):
        step.cells(key)[0].value = Old(key, 1)  # type: ignore[attr-defined]
    start(step, step.snapshot(), 2, user=user(New))
    assert len(schemas(step, "user")) == 2
    first: Any = step.cells("a")[0]
    assert first.value == New(1, "nowhere", ())
    first.value = New(5, "Ulm", ("x",))
    start(step, step.snapshot(), 3, user=user(New))
    assert step.cells("a")[0].value == New(5, "Ulm", ("x",))  # type: ignore[attr-defined]
    assert step.cells("b")[0].value == New(1, "nowhere", ())  # type: ignore[attr-defined]
    assert len(schemas(step, "user")) == 2
    start(step, step.snapshot(), 1, user=user(Old))
    assert step.cells("a")[0].value == Old("", 5)  # type: ignore[attr-defined]
    assert step.cells("b")[0].value == Old("b", 1)  # type: ignore[attr-defined]
    assert len(schemas(step, "user")) == 2


def test_items_of_list_and_map_states_are_read_with_the_schema_of_their_writer(step: Step) -> None:
    start(step, log=ListState(Old), seen=MapState(str, Old))
    log, seen = step.cells("a")
    log.append(Old("x", 1))  # type: ignore[attr-defined]
    seen["k"] = Old("y", 2)  # type: ignore[index]
    start(step, step.snapshot(), 2, log=ListState(New), seen=MapState(str, New))
    log, seen = step.cells("a")
    assert list(log) == [New(1)]  # type: ignore[call-overload]
    assert dict(seen.items()) == {"k": New(2)}  # type: ignore[attr-defined]
    assert seen["k"] == New(2)  # type: ignore[index]


EARLIER_SCHEMAS = {
    "total": '"long"',
    "user": '{"type":"record","name":"Old","fields":[{"name":"name","type":"string","default":""},'
    '{"name":"count","type":"long","default":0}]}',
    "log": '{"type":"array","items":"string","tidegate.state":"list"}',
    "seen": '{"type":"record","name":"tuple","fields":[{"name":"f0","type":"string"},'
    '{"name":"f1","type":"long"}],"tidegate.state":"map"}',
    "level": '"string"',
    KEY_TYPE: '"string"',
}
"""Schemas as an earlier version wrote them, without marks."""


def of_all_kinds() -> dict[str, State]:
    return {
        "total": ValueState(int, default=0),
        "user": user(Old),
        "log": ListState(str),
        "seen": MapState(str, int),
        "level": ValueState(Literal["low", "high"], default="low"),
    }


def test_checkpoint_of_an_earlier_tidegate_version_keeps_its_schema_numbers(
    step: Step,
) -> None:
    start(step, (), 1, **of_all_kinds())
    total, one, log, seen, level = (each for each in step.cells("a"))
    total.value, one.value, level.value = 5, Old("x", 1), "high"  # type: ignore[attr-defined]
    log.append("y")  # type: ignore[attr-defined]
    seen["k"] = 2  # type: ignore[index]
    earlier = {name: [schema] for name, schema in EARLIER_SCHEMAS.items()}
    snapshots = [msgspec.structs.replace(each, schemas=earlier) for each in step.snapshot()]
    start(step, snapshots, 2, **of_all_kinds())
    assert all(len(all_) == 1 for all_ in step.subtasks[0].schemas.values())
    found: Any = step.cells("a")
    assert (found[0].value, found[1].value, found[4].value) == (5, Old("x", 1), "high")
    assert (list(found[2]), dict(found[3].items())) == (["y"], {"k": 2})
    for name, state in declare(**of_all_kinds()).items():
        assert state_conflict(EARLIER_SCHEMAS[name], state_text(state)) is None


REFUSED: list[tuple[State, State, str]] = [
    (user(Old), user(Wrong), "state 's' of step 'running-total'.*field 'name'"),
    (user(Old), ValueState(str, default=""), "state 's' of step 'running-total'"),
    (MapState(str, Old), MapState(str, Wrong), "state 's' of step 'running-total'.*name"),
    (ListState(Old), ListState(Wrong), "state 's' of step 'running-total'.*name"),
    (ListState(int), ValueState(list[int], factory=list), "was a list state"),
    (ValueState(list[int], factory=list), ListState(int), "was a value state"),
    (MapState(str, int), ValueState(int, default=0), "was a map state"),
    (MapState(int, int), MapState(str, int), "map keys of another type"),
]


@pytest.mark.parametrize(("old", "new", "message"), REFUSED)
def test_incompatible_state_declaration_is_refused_before_any_record(
    step: Step, old: State, new: State, message: str
) -> None:
    start(step, s=old)
    snapshots = step.snapshot()  # nothing was written: the declarations are compared, not values
    with pytest.raises(PipelineError, match=message):
        start(step, snapshots, s=new)


class Colour(Enum):
    RED = 1


class MoreColours(Enum):
    RED = 1
    BLUE = 2


POINT = make_dataclass("Point", [("x", int), ("y", int)], frozen=True)
RENAMED = make_dataclass("Place", [("x", int), ("y", int)], frozen=True)
TURNED = make_dataclass("Point", [("y", int), ("x", int)], frozen=True)
LONGER = make_dataclass("Point", [("x", int), ("y", int), ("z", int, 0)], frozen=True)


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        (str, str, True),
        (str, bytes, False),
        (str, int, False),
        (POINT, RENAMED, True),
        (POINT, LONGER, False),
        (POINT, TURNED, False),
        (Colour, MoreColours, True),
        (MoreColours, Colour, False),
        (tuple[Colour, ...], tuple[MoreColours, ...], True),
        (tuple[str, int], tuple[int, str], False),
    ],
)
def test_restore_refuses_another_key_type(step: Step, old: Any, new: Any, same: bool) -> None:
    step.key_type = old
    start(step, total=ValueState(int, default=0))
    snapshots = step.snapshot()
    assert len(snapshots[0].schemas[KEY_TYPE]) == 1
    step.key_type = new
    if same:
        start(step, snapshots, total=ValueState(int, default=0))
    else:
        with pytest.raises(PipelineError, match="'running-total' had keys of type"):
            start(step, snapshots, total=ValueState(int, default=0))
