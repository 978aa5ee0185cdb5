"""A sample of the faults of `make chaos`: faults of brokers, of the network and of the storage.

The scenarios come from `integration.faults.kill_matrix`, and the same checker runs at their end.
This sample has the scenarios that show the most for the time that they take.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.faults.kill_matrix.__main__ import results_of
from integration.faults.kill_matrix.broker_faults import Loss
from integration.faults.kill_matrix.network_faults import BetweenProcesses
from integration.faults.kill_matrix.scenarios import Scenario, Stage
from integration.faults.kill_matrix.storage_faults import StorageFaults
from tidegate.drivers.kafka.embedded import EmbeddedKafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]

VERSION = "4.3.0"


@pytest.fixture
def stage(tmp_path: Path, kafka: EmbeddedKafka) -> Iterator[Stage]:
    stage = Stage(tmp_path, seed=1, date="", say=print, brokers={VERSION: kafka})
    yield stage
    stage.close()


def assert_right(scenario: Scenario, stage: Stage, *names: str) -> None:
    """Run the cells with these names, or all cells if no name is given."""
    cells = [each for each in scenario.cells if not names or each.rpartition("/")[2] in names]
    assert len(cells) == len(names) or not names, cells
    for result in results_of(scenario, cells, stage):
        assert result.right, result.verdict


@pytest.mark.slow
def test_output_is_exact_when_slot_to_jobmaster_connections_stall_or_are_half_open(
    stage: Stage,
) -> None:
    scenario = BetweenProcesses(VERSION, "keyed", "slot", "jobmaster")
    assert_right(scenario, stage, "stall", "half-open")


def test_output_is_exact_when_the_storage_fails_or_hides_the_result_of_a_publication(
    stage: Stage,
) -> None:
    scenario = StorageFaults(VERSION, "two sinks")
    assert_right(scenario, stage, "failing-manifest", "unheard", "failing-claim")


@pytest.mark.slow
def test_lost_output_is_reported_until_the_loss_is_accepted(stage: Stage) -> None:
    assert_right(Loss(VERSION, "stateless"), stage)
