"""The matrix leaves nothing out, and its sample covers every point and process."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from integration.faults.kill_matrix.cells import (
    ELSEWHERE,
    ESSENTIAL,
    FREEZE,
    KILL,
    PIPELINES,
    ROUND,
    STEPS,
    VICTIMS,
    all_cells,
    sample,
)
from integration.faults.kill_matrix.matrix import split_into_runs
from integration.faults.kill_matrix.scenarios import VERSIONS
from integration.faults.kill_matrix.subject import wrong_in_journal
from integration.faults.kill_points import kill_points as traps

ROOT = Path(__file__).parents[2]
CELLS = list(all_cells())
SEEDS = range(24)


def test_every_kill_point_has_one_cell_for_each_process_without_an_excuse() -> None:
    wanted = {
        (version, signal, step.point, victim)
        for version in VERSIONS
        for signal in (KILL, FREEZE)
        for step in STEPS
        for victim in VICTIMS
        if not step.excuse(victim)
    }
    found = Counter((cell.version, cell.signal, cell.step.point, cell.victim) for cell in CELLS)
    assert found.keys() == wanted
    assert set(found.values()) == {1}
    assert len({cell.key for cell in CELLS}) == len(CELLS)


def test_steps_of_the_kill_matrix_are_those_of_the_page_of_the_protocol() -> None:
    page = (ROOT / "docs/internals/commit-protocol.md").read_text(encoding="utf-8")
    part = page.partition(". The named steps")[2].partition("\n## ")[0]
    named = re.findall(r"^\| ([^|`]+) \| `", part, re.MULTILINE)
    assert list(dict.fromkeys(step.step for step in STEPS)) == [
        step for step in named if step not in ELSEWHERE
    ]
    assert ELSEWHERE.keys() <= set(named)


def test_every_kill_point_is_listed_in_the_docstring_of_kill_points() -> None:
    told = " ".join((traps.__doc__ or "").split())
    for step in STEPS:
        process, _, what = step.point.partition(".")
        assert f"{process}." in told
        assert f".{what}" in told, step.point


def test_every_kill_point_meets_every_pipeline() -> None:
    for step in STEPS:
        pipelines = {cell.pipeline for cell in CELLS if cell.step is step}
        assert pipelines == set(list(PIPELINES)[1 if step.stateful else 0 :])


@pytest.mark.parametrize("seed", SEEDS)
def test_a_sample_is_short_and_has_the_essential_points_on_both_versions(seed: int) -> None:
    cells = [cell for found in sample(seed).values() for cell in found]
    assert not [cell.key for cell in cells if cell.step.excuse(cell.victim)]
    for version in VERSIONS:
        own = {c.step.point for c in cells if c.own and c.version == version and c.signal == KILL}
        assert set(ESSENTIAL) <= own
    assert FREEZE in {cell.signal for cell in cells}
    assert len(cells) <= 24, "the sample has four minutes"


@pytest.mark.parametrize("seed", SEEDS)
def test_samples_in_a_row_cover_every_point_and_process(seed: int) -> None:
    row = range(seed, seed + ROUND)
    cells = [cell for each in row for found in sample(each).values() for cell in found]
    assert {cell.step.point for cell in cells} == {step.point for step in STEPS}
    assert {cell.victim for cell in cells} == set(VICTIMS)
    assert {cell.pipeline for cell in cells} == set(PIPELINES)
    for version in VERSIONS:
        assert {cell.signal for cell in cells if cell.version == version} == {KILL, FREEZE}


def test_samples_of_many_seeds_cover_more_than_half_of_the_cells() -> None:
    kinds = {
        (cell.version, cell.signal, cell.step.point, cell.victim)
        for seed in range(ROUND * len(SEEDS))
        for found in sample(seed).values()
        for cell in found
    }
    assert len(kinds) > len(CELLS) / 2


@pytest.mark.parametrize("seed", SEEDS)
def test_job_runs_of_a_sample_execute_every_cell_once(seed: int) -> None:
    for cells in sample(seed).values():
        dealt = [cell for job_run in split_into_runs(cells) for cell in job_run.cells]
        assert sorted(cell.key for cell in dealt) == sorted(cell.key for cell in cells)


def entry(number: int, attempt: int | None = None) -> dict[str, object]:
    """A claim, or an entry of an attempt."""
    if attempt is None:
        return {"number": number, "kind": "claim"}
    return {"number": number, "kind": "publication", "attempt": attempt}


def test_journal_check_finds_an_entry_of_a_fenced_attempt() -> None:
    assert wrong_in_journal([entry(1), entry(2, 1), entry(3), entry(4, 3)]) is None
    for attempt in (1, 2, 4):
        journal = [entry(1), entry(2, 1), entry(3), entry(4, attempt)]
        assert str(entry(4, attempt)) in str(wrong_in_journal(journal))
    assert str(entry(2, 2)) in str(wrong_in_journal([entry(1), entry(2, 2)]))


def test_journal_check_reports_an_entry_that_was_never_seen() -> None:
    journal = [entry(1), entry(2, 1), entry(4, 1)]
    assert wrong_in_journal(journal) == "entry 3 of the journal was never seen"
    assert wrong_in_journal([entry(2)]) == "entry 1 of the journal was never seen"
