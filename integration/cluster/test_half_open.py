"""Half-open connections: the other end is gone without notice, and only one call is lost.

The tests use the proxy that can forget connections. A client gets no answer, no end of the
connection and no error. Only the call that times out shows that the other end is gone.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from integration.faults.kill_matrix.proxy import Network, Proxy
from tidegate.drivers.rpc import channel
from tidegate.drivers.rpc.channel import GrpcRpc
from tidegate.errors import RpcError
from tidegate.ports.rpc import RpcClient
from tidegate.protocol.messages import Acknowledge, ListJobs

pytestmark = pytest.mark.slow

ASKED_MS = 5_000
"""The interval of keepalive pings, in ms. That of a cluster's connections is 12 times as long."""
IDLE_S = 21.0
"""The time without a call, in seconds: four keepalive pings, which a server could reject."""


@contextmanager
def connected() -> Iterator[tuple[Proxy, RpcClient]]:
    """Yield a proxy and a client that has reached its server through it."""
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


def test_idle_control_connection_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {**dict(channel.CLIENT_OPTIONS), "grpc.keepalive_time_ms": ASKED_MS}
    monkeypatch.setattr(channel, "CLIENT_OPTIONS", list(options.items()))
    with connected() as (proxy, client):
        time.sleep(IDLE_S)
        client.call(ListJobs())
        assert proxy.accepted == 1
