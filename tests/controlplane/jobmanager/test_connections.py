"""The JobManager's connections: one for each address, and a new one for a new process there."""

from __future__ import annotations

from typing import Any

import pytest

from tidegate.controlplane.jobmanager import connections as module
from tidegate.controlplane.jobmanager.connections import Connections
from tidegate.drivers.threads import SystemThreads
from tidegate.protocol.messages import Acknowledge, Message


class Rpc:
    """Counts the connections that are made and closed."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.closed: list[str] = []

    def connect(self, address: str) -> Any:
        self.made.append(address)
        rpc = self

        class Line:
            def call(self, message: Message, timeout_s: float = 10.0) -> Message:
                return message

            def close(self) -> None:
                rpc.closed.append(address)

        return Line()

    def serve(self, handler: Any, port: int = 0) -> Any:
        raise NotImplementedError


def test_connection_is_closed_and_reopened_after_its_address_is_invalidated() -> None:
    rpc = Rpc()
    connections = Connections(rpc, SystemThreads())
    for _ in range(2):
        assert connections.call("x", Acknowledge()) == Acknowledge()
    assert rpc.made == ["x"]
    connections.invalidate("x")
    connections.invalidate("nobody")
    assert rpc.closed == ["x"]
    connections.call("x", Acknowledge())
    assert rpc.made == ["x", "x"]


def test_least_recently_used_connection_is_closed_above_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "OPEN_MAX", 2)
    rpc = Rpc()
    connections = Connections(rpc, SystemThreads())
    for address in ("x", "y", "x", "z"):
        connections.call(address, Acknowledge())
    assert rpc.closed == ["y"]
    connections.call("x", Acknowledge())
    assert rpc.made == ["x", "y", "z"]
