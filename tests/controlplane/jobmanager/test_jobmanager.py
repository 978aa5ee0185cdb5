"""The JobManager's shell: what it does with a message before either machine sees it.

Method: the true shell and the true machines; what they would have the loop and the store do is
kept instead of done.
"""

from __future__ import annotations

import hashlib
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from tests.controlplane.jobmanager.test_cluster_settings import submission
from tests.controlplane.jobmanager.test_connections import Rpc
from tests.controlplane.parts import registration
from tidegate.config import Config
from tidegate.config_load import load
from tidegate.controlplane.jobmanager import dispatcher_events as jobs
from tidegate.controlplane.jobmanager.connections import Connections
from tidegate.controlplane.jobmanager.dispatcher import Dispatcher
from tidegate.controlplane.jobmanager.resource_manager import ResourceManager
from tidegate.controlplane.jobmanager.service import JobManager
from tidegate.controlplane.loop import PendingRequest
from tidegate.drivers.threads import SystemThreads
from tidegate.ids import Attempt, JobName, LeaderEpoch, TaskManagerId
from tidegate.protocol.job_state import JobState
from tidegate.protocol.messages import (
    GetJob,
    Message,
    Refused,
    RegisterTaskManager,
    RequestSlots,
    SubmitJob,
    TaskManagerAccepted,
)
from tidegate.protocol.reports import JobReport, ReportJob
from tidegate.protocol.submission import StoredCode, Submission
from tidegate.protocol.versions import PYTHON, TIDEGATE

EPOCH = LeaderEpoch(7)
PASSWORD = "kafka.properties.sasl.password"


class Processes:
    """Starts nothing; `exits` are what to call when one ends, by its pid."""

    def __init__(self) -> None:
        self.exits: dict[int, Any] = {}
        self.killed: list[int] = []

    def spawn(self, _role: str, _arguments: Any, *, on_exit: Any, **_others: Any) -> Any:
        pid = 100 + len(self.exits)
        self.exits[pid] = on_exit
        return SimpleNamespace(pid=pid, kill=lambda: self.killed.append(pid))


class Shell:
    """A JobManager whose own settings are these."""

    manager: JobManager

    def __init__(self, *, session_cluster: bool, **own: str) -> None:
        self.rpc = Rpc()
        self.processes = Processes()
        self.stored: list[Submission] = []
        config = load(command_line={key.replace("__", "."): value for key, value in own.items()})
        parts: dict[str, Any] = {
            "loop": SimpleNamespace(submit=lambda call, *_: call(), post=self._post),
            "store": SimpleNamespace(
                put_submission=lambda submission, _: self.stored.append(submission),
                stored_code=lambda _: None,
                put_result=lambda _: None,
                is_leader=lambda epoch: True,
                accept=lambda _: True,
            ),
            "drivers": SimpleNamespace(
                clock=SimpleNamespace(monotonic=lambda: 0.0, now_ms=lambda: 0),
                process=SimpleNamespace(pid=7, host="host-a"),
            ),
            "processes": self.processes,
        }
        self.manager = JobManager(
            epoch=EPOCH,
            address="jobmanager",
            config=config,
            dispatcher=Dispatcher("cluster", EPOCH, 1000),
            resources=ResourceManager(EPOCH, 0, 1000),
            connections=Connections(self.rpc, SystemThreads()),
            session_cluster=session_cluster,
            **parts,
        )

    def _post(self, event: Any) -> None:
        self.manager.handle(event)

    def ask(self, message: Message) -> Message | None:
        """The reply, if there is one at once."""
        answers: list[Message] = []
        question: Any = SimpleNamespace(put=answers.append)
        self.manager.handle(PendingRequest(message, question))
        return answers[0] if answers else None


def test_registration_of_a_taskmanager_closes_the_old_connection_to_its_address() -> None:
    shell = Shell(session_cluster=True)
    join = RegisterTaskManager(
        id=TaskManagerId("x"),
        epoch=None,
        address="h:1",
        slots=1,
        pid=1,
        tidegate_version=TIDEGATE,
        python_version=PYTHON,
    )
    shell.manager.connections.call("h:1", join)
    assert shell.ask(join) == TaskManagerAccepted(epoch=EPOCH)
    assert shell.rpc.closed == ["h:1"]


def test_a_submission_with_a_secret_that_a_session_cluster_lacks_is_refused() -> None:
    given = submission(load(command_line={PASSWORD: "s3cr3t"}).to_dict())
    shell = Shell(session_cluster=True)
    reply = shell.ask(SubmitJob(submission=given))
    assert isinstance(reply, Refused)
    assert f"{PASSWORD} is a secret that the JobManager does not have" in reply.reason
    assert shell.stored == []
    knows = Shell(session_cluster=True, kafka__properties__sasl__password="s3cr3t")
    assert knows.ask(SubmitJob(submission=given)) is None
    assert [each.job for each in knows.stored] == ["a"]


