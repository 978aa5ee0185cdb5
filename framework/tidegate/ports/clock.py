"""The port for time: a real clock in processes, a virtual one in the simulator."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Monotonic seconds for durations; wall-clock milliseconds for display and records only."""

    def monotonic(self) -> float:
        """Return seconds since an arbitrary time. The value never goes back."""
        ...

    def now_ms(self) -> int:
        """Return milliseconds since the epoch. No code compares them with another machine's."""
        ...

    def sleep(self, seconds: float) -> None:
        """Block the calling thread."""
        ...
