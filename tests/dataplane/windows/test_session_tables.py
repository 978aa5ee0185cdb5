"""Sessions in a table: beyond the memory of the step, over restores, and in bursts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.dataplane.windows import subtasks as subtasks_of_step
from tests.dataplane.windows.subtasks import Click, Subtasks, window_node
from tests.dataplane.windows.test_windows import in_tables, subtasks, total
from tidegate import Session
from tidegate.api.windows.window_step import NO_OTHERS
from tidegate.dataplane.windows.operator import WindowOperator


@pytest.fixture(autouse=True)
def memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subtasks_of_step, "CACHE_ENTRIES", 1_000)


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


def test_session_fires_at_the_first_watermark_of_its_end_also_between_ticks(
    tmp_path: Path,
) -> None:
    step = subtasks(tmp_path, Session("160 ms"))  # a tick is 10 ms long
    step.push([Click(f"k{at}", at, 1) for at in range(40)])
    step.push([Click("k7", 20, 1), Click("k9", 200, 1)])
    ends = {f"k{at}": at + 160 for at in range(40)} | {"k7": 180}
    for watermark in range(150, 380):
        step.advance(watermark)
        fired = {one.key for one in step.results if one.end_ms < 300}
        assert fired == {key for key, end in ends.items() if end - 1 <= watermark}
    late_ends = [(one.key, one.start_ms, one.end_ms) for one in step.results if one.end_ms > 300]
    assert late_ends == [("k9", 200, 360)]
    assert in_tables(step) == 0
    assert step.rows() == []


def test_sessions_of_a_key_that_end_under_one_watermark_fire_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WindowOperator, "piece", 1)
    step = subtasks(tmp_path, Session("160 ms"))
    step.push([Click("k", at, 1) for at in (1_000, 0, 2_000, 500, 5_000)])
    saved = step.checkpoint()
    for parallelism in (1, 2):
        step.advance(3_000)
        assert [one.start_ms for one in step.results] == [0, 500, 1_000, 2_000]
        step.push([Click("k", 3_100, 1)])
        step.advance(10_000)
        assert [one.start_ms for one in step.results] == [0, 500, 1_000, 2_000, 3_100, 5_000]
        assert step.rows() == []
        step.start(parallelism, saved)
    assert NO_OTHERS == []


def test_record_before_a_session_of_a_smaller_gap_moves_its_begin(tmp_path: Path) -> None:
    before = subtasks(tmp_path / "before", Session("10 ms"))
    before.push([Click("k", 100, 1)])
    after = Subtasks(tmp_path / "after", window_node(total(), assigner=Session("50 ms")))
    after._step.blobs = before._step.blobs
    after.start(1, before.checkpoint())
    after.push([Click("k", 90, 1)])
    after.push([Click("new", 200, 1), Click("new", 180, 1)])
    after.advance(1_000)
    assert [(one.key, one.start_ms, one.end_ms) for one in after.results] == [
        ("k", 90, 140),
        ("new", 180, 250),
    ]


def test_timers_of_sessions_that_leave_the_table_find_their_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subtasks_of_step, "CACHE_ENTRIES", 10)
    step = subtasks(tmp_path, Session("160 ms"))
    step.push([Click(f"k{number}", number, 1) for number in range(20)])
    assert in_tables(step) == 20
    step.push([Click("k0", 300, 1), Click("k1", 100, 1)])
    assert in_tables(step) == 0
    step.advance(1_000)
    assert len(step.results) == 21
    assert step.rows() == []


def test_timer_of_a_session_that_was_merged_and_has_fired_does_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WindowOperator, "piece", 1)
    step = subtasks(tmp_path, Session("160 ms"))
    step.push([Click("k", at, 1) for at in (1_000, 0, *range(150, 1_000, 150))])
    step.advance(5_000)
    assert [(one.start_ms, one.end_ms) for one in step.results] == [(0, 1_160)]
