"""Both ends of a control connection: replies, errors, deadlines, and nothing left open."""

import threading
import time

import psutil
import pytest

from tidegate.drivers.rpc.channel import MESSAGE_BYTES_MAX, GrpcRpc
from tidegate.errors import DeposedError, InternalError, RpcError, UserCodeError
from tidegate.ids import JobName
from tidegate.protocol.messages import Done, GetJob, JobReport, ListJobs, Message, Refused


@pytest.fixture
def rpc() -> GrpcRpc:
    return GrpcRpc()


def test_a_message_comes_back_as_its_reply(rpc: GrpcRpc) -> None:
    seen: list[Message] = []

    def handler(message: Message) -> Message:
        seen.append(message)
        return JobReport(job=JobName("a"), state="RUNNING")

    server, client = rpc.serve(handler), None
    try:
        client = rpc.connect(server.address)
        reply = client.call(GetJob(job=JobName("a")))
        assert reply == JobReport(job=JobName("a"), state="RUNNING")
        assert seen == [GetJob(job=JobName("a"))]
    finally:
        if client is not None:
            client.close()
        server.close()


@pytest.mark.parametrize(
    ("raised", "arrives", "words"),
    [
        (DeposedError("a newer claim"), DeposedError, "a newer claim"),
        (UserCodeError("step x failed"), UserCodeError, "step x failed"),
        (KeyError("ours"), InternalError, "KeyError: 'ours'"),
    ],
)
def test_what_a_handler_raises_is_raised_at_the_caller(
    rpc: GrpcRpc,
    raised: Exception,
    arrives: type[Exception],
    words: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def handler(_: Message) -> Message:
        raise raised

    server = rpc.serve(handler)
    client = rpc.connect(server.address)
    with pytest.raises(arrives, match=words):
        client.call(ListJobs())
    assert bool(caplog.records) == isinstance(raised, KeyError)  # a bug is logged where it happened
    client.close()
    server.close()


def test_a_refusal_is_a_value(rpc: GrpcRpc) -> None:
    server = rpc.serve(lambda _: Refused(reason="no"))
    client = rpc.connect(server.address)
    assert client.call(ListJobs()) == Refused(reason="no")
    client.close()
    server.close()


def test_an_address_where_nobody_is_fails_at_once_and_is_named(rpc: GrpcRpc) -> None:
    server = rpc.serve(lambda _: Done())
    address = server.address
    server.close()
    client = rpc.connect(address)
    began = time.monotonic()
    with pytest.raises(RpcError, match=f"ListJobs to {address} failed: nobody answers"):
        client.call(ListJobs())
    assert time.monotonic() - began < 3
    client.close()


def test_a_handler_that_takes_too_long_is_not_awaited(rpc: GrpcRpc) -> None:
    leave = threading.Event()

    def handler(_: Message) -> Message:
        leave.wait(10)
        return Done()

    server = rpc.serve(handler)
    client = rpc.connect(server.address)
    with pytest.raises(RpcError, match=r"no reply within 0\.1 s"):
        client.call(ListJobs(), timeout_s=0.1)
    leave.set()
    client.close()
    server.close()


def test_a_server_that_comes_back_at_its_address_is_reached_soon(rpc: GrpcRpc) -> None:
    """A reconnect waits for gRPC's back-off: ours is short."""
    import grpc

    server = rpc.serve(lambda _: Done())
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


def test_a_closed_client_says_so(rpc: GrpcRpc) -> None:
    server = rpc.serve(lambda _: Done())
    client = rpc.connect(server.address)
    client.close()
    with pytest.raises(RpcError, match="its connection is shut"):
        client.call(ListJobs())
    server.close()


def test_large_messages_pass(rpc: GrpcRpc) -> None:
    large = "x" * (MESSAGE_BYTES_MAX // 4)
    server = rpc.serve(lambda _: Refused(reason=large))
    client = rpc.connect(server.address)
    assert client.call(Refused(reason=large)) == Refused(reason=large)
    client.close()
    server.close()


def test_a_host_that_is_not_ours_is_refused(rpc: GrpcRpc) -> None:
    with pytest.raises(RpcError, match=r"Cannot listen on 192\.0\.2\.1"):
        rpc.serve(lambda _: Done(), host="192.0.2.1")


def test_many_threads_may_share_a_client(rpc: GrpcRpc) -> None:
    server = rpc.serve(lambda message: message)
    client = rpc.connect(server.address)
    wrong: list[int] = []

    def calls(number: int) -> None:
        sent = Refused(reason=str(number))
        wrong.extend(number for _ in range(50) if client.call(sent) != sent)

    threads = [threading.Thread(target=calls, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    client.close()
    server.close()


def test_nothing_is_left_open(rpc: GrpcRpc) -> None:
    def once() -> None:
        server = rpc.serve(lambda _: Done())
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