@pytest.mark.parametrize("session_cluster", [False, True])
@pytest.mark.parametrize("place", ["kafka", "sources.orders", "sinks.totals"])
def test_a_submission_with_a_setting_that_starts_foreign_code_is_refused(
    place: str, *, session_cluster: bool
) -> None:
    settings = Config().to_dict()
    section, _, name = place.partition(".")
    properties = {"properties": {"SSL.Providers": "/tmp/evil"}}
    settings[section] |= {name: properties} if name else properties
    shell = Shell(session_cluster=session_cluster)
    reply = shell.ask(SubmitJob(submission=submission(settings)))
    assert isinstance(reply, Refused)
    assert f"{place}.properties.SSL.Providers in job a is not allowed: OpenSSL" in reply.reason
    assert shell.stored == []


def test_session_cluster_imposes_its_directories_and_local_cluster_keeps_those_of_the_job() -> None:
    given = submission(load(command_line={"state.local_dir": "/theirs"}).to_dict())
    for session_cluster, directory in ((True, "/ours"), (False, "/theirs")):
        shell = Shell(session_cluster=session_cluster, state__local_dir="/ours")
        shell.ask(SubmitJob(submission=given))
        (stored,) = shell.stored
        assert Config.from_dict(stored.settings).state.local_dir == directory


def test_slot_request_is_refused_if_the_sender_is_not_the_current_jobmaster() -> None:
    request = RequestSlots(
        job=JobName("a"), epoch=EPOCH, attempt=Attempt(1), count=1, jobmaster_address="h:9"
    )
    refused = Refused(reason="the sender is not the JobMaster of a any more")
    assert Shell(session_cluster=True).ask(request) == refused


def test_job_report_carries_the_epoch_the_process_and_the_host_of_the_jobmanager() -> None:
    shell = Shell(session_cluster=True)
    shell.ask(SubmitJob(submission=submission(Config().to_dict())))
    report = shell.ask(GetJob(job=JobName("a")))
    assert isinstance(report, JobReport)
    assert report.epoch == EPOCH
    assert (report.jobmanager_pid, report.host) == (7, "host-a")


def test_report_of_a_job_without_slots_has_the_reason_why_no_slot_comes() -> None:
    shell, job = Shell(session_cluster=False), JobName("a")
    shell.ask(SubmitJob(submission=submission(Config().to_dict())))
    shell.manager.handle(jobs.SubmissionStored(job=job))
    shell.ask(registration(job, EPOCH, "h:1", 100))
    waits = JobReport(
        job=job,
        state=JobState.WAITING_FOR_SLOTS,
        jobmaster_pid=100,
        slots_missing=1,
        reported_ms=5,
    )
    shell.ask(ReportJob(epoch=EPOCH, report=waits))
    shell.manager.resources.trouble = "Cannot start the taskmanager process: no such file."
    report = shell.ask(GetJob(job=job))
    assert isinstance(report, JobReport)
    assert report.waiting_for == (
        "1 slot missing. Cannot start the taskmanager process: no such file."
    )
    assert report.waiting_since_ms == 5


def test_resubmit_kills_the_old_jobmaster_and_reports_its_exit() -> None:
    shell, job = Shell(session_cluster=False), JobName("a")
    submit = SubmitJob(submission=submission(Config().to_dict()))

    shell.ask(submit)
    shell.manager.handle(jobs.SubmissionStored(job=job))
    shell.ask(registration(job, EPOCH, "h:1", 100))
    finished = JobReport(job=job, state=JobState.FINISHED, attempt=1, jobmaster_pid=100)
    shell.ask(ReportJob(epoch=EPOCH, report=finished))
    shell.manager.handle(jobs.ResultStored(job=job))
    shell.ask(submit)
    assert shell.processes.killed == [100]
    shell.manager.handle(jobs.SubmissionStored(job=job))
    shell.processes.exits[100](-9)
    report = shell.ask(GetJob(job=job))
    assert isinstance(report, JobReport)
    assert [(each.pid, each.status) for each in report.process_exits] == [(100, -9)]
    shell.manager.end_children()
    assert shell.processes.killed == [100, 101]


@pytest.mark.parametrize("session_cluster", [True, False])
def test_submit_is_refused_if_its_code_does_not_match_the_digest(*, session_cluster: bool) -> None:
    code = StoredCode(digest=hashlib.sha256(b"files").hexdigest(), size=5)
    given = msgspec.structs.replace(submission(Config().to_dict()), code=code)
    shell = Shell(session_cluster=session_cluster)
    reply = shell.ask(SubmitJob(submission=given, code=b"filez"))
    assert isinstance(reply, Refused)
    assert "code of job a was damaged on its way" in reply.reason
    assert shell.ask(SubmitJob(submission=given, code=b"files")) is None
    assert [each.code for each in shell.stored] == [code]
