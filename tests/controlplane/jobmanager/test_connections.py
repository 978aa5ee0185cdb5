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


def test_a_new_process_at_an_address_gets_a_new_connection() -> None:
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


def test_of_too_many_the_one_that_was_used_longest_ago_is_closed(
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
