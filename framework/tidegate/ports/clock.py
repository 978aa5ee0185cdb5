"""Time, as a thing that is handed in: a real clock in processes, a virtual one in the simulator."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Monotonic seconds for durations; wall-clock milliseconds for display and records only."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary point; never goes back."""
        ...

    def now_ms(self) -> int:
        """Milliseconds since the epoch. Never compared with another machine's."""
        ...

    def sleep(self, seconds: float) -> None:
        """Block the calling thread."""
        ...
