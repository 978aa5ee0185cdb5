"""The line to the JobManager: a JobMaster hears from it that another has taken its place."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tidegate.controlplane.jobmaster.manager_line import ManagerLine
from tidegate.drivers.clock import SystemClock
from tidegate.drivers.threads import SystemThreads
from tidegate.ids import Attempt, JobName, LeaderEpoch
from tidegate.protocol.messages import (
    Done,
    JobMasterAccepted,
    JobReport,
    Message,
    Refused,
    RegisterJobMaster,
    ReleaseSlots,
    ReportJob,
    Submission,
)

JOB = JobName("a")


class JobManager:
    """Accepts the registration, and refuses messages of one type."""

    def __init__(self, refused: type[Message]) -> None:
        self._refused = refused

    def call(self, message: Any, timeout_s: float = 10.0) -> Message:
        if isinstance(message, RegisterJobMaster):
            return JobMasterAccepted(submission=SUBMISSION)
        return Refused(reason="no") if isinstance(message, self._refused) else Done()

    def close(self) -> None:
        pass


SUBMISSION = Submission(
    job=JOB,
    reference="m:C",
    working_folder=".",
    params={},
    parallelism=1,
    max_parallelism=128,
    settings={},
    fingerprint="f",
    code_digest="d",
    python_version="3.11.7",
    tidegate_version="0",
)


@pytest.mark.parametrize(
    ("refused", "unwanted"), [(ReportJob, True), (ReleaseSlots, False)], ids=["report", "request"]
)
def test_a_jobmaster_whose_report_is_refused_hears_that_it_is_not_wanted(
    refused: type[Message], unwanted: bool
) -> None:
    told = threading.Event()
    epoch = LeaderEpoch(1)
    line = ManagerLine(
        JobManager(refused), SystemClock(), SystemThreads(), JOB, epoch, unwanted=told.set
    )
    line.register("here", 1)
    line.send(ReleaseSlots(job=JOB, epoch=epoch, attempt=Attempt(1)))
    line.report_now(JobReport(job=JOB, state="RUNNING", jobmaster_pid=1))
    assert told.is_set() == unwanted
