"""A sample of the kill matrix of backfills: twelve cells, most of them on Kafka 4.3.0.

Each kind of recovery has a cell: a command that is repeated, a command that takes over from a
frozen one, a task that Spark repeats, and a wave that the driver repeats. `make chaos
CELLS='backfill/*'` runs the whole matrix.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.faults.kill_matrix.backfill_cells import sample
from integration.faults.kill_matrix.backfill_faults import SAMPLE, Alone
from integration.faults.kill_matrix.backfill_strikes import Series
from integration.faults.kill_matrix.scenarios import Scenario, Stage

pytestmark = pytest.mark.timeout(900)

SEED = 1
STRIKES = sample()
SCENARIOS: list[Scenario] = [
    *map(Series, STRIKES.values()),
    *(Alone(version, fault) for version, fault in SAMPLE),
]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    made = Stage(tmp_path_factory.mktemp("chaos"), SEED, time.strftime("%Y-%m-%d"), print)
    yield made
    made.close()


def name_of(scenario: Scenario) -> str:
    first = Path(scenario.cells[0])
    return f"{first.parts[1]}-{first.parts[3]}-{first.name}"


@pytest.mark.parametrize("scenario", SCENARIOS, ids=name_of)
def test_backfill_is_exact_after_each_kill_of_the_sample(scenario: Scenario, stage: Stage) -> None:
    results = list(scenario.run(scenario.cells, stage))
    assert [(each.cell, each.verdict) for each in results if not each.right] == []
    assert [each.cell for each in results] == list(scenario.cells)


def test_kill_matrix_sample_has_twelve_cells() -> None:
    assert sum(len(each.cells) for each in SCENARIOS) == 12
