"""Connections whose other end is gone without a word: they are noticed, and replaced.

Over the proxy that forgets them. Nothing else tells a client: no answer, no end, no error.
"""

from __future__ import annotations

import time

import pytest

from integration.chaos.proxy import Network
from tidegate.drivers.rpc.channel import GrpcRpc
from tidegate.errors import RpcError
from tidegate.ports.rpc import RpcClient
from tidegate.protocol.messages import Done, ListJobs

NOTICED_S_MAX = 45.0
"""15 are due."""
IDLE_S = 21.0
"""Long enough for a server to take offence at four questions without a call."""


def test_a_half_open_control_connection_is_replaced_and_an_idle_one_stays() -> None:
    rpc = GrpcRpc()
    server = rpc.serve(lambda _: Done())
    with Network() as network:
        forgotten, idle = network.proxy(server.address), network.proxy(server.address)
        clients = [rpc.connect(proxy.address) for proxy in (forgotten, idle)]
        for client in clients:
            client.call(ListJobs())
        begun_s = time.monotonic()
        forgotten.forget()
        with pytest.raises(RpcError):
            clients[0].call(ListJobs(), timeout_s=0.5)
        while not answered(clients[0]):
            assert time.monotonic() < begun_s + NOTICED_S_MAX, "calls go on into the void"
        assert forgotten.accepted > 1
        time.sleep(max(0.0, begun_s + IDLE_S - time.monotonic()))
        clients[1].call(ListJobs())
        assert idle.accepted == 1
        for client in clients:
            client.close()
        server.close()


def answered(client: RpcClient) -> bool:
    try:
        client.call(ListJobs(), timeout_s=0.5)
    except RpcError:
        return False
    return True
