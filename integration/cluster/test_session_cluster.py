"""A session cluster of processes: servers that are killed, and started again by a supervisor."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from integration.support.running import DONE, PIPELINE, code_of_stop, journal
from integration.support.session_cluster import (
    JOB,
    TIDEGATE,
    Processes,
    exact_through_kills,
    has_checkpoint,
    tidegate,
    wait_for,
)

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]


@pytest.mark.slow
def test_a_job_of_a_session_cluster_is_exact_when_its_servers_are_killed(tmp_path: Path) -> None:
    with Processes(tmp_path) as cluster:
        kills = ("taskmanager1", "jobmanager", "taskmanager2")
        took_s = exact_through_kills(cluster, kills, rate=1_000)
        print({name: round(seconds, 1) for name, seconds in took_s.items()})
        # The job has ended. A later submit continues from its final checkpoint, and is cancelled.
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


@pytest.mark.slow
@pytest.mark.parametrize(("command", "state"), [("stop", "FINISHED"), ("cancel", "CANCELED")])
def test_a_stop_waits_for_a_jobmanager_that_is_down(
    tmp_path: Path, command: str, state: str
) -> None:
    """The storage also holds a submission of another cluster that was never accepted. The job stays
    with this cluster.
    """
    with Processes(tmp_path) as cluster:
        cluster.begin(rate=200)
        wait_for(cluster, "first checkpoint", has_checkpoint)
        cluster.kill("jobmanager")
        left = tmp_path / ".tidegate" / "checkpoints" / JOB / "submissions" / f"{2:020d}"
        left.mkdir()
        first = left.with_name(f"{1:020d}") / "submission.json"
        submission = {**json.loads(first.read_bytes()), "cluster": "another", "reference": "no:No"}
        (left / "submission.json").write_text(json.dumps(submission))
        words = [TIDEGATE, command, JOB, "--jobmanager", cluster.jobmanager, "--json"]
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as stop:
            assert stop.stderr is not None
            assert stop.stdout is not None
            waiting = stop.stderr.readline().decode()
            assert f"waiting for the JobManager at {cluster.jobmanager}" in waiting
            cluster.start_again("jobmanager")
            report = json.loads(stop.stdout.read())
            code = stop.wait(120)
            entries = journal(tmp_path / ".tidegate" / "checkpoints" / JOB)
            assert code == (code_of_stop(entries) if command == "stop" else DONE)
            assert report["state"] == state
        cluster.end_orders()
        again = tidegate("submit", PIPELINE, folder=tmp_path)
        assert again.returncode == 0, again.stderr
        wait_for(cluster, "checkpoint of the next submit", has_checkpoint)
