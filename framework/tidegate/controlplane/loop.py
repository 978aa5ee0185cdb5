"""The event loop of a control-plane process: one thread takes events in order and gives each one to
a state machine.

All other threads report to the loop by `post`: RPC handlers, threads that wait for child processes,
and worker threads. So a machine needs no lock, and its events are one sequence that a test can
repeat. The loop makes no decisions, and it never blocks in a call of its own. Blocking work goes
through `submit`, and its result comes back as an event. A bug (an exception that is not an expected
outcome) ends `run`. The process then dies and starts again from durable data. It does not continue
after half a transition.
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
"""Maximum number of waiting events. A cluster of 256 slots produces about 1,000 events per second.
A loop that is ten seconds behind is therefore stuck, not slow, and its process must be replaced."""

REPLY_TIMEOUT_S = 30.0
"""Time in seconds for which an RPC thread waits for the reply of the loop. The timeout of a caller
is 10 s by default."""

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Timer:
    """A pending `call_later`."""

    due: float
    event: Any
    cancelled: bool = False

    def cancel(self) -> None:
        """Cancel the event. Do nothing if the loop has already handled it."""
        self.cancelled = True


@dataclass(slots=True, eq=False)
class PendingRequest:
    """A message that came by RPC and waits for its reply. Call `reply` or `fail` exactly once."""

    message: Message
    _reply: Queue[Message | TidegateError]

    def reply(self, reply: Message) -> None:
        self._reply.put(reply)

    def fail(self, error: TidegateError) -> None:
        """Raise `error` at the caller instead of a reply."""
        self._reply.put(error)

    def wait(self, timeout_s: float) -> Message:
        """Return the reply or raise the error of `fail`. The RPC thread calls this.

        Raise RpcError if neither comes within `timeout_s`.
        """
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
    """An event loop: the thread that calls `run` handles the events one after the other.

    Any thread may call `post`, `call_later`, `submit`, `ask` and `stop`. A signal handler may call
    `post` too.
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
        """Queue an event; never block. Raise InternalError if the queue is at its capacity."""
        self._put(event)

    def call_later(self, seconds: float, event: E) -> Timer:
        """Post `event` after `seconds`, unless the returned timer is cancelled before that."""
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

        A failure of the operating system also counts as such an error, because it may be temporary
        (`errors.foreign_translated`). Any other exception is a bug and ends `run`.
        """
        if not self._stopped.is_set():
            self._pool.submit(lambda: self._work(work, done, failed))

    def request(self, make: Callable[[PendingRequest], E], message: Message) -> Message:
        """Post `make(pending_request)` and return the reply. This is the body of an RPC handler.

        `pending_request` is a PendingRequest with the message.
        """
        pending_request = PendingRequest(message, self._threads.queue())
        self.post(make(pending_request))
        return pending_request.wait(REPLY_TIMEOUT_S)

    def run(self, handle: Callable[[E], None]) -> None:
        """Handle events until `stop`. Raise exceptions of `handle` and bugs of submitted work."""
        try:
            while not self._stopped.is_set():
                event = self._next(block=True)
                if event is not None:
                    handle(event)
        finally:
            self.close()

    def run_due(self, handle: Callable[[E], None]) -> int:
        """Handle all events that are due now, without waiting. Return how many events it handled.

        Tests with a virtual clock use this.
        """
        handled = 0
        while (event := self._next(block=False)) is not None:
            handle(event)
            handled += 1
        return handled

    def stop(self) -> None:
        """End `run` after the current event. Events that still wait are dropped."""
        self._stopped.set()
        self._posted.put(None)

    def close(self) -> None:
        """Release the worker threads without waiting for their work."""
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
        """Return the next due event.

        Return None at `stop`, or if `block` is false and no event is due.
        """
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
