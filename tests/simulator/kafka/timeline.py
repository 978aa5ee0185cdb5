"""The scheduled actions of the fake brokers, in order of time: arrivals, markers, timeouts.

The clock belongs to the test or the simulator, and this module does not move it. Every call of the
fake first runs the actions that are due (`run_due`). While an action runs, `now_s` returns the time
at which it was due. The result therefore does not depend on how often the fake is called.

Actions never wait and never call `Clock.sleep`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final

from tidegate.errors import check
from tidegate.ports.clock import Clock

ROUNDING_S: Final = 1e-9
"""Rounding error in seconds: after a sleep until a time, the clock may be this much before it."""
MS_PER_S: Final = 1000


class Timeline:
    """Actions sorted by due time, and by the order of the `at` calls for the same due time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._acting_at: float | None = None
        self._epoch_ms = clock.now_ms() - clock.monotonic() * MS_PER_S

    def now_s(self) -> float:
        """Return the monotonic time of the clock. In an action, return its due time."""
        return self._clock.monotonic() if self._acting_at is None else self._acting_at

    def now_ms(self) -> int:
        """Return the time of the brokers' wall clock, in ms."""
        return int(self._epoch_ms + self.now_s() * MS_PER_S)

    def at(self, due_s: float, action: Callable[[], None]) -> None:
        """Schedule an action. If the time is in the past, the next `run_due` runs it."""
        check(due_s >= 0, "an action is due at a time")
        self._count += 1
        heapq.heappush(self._due, (due_s, self._count, action))

    def next_s(self) -> float | None:
        """Return the due time of the next action, or None."""
        return self._due[0][0] if self._due else None

    def run_due(self) -> None:
        """Run all due actions. Do nothing if called from an action."""
        if not self._due or self._acting_at is not None:
            return
        now_s = self._clock.monotonic() + ROUNDING_S
        while self._due and self._due[0][0] <= now_s:
            self._acting_at, _, action = heapq.heappop(self._due)
            try:
                action()
            finally:
                self._acting_at = None
