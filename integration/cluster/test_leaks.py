"""An attempt leaves no resources behind in the processes that outlive it, with real clients.

A slot process belongs to one attempt, so its resources end with it. The JobMaster, the TaskManagers
with their fork servers, the JobManager and the command see many attempts. After many attempts they
must have as many threads, open files and connections as after a few. `test_processes.py` tests the
same with stubs for slots and JobMasters. `make soak` tests it over hours, and also checks memory.
"""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

import psutil
import pytest

from integration.faults.kill_points.killed_runs import Job, Run
from integration.support.resource_usage import kind_of
from tidegate.drivers.kafka.embedded import EmbeddedKafka

pytestmark = pytest.mark.slow

INITIALISED = 3
"""Number of restarts after which pools and caches are full."""
SLACK = 3
"""Allowed growth of each figure: a connection that is being made, and its thread."""

Counts = dict[tuple[str, int], dict[str, int]]
"""The figures of each process, by its kind and process id."""


@pytest.mark.kafka
@pytest.mark.parametrize(
    "restarts",
    [
        pytest.param(12, marks=pytest.mark.timeout(300)),
        pytest.param(50, marks=[pytest.mark.soak, pytest.mark.timeout(900)]),
    ],
)
def test_attempts_with_real_clients_leak_no_thread_file_or_connection(
    kafka: EmbeddedKafka, tmp_path: Path, restarts: int
) -> None:
    rng = random.Random(restarts)
    job = Job.make(kafka.bootstrap, tmp_path, "TwoSinks")
    config = {"restart.strategy": "fixed_delay", "restart.delay": "0 ms"}
    before: Counts = {}
    with job.started(config=config) as run:
        for restart in range(restarts):
            job.write(50, seed=restart)
            run.until(lambda: commits(run), "a commit")
            if restart == INITIALISED:
                before = counts(run)
            begun = len(job.claims())  # before the kill, as the next attempt follows at once
            rng.choice(run.processes()["slot"]).kill()
            run.until(partial(claimed, job, begun + 1), "a new attempt")
        job.write(50, seed=restarts)
        run.until(lambda: commits(run), "the last commit")
        assert {kind for kind, _ in before} >= {
            "jobmaster",
            "jobmanager",
            "taskmanager",
            "fork-server",
        }
        try:
            run.until(lambda: not grown(before, counts(run)), "as small as it was", 15)
        except AssertionError as error:
            raise AssertionError("\n".join(grown(before, counts(run)))) from error
        run.kill()
    job.run()
    job.assert_exact()


def claimed(job: Job, times: int) -> bool:
    """Return whether at least `times` attempts have begun."""
    return len(job.claims()) >= times


def commits(run: Run) -> bool:
    """Return whether the live attempt has settled its own publication with all of its slots.

    A settled publication is not enough: it can be that of the attempt before, whose slots may still
    exist.
    """
    entries = run.job.journal()
    named = [entry for entry in entries if entry.get("transactions")]
    settled = [entry["number"] for entry in entries if entry["kind"] == "settled"]
    return (
        bool(named and settled)
        and named[-1]["attempt"] == run.job.claims()[-1]
        and settled[-1] > named[-1]["number"]
        and len(run.processes()["slot"]) > 1
    )


def counts(run: Run) -> Counts:
    """Count threads, open files and connections of every process that is not a slot."""
    found: Counts = {}
    command = psutil.Process(run.process.pid)
    for process in (command, *command.children(recursive=True)):
        kind = kind_of(process)
        if kind is None or kind == "slot":
            continue
        with process.oneshot():
            found[kind if process is not command else "command", process.pid] = {
                "threads": process.num_threads(),
                "open files": process.num_fds(),
                "connections": len(process.net_connections(kind="inet")),
            }
    return found


def grown(before: Counts, now: Counts) -> list[str]:
    """Describe each figure that has grown by more than `SLACK`."""
    return [
        f"{kind} {pid}: {what} {had} -> {now[kind, pid][what]}"
        for (kind, pid), figures in before.items()
        for what, had in figures.items()
        if now[kind, pid][what] > had + SLACK
    ]
