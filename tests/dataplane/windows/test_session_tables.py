"""Sessions in a table: beyond the memory of the step, over restores, and in bursts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.dataplane.windows import subtasks as subtasks_of_step
from tests.dataplane.windows.subtasks import Click
from tests.dataplane.windows.test_windows import in_tables, subtasks
from tidegate import Session
from tidegate.dataplane.windows.operator import WindowOperator


def test_sessions_beyond_the_cache_become_rows_until_a_restore_finds_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subtasks_of_step, "CACHE_ENTRIES", 10)
    step = subtasks(tmp_path, Session("10 ms"), allowed_lateness="20 ms")
    keys = [f"k{number}" for number in range(30)]
    step.push([Click(key, 0, 1) for key in keys[:9]])
    assert in_tables(step) == 9
    step.checkpoint()
    step.push([Click(key, 5, 1) for key in keys])
    step.push([Click("k3", 30, 1)])
    assert in_tables(step) == 0
    step.start(2, step.checkpoint())
    step.push([Click("k3", 6, 1)])
    step.advance(16)
    expected = {key: 2 if key in keys[:9] else 1 for key in keys} | {"k3": 3}
    assert {one.key: one.values[0] for one in step.results} == expected
    step.start(1, step.checkpoint())
    assert [row.key for row in step.rows() if row.others] == ["k3"]
    step.advance(36)
    assert in_tables(step) == 0
    step.push([Click("last", 39, 1)])
    assert in_tables(step) == 0
    step.advance(500)
    assert len(step.results) == len(keys) + 2
    assert step.rows() == []
    step.push([Click("new", 1_000, 1)])
    assert in_tables(step) == 1


def test_sessions_in_rows_of_one_subtask_and_a_table_of_another_are_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subtasks_of_step, "CACHE_ENTRIES", 10)
    step = subtasks(tmp_path, Session("10 ms"), parallelism=2)
    keys = [f"k{number}" for number in range(40)]
    of_first = [key for key in keys if step._owner(Click(key, 0, 1)) == 0]
    of_second = [key for key in keys if key not in of_first][:3]
    step.push([Click(key, 5, 1) for key in of_first])
    step.push([Click(key, 5, 1) for key in of_first[:1] + of_second])
    assert in_tables(step) == 3
    step.start(1, step.checkpoint())
    step.push([Click(key, 9, 1) for key in of_second[:1]])
    step.advance(500)
    expected = dict.fromkeys(of_first + of_second, 1) | {of_first[0]: 2, of_second[0]: 2}
    assert {one.key: one.values[0] for one in step.results} == expected
    assert len(step.results) == len(expected)


def test_burst_of_sessions_loses_and_repeats_nothing_at_a_checkpoint_between_two_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WindowOperator, "piece", 10)
    step = subtasks(tmp_path, Session("10 ms"))
    keys = [f"k{number}" for number in range(95)]
    step.push([Click(key, 5, 1) for key in keys])
    step.advance(30, pieces=3)
    assert len(step.results) == 30
    step.start(2, step.checkpoint())
    step.fire_all()
    assert sorted(str(one.key) for one in step.results) == sorted(keys)
