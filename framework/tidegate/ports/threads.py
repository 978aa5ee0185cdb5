"""Threads and what they wait on, as things that are handed in: the operating system's in processes,
a scheduler's in the simulator.

Whoever lets threads wait for each other makes them, their queues, events and conditions here, so
that one seed can decide who runs next. The real driver hands out the standard library's objects
themselves: nothing stands in between while they are used. `queue.Empty` is what an empty queue
raises, of either driver. Files, sockets and client libraries have threads of their own in their
drivers; those are no matter of this port.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Queue(Protocol[T]):
    """Items in order; any thread puts, any thread gets. Unbounded: whoever puts sees `qsize`."""

    def put(self, item: T, /) -> None:
        """Never blocks; may be called in a signal handler."""
        ...

    def get(self, block: bool = True, timeout: float | None = None) -> T:
        """The next item. `queue.Empty` when there is none: at once where `block` is false, else
        after `timeout` seconds.
        """
        ...

    def qsize(self) -> int: ...


class Event(Protocol):
    """A flag to wait for."""

    def is_set(self) -> bool: ...
    def set(self) -> None: ...
    def clear(self) -> None: ...

    def wait(self, timeout: float | None = None) -> bool:
        """Return when it is set, or after `timeout` seconds; whether it is."""
        ...


class Lock(Protocol):
    """Held by one thread at a time, in a `with` block."""

    def __enter__(self) -> bool: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None: ...


class Condition(Lock, Protocol):
    """A lock with a place to wait for what changes under it; the thread that holds it may enter
    again.
    """

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        """Let go of the lock until `predicate` is true, or for `timeout` seconds; its last
        value.
        """
        ...

    def notify_all(self) -> None: ...


class WorkerPool(Protocol):
    """A few threads that run what is submitted, in the order in which it was."""

    def submit(self, work: Callable[[], object], /) -> object:
        """Run `work` in a thread of the pool; what it raises is lost, so it must raise nothing.

        RuntimeError after `shutdown`.
        """
        ...

    def shutdown(self, *, wait: bool, cancel_futures: bool) -> None: ...


class Threads(Protocol):
    """Makes threads and what they wait on, for one process."""

    def start(self, target: Callable[[], object], *, name: str) -> None:
        """Run `target` in a thread that does not keep the process alive."""
        ...

    def queue(self) -> Queue[Any]: ...
    def event(self) -> Event: ...
    def lock(self) -> Lock: ...
    def condition(self) -> Condition: ...
    def pool(self, workers: int, *, name: str) -> WorkerPool: ...
