"""The matrix of backfills leaves nothing out, says what was not run, and its sample is its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.faults.kill_matrix import backfills, page_of_backfills
from integration.faults.kill_matrix.backfill_cells import (
    FREEZE,
    KILL,
    PIPELINES,
    POINTS,
    SIGNALS,
    VICTIMS,
    Cell,
    all_cells,
    sample,
)
from integration.faults.kill_matrix.backfill_faults import FAULTS, SAMPLE, lose_an_output
from integration.faults.kill_matrix.backfill_storage import FAILINGS
from integration.faults.kill_matrix.scenarios import EXACT, VERSIONS, Result
from integration.faults.kill_matrix.subject import WrongError
from integration.faults.kill_points import jobs
from integration.faults.kill_points import kill_points as traps
from integration.faults.kill_points.killed_runs import SINKS
from integration.spark.entries import TaskRun, task_runs

CELLS = list(all_cells())
DUE = [cell for scenario in backfills.scenarios() for cell in scenario.cells]


def test_every_process_has_a_cell_at_every_kill_point_or_an_excuse() -> None:
    for version in VERSIONS:
        for signal in SIGNALS:
            for victim in VICTIMS:
                for point in POINTS:
                    cell = Cell(version, signal, victim, point)
                    assert (cell in CELLS) != bool(cell.excuse)
                    assert not (cell.excuse and point.in_task), "a task runs in every process"


def test_scenarios_have_every_cell_and_fault_once_on_both_versions() -> None:
    assert len(set(DUE)) == len(DUE)
    assert {cell.key for cell in CELLS} <= set(DUE)
    others = len(VERSIONS) * (len(FAULTS) + len(FAILINGS))
    assert len(DUE) == len(CELLS) + others


def test_every_kill_point_is_listed_in_the_docstring_of_kill_points() -> None:
    told = traps.__doc__ or ""
    for point in POINTS:
        process, _, what = point.point.partition(".")
        assert f"{process}." in told
        assert f".{what}" in told, point.point


def test_every_victim_meets_both_pipelines() -> None:
    for victim in VICTIMS:
        assert {each.pipeline for each in CELLS if each.victim == victim} == set(PIPELINES)


def test_pipelines_of_all_cells_and_faults_exist_and_have_sinks() -> None:
    for name in {*PIPELINES.values(), *(fault.job for fault in FAULTS)}:
        assert hasattr(jobs, name)
        assert name in SINKS


def test_sample_is_part_of_the_matrix_and_has_every_victim_signal_and_version() -> None:
    cells = [cell for found in sample().values() for cell in found]
    assert {cell.key for cell in cells} <= {cell.key for cell in CELLS}
    assert {cell.victim for cell in cells} == set(VICTIMS)
    assert {cell.signal for cell in cells} == {KILL, FREEZE}
    assert {cell.version for cell in cells} == set(VERSIONS)
    assert len(cells) + len(SAMPLE) == 12
    assert len(SAMPLE) == 3, "a name in the sample is of no fault"


def result(cell: str, verdict: str = EXACT) -> Result:
    _, version, pipeline, signal, name = cell.split("/")[:5]
    return Result(
        cell=cell,
        name=f"said of {name}",
        version=version,
        pipeline=pipeline,
        signal=signal,
        seed=1,
        kills=1,
        recovery_s=(),
        verdict=verdict,
        date="2026-11-25",
    )


def test_page_shows_every_cell_that_was_not_run() -> None:
    page = page_of_backfills.render([], DUE)
    strikes = [line for line in page.splitlines() if any(f"| {p.point}:" in line for p in POINTS)]
    assert len(strikes) == len(POINTS) * len(VERSIONS)
    assert sum(line.split(" | ").count(".") + line.endswith(" . |") for line in strikes) == len(
        CELLS
    )
    assert page.count("| not run yet |") == len(DUE) - len(CELLS)
    for version in VERSIONS:
        assert f"Kafka {version}: 0 of {len(DUE) // 2} run, 0 exact" in page


def test_the_page_shows_each_verdict() -> None:
    wrong = {DUE[0], next(cell for cell in DUE if "/fault/" in cell)}
    results = [result(cell, "it is lost" if cell in wrong else EXACT) for cell in DUE]
    page = page_of_backfills.render(results, DUE)
    assert "not run yet" not in page.partition("###")[2]
    assert page.count("**WRONG**: it is lost") == len(wrong)
    exact = sum(each.right for each in results if each.version == "3.9.1")
    assert f"Kafka 3.9.1: {len(DUE) // 2} of {len(DUE) // 2} run, {exact} exact" in page


def test_runs_of_a_task_are_grouped_by_stage_level_and_subtask(tmp_path: Path) -> None:
    for run in (TaskRun(4, 1, 0, 9), TaskRun(4, 1, 1, 10), TaskRun(4, 1, 0, 11)):
        run.write(tmp_path)
    found = task_runs(tmp_path)
    assert sorted(found[4, 1, 0]) == [9, 11]
    assert found[4, 1, 1] == [10]


def test_fault_deletes_one_map_output_of_the_newest_shuffle_only(tmp_path: Path) -> None:
    with pytest.raises(WrongError, match="no shuffle file"):
        lose_an_output(tmp_path)
    folder = tmp_path / "tidegate-spark-x" / "local" / "blockmgr-y" / "0a"
    folder.mkdir(parents=True)
    names = {f"shuffle_{of}_{map_}_0.{kind}" for of in (9, 10) for map_ in (3, 4) for kind in "di"}
    for name in names:
        (folder / name).touch()
    lose_an_output(tmp_path)
    left = {path.name for path in folder.iterdir()}
    assert names - left == {"shuffle_10_4_0.d", "shuffle_10_4_0.i"}
