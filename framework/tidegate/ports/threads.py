"""The port for threads, queues, events and conditions: the operating system's in processes, a
scheduler's in the simulator.

Code in which threads wait for each other makes all of them here, so that one seed can decide which
thread runs next. The real driver returns the objects of the standard library, so their use costs
nothing more. An empty queue raises `queue.Empty` in both drivers. Files, sockets and client
libraries have threads in their drivers; this port does not cover them.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Queue(Protocol[T]):
    """Items in order. Any thread puts and gets. The queue has no limit; a putter reads `qsize`."""

    def put(self, item: T, /) -> None:
        """Add an item and never block. A signal handler may call this."""
        ...

    def get(self, block: bool = True, timeout: float | None = None) -> T:
        """Return the next item. If the queue is empty, raise `queue.Empty`: at once if `block` is
        false, else after `timeout` seconds.
        """
        ...

    def qsize(self) -> int: ...


class Event(Protocol):
    """A flag for which threads wait."""

    def is_set(self) -> bool: ...
    def set(self) -> None: ...
    def clear(self) -> None: ...

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the flag is set, for `timeout` seconds at most. Return whether it is set."""
        ...


class Lock(Protocol):
    """A lock that one thread at a time holds, in a `with` block."""

    def __enter__(self) -> bool: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None: ...


class Condition(Lock, Protocol):
    """A lock under which threads wait for a change. The thread that holds it may enter it again."""

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        """Release the lock until `predicate` is true, for `timeout` seconds at most. Return the
        last value of `predicate`.
        """
        ...

    def notify_all(self) -> None: ...


class WorkerPool(Protocol):
    """A few threads that run the submitted functions, in their order."""

    def submit(self, work: Callable[[], object], /) -> object:
        """Run `work` in a thread of the pool. `work` must raise nothing, because it would be lost.

        RuntimeError after `shutdown`.
        """
        ...

    def shutdown(self, *, wait: bool, cancel_futures: bool) -> None: ...


class Threads(Protocol):
    """A maker of threads, queues, events, locks and pools for one process."""

    def start(self, target: Callable[[], object], *, name: str) -> None:
        """Run `target` in a thread that does not keep the process alive."""
        ...

    def queue(self) -> Queue[Any]: ...
    def event(self) -> Event: ...
    def lock(self) -> Lock: ...
    def condition(self) -> Condition: ...
    def pool(self, workers: int, *, name: str) -> WorkerPool: ...
