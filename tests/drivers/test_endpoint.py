"""What a process listens on and how it is reached, for RPC and exchange, on real sockets."""

from __future__ import annotations

import shutil
import socket
import stat

import pytest

from tidegate.bootstrap import require_insecure
from tidegate.drivers.endpoint import LOOPBACK, Endpoint, own_address_towards
from tidegate.drivers.local_sockets import make_socket_dir
from tidegate.drivers.system import SystemDrivers
from tidegate.errors import ConfigError, RpcError
from tidegate.protocol.messages import Acknowledge


def test_ipv6_address_is_advertised_in_brackets() -> None:
    assert Endpoint(host="::1").advertised_address(7) == "[::1]:7"
    assert Endpoint(host="jobmanager", bind_host="0.0.0.0").advertised_address(7) == "jobmanager:7"
    assert Endpoint(host="jobmanager", bind_host="0.0.0.0").bind_address == "0.0.0.0"
    assert LOOPBACK.bind_address == "127.0.0.1"


def test_own_address_is_that_of_the_route_to_the_target() -> None:
    assert own_address_towards("127.0.0.1", 6123) == "127.0.0.1"
    with pytest.raises(RpcError, match=r"no way to nowhere\.invalid:6123"):
        own_address_towards("nowhere.invalid", 6123)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2"])
def test_server_advertises_its_host_name_and_listens_on_its_bind_host(host: str) -> None:
    drivers = SystemDrivers(Endpoint(host="localhost", bind_host=host))
    server = drivers.rpc.serve(lambda _: Acknowledge())
    try:
        name, _, port = server.address.rpartition(":")
        assert name == "localhost"
        client = drivers.rpc.connect(f"{host}:{port}")
        assert client.call(Acknowledge()) == Acknowledge()
        client.close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.3", int(port)), timeout=5)
    finally:
        server.close()


def test_server_takes_the_requested_port_and_refuses_a_port_in_use() -> None:
    drivers = SystemDrivers()
    with socket.create_server(("127.0.0.1", 0)) as held:
        port: int = held.getsockname()[1]
        with pytest.raises(RpcError, match=f"Cannot listen on 127.0.0.1:{port}: another process"):
            drivers.rpc.serve(lambda _: Acknowledge(), port)
        # gRPC itself would listen on [::1] alone, and clients would reach the other process.
        by_name = SystemDrivers(Endpoint(host="localhost"))
        with pytest.raises(RpcError, match=f"Cannot listen on localhost:{port}: another process"):
            by_name.rpc.serve(lambda _: Acknowledge(), port)
    server = drivers.rpc.serve(lambda _: Acknowledge(), port)
    assert server.address == f"127.0.0.1:{port}"
    server.close()


def test_exchange_uses_a_unix_socket_on_one_host_and_tcp_between_hosts() -> None:
    near = SystemDrivers().exchange(job="a", attempt=1, ordinal=0)
    assert near.address.startswith("unix:")
    near.close()
    endpoint = Endpoint(host="taskmanager1", bind_host="127.0.0.2")
    far = SystemDrivers(endpoint).exchange(job="a", attempt=1, ordinal=0)
    try:
        name, _, port = far.address.rpartition(":")
        assert name == "taskmanager1"
        socket.create_connection(("127.0.0.2", int(port)), timeout=5).close()
    finally:
        far.close()


def test_a_local_cluster_listens_on_a_unix_socket_that_only_its_owner_reaches() -> None:
    folder = make_socket_dir("tidegate-test-")
    drivers = SystemDrivers(Endpoint(socket_dir=str(folder)))
    server = drivers.rpc.serve(lambda message: message)
    try:
        assert server.address.startswith(f"unix:{folder}/")
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        client = drivers.rpc.connect(server.address)
        assert client.call(Acknowledge()) == Acknowledge()
        client.close()
    finally:
        server.close()
        shutil.rmtree(folder)


def test_a_server_does_not_listen_in_a_folder_that_others_reach() -> None:
    folder = make_socket_dir("tidegate-test-")
    drivers = SystemDrivers(Endpoint(socket_dir=str(folder)))
    try:
        folder.chmod(0o755)
        with pytest.raises(RpcError, match="only this user can reach"):
            drivers.rpc.serve(lambda message: message)
    finally:
        shutil.rmtree(folder)


def test_server_recreates_the_removed_folder_of_its_socket() -> None:
    folder = make_socket_dir("tidegate-test-")
    folder.rmdir()
    drivers = SystemDrivers(Endpoint(socket_dir=str(folder)))
    server = drivers.rpc.serve(lambda message: message)
    try:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    finally:
        server.close()
        shutil.rmtree(folder)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.9", "localhost", "::1"])
def test_a_loopback_address_needs_no_consent(host: str) -> None:
    require_insecure(Endpoint(host=host), "jobmanager", insecure=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_an_address_that_other_hosts_reach_is_refused_without_consent(
    host: str, caplog: pytest.LogCaptureFixture
) -> None:
    endpoint = Endpoint(host="localhost", bind_host=host)
    with pytest.raises(ConfigError, match=r"(?s)listens on .* start the taskmanager with --insecu"):
        require_insecure(endpoint, "taskmanager", insecure=False)
    assert not caplog.records
    require_insecure(endpoint, "taskmanager", insecure=True)
    assert "can run code as this user" in caplog.records[0].message


def test_host_name_that_cannot_be_resolved_is_refused() -> None:
    with pytest.raises(RpcError, match=r"'nowhere\.invalid' cannot be resolved"):
        require_insecure(Endpoint(host="nowhere.invalid"), "jobmanager", insecure=True)
