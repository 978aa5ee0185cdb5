"""The trace of a simulated run: its last events, and a digest of all events.

Events are kept unformatted and are formatted only when the trace is read. Nearly every run passes,
and its trace is never read. Two runs of one seed must have the same digest, in any process. The
tests of replay compare these digests.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

KEPT: Final = 400
"""Number of events kept at the end of a trace. They cover about one or two attempts."""


class TraceEvent(NamedTuple):
    """One event: its virtual time in seconds, its process, and its text with the arguments."""

    at: float
    where: str
    what: str
    details: tuple[object, ...]

    def __str__(self) -> str:
        words = self.what % self.details if self.details else self.what
        return f"{self.at:11.5f}  {self.where:<18} {words}"


class Trace:
    """The last `kept` events of a run. `listen` is called with each event when it is recorded."""

    def __init__(
        self, *, kept: int = KEPT, listen: Callable[[TraceEvent], None] | None = None
    ) -> None:
        self._last: deque[TraceEvent] = deque(maxlen=kept)
        self._listen = listen
        self.events = 0
        self._digest: hashlib.blake2b | None = None

    def with_digest(self) -> Trace:
        """Add every event to the digest from now on. This formats every event, which is slow."""
        self._digest = hashlib.blake2b(digest_size=16)
        return self

    def record(self, at: float, where: str, what: str, *details: object) -> None:
        """Record an event. The caller must not change `details` afterwards."""
        told = TraceEvent(at, where, what, details)
        self.events += 1
        self._last.append(told)
        if self._digest is not None:
            self._digest.update(str(told).encode())
        if self._listen is not None:
            self._listen(told)

    def digest(self) -> str:
        """Return the digest of all events since `with_digest`; empty without `with_digest`."""
        return "" if self._digest is None else self._digest.hexdigest()

    def __iter__(self) -> Iterator[TraceEvent]:
        return iter(self._last)
