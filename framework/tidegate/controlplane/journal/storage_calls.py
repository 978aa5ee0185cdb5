"""A list of the running calls to the checkpoint storage, to find a call that never returns.

The journal has one thread. A call that hangs in this thread cannot be cancelled, and the thread
cannot close the job. Only another process can continue the job (`jobmaster/storage_watch.py`).
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import NamedTuple

from tidegate.ports.clock import Clock


class StorageCall(NamedTuple):
    """A call that has not returned."""

    what: str
    since_s: float


class StorageCalls:
    """The running storage calls of all threads of a JobMaster."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._numbers = itertools.count()
        self._under_way: dict[int, StorageCall] = {}

    @contextlib.contextmanager
    def during(self, what: str) -> Iterator[None]:
        """Record that a call is running while the block runs."""
        number = next(self._numbers)
        self._under_way[number] = StorageCall(what, self._clock.monotonic())
        try:
            yield
        finally:
            del self._under_way[number]

    def hanging(self, limit_s: float) -> StorageCall | None:
        """Return the oldest running call if it has lasted for longer than `limit_s`."""
        oldest = min(self._under_way.copy().values(), key=lambda call: call.since_s, default=None)
        if oldest is None or self._clock.monotonic() - oldest.since_s <= limit_s:
            return None
        return oldest
