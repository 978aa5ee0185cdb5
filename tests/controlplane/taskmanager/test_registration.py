"""How a TaskManager talks to its JobManager: how it registers, and how long it waits for a reply.

A TaskManager that a JobManager started fails at once if it gets no answer. A standalone one waits.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.controlplane.client.test_client import Lines
from tests.controlplane.test_loop import VirtualClock
from tidegate.config import Config
from tidegate.config_load import checked
from tidegate.controlplane.taskmanager.service import _answer_s, _heartbeat_s, _register, _Service
from tidegate.errors import RpcError
from tidegate.ids import LeaderEpoch, TaskManagerId
from tidegate.protocol.messages import RegisterTaskManager, TaskManagerAccepted
from tidegate.protocol.versions import PYTHON, TIDEGATE

JOINS = RegisterTaskManager(
    id=TaskManagerId("x"),
    epoch=None,
    address="a:1",
    slots=1,
    pid=1,
    tidegate_version=TIDEGATE,
    python_version=PYTHON,
)
ACCEPTED = TaskManagerAccepted(epoch=LeaderEpoch(3))


def test_standalone_taskmanager_retries_registration_without_a_timeout(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lines = Lines(*[RpcError("nobody answers")] * 200, ACCEPTED)
    assert _register(lines.connect("jm"), JOINS, VirtualClock(), math.inf) == ACCEPTED
    assert {message for _, message in lines.calls} == {JOINS}
    told = [record.message for record in caplog.records]
    assert told == ["waiting for the JobManager: nobody answers"] * 4, "every 30 s of 100"


def test_taskmanager_started_by_a_jobmanager_does_not_retry_registration() -> None:
    lines = Lines(RpcError("nobody answers"))
    with pytest.raises(RpcError):
        _register(lines.connect("jm"), JOINS, VirtualClock(), 0.0)
    assert len(lines.calls) == 1


@pytest.mark.parametrize("standalone", [True, False])
@pytest.mark.parametrize(
    ("interval", "timeout"), [("1 s", "15 s"), ("1 s", "3 s"), ("5 s", "15 s"), ("2 s", "30 s")]
)
def test_heartbeat_timeout_leaves_time_for_another_heartbeat_after_a_lost_one(
    interval: str, timeout: str, standalone: bool
) -> None:
    """A connection that has gone silent is found out by it, and the next one has a new one."""
    cluster = {"heartbeat_interval": interval, "heartbeat_timeout": timeout}
    config = checked(Config, {"cluster": cluster})
    every_s, waits = _heartbeat_s(config, standalone=standalone), list[float]()
    service: Any = SimpleNamespace(
        loop=SimpleNamespace(submit=lambda call, *_: call()),
        jobmanager=SimpleNamespace(call=lambda _, timeout_s: waits.append(timeout_s)),
        answer_s=_answer_s(config),
    )
    _Service._send(service, cast("Any", JOINS))
    lost_s = every_s + waits[0]
    next_s = math.ceil(lost_s / every_s) * every_s
    assert lost_s < next_s < config.cluster.heartbeat_timeout / 1000
