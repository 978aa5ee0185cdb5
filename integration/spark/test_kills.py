"""Tests that interrupt or kill a driver of streamed waves, or kill its JVM.

The driver is a process of its own (`wave_driver.py`). It ends itself at a trap, or a task waits at
a trap while the test kills the driver or its JVM. Afterwards none of its processes is left. The
next run continues, and the output is exact.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from integration.faults.kill_points.kill_points import Plan, Trap
from integration.spark.drivers import Driver, DriverOptions, running_driver
from integration.spark.jobs import exact
from integration.spark.processes import TIMEOUT_S, wait_until
from integration.support.backfills import BackfillJob

pytestmark = pytest.mark.timeout(600)

HALF_WAY = Trap("slot.wrote", nth=3, holds=True)
"""A trap at which a task waits."""
KILLED_AT = (
    Trap("jobmaster.published"),
    Trap("jobmaster.ended"),
    Trap("driver.wave", nth=2),
)
"""Traps at which the driver kills itself: after a publication, between two EndTxns, and after
`foreachBatch`.
"""


@contextmanager
def a_driver(job: BackfillJob, plan: Plan) -> Iterator[Driver]:
    options = DriverOptions(reference=job.reference, folder=str(job.folder), settings=job.settings)
    with running_driver(options, plan) as driver:
        yield driver


def runs_to_its_end(job: BackfillJob, plan: Plan) -> None:
    with a_driver(job, plan) as driver:
        driver.ends_well()


def plan_of(job: BackfillJob, traps: Sequence[Trap]) -> Plan:
    return Plan.of(job.folder / "traps", traps)


@pytest.mark.parametrize("trap", KILLED_AT, ids=lambda trap: trap.point)
def test_a_driver_that_is_killed_leaves_no_process_and_the_next_run_is_exact(
    job: BackfillJob, trap: Trap
) -> None:
    plan = plan_of(job, [trap])
    with a_driver(job, plan) as driver:
        wait_until(driver.look, "the driver has ended")
        assert driver.process.wait() == -signal.SIGKILL, driver.lines()
        assert plan.snapped() == [driver.process.pid]
        assert driver.jvm in driver.seen
        assert driver.workers()
        wait_until(driver.is_gone, "no process of the driver is left")
    runs_to_its_end(job, plan)
    assert exact(job)


@pytest.mark.parametrize("victim", ["driver", "jvm"])
def test_a_driver_or_its_jvm_that_is_killed_in_a_task_leaves_no_process(
    job: BackfillJob, victim: str
) -> None:
    plan = plan_of(job, [HALF_WAY])
    with a_driver(job, plan) as driver:
        wait_until(lambda: driver.look() or plan.snapped(), "a task waits half-way")
        [worker] = plan.snapped()
        assert {driver.process.pid, driver.jvm, worker} <= driver.seen.keys()
        os.kill(driver.process.pid if victim == "driver" else driver.jvm, signal.SIGKILL)
        status = driver.process.wait(TIMEOUT_S)
        if victim == "driver":
            assert status == -signal.SIGKILL
        else:
            assert status == 1
            [failure] = driver.lines()
            assert failure.startswith("failed: SparkLostError: The ")
            assert "Spark's JVM has ended" in failure
            assert "is run again" not in driver.logged()
        wait_until(driver.is_gone, "no process of the driver is left")
    runs_to_its_end(job, plan)
    assert exact(job)


def test_an_interrupt_ends_the_query_and_the_job_of_the_wave(job: BackfillJob) -> None:
    plan = plan_of(job, [HALF_WAY])
    with a_driver(job, plan) as driver:
        wait_until(lambda: driver.look() or plan.snapped(), "a task waits half-way")
        os.killpg(driver.process.pid, signal.SIGINT)  # to the whole group, as a terminal does
        assert driver.line() == "interrupted"
        assert driver.line() == "left: []"
        assert driver.line().startswith("waves ")
        assert driver.line() == "closed"
        assert driver.process.wait(TIMEOUT_S) == 0
        wait_until(driver.is_gone, "no process of the driver is left")
    assert exact(job)
