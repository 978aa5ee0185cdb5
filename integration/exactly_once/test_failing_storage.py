"""A checkpoint storage that answers errors while a job claims, restores or stops: real processes.

The job continues as soon as the storage works again. If it does not, a stop ends within
`job.stop_grace_period` and names the reason of the storage, and the next run settles the job. Every
total is there once in both cases.
"""

from __future__ import annotations

import random
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from integration.exactly_once.test_kills import kill
from integration.faults.kill_matrix.faulty_storage import Rule, Rules
from integration.faults.kill_matrix.mains import MAINS
from integration.faults.kill_points.killed_runs import Job, Run
from tidegate.drivers.kafka.embedded import EmbeddedKafka

pytestmark = [pytest.mark.slow, pytest.mark.kafka, pytest.mark.timeout(240)]

RECORDS = 500
GRACE_S = 8.0
SLACK_S = 15.0
"""The time in seconds that a busy machine may need for the processes of a command."""
REASON = "Input/output error"
CONFIG = {"job.stop_grace_period": "8 s"}
SELDOM = {
    **CONFIG,
    "checkpoint.interval": "1min",
    "checkpoint.interval_during_backlog": "1min",
}
"""Settings of a run that takes one checkpoint soon after its start, and then the final one."""
ENTRY = Rule(does="fail", call="create", path="/journal/", role="jobmaster")
MANIFEST = Rule(does="fail", call="put", path="/manifests/", role="jobmaster")
UPLOAD = Rule(does="fail", call="put_file", path="/files/", role="slot")
DOWNLOAD = Rule(does="fail", call="get_file", path="/files/", role="slot")

ends = pytest.mark.parametrize("recovers", [True, False], ids=["storage recovers", "stop"])


@pytest.fixture
def job(kafka: EmbeddedKafka, tmp_path: Path) -> Job:
    made = Job.make(kafka.bootstrap, tmp_path, "Totals")
    made.write(RECORDS, seed=1)
    return made


@pytest.fixture
def rules(tmp_path: Path) -> Rules:
    return Rules(tmp_path / "rules")


@contextmanager
def started(job: Job, rules: Rules, config: dict[str, str] = CONFIG) -> Iterator[Run]:
    environment = rules.environment
    with job.started(run_mains=MAINS, environment=environment, config=config) as run:
        yield run


def until_told(run: Run, rules: Rules) -> None:
    run.until(rules.met, "refused by the storage")
    run.until(lambda: REASON in run.output.read_text(), "told of the reason")


def until_committed(run: Run) -> None:
    """Wait for a publication and the entry that follows its commit.

    A rule that is set before that entry would hit it, and not the final checkpoint.
    """
    run.until(run.publications, "at its first checkpoint")
    run.until(run.job.has_committed, "at the end of its first commit")


def until_read(run: Run, records: int) -> None:
    run.until(
        lambda: any(report.get("records_in") == records for report in run.reports()),
        "at the end of its input",
    )


def stop(run: Run, code: int) -> None:
    """Stop the run, and check that it ends in time with this code."""
    run.process.send_signal(signal.SIGINT)
    assert run.wait(GRACE_S + SLACK_S) == code, run.story()
    if code == 1:
        told = run.errors.read_text()
        assert "The stop did not wait longer within job.stop_grace_period." in told
        assert f"{REASON}. The journal of the job is not closed" in told
        assert "Traceback" not in told


def finish(job: Job, rules: Rules) -> None:
    """Run the job to its end on a storage that works, and check its output."""
    rules.set()
    job.run()
    job.assert_exact()


@ends
def test_job_whose_claim_fails_continues_with_the_storage_or_stops(
    job: Job, rules: Rules, *, recovers: bool
) -> None:
    with started(job, rules) as run:
        run.until(job.is_settled, "settled")
        rules.set(ENTRY)
        job.write(RECORDS, seed=2)
        kill(run, "jobmaster", random.Random(0))
        until_told(run, rules)
        if recovers:
            rules.set()
            run.until(job.is_settled, "settled again")
        stop(run, 0 if recovers else 1)
    finish(job, rules)


@ends
def test_job_whose_restore_fails_continues_with_the_storage_or_stops(
    job: Job, rules: Rules, *, recovers: bool
) -> None:
    job.run()
    shutil.rmtree(job.folder / ".tidegate" / "state")  # all state must come from the storage
    job.write(RECORDS, seed=2)
    rules.set(DOWNLOAD)
    with started(job, rules) as run:
        until_told(run, rules)
        if recovers:
            rules.set()
            run.until(job.is_settled, "settled")
        stop(run, 0 if recovers else 4)  # the journal works, so the stop settles and closes it
    finish(job, rules)


@pytest.mark.parametrize(
    ("fails", "code"),
    [(UPLOAD, 4), (MANIFEST, 4), (ENTRY, 1)],
    ids=["upload", "manifest", "publication"],
)
@ends
def test_final_checkpoint_that_fails_is_repeated_or_ends_the_job_in_time(
    job: Job, rules: Rules, *, fails: Rule, code: int, recovers: bool
) -> None:
    with started(job, rules, SELDOM) as run:
        until_committed(run)
        until_read(run, RECORDS)
        rules.set(fails)
        job.write(RECORDS, seed=2)
        until_read(run, 2 * RECORDS)
        if recovers:
            run.process.send_signal(signal.SIGINT)
            run.until(rules.met, "refused by the storage")
            rules.set()
            assert run.wait() == 0, run.story()
        else:
            stop(run, code)
            assert rules.met(), "the rule has affected no call"
            assert REASON in run.output.read_text()
    finish(job, rules)
