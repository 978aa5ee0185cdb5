"""A Dispatcher without jobs, and one whose job runs."""

from __future__ import annotations

import pytest

from tests.controlplane.jobmanager.dispatching import A, Shell, submission
from tidegate.controlplane.jobmanager import dispatcher_events as j
from tidegate.protocol.messages import SubmitJob


@pytest.fixture
def shell() -> Shell:
    return Shell()


@pytest.fixture
def running(shell: Shell) -> Shell:
    """Its JobMaster, process 100, has reported attempt 1."""
    shell.ask(SubmitJob(submission=submission()))
    shell.event(j.SubmissionStored(job=A))
    shell.started(100)
    return shell
