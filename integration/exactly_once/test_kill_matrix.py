"""A sample of the kill matrix: named steps of the commit protocol, on both versions of Kafka.

One job runs for each version and signal. A process of the job is killed or frozen at one named
point after the other. Some points are in every sample (`cells.ESSENTIAL`). Each day a third of the
other points follows, with another process or version each time. `TIDEGATE_TEST_CHAOS_SEED` replaces
the day; continuous integration fixes it (`.ci/run`). `make chaos` runs the whole matrix.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from integration.faults.kill_matrix.cells import sample
from integration.faults.kill_matrix.matrix import Series
from integration.faults.kill_matrix.scenarios import Stage
from tidegate.drivers.kafka.embedded import EmbeddedKafka

pytestmark = [pytest.mark.slow, pytest.mark.kafka, pytest.mark.timeout(900)]

SEED = int(os.environ.get("TIDEGATE_TEST_CHAOS_SEED", time.time() // 86_400))
BROKERS = {"4.3.0": "kafka", "3.9.1": "kafka_39"}
JOBS = [job for job, cells in sample(SEED).items() if cells]


@pytest.mark.parametrize(("version", "signal"), JOBS, ids=map(" ".join, JOBS))
def test_output_is_exact_when_a_process_is_killed_or_frozen_at_named_kill_points(
    request: pytest.FixtureRequest, tmp_path: Path, version: str, signal: str
) -> None:
    broker: EmbeddedKafka = request.getfixturevalue(BROKERS[version])
    brokers = {version: broker}
    stage = Stage(tmp_path, SEED, time.strftime("%Y-%m-%d"), print, brokers)
    series = Series(sample(SEED)[version, signal])
    results = list(series.run(series.cells, stage))
    assert [result.cell for result in results if not result.right] == [], (
        f"TIDEGATE_TEST_CHAOS_SEED={SEED}: {[r.verdict for r in results if not r.right]}"
    )
    assert sorted(result.cell for result in results) == sorted(series.cells)
