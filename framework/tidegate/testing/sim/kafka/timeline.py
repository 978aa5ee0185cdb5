"""What happens at the fake brokers at a later time, in order: arrivals, markers, timeouts.

The clock belongs to the test or simulator, and nothing here makes time pass. Every call of the fake
first carries out what has become due (`run_due`), each action at its own time: `now_s` says so
while it runs. So the outcome does not depend on how often anybody looks.

Actions never wait, and never call `Clock.sleep`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final

from tidegate.errors import check
from tidegate.ports.clock import Clock

ROUNDING_S: Final = 1e-9
"""A sleeper that was to wake at a time may find the clock this much before it."""
MS_PER_S: Final = 1000


class Timeline:
    """Actions by the time at which they are due; those of one time in the order of `at`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._acting_at: float | None = None
        self._epoch_ms = clock.now_ms() - clock.monotonic() * MS_PER_S

    def now_s(self) -> float:
        """The clock's monotonic time; within an action, the time at which it was due."""
        return self._clock.monotonic() if self._acting_at is None else self._acting_at

    def now_ms(self) -> int:
        """The brokers' wall clock."""
        return int(self._epoch_ms + self.now_s() * MS_PER_S)

    def at(self, due_s: float, action: Callable[[], None]) -> None:
        """Carry out `action` at a time: now, if that is past."""
        check(due_s >= 0, "an action is due at a time")
        self._count += 1
        heapq.heappush(self._due, (due_s, self._count, action))

    def next_s(self) -> float | None:
        """When the next action is due."""
        return self._due[0][0] if self._due else None

    def run_due(self) -> None:
        """Carry out what is due. Does nothing within an action."""
        if not self._due or self._acting_at is not None:
            return
        now_s = self._clock.monotonic() + ROUNDING_S
        while self._due and self._due[0][0] <= now_s:
            self._acting_at, _, action = heapq.heappop(self._due)
            try:
                action()
            finally:
                self._acting_at = None
