"""What happened in a simulated run: the last events, and a digest of all of them.

Events are kept as they are told and put into words only when somebody reads them, because nearly
every run ends well and is never read. Two runs of one seed must have the same digest, in any
process: that is how replay is tested.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

KEPT: Final = 400
"""Events at the end of a story: the life of an attempt or two."""


class TraceEvent(NamedTuple):
    """One event: when (virtual seconds), in which process, and what."""

    at: float
    where: str
    what: str
    details: tuple[object, ...]

    def __str__(self) -> str:
        words = self.what % self.details if self.details else self.what
        return f"{self.at:11.5f}  {self.where:<18} {words}"


class Trace:
    """The last `kept` events; `listen` hears of each as it is told."""

    def __init__(
        self, *, kept: int = KEPT, listen: Callable[[TraceEvent], None] | None = None
    ) -> None:
        self._last: deque[TraceEvent] = deque(maxlen=kept)
        self._listen = listen
        self.events = 0
        self._digest: hashlib.blake2b | None = None

    def with_digest(self) -> Trace:
        """Digest every event from now on; costs as much as reading them all."""
        self._digest = hashlib.blake2b(digest_size=16)
        return self

    def record(self, at: float, where: str, what: str, *details: object) -> None:
        """Note an event; `details` must not change any more."""
        told = TraceEvent(at, where, what, details)
        self.events += 1
        self._last.append(told)
        if self._digest is not None:
            self._digest.update(str(told).encode())
        if self._listen is not None:
            self._listen(told)

    def digest(self) -> str:
        """Of all events since `with_digest`."""
        return "" if self._digest is None else self._digest.hexdigest()

    def __iter__(self) -> Iterator[TraceEvent]:
        return iter(self._last)
