"""Connections whose other end is gone without a word: the call that finds out is the only one lost.

Over the proxy that forgets them. Nothing else tells a client: no answer, no end, no error.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from integration.chaos.proxy import Network, Proxy
from tidegate.drivers.rpc import channel
from tidegate.drivers.rpc.channel import GrpcRpc
from tidegate.errors import RpcError
from tidegate.ports.rpc import RpcClient
from tidegate.protocol.messages import Acknowledge, ListJobs

ASKED_MS = 5_000
"""Twelve times as often as a cluster's connections are asked."""
IDLE_S = 21.0
"""Long enough for a server to take offence at four questions without a call."""


@contextmanager
def connected() -> Iterator[tuple[Proxy, RpcClient]]:
    """A client that has reached its server, through a proxy."""
    rpc = GrpcRpc()
    server = rpc.serve(lambda _: Acknowledge())
    with Network() as network:
        proxy = network.proxy(server.address)
        client = rpc.connect(proxy.address)
        client.call(ListJobs())
        yield proxy, client
        client.close()
        server.close()


def test_a_half_open_control_connection_is_replaced() -> None:
    with connected() as (proxy, client):
        assert proxy.forget() == 1
        with pytest.raises(RpcError, match="no reply within 1 s"):
            client.call(ListJobs(), timeout_s=1.0)
        assert client.call(ListJobs()) == Acknowledge()
        assert proxy.accepted == 2


def test_an_idle_connection_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {**dict(channel.CLIENT_OPTIONS), "grpc.keepalive_time_ms": ASKED_MS}
    monkeypatch.setattr(channel, "CLIENT_OPTIONS", list(options.items()))
    with connected() as (proxy, client):
        time.sleep(IDLE_S)
        client.call(ListJobs())
        assert proxy.accepted == 1
