"""The loop of a control-plane process: one thread that takes events in turn and hands them to a
machine.

Everything else reports to it by `post`: RPC handlers, waiters on child processes, worker threads.
So a machine needs no lock, and what it saw is one sequence that a test can repeat. The loop decides
nothing and never blocks in a call of its own; blocking work goes through `submit` and comes back as
an event. A bug (an exception that is no outcome) ends `run`: the process dies and is started again
from what is durable, instead of going on with half a transition.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import queue
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tidegate.errors import RpcError, TidegateError, check, foreign_translated
from tidegate.ports.clock import Clock
from tidegate.ports.threads import Queue, Threads
from tidegate.protocol.messages import Message

E = TypeVar("E")
T = TypeVar("T")

CAPACITY = 10_000
"""Events waiting at most. A cluster of 256 slots produces about 1,000 a second, so a loop that is
ten seconds behind is not slow but stuck, and its process is better replaced."""

REPLY_TIMEOUT_S = 30.0
"""How long an RPC thread waits for the loop's answer; callers give up after 10 s by default."""

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Timer:
    """A pending `call_later`."""

    due: float
    event: Any
    cancelled: bool = False

    def cancel(self) -> None:
        """The event will not come; nothing happens if it has."""
        self.cancelled = True


@dataclass(slots=True, eq=False)
class PendingRequest:
    """A message that came by RPC and waits for its reply; `reply` or `fail` it exactly once."""

    message: Message
    _reply: Queue[Message | TidegateError]

    def reply(self, reply: Message) -> None:
        self._reply.put(reply)

    def fail(self, error: TidegateError) -> None:
        """Raise at the caller."""
        self._reply.put(error)

    def wait(self, timeout_s: float) -> Message:
        """Called by the RPC thread."""
        try:
            reply = self._reply.get(timeout=timeout_s)
        except queue.Empty:
            raise RpcError(
                f"{type(self.message).__name__} was not answered within {timeout_s:g} s: the "
                "process is overloaded or waits for its storage; the caller asks again."
            ) from None
        if isinstance(reply, TidegateError):
            raise reply
        return reply


@dataclass(slots=True, frozen=True)
class _UnexpectedError:
    error: BaseException


class EventLoop(Generic[E]):
    """Events of one type, handled one after the other in the thread that calls `run`.

    `post`, `call_later`, `submit`, `ask` and `stop` may be called from any thread; `post` also from
    a signal handler.
    """

    def __init__(
        self, clock: Clock, threads: Threads, *, workers: int = 8, capacity: int = CAPACITY
    ) -> None:
        self._clock, self._threads = clock, threads
        self._capacity = capacity
        self._posted: Queue[E | Timer | _UnexpectedError | None] = threads.queue()
        self._timers: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()
        self._stopped = threads.event()
        self._pool = threads.pool(workers, name="work")

    def post(self, event: E) -> None:
        """Hand over an event; never blocks. InternalError when the loop is hopelessly behind."""
        self._put(event)

    def call_later(self, seconds: float, event: E) -> Timer:
        """Post `event` after `seconds`, unless the returned timer is cancelled before."""
        timer = Timer(self._clock.monotonic() + max(seconds, 0.0), event)
        self._put(timer)
        return timer

    def submit(
        self,
        work: Callable[[], T],
        done: Callable[[T], E],
        failed: Callable[[TidegateError], E],
    ) -> None:
        """Run `work` in a worker thread and post `done(result)` or `failed(error)`.

        What the operating system failed to do is such an error too (`errors.foreign_translated`),
        because it may pass. Any other exception is a bug and ends `run`.
        """
        if not self._stopped.is_set():
            self._pool.submit(lambda: self._work(work, done, failed))

    def ask(self, make: Callable[[PendingRequest], E], message: Message) -> Message:
        """Post `make(question)` and wait for the answer: the body of an RPC handler."""
        question = PendingRequest(message, self._threads.queue())
        self.post(make(question))
        return question.wait(REPLY_TIMEOUT_S)

    def run(self, handle: Callable[[E], None]) -> None:
        """Handle events until `stop`; raises what `handle` raises, and bugs of submitted work."""
        try:
            while not self._stopped.is_set():
                event = self._next(block=True)
                if event is not None:
                    handle(event)
        finally:
            self.close()

    def run_due(self, handle: Callable[[E], None]) -> int:
        """Handle what is there and due, without waiting; returns how many events that were.

        For tests under a virtual clock.
        """
        handled = 0
        while (event := self._next(block=False)) is not None:
            handle(event)
            handled += 1
        return handled

    def stop(self) -> None:
        """End `run` after the present event; what still waits is dropped."""
        self._stopped.set()
        self._posted.put(None)

    def close(self) -> None:
        """Release the worker threads without waiting for what they do."""
        self._stopped.set()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _put(self, item: E | Timer | _UnexpectedError) -> None:
        behind = self._posted.qsize()
        check(behind < self._capacity, f"The event loop is {behind} events behind: it is stuck.")
        self._posted.put(item)

    def _work(
        self,
        work: Callable[[], T],
        done: Callable[[T], E],
        failed: Callable[[TidegateError], E],
    ) -> None:
        try:
            try:
                with foreign_translated():
                    event = done(work())
            except TidegateError as error:
                _log.debug("work failed: %s", error)
                event = failed(error)
            self._put(event)
        except BaseException as error:  # noqa: BLE001  # handed to run(), which raises it
            self._posted.put(_UnexpectedError(error))

    def _next(self, *, block: bool) -> E | None:
        """The next due event; None when there is none (not blocking) or at `stop`."""
        while True:
            due_in = self._due_in()
            if due_in is not None and due_in <= 0:
                timer = heapq.heappop(self._timers)[2]
                if not timer.cancelled:
                    return timer.event  # type: ignore[no-any-return]
                continue
            try:
                item = self._posted.get(block=block, timeout=due_in)
            except queue.Empty:
                if block:
                    continue
                return None
            if isinstance(item, Timer):
                heapq.heappush(self._timers, (item.due, next(self._order), item))
            elif isinstance(item, _UnexpectedError):
                raise item.error
            else:
                return item

    def _due_in(self) -> float | None:
        return self._timers[0][0] - self._clock.monotonic() if self._timers else None
