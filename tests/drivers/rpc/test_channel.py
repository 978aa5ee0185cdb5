"""Control messages over gRPC: the contract, and what is gRPC's own: backoff, sizes, files."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from tests.contracts.rpc import RpcContract
from tidegate.drivers.endpoint import Endpoint
from tidegate.drivers.rpc.channel import MESSAGE_BYTES_MAX, GrpcRpc
from tidegate.errors import FencedError, InternalError, RpcError
from tidegate.ids import JobName
from tidegate.protocol.messages import Acknowledge, GetJob, ListJobs, Message, Refused


@pytest.fixture
def rpc() -> GrpcRpc:
    return GrpcRpc()


class TestGrpcRpc(RpcContract):
    @pytest.fixture
    def rpc(self) -> GrpcRpc:
        return GrpcRpc()


@pytest.mark.parametrize("raised", [FencedError("a newer claim"), KeyError("ours")])
def test_server_logs_a_handler_bug_and_not_an_expected_error(
    rpc: GrpcRpc, raised: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    def handler(_: Message) -> Message:
        raise raised

    server = rpc.serve(handler)
    client = rpc.connect(server.address)
    with pytest.raises((FencedError, InternalError)):
        client.call(ListJobs())
    assert bool(caplog.records) == isinstance(raised, KeyError)
    client.close()
    server.close()


def test_client_reconnects_within_three_seconds_to_a_restarted_server(rpc: GrpcRpc) -> None:
    """A reconnect waits for gRPC's backoff: ours is short."""
    import grpc

    server = rpc.serve(lambda _: Acknowledge())
    address = server.address
    client = rpc.connect(address)
    client.call(ListJobs())
    server.close()
    with pytest.raises(RpcError):
        client.call(ListJobs())
    again = grpc.server(server._threads.__class__(1))
    assert again.add_insecure_port(address)
    again.start()
    began = time.monotonic()
    while time.monotonic() - began < 10:
        try:
            client.call(ListJobs())
        except RpcError as error:
            if "UNIMPLEMENTED" in str(error):  # this one knows no method: but it was reached
                break
            time.sleep(0.01)
    assert time.monotonic() - began < 3
    client.close()
    again.stop(None).wait()


def test_call_does_not_fail_if_a_busy_server_answers_the_connection_late(rpc: GrpcRpc) -> None:
    """Its kernel takes the connection, and the process speaks later than gRPC's shortest wait for
    a connection, a tenth of a second.
    """
    server = rpc.serve(lambda _: Acknowledge())
    host, port = server.address.rsplit(":", 1)
    with socket.create_server((host, 0)) as late, ThreadPoolExecutor(3) as threads:
        client = rpc.connect(f"{host}:{late.getsockname()[1]}")
        reply = threads.submit(client.call, ListJobs(), 10.0)
        near = late.accept()[0]
        time.sleep(0.5)
        with near, socket.create_connection((host, int(port))) as far:
            threads.submit(_relay, near, far)
            threads.submit(_relay, far, near)
            assert reply.result() == Acknowledge()
            client.close()
            server.close()


def test_silent_connection_is_replaced_after_one_call_timed_out(rpc: GrpcRpc) -> None:
    """The connection has no end and no error. `integration/cluster/test_half_open.py` tests all of
    it.
    """
    server = rpc.serve(lambda _: Acknowledge())
    host, port = server.address.rsplit(":", 1)
    with socket.create_server((host, 0)) as between, ThreadPoolExecutor(4) as threads:
        between.settimeout(10)
        client = rpc.connect(f"{host}:{between.getsockname()[1]}")
        begun = threads.submit(client.call, ListJobs(), 10.0)
        deaf = between.accept()[0]  # it is connected, and that is all
        with pytest.raises(RpcError, match=r"no reply within 0\.3 s"):
            client.call(ListJobs(), 0.3)
        later = threads.submit(client.call, ListJobs(), 10.0)
        near = between.accept()[0]
        with deaf, near, socket.create_connection((host, int(port))) as far:
            threads.submit(_relay, near, far)
            threads.submit(_relay, far, near)
            assert later.result() == Acknowledge()
            assert not begun.done(), "a call under way was taken its connection"
            client.close()
            with pytest.raises(RpcError):
                begun.result()
            server.close()


def test_doubted_connection_finishes_its_calls_and_is_then_closed(rpc: GrpcRpc) -> None:
    leave, begun = threading.Event(), threading.Semaphore(0)

    def handler(message: Message) -> Message:
        if isinstance(message, GetJob):
            begun.release()
            leave.wait(30)
        return Acknowledge()

    def connections() -> int:
        ends = psutil.Process().net_connections()
        return sum(each.raddr[1:] == (port,) and each.status == "ESTABLISHED" for each in ends)

    server = rpc.serve(handler)
    port = int(server.address.rsplit(":", 1)[1])
    client = rpc.connect(server.address)
    slow = GetJob(job=JobName("slow"))
    with ThreadPoolExecutor(3) as threads, contextlib.ExitStack() as at_last:
        at_last.callback(leave.set)
        under_way = threads.submit(client.call, slow, 30.0)
        assert begun.acquire(timeout=10)
        for _ in range(2):
            for late in [threads.submit(client.call, slow, 0.2) for _ in range(2)]:
                with pytest.raises(RpcError, match="no reply"):
                    late.result()
        assert len(client._connections) == 2, "two late calls are one doubt"
        assert client.call(ListJobs()) == Acknowledge()
        until(lambda: connections() == 2, "the first, and the last of those that took its place")
        leave.set()
        assert under_way.result() == Acknowledge()
    until(lambda: connections() == 1, "the doubted connection is gone")
    client.close()
    server.close()


def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def _relay(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


def test_large_messages_pass(rpc: GrpcRpc) -> None:
    large = "x" * (MESSAGE_BYTES_MAX // 4)
    server = rpc.serve(lambda _: Refused(reason=large))
    client = rpc.connect(server.address)
    assert client.call(Refused(reason=large)) == Refused(reason=large)
    client.close()
    server.close()


def test_serve_on_a_foreign_host_address_is_refused(rpc: GrpcRpc) -> None:
    with pytest.raises(RpcError, match=r"Cannot listen on 192\.0\.2\.1"):
        GrpcRpc(Endpoint(host="192.0.2.1")).serve(lambda _: Acknowledge())


def test_closed_servers_and_clients_leave_no_open_file(rpc: GrpcRpc) -> None:
    def once() -> None:
        server = rpc.serve(lambda _: Acknowledge())
        client = rpc.connect(server.address)
        client.call(ListJobs())
        client.close()
        server.close()

    me = psutil.Process()
    for _ in range(3):
        once()
    before = me.num_fds()
    for _ in range(10):
        once()
    deadline = time.monotonic() + 5
    while me.num_fds() > before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert me.num_fds() <= before
