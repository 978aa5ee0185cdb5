"""What an attempt leaves behind in the processes that outlive it, with real clients: nothing.

Slots are processes of one attempt, so what they hold ends with them. The JobMaster, the
TaskManagers with their zygotes, the JobManager and the command see one attempt after the other;
after many they must hold as many threads, open files and connections as after a few. (With stubs in
place of slots and JobMasters: `test_processes.py`; over hours, and memory: `make soak`.)
"""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

import psutil
import pytest

from integration.holdings import kind_of
from integration.killing.runs import Job, Run
from tidegate.drivers.kafka.embedded import EmbeddedKafka

WARM = 3
"""Restarts after which pools and caches are full."""
SLACK = 3
"""A connection that is just being made, and its thread."""

Counts = dict[tuple[str, int], dict[str, int]]
"""Figures by kind and pid."""


@pytest.mark.kafka
@pytest.mark.parametrize(
    "restarts",
    [
        pytest.param(12, marks=pytest.mark.timeout(300)),
        pytest.param(50, marks=[pytest.mark.soak, pytest.mark.timeout(900)]),
    ],
)
def test_nothing_is_left_of_attempts_with_real_clients(
    kafka: EmbeddedKafka, tmp_path: Path, restarts: int
) -> None:
    chance = random.Random(restarts)
    job = Job.make(kafka.bootstrap, tmp_path, "TwoSinks")
    config = {"restart.strategy": "fixed_delay", "restart.delay": "0 ms"}
    before: Counts = {}
    with job.started(config=config) as run:
        for restart in range(restarts):
            job.write(50, seed=restart)
            run.until(lambda: commits(run), "a commit")
            if restart == WARM:
                before = counts(run)
            begun = len(job.claims())  # before the kill: the next one begins within milliseconds
            chance.choice(run.processes()["slot"]).kill()
            run.until(partial(claimed, job, begun + 1), "a new attempt")
        job.write(50, seed=restarts)
        run.until(lambda: commits(run), "the last commit")
        assert {kind for kind, _ in before} >= {"jobmaster", "jobmanager", "taskmanager", "zygote"}
        run.until(lambda: not grown(before, counts(run)), "as small as it was", 15)
        run.kill()
    job.run()
    job.assert_exact()


def claimed(job: Job, times: int) -> bool:
    """Whether so many attempts have begun."""
    return len(job.claims()) >= times


def commits(run: Run) -> bool:
    """Whether the live attempt has ended the transactions of a publication of its own, and so has
    all of its slots; what it has settled may be its predecessor's, whose slots are not gone yet.
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
    """Threads, open files and connections of every process that is no slot."""
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
    """What has."""
    return [
        f"{kind} {pid}: {what} {had} -> {now[kind, pid][what]}"
        for (kind, pid), figures in before.items()
        for what, had in figures.items()
        if now[kind, pid][what] > had + SLACK
    ]
