"""Processes of other versions are refused when they register, with both versions named."""

from __future__ import annotations

import sys
from importlib.metadata import version

import msgspec
import pytest

from tests.controlplane.jobmanager.dispatching import submission
from tests.controlplane.jobmanager.test_jobmanager import Shell
from tests.controlplane.jobmaster.shell import Shell as JobMasterShell
from tidegate.config import Config
from tidegate.ids import JobName, LeaderEpoch, TaskManagerId
from tidegate.protocol.job_state import JobState
from tidegate.protocol.messages import (
    JobMasterAccepted,
    Message,
    Refused,
    RegisterJobMaster,
    RegisterTaskManager,
    SubmitJob,
    TaskManagerAccepted,
)
from tidegate.protocol.versions import PYTHON, TIDEGATE, difference

OTHERS = [("0.0.9", PYTHON), (TIDEGATE, "3.8"), ("", "")]


def test_version_constants_match_the_package_and_the_interpreter() -> None:
    assert version("tidegate") == TIDEGATE
    assert f"{sys.version_info.major}.{sys.version_info.minor}" == PYTHON


def test_version_difference_ignores_the_patch_version_of_python() -> None:
    assert difference("X", TIDEGATE, PYTHON) is None
    assert difference("X", TIDEGATE, f"{PYTHON}.99") is None
    said = difference("TaskManager x at h:1", "0.0.9", "3.8.2")
    assert said is not None
    assert said.startswith(
        "TaskManager x at h:1 has tidegate 0.0.9 and Python 3.8, and this process has tidegate "
        f"{TIDEGATE} and Python {PYTHON}. Install the same"
    )
    assert "X has an older tidegate, and" in (difference("X", "", "") or "")


def refused(reply: Message | None, tidegate: str, python: str) -> None:
    assert isinstance(reply, Refused)
    assert f"tidegate {TIDEGATE} and Python {PYTHON}" in reply.reason
    assert (f"tidegate {tidegate} and Python {python}" if tidegate else "older") in reply.reason


@pytest.mark.parametrize(("tidegate", "python"), OTHERS)
@pytest.mark.parametrize("epoch", [None, LeaderEpoch(7)], ids=["session cluster", "local"])
def test_a_taskmanager_of_another_version_is_refused(
    tidegate: str, python: str, epoch: LeaderEpoch | None
) -> None:
    shell = Shell(session_cluster=True)
    joins = RegisterTaskManager(
        id=TaskManagerId("x"),
        epoch=epoch,
        address="h:1",
        slots=1,
        pid=1,
        tidegate_version=tidegate,
        python_version=python,
    )
    refused(shell.ask(joins), tidegate, python)
    assert shell.manager.resources.task_managers() == ()
    ours = msgspec.structs.replace(joins, tidegate_version=TIDEGATE, python_version=PYTHON)
    assert isinstance(shell.ask(ours), TaskManagerAccepted)


@pytest.mark.parametrize(("tidegate", "python"), OTHERS)
def test_a_client_of_another_version_is_refused_by_a_session_cluster(
    tidegate: str, python: str
) -> None:
    shell = Shell(session_cluster=True)
    given = msgspec.structs.replace(
        submission(),
        settings=Config().to_dict(),
        tidegate_version=tidegate,
        python_version=python,
    )
    refused(shell.ask(SubmitJob(submission=given)), tidegate, python)
    assert shell.stored == []


@pytest.mark.parametrize(("tidegate", "python"), OTHERS)
def test_a_jobmaster_of_another_version_is_refused(tidegate: str, python: str) -> None:
    shell, job = Shell(session_cluster=False), JobName("a")
    given = msgspec.structs.replace(submission(), settings=Config().to_dict())
    shell.ask(SubmitJob(submission=given))
    shell.manager.handle(lambda: shell.manager._submission_stored(job))
    registers = RegisterJobMaster(
        job=job,
        epoch=shell.manager.epoch,
        address="h:1",
        pid=100,
        tidegate_version=tidegate,
        python_version=python,
    )
    refused(shell.ask(registers), tidegate, python)
    ours = msgspec.structs.replace(registers, tidegate_version=TIDEGATE, python_version=PYTHON)
    assert isinstance(shell.ask(ours), JobMasterAccepted)


def test_slot_of_another_version_fails_the_attempt_and_is_reported() -> None:
    """The next attempt may get slots of other hosts."""
    shell = JobMasterShell()
    shell.claims(1)
    shell.registers(1, 0, allocation_id=3, tidegate="0.0.9")
    shell.recovers(1)
    assert shell.state() not in {JobState.DEPLOYING, JobState.RUNNING, JobState.FAILED}
    assert f"has tidegate 0.0.9 and Python {PYTHON}" in (shell.reported_error() or "")
