"""The event loop: order, timers, work in threads, and how it ends."""

import errno
import threading
import time

import pytest

from tidegate.controlplane.loop import EventLoop, PendingRequest
from tidegate.drivers.clock import SystemClock
from tidegate.drivers.threads import SystemThreads
from tidegate.errors import (
    InternalError,
    ResourceExhaustedError,
    RpcError,
    StorageError,
    SystemCallError,
    TidegateError,
)
from tidegate.protocol.messages import Acknowledge, ListJobs


class VirtualClock:
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def now_ms(self) -> int:
        return int(self.now * 1000)

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def loop(clock: VirtualClock) -> EventLoop[str]:
    return EventLoop(clock, SystemThreads())


def handled(loop: EventLoop[str]) -> list[str]:
    events: list[str] = []
    loop.run_due(events.append)
    return events


def test_posted_events_are_handled_in_order(loop: EventLoop[str]) -> None:
    for event in "abc":
        loop.post(event)
    assert handled(loop) == ["a", "b", "c"]
    assert handled(loop) == []


def test_timers_fire_when_due_in_the_order_of_their_times(
    loop: EventLoop[str], clock: VirtualClock
) -> None:
    loop.call_later(2, "late")
    loop.call_later(1, "early")
    loop.call_later(1, "early too")
    loop.call_later(1, "never").cancel()
    assert handled(loop) == []
    clock.now = 1
    assert handled(loop) == ["early", "early too"]
    clock.now = 2
    assert handled(loop) == ["late"]


def test_a_handler_may_post_and_set_timers(loop: EventLoop[str], clock: VirtualClock) -> None:
    seen: list[str] = []

    def handle(event: str) -> None:
        seen.append(event)
        if event == "first":
            loop.post("second")
            loop.call_later(0, "third")

    loop.post("first")
    loop.run_due(handle)
    assert sorted(seen) == ["first", "second", "third"]


def test_result_or_error_of_submitted_work_becomes_an_event() -> None:
    loop: EventLoop[str] = EventLoop(SystemClock(), SystemThreads())
    seen: list[str] = []

    def handle(event: str) -> None:
        seen.append(event)
        if len(seen) == 2:
            loop.stop()

    def fails() -> str:
        raise StorageError("full")

    loop.submit(lambda: threading.current_thread().name, lambda name: f"done in {name}", str)
    loop.submit(fails, str, lambda error: f"failed: {error}")
    loop.run(handle)
    assert any(event.startswith("done in work") for event in seen)
    assert "failed: full" in seen


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OSError(errno.EMFILE, "too many open files"), ResourceExhaustedError),
        (OSError(errno.EIO, "input/output error"), SystemCallError),
        (MemoryError(), ResourceExhaustedError),
        (RuntimeError("can't start new thread"), ResourceExhaustedError),
    ],
)
def test_operating_system_error_in_submitted_work_becomes_an_event(
    error: Exception, kind: type[TidegateError]
) -> None:
    loop: EventLoop[type] = EventLoop(SystemClock(), SystemThreads())
    seen: list[type] = []

    def fails() -> type:
        raise error

    def handle(event: type) -> None:
        seen.append(event)
        loop.stop()

    loop.submit(fails, type, type)
    loop.run(handle)
    assert seen == [kind]


@pytest.mark.parametrize("bug", [ZeroDivisionError(), RuntimeError("dictionary changed size")])
def test_a_bug_in_work_ends_the_loop(bug: Exception) -> None:
    def fails() -> str:
        raise bug

    loop: EventLoop[str] = EventLoop(SystemClock(), SystemThreads())
    loop.submit(fails, str, str)
    with pytest.raises(type(bug)):
        loop.run(lambda _: None)


def test_a_bug_in_a_handler_ends_the_loop() -> None:
    loop: EventLoop[str] = EventLoop(SystemClock(), SystemThreads())
    loop.post("x")

    def handle(_: str) -> None:
        raise InternalError("a transition that is none")

    with pytest.raises(InternalError):
        loop.run(handle)


def test_loop_raises_internal_error_if_its_queue_is_full(clock: VirtualClock) -> None:
    loop: EventLoop[str] = EventLoop(clock, SystemThreads(), capacity=2)
    loop.post("a")
    loop.post("b")
    with pytest.raises(InternalError, match="behind"):
        loop.post("c")


def test_stop_wakes_a_loop_that_waits() -> None:
    loop: EventLoop[str] = EventLoop(SystemClock(), SystemThreads())
    threading.Timer(0.05, loop.stop).start()
    began = time.monotonic()
    loop.run(lambda _: None)
    assert time.monotonic() - began < 5


def test_a_timer_wakes_a_loop_that_waits() -> None:
    loop: EventLoop[str] = EventLoop(SystemClock(), SystemThreads())
    loop.call_later(0.02, "due")
    seen: list[str] = []

    def handle(event: str) -> None:
        seen.append(event)
        loop.stop()

    loop.run(handle)
    assert seen == ["due"]


class TestQuestion:
    def test_pending_request_is_answered_by_the_loop(self) -> None:
        loop: EventLoop[PendingRequest] = EventLoop(SystemClock(), SystemThreads())
        replies: list[object] = []

        def rpc_thread() -> None:
            replies.append(loop.request(lambda pending_request: pending_request, ListJobs()))
            loop.stop()

        thread = threading.Thread(target=rpc_thread)
        thread.start()
        loop.run(lambda pending_request: pending_request.reply(Acknowledge()))
        thread.join()
        assert replies == [Acknowledge()]

    def test_failed_pending_request_raises_its_error(self) -> None:
        pending_request = PendingRequest(ListJobs(), SystemThreads().queue())
        pending_request.fail(StorageError("full"))
        with pytest.raises(StorageError, match="full"):
            pending_request.wait(1)

    def test_pending_request_without_an_answer_times_out(self) -> None:
        pending_request = PendingRequest(ListJobs(), SystemThreads().queue())
        with pytest.raises(RpcError, match="ListJobs was not answered"):
            pending_request.wait(0.01)


def test_worker_threads_end_with_the_loop() -> None:
    before = set(threading.enumerate())
    loop: EventLoop[str] = EventLoop(SystemClock(), SystemThreads())
    loop.submit(lambda: "x", lambda _: "done", str)
    loop.run(lambda _: loop.stop())
    deadline = time.monotonic() + 5
    while set(threading.enumerate()) - before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert set(threading.enumerate()) - before == set()
