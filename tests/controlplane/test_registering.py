"""How a TaskManager registers: one that was started here fails at once, a standing one waits."""

from __future__ import annotations

import math

import pytest

from tests.controlplane.test_client import Lines
from tests.controlplane.test_loop import VirtualClock
from tidegate.controlplane.taskmanager.service import _register
from tidegate.errors import RpcError
from tidegate.ids import LeaderEpoch, TaskManagerId
from tidegate.protocol.messages import RegisterTaskManager, TaskManagerAccepted

JOINS = RegisterTaskManager(id=TaskManagerId("x"), epoch=None, address="a:1", slots=1, pid=1)
ACCEPTED = TaskManagerAccepted(epoch=LeaderEpoch(3))


def test_a_standing_one_waits_for_as_long_as_it_takes(caplog: pytest.LogCaptureFixture) -> None:
    lines = Lines(*[RpcError("nobody answers")] * 200, ACCEPTED)
    assert _register(lines.connect("jm"), JOINS, VirtualClock(), math.inf) == ACCEPTED
    assert {message for _, message in lines.calls} == {JOINS}
    told = [record.message for record in caplog.records]
    assert told == ["waiting for the JobManager: nobody answers"] * 4, "every 30 s of 100"


def test_one_that_was_started_by_a_jobmanager_does_not_wait() -> None:
    lines = Lines(RpcError("nobody answers"))
    with pytest.raises(RpcError):
        _register(lines.connect("jm"), JOINS, VirtualClock(), 0.0)
    assert len(lines.calls) == 1
