"""The real clock: time as the operating system tells it, for every process of a cluster."""

from __future__ import annotations

import time


class SystemClock:
    """`ports.clock.Clock` by the operating system."""

    def monotonic(self) -> float:
        return time.monotonic()

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
