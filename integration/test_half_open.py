"""Connections whose other end is gone without a word: they are noticed, and replaced.

Over the proxy that forgets them. Nothing else tells a client: no answer, no end, no error.
"""

from __future__ import annotations

import time

import pytest

from integration.chaos.proxy import Network
from tidegate.drivers.rpc.channel import GrpcRpc
from tidegate.errors import RpcError
from tidegate.protocol.messages import Done, ListJobs

NOTICED_S_MAX = 15.0
"""Six seconds are due; a heartbeat timeout is this long by default."""
IDLE_S = 9.0
"""Long enough for a server to take offence at four questions without a call."""


def test_a_half_open_control_connection_is_replaced() -> None:
    rpc = GrpcRpc()
    server = rpc.serve(lambda _: Done())
    with Network() as network:
        proxy = network.proxy(server.address)
        client = rpc.connect(proxy.address)
        client.call(ListJobs())
        proxy.forget()
        with pytest.raises(RpcError):
            client.call(ListJobs(), timeout_s=0.5)
        end_s = time.monotonic() + NOTICED_S_MAX
        while True:
            try:
                client.call(ListJobs(), timeout_s=0.5)
                break
            except RpcError:
                assert time.monotonic() < end_s, "calls go on into the void"
        assert proxy.accepted == 2
        client.close()
        server.close()


def test_an_idle_control_connection_stays() -> None:
    rpc = GrpcRpc()
    server = rpc.serve(lambda _: Done())
    with Network() as network:
        proxy = network.proxy(server.address)
        client = rpc.connect(proxy.address)
        client.call(ListJobs())
        time.sleep(IDLE_S)
        client.call(ListJobs())
        assert proxy.accepted == 1
        client.close()
        server.close()
