"""What a process listens on and how it is reached, for RPC and exchange, on real sockets."""

from __future__ import annotations

import socket

import pytest

from tidegate.drivers.bundle import RealDrivers
from tidegate.drivers.network import THIS_HOST, Network, own_address_towards
from tidegate.errors import RpcError
from tidegate.protocol.messages import Done


def test_an_address_of_the_sixth_version_is_shown_in_brackets() -> None:
    assert Network(host="::1").shown(7) == "[::1]:7"
    assert Network(host="jobmanager", bind_host="0.0.0.0").shown(7) == "jobmanager:7"
    assert Network(host="jobmanager", bind_host="0.0.0.0").listens_on == "0.0.0.0"
    assert THIS_HOST.listens_on == "127.0.0.1"


def test_one_s_own_address_is_that_of_the_way_there() -> None:
    assert own_address_towards("127.0.0.1", 6123) == "127.0.0.1"
    with pytest.raises(RpcError, match=r"no way to nowhere\.invalid:6123"):
        own_address_towards("nowhere.invalid", 6123)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2"])
def test_a_server_is_reached_by_its_name_and_listens_where_it_is_told(host: str) -> None:
    drivers = RealDrivers(Network(host="localhost", bind_host=host))
    server = drivers.rpc.serve(lambda _: Done())
    try:
        name, _, port = server.address.rpartition(":")
        assert name == "localhost"
        client = drivers.rpc.connect(f"{host}:{port}")
        assert client.call(Done()) == Done()
        client.close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.3", int(port)), timeout=5)
    finally:
        server.close()


def test_a_port_that_is_asked_for_is_taken_and_not_shared() -> None:
    drivers = RealDrivers()
    with socket.create_server(("127.0.0.1", 0)) as held:
        port: int = held.getsockname()[1]
        with pytest.raises(RpcError, match=f"Cannot listen on 127.0.0.1:{port}"):
            drivers.rpc.serve(lambda _: Done(), port)
    server = drivers.rpc.serve(lambda _: Done(), port)
    assert server.address == f"127.0.0.1:{port}"
    server.close()


def test_slots_of_one_host_meet_on_a_unix_socket_and_those_of_several_over_tcp() -> None:
    near = RealDrivers().exchange(job="a", attempt=1, ordinal=0)
    assert near.address.startswith("unix:")
    near.close()
    network = Network(host="taskmanager1", bind_host="127.0.0.2")
    far = RealDrivers(network).exchange(job="a", attempt=1, ordinal=0)
    try:
        name, _, port = far.address.rpartition(":")
        assert name == "taskmanager1"
        socket.create_connection(("127.0.0.2", int(port)), timeout=5).close()
    finally:
        far.close()
