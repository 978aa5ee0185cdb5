"""Exactly-once output after kills of any process, and after each kind of end of a run.

One test runs on every version of Kafka. The others run on 4.3, and with `-m soak` also on 3.9. Each
test runs a job with the user's command, on a local cluster of real processes. It kills some of them
or interrupts the run, and compares the records of a `read_committed` reader with the records
expected from the input. The kill matrix (`test_kill_matrix.py`) has kills and freezes at named
points of the commit protocol. This module has random kills, controls that must fail, and the ends
of runs.
"""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import psutil
import pytest

from integration.conftest import soak_on_39
from integration.faults.kill_points import broken_mains as breaking
from integration.faults.kill_points.command import STOP_ARRIVED
from integration.faults.kill_points.kill_points import Trap
from integration.faults.kill_points.killed_runs import Job, Run
from integration.support.running import code_of_stop
from tidegate.drivers.kafka.embedded import EmbeddedKafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]

RECORDS = 4_000
LONGER = 10_000
"""A number of records so high that the second publication comes before the input ends, also on a
busy machine.
"""
PACE = 800
"""Records per second and subtask: the run has about ten checkpoints, fewer on a busy machine."""

SOAK = pytest.mark.soak


@soak_on_39
@pytest.mark.parametrize("seed", [20, *(pytest.param(seed, marks=SOAK) for seed in range(21, 25))])
def test_output_is_exact_after_twenty_random_kills(
    any_kafka: EmbeddedKafka, tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    roles = ["slot"] * 8 + ["taskmanager"] * 4 + ["jobmaster"] * 4 + ["jobmanager"] * 4
    rng.shuffle(roles)
    job = Job.make(any_kafka.bootstrap, tmp_path, "Totals")
    job.write(20_000, seed=3)
    config = {"restart.strategy": "fixed_delay", "restart.delay": "100 ms"}
    with job.started("--task-managers", "2", "--slots", "1", pace=500, config=config) as run:
        run.until_published(1)
        for number, role in enumerate(roles):
            if number % 2:  # the other kills can come in the middle of a recovery
                run.until_published(1)
            time.sleep(rng.uniform(0.0, 1.0))
            kill(run, role, rng)
        run.until_published(1)
        run.process.send_signal(signal.SIGINT)
        code = run.wait()
        # The job may notice the last kill after that publication. Then it gets the stop while it
        # recovers.
        assert code == code_of_stop(job.journal()), run.story()
    job.run()
    job.assert_exact()


def kill(run: Run, role: str, rng: random.Random) -> None:
    """Kill one process of a role, as soon as one exists.

    Kill a JobManager only if a JobMaster runs: three failed starts of JobManagers in a row end a
    cluster.
    """

    def victims() -> list[psutil.Process]:
        found = run.processes()
        return found[role] if role != "jobmanager" or found["jobmaster"] else []

    try:
        rng.choice(run.until(victims, f"a {role} to kill")).kill()
    except psutil.NoSuchProcess:
        kill(run, role, rng)


# --- controls: the comparison finds out ---------------------------------------------------------


@pytest.mark.slow
@soak_on_39
def test_control_recovery_without_commit_loses_records(
    any_kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    job = Job.make(any_kafka.bootstrap, tmp_path, "Totals")
    job.write(LONGER, seed=4)
    traps = [Trap("jobmaster.published", 2)]
    job.run(traps=traps, pace=PACE, run_mains=breaking.RECOVERY_WITHOUT_END)
    verdict = job.compare()
    assert verdict.missing, verdict
    assert not verdict.twice, verdict


@pytest.mark.slow
@soak_on_39
def test_control_commit_before_publication_causes_duplicates(
    any_kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    job = Job.make(any_kafka.bootstrap, tmp_path, "Totals")
    job.write(LONGER, seed=5)
    traps = [Trap("jobmaster.publishing", 2)]
    job.run(traps=traps, pace=PACE, run_mains=breaking.END_BEFORE_PUBLICATION)
    verdict = job.compare()
    assert verdict.twice, verdict
    assert not verdict.missing, verdict


@pytest.mark.slow
@soak_on_39
def test_control_reused_producer_causes_duplicates(
    any_kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    job = Job.make(any_kafka.bootstrap, tmp_path, "Totals")
    job.write(LONGER, seed=6)
    traps = [Trap("jobmaster.publishing", 2)]
    job.run(traps=traps, pace=PACE, run_mains=breaking.REUSED_PRODUCER)
    verdict = job.compare()
    assert verdict.twice, verdict
    assert not verdict.missing, verdict


# --- ends, restores and hands -------------------------------------------------------------------


@soak_on_39
def test_output_is_exact_after_a_restore_at_another_parallelism(
    any_kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    job = Job.make(any_kafka.bootstrap, tmp_path, "Totals")
    job.write(RECORDS, seed=8)
    with job.started(pace=PACE) as run:
        run.until_published(2)
        run.process.send_signal(signal.SIGINT)
        assert run.wait() == 0, run.story()
    for seed, parallelism in ((9, 3), (10, 1)):
        job.write(RECORDS // 2, seed=seed)
        job.run("--restore", "latest", parallelism=parallelism)
    job.assert_exact()


def test_the_whole_cluster_dies_with_its_command_and_the_next_run_recovers(
    every_kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    job = Job.make(every_kafka.bootstrap, tmp_path, "Totals")
    job.write(RECORDS, seed=11)
    with job.started(pace=PACE) as run:
        run.until_published(2)
        assert {"jobmanager", "taskmanager", "jobmaster", "slot"} <= set(run.processes())
        run.kill()  # this also checks that no process outlives the command
    job.run()
    job.assert_exact()


def until_stop_arrived(run: Run) -> None:
    run.until(lambda: STOP_ARRIVED in run.errors.read_text(), "a JobManager has the stop")


@soak_on_39
def test_second_interrupt_ends_the_command_at_once_and_the_next_run_recovers(
    any_kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    job = Job.make(any_kafka.bootstrap, tmp_path, "Totals")
    job.write(RECORDS, seed=12)
    # A frozen JobMaster never takes the final checkpoint, so the first interrupt is not enough. It
    # must not count as dead either, because the next JobMaster would take the final checkpoint.
    config = {"cluster.heartbeat_timeout": "60 s"}
    traps = [Trap("jobmaster.complete", 3, stops=True)]
    with job.started(pace=PACE, traps=traps, config=config) as run:
        run.until(run.plan.snapped, "stopped")
        run.process.send_signal(signal.SIGINT)
        until_stop_arrived(run)  # two signals that come before the command handles them are one
        run.process.send_signal(signal.SIGINT)
        assert run.wait(10) == 130, run.story()
    job.run()
    job.assert_exact()


@pytest.mark.slow
@soak_on_39
def test_job_stops_although_the_jobmanager_that_got_the_interrupt_was_killed(
    any_kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    job = Job.make(any_kafka.bootstrap, tmp_path, "Totals")
    job.write(RECORDS, seed=14)
    with job.started(pace=PACE, traps=[Trap("jobmaster.complete", 3, stops=True)]) as run:
        run.until(run.plan.snapped, "stopped")
        run.process.send_signal(signal.SIGINT)
        until_stop_arrived(run)
        kill(run, "jobmanager", random.Random(0))
        code = run.wait()
        assert code == code_of_stop(job.journal()), run.story()
    job.run()
    job.assert_exact()
