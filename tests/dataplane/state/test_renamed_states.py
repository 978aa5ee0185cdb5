"""States that are renamed, dropped and added: whose rows they have after a restore.

Goal: a renamed state keeps its values through restarts, rescalings and further renames. It also
keeps them when `renamed_from=` is removed. A dropped state has no rows left, so a later state of
its name begins empty.

Method: attempts of one step run over both backends, at other parallelisms.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.dataplane.state.job import MAX_PARALLELISM, Step, declare
from tidegate.api.state.state import ListState, MapState, State, ValueState
from tidegate.dataplane.state import restored_names
from tidegate.dataplane.state.layout import groups_span
from tidegate.errors import CorruptCheckpointError, PipelineError
from tidegate.protocol.subtask_snapshot import KeyedSnapshot

KEYS = [f"key-{number}" for number in range(40)]


@pytest.fixture(params=["memory", "rocksdb"])
def step(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Step]:
    step = Step(tmp_path, {}, backend=request.param)
    yield step
    step.stop()


def start(
    step: Step,
    snapshots: Sequence[KeyedSnapshot] = (),
    parallelism: int = 1,
    *,
    dropped: tuple[str, ...] = (),
    **states: State,
) -> None:
    step.states, step.dropped = declare(**states), dropped
    step.start(parallelism, snapshots)


def number(renamed_from: str = "") -> ValueState[int]:
    return ValueState(int, default=0, renamed_from=renamed_from)


def add(step: Step, column: int, amount: int) -> None:
    for key in KEYS:
        cell: Any = step.cells(key)[column]
        cell.value += amount


def values(step: Step, column: int = 0) -> set[int]:
    cells: list[Any] = [step.cells(key)[column] for key in KEYS]
    return {cell.value for cell in cells}


def rows(step: Step) -> int:
    """All rows of the step's stores."""
    return sum(
        len(list(one._store.scan(*groups_span(range(MAX_PARALLELISM))))) for one in step.subtasks
    )


def test_a_renamed_state_goes_on_with_its_values(step: Step) -> None:
    start(step, total=number())
    add(step, 0, 100)
    start(step, step.snapshot(), 2, count=number("total"))
    assert values(step) == {100}
    add(step, 0, 1)
    assert rows(step) == len(KEYS)
    start(step, step.snapshot(), 3, count=number("total"))  # the same code, once more
    assert values(step) == {101}
    start(step, step.snapshot(), 1, count=number())  # the checkpoint has the new name
    assert values(step) == {101}
    start(step, step.snapshot(), 2, sum=number("count"))
    assert values(step) == {101}
    add(step, 0, 1)
    start(step, step.snapshot(), 4, total=number("sum"))  # back to the first name
    assert values(step) == {102}
    start(step, step.snapshot(), 4, total=number())
    assert values(step) == {102}
    assert rows(step) == len(KEYS)


def test_a_new_state_may_take_the_name_that_a_renamed_one_had(step: Step) -> None:
    start(step, total=number())
    add(step, 0, 100)
    start(step, step.snapshot(), 2, count=number("total"))
    start(step, step.snapshot(), 1, count=number(), total=number())
    assert (values(step, 0), values(step, 1)) == ({100}, {0})
    add(step, 1, 7)
    start(step, step.snapshot(), 3, total=number(), count=number())
    assert (values(step, 0), values(step, 1)) == ({7}, {100})
    start(step, step.snapshot(), 2, dropped=("count",), total=number())
    assert values(step) == {7}
    start(step, step.snapshot(), 2, total=number(), count=number())
    assert (values(step, 0), values(step, 1)) == ({7}, {0})


def test_lists_and_maps_are_renamed_with_their_schemas(step: Step) -> None:
    start(step, log=ListState(int), seen=MapState(str, int))
    log, seen = step.cells("a")
    log.append(1)  # type: ignore[attr-defined]
    seen["k"] = 2  # type: ignore[index]
    start(
        step,
        step.snapshot(),
        2,
        history=ListState(int, renamed_from="log"),
        counts=MapState(str, int | None, renamed_from="seen"),
    )
    history, counts = step.cells("a")
    assert list(history) == [1]  # type: ignore[call-overload]
    assert dict(counts.items()) == {"k": 2}  # type: ignore[attr-defined]
    counts["n"] = None  # type: ignore[index]
    start(step, step.snapshot(), 1, history=ListState(int), counts=MapState(str, int | None))
    assert dict(step.cells("a")[1].items()) == {"k": 2, "n": None}  # type: ignore[attr-defined]


def test_a_dropped_state_has_no_rows_left_and_a_later_one_of_its_name_begins_empty(
    step: Step, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restored_names, "DELETED_AT_ONCE", 3)
    start(step, total=number(), seen=MapState(str, int))
    add(step, 0, 100)
    for key in KEYS:
        seen: Any = step.cells(key)[1]
        seen["a"], seen["b"] = 1, 2
    before = step.snapshot()
    start(step, before, 2, dropped=("seen",), total=number())
    assert rows(step) == len(KEYS)
    assert values(step) == {100}
    start(step, step.snapshot(), 3, dropped=("seen",), total=number())  # the same code, once more
    start(step, step.snapshot(), 1, total=number(), seen=MapState(str, int))
    assert all(not dict(step.cells(key)[1].items()) for key in KEYS)  # type: ignore[attr-defined]
    # An attempt that ended before its first checkpoint has deleted nothing of the older one.
    start(step, before, 2, total=number(), seen=MapState(str, int))
    assert dict(step.cells(KEYS[0])[1].items()) == {"a": 1, "b": 2}  # type: ignore[attr-defined]


def test_all_states_may_be_dropped(step: Step) -> None:
    start(step, total=number())
    add(step, 0, 100)
    start(step, step.snapshot(), 2, dropped=("total",), count=number())
    assert values(step) == {0}
    add(step, 0, 1)
    start(step, step.snapshot(), 1, count=number())
    assert values(step) == {1}
    assert rows(step) == len(KEYS)


@pytest.mark.parametrize(
    ("dropped", "states"),
    [
        ((), {"count": number()}),
        (("other",), {"count": number()}),
        ((), {"count": number("totl")}),
        ((), {"log": number("total")}),  # the checkpoint has both
    ],
)
def test_restore_refuses_a_checkpoint_with_a_state_that_the_code_does_not_declare(
    step: Step, dropped: tuple[str, ...], states: dict[str, Any]
) -> None:
    start(step, total=number(), log=number())
    with pytest.raises(PipelineError, match="'running-total': the checkpoint holds state"):
        start(step, step.snapshot(), 1, dropped=dropped, **states)


def test_renamed_from_without_a_checkpoint_makes_a_new_state(step: Step) -> None:
    start(step, count=number("total"), dropped=("seen",))
    add(step, 0, 1)
    start(step, step.snapshot(), 2, count=number("total"), dropped=("seen",))
    assert values(step) == {1}


def test_restore_refuses_subtasks_with_different_stored_names(step: Step) -> None:
    start(step, (), 2, total=number())
    one, other = step.snapshot()
    changed = msgspec.structs.replace(other, stored_names={"total": "sum"})
    with pytest.raises(CorruptCheckpointError, match="different schemas"):
        start(step, [one, changed], total=number())
