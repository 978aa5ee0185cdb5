"""A job that is abandoned or canceled in the middle of a commit.

One transaction of a publication has its EndTxn, and the others still wait for theirs. Then the user
ends the job. A second Ctrl-C ends all processes at once. A cancel takes no checkpoint, but must
first finish the commit of the publication. The next run finds the commit complete, or completes it.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from integration.faults.kill_points.kill_points import Trap
from integration.faults.kill_points.killed_runs import Job, Run
from tidegate.drivers.kafka.embedded import EmbeddedKafka
from tidegate.drivers.system import SystemDrivers
from tidegate.ids import JobName
from tidegate.protocol.messages import StopJob

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]

RECORDS = 3_000
PACE = 400
CANCELED = 130


@contextmanager
def in_a_commit(job: Job) -> Iterator[Run]:
    """Yield a run whose JobMaster waits, at its newest trap, after the first of several EndTxn."""
    with job.started(pace=PACE, traps=[Trap("jobmaster.published", holds=True)]) as run:
        number = 0
        run.until_snapped(number)
        while not several(job):
            run.plan.release(number)
            number = run.plan.add(Trap("jobmaster.published", holds=True))
            run.until_snapped(number)
        run.plan.add(Trap("jobmaster.ended", holds=True))
        run.plan.release(number)
        run.until_snapped(number + 1)
        assert half_done(job), run.story()
        yield run


def several(job: Job) -> bool:
    """Return whether the last publication lists more than one transaction.

    It lists only one if the sources have read little.
    """
    return len(job.journal()[-1]["transactions"]) > 1


def half_done(job: Job) -> bool:
    """Return whether only a part of the last publication's transactions is committed."""
    named = {txn["transactional_id"] for txn in job.journal()[-1]["transactions"]}
    open_ = set(job.open_transactions())
    return bool(named & open_) and bool(named - open_)


def assert_committed_by_the_next(job: Job, *options: str) -> None:
    """Check that the next run finishes the commit. No checkpoint is rolled back or lost."""
    job.run(*options)
    job.assert_exact()
    assert not [entry for entry in job.journal() if entry["kind"] in {"retracted", "lost"}]


def test_next_run_finishes_a_commit_that_a_second_interrupt_left_half_done(
    kafka_39: EmbeddedKafka, tmp_path: Path
) -> None:
    job = Job.make(kafka_39.bootstrap, tmp_path, "TwoSinks")
    job.write(RECORDS, seed=1)
    with in_a_commit(job) as run:
        run.process.send_signal(signal.SIGINT)
        run.until(lambda: run.state() == "STOPPING", "stopping")
        run.process.send_signal(signal.SIGINT)
        assert run.wait(10) == CANCELED, run.story()
    assert half_done(job)
    assert_committed_by_the_next(job)


@pytest.mark.parametrize(
    "dies", [pytest.param(False, marks=pytest.mark.soak), True], ids=["lives", "dies"]
)
def test_cancel_finishes_a_half_done_commit_first(
    kafka: EmbeddedKafka, tmp_path: Path, *, dies: bool
) -> None:
    """With `dies`, the JobMaster is killed after it received the cancel. The next JobMaster must
    finish the commit.
    """
    job = Job.make(kafka.bootstrap, tmp_path, "TwoSinks")
    job.write(RECORDS, seed=2)
    with in_a_commit(job) as run:
        client = SystemDrivers().rpc.connect(address(run))
        client.call(StopJob(job=JobName(job.name), final_checkpoint=False))
        client.close()
        run.until(lambda: run.state() == "CLOSING", "closing")
        if dies:
            run.processes()["jobmaster"][0].kill()
        else:
            run.plan.release(len(run.plan.traps) - 1)
        assert run.wait() == CANCELED, run.story()
    assert job.open_transactions() == []
    assert job.journal()[-1]["kind"] == "closed"
    assert_committed_by_the_next(job, "--restore", "latest")


def address(run: Run) -> str:
    """Return the address of the JobManager's Unix socket, which only its own processes know."""
    (manager,) = run.processes()["jobmanager"]
    paths = {str(each.laddr) for each in manager.net_connections(kind="unix")}
    (listening,) = [path for path in paths if Path(path).parent.name.startswith("tidegate-run-")]
    return f"unix:{listening}"
