"""The leader of the cluster, or of the job, dies in each named state of the job.

Whoever comes after must go on from the last published checkpoint, and never from an empty state:
positions never go back, and the output is exact. The states are those of the job machine
(`JobState`) and, where the leader of the cluster is concerned, of the Dispatcher (`Phase`). A
process is held at a point that it only comes to in the state in question, or the job's own reports
say that it is in it; a JobMaster that has not registered says nothing, and is killed as soon as it
is there. A part is in `-m soak`: the kill matrix has a JobMaster killed at every point of a
recovery anyway.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from integration.killing.runs import Job, Run
from integration.killing.traps import Trap
from integration.running import DONE, code_of_stop
from tidegate.drivers.kafka.embedded import EmbeddedKafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]

PACE = 400
RECORDS = 300
"""Between two deaths: half a second of both subtasks, so that each attempt has something to do."""
CONFIG = {"restart.strategy": "fixed_delay", "restart.delay": "15 s"}
"""Nothing waits for it but the test that wants the job to back off: a new leader begins at once."""


# --- states of a job that goes on ---------------------------------------------------------------


def created(run: Run, leader: str) -> None:
    """A JobMaster was started, and has not registered."""
    kill(run, "jobmaster")
    kill(run, leader)


def recovering(run: Run, leader: str) -> None:
    """It has claimed the journal, and nothing is settled."""
    with held(run, Trap("recovery.claimed", holds=True), "RECOVERING"):
        kill(run, "jobmaster")
    kill(run, leader)


def backing_off(run: Run, leader: str) -> None:
    """An attempt has failed, its successor has recovered, and waits for the delay to pass."""
    kill(run, "slot")
    run.until(lambda: run.state() == "BACKING_OFF", "backing off")
    kill(run, leader)


def waiting_for_slots(run: Run, leader: str) -> None:
    """It has recovered, and a slot has not registered."""
    with held(run, Trap("slot.starting", holds=True), "WAITING_FOR_SLOTS"):
        kill(run, "jobmaster")
    kill(run, leader)


def deploying(run: Run, leader: str) -> None:
    """A slot fetches its state."""
    with held(run, Trap("slot.restored", holds=True), "DEPLOYING"):
        kill(run, "jobmaster")
    kill(run, leader)


def running(run: Run, leader: str) -> None:
    """All goes well."""
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
def test_killed_in_each_state_of_a_job_its_leader_is_succeeded_from_the_last_checkpoint(
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
    """A checkpoint is being taken, and the final one is to follow."""
    with held(run, Trap("slot.described", holds=True), "STOPPING"):
        run.process.send_signal(signal.SIGINT)
    kill(run, leader)


def closing(run: Run, leader: str) -> None:
    """All is published, and the last entry is about to be written."""
    with held(run, Trap("jobmaster.closing", holds=True), "CLOSING"):
        run.process.send_signal(signal.SIGINT)
    kill(run, leader)


def closed(run: Run, leader: str) -> None:
    """It was written, and nobody knows."""
    with held(run, Trap("jobmaster.closed", holds=True), "CLOSING"):
        run.process.send_signal(signal.SIGINT)
    kill(run, leader)


def ending(run: Run, _leader: str) -> None:
    """The Dispatcher knows, and is about to store it. The command knows, too, and leaves: its
    JobManager dies while it stands there.
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
def test_killed_in_each_state_of_a_job_that_ends_its_leader_leaves_it_to_be_continued(
    kafka: EmbeddedKafka, tmp_path: Path, ends: Ends
) -> None:
    job = Job.make(kafka.bootstrap, tmp_path, "Totals")
    for seed, (brought_about, leader) in enumerate(ends):
        job.write(RECORDS, seed=seed)
        read = positions(job)
        # Some runs' JobManagers are also killed before they have stored the submission, or before
        # it counts: an earlier run has published, and what comes after must not begin anew.
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
    """The block brings about what leads to this state; a process is held there at the end."""
    number = run.plan.add(trap)
    yield
    run.until_snapped(number)
    run.until(lambda: run.state() == state, state)


def kill(run: Run, role: str) -> None:
    """SIGKILL the one process of this role, or the first, as soon as there is one."""
    victim = run.until(lambda: run.processes()[role], f"a {role} to kill")[0]
    victim.kill()
    victim.wait()


def positions(job: Job) -> int:
    """How much of the input the newest publication has behind it."""
    manifest = job.manifest()
    return 0 if manifest is None else sum(split.offset for split in manifest.splits)
