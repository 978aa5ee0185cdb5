"""A driver of streamed waves that is interrupted or killed, or whose JVM is.

The driver is a process of its own (`wave_driver.py`). It ends itself at a trap, or a task waits at
one while the test kills the driver or its JVM. Afterwards no process of its own is left, and the
next run continues: the output is exact.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psutil
import pytest

from integration.backfills import BackfillJob
from integration.killing.traps import Plan, Trap
from integration.running import owned
from integration.spark.jobs import exact
from integration.spark.processes import PATIENCE_S, is_alive, processes_of, wait_until

pytestmark = pytest.mark.timeout(600)

HALF_WAY = Trap("slot.wrote", nth=3, holds=True)
"""In a task, which waits there."""
KILLED_AT = (
    Trap("jobmaster.published"),
    Trap("jobmaster.ended"),
    Trap("driver.wave", nth=2),
)
"""The driver kills itself: behind a publication, between two EndTxns, behind `foreachBatch`."""


class Driver:
    """A driver that runs, and every process that it was seen to have."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.jvm = int(self.line().removeprefix("jvm "))
        self.seen: dict[int, psutil.Process] = {}

    def line(self) -> str:
        """The next line that it prints; empty at its end."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().decode().rstrip()

    def lines(self) -> list[str]:
        """All that it prints until its end."""
        assert self.process.stdout is not None
        return self.process.stdout.read().decode().splitlines()

    def look(self) -> bool:
        """Note its processes; whether it has ended."""
        ended = self.process.poll() is not None
        for each in processes_of(self.process.pid):
            self.seen.setdefault(each.pid, each)
        return ended

    def is_gone(self) -> bool:
        """Whether none of its processes lives, by their ids and by their session."""
        alive = any(map(is_alive, self.seen.values()))
        return not alive and not processes_of(self.process.pid)


@contextmanager
def a_driver(job: BackfillJob, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    for name, value in plan.to_environment().items():
        monkeypatch.setenv(name, value)
    given = {
        "reference": job.reference,
        "folder": str(job.folder),
        "settings": job.settings,
        "parallelism": 2,
        "wave_offsets": 8_000,
    }
    command = [sys.executable, "-m", "integration.spark.wave_driver", json.dumps(given)]
    process = owned(command, folder=job.folder, log=job.folder / "driver.log", pipe=True)
    try:
        yield Driver(process)
    finally:
        for each in processes_of(process.pid):
            each.kill()
        process.communicate()


def workers(driver: Driver) -> list[int]:
    """Python workers of Spark among the processes that were seen."""
    jvm_children = {driver.jvm}
    return [pid for pid in driver.seen if pid not in {driver.process.pid, *jvm_children}]


def runs_to_its_end(job: BackfillJob, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    with a_driver(job, plan, monkeypatch) as driver:
        lines = driver.lines()
        assert driver.process.wait(PATIENCE_S) == 0, (job.folder / "driver.log").read_text()
        assert lines[-1] == "closed"


def plan_of(job: BackfillJob, traps: Sequence[Trap]) -> Plan:
    return Plan.of(job.folder / "traps", traps)


@pytest.mark.parametrize("trap", KILLED_AT, ids=lambda trap: trap.point)
def test_a_driver_that_is_killed_leaves_no_process_and_the_next_run_is_exact(
    job: BackfillJob, trap: Trap, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(job, [trap])
    with a_driver(job, plan, monkeypatch) as driver:
        wait_until(driver.look, "the driver has ended")
        assert driver.process.wait() == -signal.SIGKILL, driver.lines()
        assert plan.snapped() == [driver.process.pid]
        assert driver.jvm in driver.seen
        assert workers(driver)
        wait_until(driver.is_gone, "no process of the driver is left")
    runs_to_its_end(job, plan, monkeypatch)
    assert exact(job)


@pytest.mark.parametrize("victim", ["driver", "jvm"])
def test_a_driver_or_its_jvm_that_is_killed_in_a_task_leaves_no_process(
    job: BackfillJob, victim: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(job, [HALF_WAY])
    with a_driver(job, plan, monkeypatch) as driver:
        wait_until(lambda: driver.look() or plan.snapped(), "a task waits half-way")
        [worker] = plan.snapped()
        assert {driver.process.pid, driver.jvm, worker} <= driver.seen.keys()
        os.kill(driver.process.pid if victim == "driver" else driver.jvm, signal.SIGKILL)
        status = driver.process.wait(PATIENCE_S)
        if victim == "driver":
            assert status == -signal.SIGKILL
        else:
            assert status == 1
            [failure] = driver.lines()
            assert failure.startswith("failed: SparkLostError: The ")
            assert "Spark's JVM has ended" in failure
            assert "is run again" not in (job.folder / "driver.log").read_text()
        wait_until(driver.is_gone, "no process of the driver is left")
    runs_to_its_end(job, plan, monkeypatch)
    assert exact(job)


def test_an_interrupt_ends_the_query_and_the_job_of_the_wave(
    job: BackfillJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(job, [HALF_WAY])
    with a_driver(job, plan, monkeypatch) as driver:
        wait_until(lambda: driver.look() or plan.snapped(), "a task waits half-way")
        os.killpg(driver.process.pid, signal.SIGINT)  # as a terminal does: to the whole group
        assert driver.line() == "interrupted"
        assert driver.line() == "left: []"
        assert driver.line().startswith("waves ")
        assert driver.line() == "closed"
        assert driver.process.wait(PATIENCE_S) == 0
        wait_until(driver.is_gone, "no process of the driver is left")
    assert exact(job)
