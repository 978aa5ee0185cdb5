"""The drivers of a pipeline under test: a clock that the test moves, and I/O in the calling thread.

Subtasks get them in place of the drivers of a process. They have only what a subtask without Kafka
asks for: time, threads, a state store in memory, and readers of pushed records. There is no
background work: what a subtask hands to an I/O thread waits until the attempt runs it.

Invariant: time moves only when the test says so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path

from tidegate.drivers.memory.store import MemoryStore
from tidegate.drivers.threads import SystemThreads
from tidegate.ports.kafka import PartitionReader
from tidegate.ports.kv import KeyValueStore


class VirtualClock:
    """A clock that only the test moves. It begins at `now_ms`."""

    def __init__(self, now_ms: int) -> None:
        self._began_ms, self._passed_ms = now_ms, 0

    def monotonic(self) -> float:
        """Return the seconds since the begin of the test."""
        return self._passed_ms / 1000

    def now_ms(self) -> int:
        """Return the milliseconds since the Unix epoch."""
        return self._began_ms + self._passed_ms

    def sleep(self, seconds: float) -> None:
        """Move the clock on, without a wait."""
        self.move(round(seconds * 1000))

    def move(self, span_ms: int) -> None:
        """Move the clock on."""
        self._passed_ms += span_ms


class WaitingWork:
    """A `ports.threads.WorkerPool` without threads: the attempt runs the work, in order."""

    def __init__(self) -> None:
        self._work: deque[Callable[[], object]] = deque()

    def submit(self, work: Callable[[], object], /) -> None:
        """Keep the work until `run_next`."""
        self._work.append(work)

    def run_next(self) -> bool:
        """Run the oldest work. Return False if no work waits."""
        if not self._work:
            return False
        self._work.popleft()()
        return True

    def shutdown(self, *, wait: bool, cancel_futures: bool) -> None:
        """Drop the work that waits."""
        del wait, cancel_futures
        self._work.clear()


class PipelineDrivers:
    """The drivers of the subtasks of a pipeline test. `open_reader` opens the pushed records of a
    consumer group.
    """

    def __init__(self, clock: VirtualClock, open_reader: Callable[[str], PartitionReader]) -> None:
        self.clock, self.threads = clock, SystemThreads()
        self._open_reader = open_reader

    def kv_store(self, backend: str, directory: Path) -> KeyValueStore:
        """Open a state store. Every backend is in memory here."""
        del backend
        return MemoryStore(directory, make_folder=False)

    def partition_reader(
        self, kafka: Mapping[str, str], group: str, *, with_end_of_partition: bool
    ) -> PartitionReader:
        """Open a reader of the pushed records."""
        del kafka, with_end_of_partition
        return self._open_reader(group)
