"""The real clock: the operating system's time, for every process of a cluster."""

from __future__ import annotations

import time


class SystemClock:
    """An implementation of `ports.clock.Clock` with the operating system's clocks."""

    def monotonic(self) -> float:
        return time.monotonic()

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
