"""A standing cluster of processes: servers that are killed and started again by somebody else."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.standing import JOB, Processes, exact_through_kills, tidegate

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]


@pytest.mark.slow
def test_a_job_of_a_standing_cluster_is_exact_when_its_servers_are_killed(tmp_path: Path) -> None:
    with Processes(tmp_path) as cluster:
        kills = ("taskmanager1", "jobmanager", "taskmanager2")
        took_s = exact_through_kills(cluster, kills, rate=1_000)
        print({name: round(seconds, 1) for name, seconds in took_s.items()})
        # It has ended; a later submit goes on from its final checkpoint, and is cancelled.
        assert (
            tidegate("submit", "pipelines.order_totals:OrderTotals", folder=tmp_path).returncode
            == 0
        )
        at = ("--jobmanager", cluster.jobmanager)
        again = tidegate("submit", "pipelines.order_totals:OrderTotals", folder=tmp_path)
        assert again.returncode == 2
        assert "is live on this cluster" in again.stderr
        assert tidegate("cancel", JOB, *at).returncode == 0
        assert tidegate("status", "no-such-job", *at).returncode == 2
