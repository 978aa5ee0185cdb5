"""How many transactional ids a sink subtask gets from the checkpoint settings."""

from __future__ import annotations

import pytest

from tidegate.config import CheckpointSettings
from tidegate.controlplane.jobmaster.job_plan import transactional_ids_per_subtask


@pytest.mark.parametrize("failures", [0, 2, 14, 100])
@pytest.mark.parametrize("interval_ms", [10, 100, 10_000])
def test_tolerable_failed_checkpoints_never_use_up_all_transactional_ids(
    failures: int, interval_ms: int
) -> None:
    """Each that fails leaves its transaction prepared, until one is published that names it. With
    none left the sink would read nothing up to the barrier of the one that could.
    """
    settings = CheckpointSettings(interval=interval_ms, tolerable_failed_checkpoints=failures)
    prepared = failures + 1
    current, warm, freed = 1, 1, 1
    assert transactional_ids_per_subtask(settings) >= prepared + current + warm + freed


def test_count_of_transactional_ids_is_limited_for_short_intervals() -> None:
    assert (
        transactional_ids_per_subtask(
            CheckpointSettings(interval=1, tolerable_failed_checkpoints=2)
        )
        == 16
    )
    assert (
        transactional_ids_per_subtask(
            CheckpointSettings(interval=10_000, tolerable_failed_checkpoints=2)
        )
        == 7
    )
