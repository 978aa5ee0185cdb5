"""What JobManagers know of a job's journal: that an attempt has claimed it, so it must be there."""

from __future__ import annotations

import pytest

from tests.controlplane.jobmanager.dispatching import A, Shell, submission
from tests.controlplane.jobmanager.test_job_store import Blobs, leader_of, store_of, submit
from tidegate.controlplane.jobmanager import dispatcher_events as j
from tidegate.controlplane.jobmanager.backoff import LONGEST_MS
from tidegate.errors import InternalError
from tidegate.protocol.job_state import JobState
from tidegate.protocol.messages import JobMasterAccepted, SubmitJob
from tidegate.protocol.reports import JobReport


@pytest.fixture
def blobs() -> Blobs:
    return Blobs()


def test_restarted_jobmaster_receives_the_newest_claimed_attempt(running: Shell) -> None:
    assert running.last(j.StoreClaim) == j.StoreClaim(job=A, attempt=1)
    running.report(100, attempt=7)
    stored = [each for each in running.instructions if isinstance(each, j.StoreClaim)]
    assert len(stored) == 1, "that there is a journal is written down once"
    running.exits()
    running.now_ms += LONGEST_MS
    running.event(j.StartDelayElapsed(job=A, launch_id=running.start_number()))
    running.event(j.JobMasterStarted(job=A, launch_id=running.start_number(), pid=101))
    accepted = running.register(101)
    assert isinstance(accepted, JobMasterAccepted)
    assert accepted.submission.claimed_attempt == 7


def test_a_claim_that_could_not_be_stored_is_stored_with_the_next_report(running: Shell) -> None:
    running.event(j.ClaimNotStored(job=A))
    running.report(100, attempt=2)
    assert running.last(j.StoreClaim) == j.StoreClaim(job=A, attempt=2)


def test_report_before_the_claim_stores_no_claim() -> None:
    shell = Shell()
    shell.ask(SubmitJob(submission=submission()))
    shell.event(j.SubmissionStored(job=A))
    shell.imports(100)
    shell.report(100, state="RECOVERING", attempt=0)
    assert not [each for each in shell.instructions if isinstance(each, j.StoreClaim)]


def test_new_submission_of_an_ended_job_has_no_claimed_attempt(running: Shell) -> None:
    running.report(100, state="FAILED")
    running.event(j.ResultStored(job=A))
    running.ask(SubmitJob(submission=submission()))
    assert running.machine.submission(A).claimed_attempt == 0


def test_next_jobmanager_reads_the_claimed_attempt_from_storage(blobs: Blobs) -> None:
    store = leader_of(blobs)
    submit(store)
    ((first, _),) = store_of(blobs).jobs()
    assert first.claimed_attempt == 0
    store.put_claim(A, 3)
    ((second, result),) = store_of(blobs).jobs()
    assert (second.claimed_attempt, result) == (3, None)
    shell = Shell()
    shell.machine.recover([(second, None)], 0)
    assert shell.machine.submission(A).claimed_attempt == 3
    store.put_result(JobReport(job=A, state=JobState.FINISHED))
    submit(store)
    ((third, _),) = store_of(blobs).jobs()
    assert third.claimed_attempt == 0, "it is known of one submission"


def test_claim_of_an_unknown_job_raises_internal_error(blobs: Blobs) -> None:
    with pytest.raises(InternalError, match="neither submitted nor found"):
        store_of(blobs).put_claim(A, 1)
