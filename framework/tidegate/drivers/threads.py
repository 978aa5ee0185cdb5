"""The real threads: an implementation of `ports.threads` that returns the standard library's own
objects.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from tidegate.errors import refused_resource
from tidegate.ports.threads import Condition, Event, Lock, Queue, Threads, WorkerPool


class SystemThreads:
    """An implementation of `ports.threads.Threads` with threads of the operating system."""

    def start(self, target: Callable[[], object], *, name: str) -> None:
        threading.Thread(target=target, name=name, daemon=True).start()

    def queue(self) -> Queue[Any]:
        return queue.SimpleQueue()

    def event(self) -> Event:
        return threading.Event()

    def lock(self) -> Lock:
        return threading.Lock()

    def condition(self) -> Condition:
        return threading.Condition()

    def pool(self, workers: int, *, name: str) -> WorkerPool:
        return ThreadPool(workers, thread_name_prefix=name)


class ThreadPool(ThreadPoolExecutor):
    """A pool that works with its present threads while the operating system refuses another one.

    In that case the library raises an error, although the work is already queued and a present
    thread will run it. The overridden method is a private method of the library:
    `tests/drivers/test_threads.py` fails if the library changes it.
    """

    def _adjust_thread_count(self) -> None:
        try:
            super()._adjust_thread_count()
        except RuntimeError as error:
            if refused_resource(error) is None or not self._threads:
                raise


if TYPE_CHECKING:
    _: Threads = SystemThreads()
