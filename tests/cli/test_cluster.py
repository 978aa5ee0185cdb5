"""The commands of a session cluster: how it is named, what is printed, and exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tidegate.cli.cluster.session import with_jobmanager
from tidegate.cli.main import app
from tidegate.drivers.system import SystemDrivers
from tidegate.errors import ConfigError, RefusedError, RpcError
from tidegate.ids import JobName, SlotId, TaskManagerId
from tidegate.protocol.errors import ErrorReport
from tidegate.protocol.job_state import JobState
from tidegate.protocol.messages import Acknowledge, GetJob, ListJobs, Message, Refused, StopJob
from tidegate.protocol.reports import JobList, JobReport, SlotReport

Run = Callable[..., Result]


SLOT = SlotId(TaskManagerId("standalone-x-1"), 0)


class JobManager:
    """Answers as a JobManager that runs one job."""

    def __init__(self) -> None:
        self.state = "RUNNING"
        self.start_refused = ""
        self.stops: list[StopJob] = []

    def answer(self, message: Message) -> Message:
        match message:
            case ListJobs():
                return JobList(jobs=(self.report(),), task_managers=(("standalone-x-1", 9, 2),))
            case GetJob(job="a"):
                return self.report()
            case StopJob(job="a"):
                self.stops.append(message)
                if self.state == "RUNNING" and not self.start_refused:
                    self.state = "FINISHED" if message.final_checkpoint else "CANCELED"
                return Acknowledge()
            case _:
                return Refused(reason="This cluster knows no such job.")

    def report(self) -> JobReport:
        return JobReport(
            job=JobName("a"),
            state=JobState(self.state),
            records_in=1_000,
            error=ErrorReport.of(RpcError("a slot was lost")),
            start_refused=self.start_refused,
            jobmanager_pid=11,
            jobmaster_pid=12,
            host="host-a",
            slots=(
                SlotReport(ordinal=0, slot=SLOT, pid=21, task_manager_pid=20, host="host-b"),
                SlotReport(
                    ordinal=1,
                    slot=SLOT._replace(index=1),
                    pid=22,
                    task_manager_pid=20,
                    host="host-b",
                ),
                SlotReport(ordinal=2, slot=SLOT, pid=31, task_manager_pid=30),
            ),
        )


@pytest.fixture
def jobmanager() -> JobManager:
    return JobManager()


@pytest.fixture
def run(jobmanager: JobManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    monkeypatch.chdir(tmp_path)
    server = SystemDrivers().rpc.serve(jobmanager.answer)
    yield lambda *words: CliRunner().invoke(app, [*words, "--jobmanager", server.address])
    server.close()


def test_jobs_and_task_managers_are_listed(run: Run) -> None:
    text = run("list").stdout
    assert "a: running, in 1,000, out 0" in text
    assert "1 TaskManager with 2 slots" in text
    body = json.loads(run("list", "--json").stdout)
    assert [job["job"] for job in body["jobs"]] == ["a"]
    assert body["task_managers"] == [{"id": "standalone-x-1", "pid": 9, "slots": 2}]


def test_status_command_shows_the_processes_of_a_job_that_has_not_ended(
    run: Run, jobmanager: JobManager
) -> None:
    assert run("status", "a").stdout.splitlines()[1:-1] == [
        "  JobManager: pid 11 on host-a",
        "  JobMaster: pid 12 on host-a",
        "  TaskManager: pid 20 on host-b",
        "  TaskManager: pid 30",  # a version that does not tell its host
        "  slot 0: pid 21 on host-b",
        "  slot 1: pid 22 on host-b",
        "  slot 2: pid 31",
    ]
    rows = json.loads(run("status", "a", "--json").stdout)["processes"]
    assert rows[0] == {"role": "JobManager", "pid": 11, "host": "host-a"}
    assert rows[4] == {"role": "slot", "slot": 0, "pid": 21, "host": "host-b"}
    jobmanager.state = "FINISHED"
    assert "pid" not in run("status", "a").stdout
    assert json.loads(run("status", "a", "--json").stdout)["processes"] == []


def test_status_command_shows_the_last_failure_of_a_job(run: Run) -> None:
    assert "last failure: a slot was lost" in run("status", "a").stdout
    assert json.loads(run("status", "a", "--json").stdout)["state"] == "RUNNING"
    assert isinstance(run("status", "b").exception, RefusedError)


@pytest.mark.parametrize(("command", "final"), [("stop", True), ("cancel", False)])
def test_stop_and_cancel_wait_for_the_end_of_the_job(
    run: Run, jobmanager: JobManager, command: str, final: bool
) -> None:
    assert run(command, "a").exit_code == 0
    assert jobmanager.stops == [StopJob(job=JobName("a"), final_checkpoint=final)]


def test_stop_of_a_job_that_fails_has_exit_code_1(run: Run, jobmanager: JobManager) -> None:
    jobmanager.state = "FAILED"
    assert run("stop", "a").exit_code == 1


@pytest.mark.parametrize("command", ["stop", "cancel"])
def test_stop_explains_that_a_job_has_not_ended_because_its_jobmaster_cannot_start(
    run: Run, jobmanager: JobManager, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setattr("tidegate.controlplane.client.client.START_TIMEOUT_S", 0.3)
    jobmanager.start_refused = "No process id is left. Give the host more of them."
    result = run(command, "a", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["start_refused"] == jobmanager.start_refused
    assert len(jobmanager.stops) == 1
    assert result.stderr == (
        f"a: the {command} waits: {jobmanager.start_refused}\n"
        "tidegate: Job a has not ended, because its JobMaster cannot start. No process id is left. "
        f"Give the host more of them. The JobManager carries out the {command} when the JobMaster "
        "starts: tidegate status a shows it. If the JobManager itself is restarted before, repeat "
        "the command.\n"
    )


def test_list_command_raises_rpc_error_if_no_jobmanager_answers(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["list", "--jobmanager", "127.0.0.1:1"])
    assert isinstance(result.exception, RpcError)


@pytest.mark.parametrize("at", ["jobmanager", ":6123", "jobmanager:", "jobmanager:x"])
def test_jobmanager_address_without_a_host_and_a_port_is_refused(at: str) -> None:
    with pytest.raises(ConfigError, match="is not HOST:PORT"):
        with_jobmanager({}, at)


def test_jobmanager_address_sets_the_host_and_the_port() -> None:
    assert with_jobmanager({"a": 1}, "[::1]:7") == {
        "a": 1,
        "jobmanager.host": "::1",
        "jobmanager.port": 7,
    }
