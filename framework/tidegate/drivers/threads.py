"""The real threads: `ports.threads` by the standard library, whose own objects are handed out."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from tidegate.ports.threads import Condition, Event, Lock, Queue, Threads, WorkerPool


class SystemThreads:
    """`ports.threads.Threads` by the operating system."""

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
        return ThreadPoolExecutor(workers, thread_name_prefix=name)


if TYPE_CHECKING:
    _: Threads = SystemThreads()
