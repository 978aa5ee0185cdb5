"""Exactly once, whoever is killed when: named points of the commit protocol on real brokers.

Each test runs a bounded job by the command that users have, on a local cluster of real processes,
has one or more of them killed, and compares what a `read_committed` reader finds with what the
input says it must be.
"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import psutil
import pytest

from integration.killing import breaking
from integration.killing.runs import Job, Run, runs
from integration.killing.traps import Trap
from tidegate.drivers.kafka.embedded import EmbeddedKafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]

RECORDS = 4_000
PACE = 1_500
"""Records per second and subtask: the run has about six checkpoints."""

POINTS = {
    "slot, in the middle of writing": [Trap("slot.wrote", 12)],
    "slot, flushed, not described": [Trap("slot.flushed", 3)],
    "slot, described, not acknowledged": [Trap("slot.described", 3)],
    "slot, before an upload": [Trap("slot.uploading", 8)],
    "slot, after an upload": [Trap("slot.uploaded", 8)],
    "JobMaster, all acknowledged": [Trap("jobmaster.complete", 3)],
    "JobMaster, manifest written": [Trap("jobmaster.manifest", 3)],
    "JobMaster, about to publish": [Trap("jobmaster.publishing", 3)],
    "JobMaster, published": [Trap("jobmaster.published", 3)],
    "JobMaster, between two EndTxn": [Trap("jobmaster.ended", 5)],
    "JobMaster, committed, not settled": [Trap("jobmaster.committed", 3)],
    "JobMaster, settled": [Trap("jobmaster.settled", 3)],
    "JobMaster, final checkpoint published": [Trap("jobmaster.finishing")],
    "JobMaster, about to close": [Trap("jobmaster.closing")],
    "JobMaster, closed": [Trap("jobmaster.closed")],
    "recovery, claimed": [Trap("jobmaster.published", 3), Trap("jobmaster.claimed")],
    "recovery, between two EndTxn": [Trap("jobmaster.published", 3), Trap("jobmaster.ended")],
    "recovery, in the middle of fencing": [Trap("slot.described", 3), Trap("jobmaster.fenced", 2)],
}


ESSENTIAL = {
    "slot, flushed, not described",
    "slot, after an upload",
    "JobMaster, manifest written",
    "JobMaster, published",
    "JobMaster, between two EndTxn",
    "JobMaster, committed, not settled",
    "recovery, between two EndTxn",
    "recovery, in the middle of fencing",
}
"""What is tried on the older broker too, without being asked for more."""

SOAK = pytest.mark.soak


@pytest.mark.parametrize("point", POINTS)
def test_killed_at_a_point_of_a_checkpoint_it_is_exact(
    kafka: EmbeddedKafka, tmp_path: Path, point: str
) -> None:
    killed_at_it_is_exact(kafka, tmp_path, point)


@pytest.mark.parametrize(
    "point", [pytest.param(at, marks=[] if at in ESSENTIAL else SOAK) for at in POINTS]
)
def test_killed_at_a_point_on_the_older_broker_it_is_exact(
    kafka_39: EmbeddedKafka, tmp_path: Path, point: str
) -> None:
    killed_at_it_is_exact(kafka_39, tmp_path, point)


def killed_at_it_is_exact(broker: EmbeddedKafka, folder: Path, point: str) -> None:
    job = Job.make(broker.bootstrap, folder, "Totals")
    job.write(RECORDS, seed=1)
    job.run(traps=POINTS[point], pace=PACE)
    job.assert_exact()


@pytest.mark.parametrize(
    ("broker", "pipeline"),
    [
        ("kafka", "LargeOrders"),
        ("kafka_39", "TwoSinks"),
        pytest.param("kafka", "TwoSinks", marks=SOAK),
        pytest.param("kafka_39", "LargeOrders", marks=SOAK),
    ],
)
def test_killed_at_one_point_after_the_other_it_is_exact(
    request: pytest.FixtureRequest, tmp_path: Path, broker: str, pipeline: str
) -> None:
    """Without state, and with two transactions of a subtask in each publication."""
    job = Job.make(request.getfixturevalue(broker).bootstrap, tmp_path, pipeline)
    job.write(RECORDS, seed=2)
    traps = [
        Trap("slot.flushed", 3),
        Trap("jobmaster.publishing", 2),
        Trap("jobmaster.published", 2),
        Trap("jobmaster.ended"),
        Trap("jobmaster.ended", 3),
        Trap("jobmaster.committed", 2),
        Trap("slot.described", 2),
    ]
    job.run(traps=traps, pace=1_000)
    job.assert_exact()


@pytest.mark.parametrize("seed", [20, *(pytest.param(seed, marks=SOAK) for seed in range(21, 25))])
def test_killed_twenty_times_at_random_it_is_exact(
    any_kafka: EmbeddedKafka, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    roles = ["slot"] * 8 + ["taskmanager"] * 4 + ["jobmaster"] * 4 + ["jobmanager"] * 4
    chance.shuffle(roles)
    job = Job.make(any_kafka.bootstrap, tmp_path, "Totals")
    job.write(20_000, seed=3)
    config = {"restart.strategy": "fixed_delay", "restart.delay": "100 ms"}
    with job.started("--task-managers", "2", "--slots", "1", pace=500, config=config) as run:
        run.until_published(1)
        for number, role in enumerate(roles):
            if number % 2:  # the others may come in the middle of a recovery
                run.until_published(1)
            time.sleep(chance.uniform(0.0, 1.0))
            kill(run, role, chance)
        run.until_published(1)
        run.process.send_signal(signal.SIGINT)
        assert run.wait() == 0, run.story()
    job.run()
    job.assert_exact()


def kill(run: Run, role: str, chance: random.Random) -> None:
    """Kill one process of a role, as soon as there is one.

    Of JobManagers only one that is up: three in a row that do not come up end a cluster.
    """

    def victims() -> list[psutil.Process]:
        found = run.processes()
        return found[role] if role != "jobmanager" or found["jobmaster"] else []

    try:
        chance.choice(run.until(victims, f"a {role} to kill")).kill()
    except psutil.NoSuchProcess:
        kill(run, role, chance)


# --- controls: the comparison finds out ---------------------------------------------------------


def test_recovery_without_end_is_found_out_as_loss(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    job = Job.make(kafka.bootstrap, tmp_path, "Totals")
    job.write(RECORDS, seed=4)
    traps = [Trap("jobmaster.published", 3)]
    job.run(traps=traps, pace=PACE, run_mains=breaking.RECOVERY_WITHOUT_END)
    verdict = job.compare()
    assert verdict.missing, verdict
    assert not verdict.twice, verdict


def test_end_before_publication_is_found_out_as_duplication(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    job = Job.make(kafka.bootstrap, tmp_path, "Totals")
    job.write(RECORDS, seed=5)
    traps = [Trap("jobmaster.publishing", 3)]
    job.run(traps=traps, pace=PACE, run_mains=breaking.END_BEFORE_PUBLICATION)
    verdict = job.compare()
    assert verdict.twice, verdict
    assert not verdict.missing, verdict


def test_a_reused_producer_is_found_out_as_duplication(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    job = Job.make(kafka.bootstrap, tmp_path, "Totals")
    job.write(RECORDS, seed=6)
    traps = [Trap("jobmaster.publishing", 3)]
    job.run(traps=traps, pace=PACE, run_mains=breaking.REUSED_PRODUCER)
    verdict = job.compare()
    assert verdict.twice, verdict
    assert not verdict.missing, verdict


# --- zombies ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "trap",
    [
        Trap("jobmaster.publishing", 3, stops=True),
        pytest.param(Trap("jobmaster.published", 3, stops=True), marks=SOAK),
        pytest.param(Trap("slot.wrote", 12, stops=True), marks=SOAK),
        Trap("slot.described", 3, stops=True),
    ],
    ids=lambda trap: trap.point,
)
def test_a_zombie_that_comes_back_changes_nothing(
    kafka: EmbeddedKafka, tmp_path: Path, trap: Trap
) -> None:
    """It is stopped until another has taken its place and published, and then goes on."""
    job = Job.make(kafka.bootstrap, tmp_path, "Totals")
    job.write(2 * RECORDS, seed=7)
    config = {"cluster.heartbeat_timeout": "1500 ms"}
    with job.started("--bounded", traps=[trap], pace=400, config=config) as run:
        (zombie,) = run.until(run.plan.snapped, "stopped")
        claims = len(claims_of(job))
        run.until(lambda: len(claims_of(job)) > claims, "claimed by another")
        run.until_published(2)
        os.kill(zombie, signal.SIGCONT)
        run.until(lambda: not runs(zombie), "rid of its zombie")
        run.until_published(1)
        assert run.wait() == 0, run.story()
    job.assert_exact()
    owner = 0
    for entry in job.journal():
        owner = entry["number"] if entry["kind"] == "claim" else owner
        assert entry.get("attempt", owner) == owner, "a deposed attempt wrote into the journal"


def claims_of(job: Job) -> list[int]:
    """Attempts that were begun."""
    return [entry["number"] for entry in job.journal() if entry["kind"] == "claim"]


# --- ends, restores and hands -------------------------------------------------------------------


def test_stopped_and_restored_at_another_parallelism_it_is_exact(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    job = Job.make(kafka.bootstrap, tmp_path, "Totals")
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
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    job = Job.make(kafka.bootstrap, tmp_path, "Totals")
    job.write(RECORDS, seed=11)
    with job.started(pace=PACE) as run:
        run.until_published(2)
        assert {"jobmanager", "taskmanager", "jobmaster", "slot"} <= set(run.processes())
        run.process.kill()
        run.process.wait()
        end = time.monotonic() + 5
        while run.orphans() and time.monotonic() < end:
            time.sleep(0.05)
        assert not run.orphans(), "processes outlive the command that started them"
    job.run()
    job.assert_exact()


def test_the_second_interrupt_leaves_at_once_and_the_next_run_recovers(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    job = Job.make(kafka.bootstrap, tmp_path, "Totals")
    job.write(RECORDS, seed=12)
    # A JobMaster that is stopped never takes the final checkpoint, so the first one is not enough.
    with job.started(pace=PACE, traps=[Trap("jobmaster.complete", 3, stops=True)]) as run:
        run.until(run.plan.snapped, "stopped")
        run.process.send_signal(signal.SIGINT)
        time.sleep(0.3)
        run.process.send_signal(signal.SIGINT)
        assert run.wait(10) == 130, run.story()
    job.run()
    job.assert_exact()


def test_an_interrupt_outlives_the_jobmanager_that_was_told(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    job = Job.make(kafka.bootstrap, tmp_path, "Totals")
    job.write(RECORDS, seed=14)
    with job.started(pace=PACE, traps=[Trap("jobmaster.complete", 3, stops=True)]) as run:
        run.until(run.plan.snapped, "stopped")
        run.process.send_signal(signal.SIGINT)
        time.sleep(0.5)  # two reports later it is told
        kill(run, "jobmanager", random.Random(0))
        assert run.wait() == 0, run.story()
    job.run()
    job.assert_exact()
