"""The run check and the markers: a wave that passes them is one execution, also if tasks ran again.

Method: random executions, in which tasks run up to three times. Each run of a reader takes the rows
of any runs of its senders, also a mixture of two, also without some of them. If the check lets the
collected reports pass, every collected run must have read all that the collected runs of its
senders wrote for it.
"""

from __future__ import annotations

from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.dataplane.waves.executions import PLAN, TASKS, Execution, TaskRun, rows_for
from tidegate.checkpoint.run_check import check_runs, task_inputs
from tidegate.errors import IncompleteWaveError
from tidegate.protocol.waves import Row, TaskId, TaskReport


def reader_rows(execution: Execution, task: TaskId, rng: Random, disorder: float) -> list[Row]:
    """Rows for a run of a task: from each sender the rows of one run, or of two, or not all."""
    rows: list[Row] = []
    for sender in sorted(task_inputs(PLAN)[task]):
        runs = execution.runs[sender]
        chosen = rng.choice(runs) if rng.random() < disorder else runs[-1]
        mine = rows_for(task, chosen.rows)
        if rng.random() < disorder / 4:
            other = rows_for(task, rng.choice(runs).rows)
            mine = [row for row in mine + other if rng.random() < 0.5]
        elif rng.random() < disorder / 4:
            mine = [row for row in mine if rng.random() < 0.8]
        rows += mine
    return rows


def executed(rng: Random, disorder: float) -> dict[TaskId, TaskRun]:
    """An execution; the run of each task whose report was collected."""
    execution = Execution(rng)
    for task in TASKS:
        for _ in range(1 + (rng.random() < disorder) + (rng.random() < disorder)):
            execution.run(task, reader_rows(execution, task, rng, disorder))
    return {
        task: rng.choice(runs) if rng.random() < disorder else runs[-1]
        for task, runs in execution.runs.items()
    }


def assert_whole(collected: dict[TaskId, TaskRun]) -> None:
    """Every run has read all that the collected runs of its senders wrote for it, in order."""
    wrote = {channel: frames for run in collected.values() for channel, frames in run.wrote.items()}
    for run in collected.values():
        for channel, frames in run.read.items():
            assert frames == wrote[channel]


def passes(collected: dict[TaskId, TaskRun]) -> bool:
    reports = [run.report for run in collected.values()]
    if any(report.error is not None for report in reports):
        return False
    try:
        check_runs(PLAN, reports)
    except IncompleteWaveError:
        return False
    return True


@given(st.integers(0, 1 << 62), st.floats(0.0, 1.0))
def test_wave_that_passes_the_run_check_is_one_execution(seed: int, disorder: float) -> None:
    collected = executed(Random(seed), disorder)
    if passes(collected):
        assert_whole(collected)


def test_run_check_passes_some_random_executions_and_refuses_others() -> None:
    outcomes = [passes(executed(Random(seed), 0.2)) for seed in range(300)]
    assert 50 < sum(outcomes) < 250


def test_an_execution_without_repetition_passes() -> None:
    for seed in range(20):
        collected = executed(Random(seed), 0.0)
        check_runs(PLAN, [run.report for run in collected.values()])
        assert_whole(collected)


def reports() -> dict[TaskId, TaskReport]:
    return {task: run.report for task, run in executed(Random(1), 0.0).items()}


def test_a_task_without_a_report_is_refused() -> None:
    whole = reports()
    for task in TASKS:
        with pytest.raises(IncompleteWaveError, match=f"see .*level {task.level}"):
            check_runs(PLAN, [report for report in whole.values() if report.task != task])


def test_two_reports_of_a_task_are_refused() -> None:
    whole = list(reports().values())
    with pytest.raises(IncompleteWaveError, match="has two reports"):
        check_runs(PLAN, [*whole, whole[0]])


def test_a_report_of_a_task_that_the_plan_does_not_have_is_refused() -> None:
    whole = reports()
    unknown = msgspec.structs.replace(whole[TASKS[0]], task=TaskId(0, 2))
    with pytest.raises(IncompleteWaveError, match="level 0, subtask 2"):
        check_runs(PLAN, [*whole.values(), unknown])


def test_another_run_of_a_sender_is_refused_on_every_level() -> None:
    """A later level than the first, too: a lost output of a middle task is computed again."""
    for task in TASKS:
        if task.level == TASKS[-1].level:
            continue
        whole = reports()
        whole[task] = msgspec.structs.replace(whole[task], run="ff" * 8)
        with pytest.raises(IncompleteWaveError, match=f"of {task}, which reports run ffff"):
            check_runs(PLAN, whole.values())


def test_a_task_that_did_not_read_from_a_sender_is_refused() -> None:
    whole = reports()
    last = TASKS[-1]
    whole[last] = msgspec.structs.replace(whole[last], consumed=whole[last].consumed[1:])
    with pytest.raises(IncompleteWaveError, match="did not read from each task"):
        check_runs(PLAN, whole.values())
