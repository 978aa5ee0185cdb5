"""The gateway to the JobManager: through it a JobMaster learns that another one has replaced it."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tidegate.controlplane.jobmaster.jobmanager_gateway import ANSWER_TIMEOUT_S, JobManagerGateway
from tidegate.drivers.clock import SystemClock
from tidegate.drivers.threads import SystemThreads
from tidegate.errors import ResourceExhaustedError, RpcError
from tidegate.ids import Attempt, JobName, LeaderEpoch
from tidegate.protocol.job_state import JobState
from tidegate.protocol.messages import (
    Acknowledge,
    JobMasterAccepted,
    Message,
    Refused,
    RegisterJobMaster,
    ReleaseSlots,
    StopSlot,
)
from tidegate.protocol.reports import JobReport, ReportJob
from tidegate.protocol.submission import Submission

JOB = JobName("a")


class JobManager:
    """Accepts the registration, and refuses messages of one type."""

    def __init__(self, refused: type[Message]) -> None:
        self._refused = refused

    def call(self, message: Any, timeout_s: float = 10.0) -> Message:
        if isinstance(message, RegisterJobMaster):
            return JobMasterAccepted(submission=SUBMISSION)
        return Refused(reason="no") if isinstance(message, self._refused) else Acknowledge()

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
def test_jobmaster_is_replaced_if_its_report_is_refused_and_not_another_request(
    refused: type[Message], unwanted: bool
) -> None:
    told = threading.Event()
    epoch = LeaderEpoch(1)
    line = JobManagerGateway(
        JobManager(refused), SystemClock(), SystemThreads(), JOB, epoch, on_replaced=told.set
    )
    line.register("here", 1)
    line.send(ReleaseSlots(job=JOB, epoch=epoch, attempt=Attempt(1)))
    line.report_now(JobReport(job=JOB, state=JobState.RUNNING, jobmaster_pid=1))
    assert told.is_set() == unwanted


def test_jobmaster_retries_until_it_knows_whether_it_was_replaced() -> None:
    answers: list[Message | RpcError] = [
        JobMasterAccepted(submission=SUBMISSION),
        JobMasterAccepted(submission=SUBMISSION),
        RpcError("away"),
        Refused(reason="process 1 is not the JobMaster of a any more"),
    ]

    class Answering(JobManager):
        def call(self, message: Any, timeout_s: float = 10.0) -> Message:
            answer = answers.pop(0)
            if isinstance(answer, RpcError):
                raise answer
            return answer

    told = threading.Event()
    line = JobManagerGateway(
        Answering(Message),
        SystemClock(),
        SystemThreads(),
        JOB,
        LeaderEpoch(1),
        on_replaced=told.set,
    )
    line.register("here", 1)
    assert line.is_current()
    assert not told.is_set()
    assert not line.is_current()
    assert told.is_set()
    assert answers == []


@pytest.mark.parametrize(
    "error", [OSError("too many open files"), ResourceExhaustedError("the JobManager's memory")]
)
def test_message_is_retried_after_an_error_on_either_side(error: Exception) -> None:
    """The thread would end, and the JobManager take the JobMaster for dead."""
    errors = [error, error]

    class Failing(JobManager):
        def call(self, message: Any, timeout_s: float = 10.0) -> Message:
            if isinstance(message, ReleaseSlots):
                if errors:
                    raise errors.pop()
                released.set()
            return super().call(message, timeout_s)

    released = threading.Event()
    line = JobManagerGateway(
        Failing(StopSlot),
        SystemClock(),
        SystemThreads(),
        JOB,
        LeaderEpoch(1),
        on_replaced=lambda: None,
    )
    line.register("here", 1)
    line.send(ReleaseSlots(job=JOB, epoch=LeaderEpoch(1), attempt=Attempt(1)))
    assert released.wait(10)


def test_jobmaster_stops_without_a_claim_if_no_jobmanager_answers() -> None:
    """The JobMaster no longer notices the end of its JobManager. Without a timeout it would ask for
    ever, and no process would end it.
    """

    class Away(JobManager):
        def call(self, message: Any, timeout_s: float = 10.0) -> Message:
            if calls:
                clock.now_s += 1.0
                raise RpcError("away")
            calls.append(message)
            return JobMasterAccepted(submission=SUBMISSION)

    class Clock(SystemClock):
        now_s = 0.0

        def monotonic(self) -> float:
            return self.now_s

        def sleep(self, seconds: float) -> None:
            self.now_s += seconds

    clock, calls, told = Clock(), list[Message](), threading.Event()
    line = JobManagerGateway(
        Away(Message), clock, SystemThreads(), JOB, LeaderEpoch(1), on_replaced=told.set
    )
    line.register("here", 1)
    assert not line.is_current()
    assert told.is_set()
    assert ANSWER_TIMEOUT_S <= clock.now_s < ANSWER_TIMEOUT_S + 2.0
