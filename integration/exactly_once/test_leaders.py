"""The leader of the cluster, or of the job, dies in each state of the job.

The next leader must continue from the last published checkpoint, and never from an empty state.
Positions never go back, and the output is exact. The states are those of the job machine
(`JobState`) and, for the leader of the cluster, of the Dispatcher (`Phase`). To kill a leader in a
state, a test holds a process at a point that exists only in this state, or waits until the job
reports the state. A JobMaster that has not registered reports nothing, so the test kills it as soon
as it exists. Some cases run only with `-m soak`, because the kill matrix kills a JobMaster at every
point of a recovery.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from integration.faults.kill_points.kill_points import Trap
from integration.faults.kill_points.killed_runs import Job, Run
from integration.support.running import DONE, code_of_stop
from tidegate.drivers.kafka.embedded import EmbeddedKafka

pytestmark = [pytest.mark.slow, pytest.mark.kafka, pytest.mark.timeout(300)]

PACE = 400
RECORDS = 300
"""New records after each kill: half a second of work for both subtasks, so that each attempt reads
records.
"""
CONFIG = {"restart.strategy": "fixed_delay", "restart.delay": "15 s"}
"""A long restart delay. It applies only in the test of the state `restarting`: a new leader starts
the next attempt at once.
"""


# --- states of a job that goes on ---------------------------------------------------------------


def created(run: Run, leader: str) -> None:
    """Kill the leader while a new JobMaster runs but has not registered."""
    kill(run, "jobmaster")
    kill(run, leader)


def recovering(run: Run, leader: str) -> None:
    """Kill the leader when a JobMaster has claimed the journal, before it settles anything."""
    with held(run, Trap("recovery.claimed", holds=True), "RECOVERING"):
        kill(run, "jobmaster")
    kill(run, leader)


def backing_off(run: Run, leader: str) -> None:
    """Kill the leader when an attempt has failed, and the next one has recovered and waits for the
    restart delay.
    """
    kill(run, "slot")
    run.until(lambda: run.state() == "BACKING_OFF", "backing off")
    kill(run, leader)


def waiting_for_slots(run: Run, leader: str) -> None:
    """Kill the leader when the job has recovered and a slot has not registered."""
    with held(run, Trap("slot.starting", holds=True), "WAITING_FOR_SLOTS"):
        kill(run, "jobmaster")
    kill(run, leader)


def deploying(run: Run, leader: str) -> None:
    """Kill the leader while a slot restores its state."""
    with held(run, Trap("slot.restored", holds=True), "DEPLOYING"):
        kill(run, "jobmaster")
    kill(run, leader)


def running(run: Run, leader: str) -> None:
    """Kill the leader while the job runs."""
    run.until(lambda: run.state() == "RUNNING", "running")
    kill(run, leader)


GOES_ON: list[Callable[[Run, str], None]] = [
    created,
    recovering,
    backing_off,
    waiting_for_slots,
    deploying,
    running,
]


@pytest.mark.parametrize(
    "leader", ["jobmanager", pytest.param("jobmaster", marks=pytest.mark.soak)]
)
def test_next_leader_continues_from_the_last_checkpoint_after_a_kill_in_each_job_state(
    kafka: EmbeddedKafka, tmp_path: Path, leader: str
) -> None:
    job = Job.make(kafka.bootstrap, tmp_path, "Totals")
    job.write(RECORDS, seed=0)
    with job.started(pace=PACE, config=CONFIG) as run:
        run.until_published(1)
        for seed, brought_about in enumerate(GOES_ON, start=1):
            read = positions(job)
            brought_about(run, leader)
            job.write(RECORDS, seed=seed)
            run.until_published(1)
            assert positions(job) >= read, f"{brought_about.__name__}: {run.story()}"
        run.process.send_signal(signal.SIGINT)
        assert run.wait() == 0, run.story()
    job.run("--restore", "latest")
    job.assert_exact()


# --- states of a job that ends, and of one that begins ------------------------------------------


def stopping(run: Run, leader: str) -> None:
    """Kill the leader during a checkpoint that the final checkpoint must follow."""
    with held(run, Trap("slot.described", holds=True), "STOPPING"):
        run.process.send_signal(signal.SIGINT)
    kill(run, leader)


def closing(run: Run, leader: str) -> None:
    """Kill the leader when all is published, before the last journal entry is written."""
    with held(run, Trap("jobmaster.closing", holds=True), "CLOSING"):
        run.process.send_signal(signal.SIGINT)
    kill(run, leader)


def closed(run: Run, leader: str) -> None:
    """Kill the leader when the last journal entry is written, before it is reported."""
    with held(run, Trap("jobmaster.closed", holds=True), "CLOSING"):
        run.process.send_signal(signal.SIGINT)
    kill(run, leader)


def ending(run: Run, _leader: str) -> None:
    """Let the JobManager die just before the Dispatcher stores the result of the job.

    The command already knows the result and exits. Its JobManager dies with it, at the trap.
    """
    number = run.plan.add(Trap("jobmanager.ending", holds=True))
    run.process.send_signal(signal.SIGINT)
    assert run.wait() == 0, run.story()
    assert run.plan.pid(number), run.story()


Ends = Sequence[tuple[Callable[[Run, str], None], str]]
SOME: Ends = [(closed, "jobmaster"), (stopping, "jobmanager"), (ending, "jobmanager")]
OTHERS: Ends = [
    (stopping, "jobmaster"),
    (closing, "jobmaster"),
    (closing, "jobmanager"),
    (closed, "jobmanager"),
]


@pytest.mark.parametrize(
    "ends", [SOME, pytest.param(OTHERS, marks=pytest.mark.soak)], ids=["some", "others"]
)
def test_next_run_is_exact_after_a_leader_kill_in_each_state_of_an_ending_job(
    kafka: EmbeddedKafka, tmp_path: Path, ends: Ends
) -> None:
    job = Job.make(kafka.bootstrap, tmp_path, "Totals")
    for seed, (brought_about, leader) in enumerate(ends):
        job.write(RECORDS, seed=seed)
        read = positions(job)
        # In some runs the JobManager is also killed before it has stored the submission, or before
        # the submission counts. An earlier run has published, so the job must not start without
        # state.
        points = {1: "jobmanager.storing", 2: "jobmanager.accepting"}
        traps = [Trap(points[seed], holds=True)] if seed in points else []
        options = ("--restore", "latest") if seed else ()
        with job.started(*options, pace=PACE, traps=traps, config=CONFIG) as run:
            if traps:
                run.until_snapped(0)
                kill(run, "jobmanager")
            run.until_published(1)
            assert positions(job) >= read, run.story()
            brought_about(run, leader)
            code = run.wait()
            due = code_of_stop(job.journal())
            assert code == due, f"{brought_about.__name__} {leader}: {run.story()}"
            assert due == DONE or brought_about is stopping, "all others publish it before"
        assert positions(job) >= read, run.story()
    job.run("--restore", "latest")
    job.assert_exact()
    assert not [entry for entry in job.journal() if entry["kind"] in {"retracted", "lost"}]


# --- what they share ----------------------------------------------------------------------------


@contextmanager
def held(run: Run, trap: Trap, state: str) -> Iterator[None]:
    """Hold a process at a trap, and wait for a state. The block must lead to the trap."""
    number = run.plan.add(trap)
    yield
    run.until_snapped(number)
    run.until(lambda: run.state() == state, state)


def kill(run: Run, role: str) -> None:
    """Kill the first process of a role with SIGKILL, as soon as one exists."""
    victim = run.until(lambda: run.processes()[role], f"a {role} to kill")[0]
    victim.kill()
    victim.wait()


def positions(job: Job) -> int:
    """Return the sum of the input offsets of the newest publication; 0 without a publication."""
    manifest = job.manifest()
    return 0 if manifest is None else sum(split.offset for split in manifest.splits)
