"""Time that passes only during a sleep."""

from __future__ import annotations


class SleepingClock:
    """`ports.clock.Clock` that `sleep` moves, for one thread; it begins at an arbitrary time."""

    def __init__(self, now_s: float = 1000.0) -> None:
        self.now_s = now_s

    def monotonic(self) -> float:
        return self.now_s

    def now_ms(self) -> int:
        return 1_700_000_000_000 + int(self.now_s * 1000)

    def sleep(self, seconds: float) -> None:
        self.now_s += max(0.0, seconds)
