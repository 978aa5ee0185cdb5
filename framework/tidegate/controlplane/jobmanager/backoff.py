"""The pause before a process is started again.

The first failure causes no pause, because a process that was killed once must be back at once. Each
further failure in quick succession doubles the pause. A process that was up for RESET_AFTER_MS
resets the count. After a process that did some work, at most one earlier failure still counts. The
pauses are for a process that cannot run (a full disk, a broken installation), and a process that
has worked can run. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

FIRST_MS = 1_000
LONGEST_MS = 30_000
"""Longest pause. A process that cannot run then costs one start every 30 s."""
RESET_AFTER_MS = 20_000
"""Uptime after which failures are forgotten. It is longer than any start, and shorter than the time
that a person waits between two tries by hand."""
LEFT_AFTER_WORK = 1
"""Number of failures that still count after a process has worked. A process that works a little and
dies each time is then started once per `FIRST_MS`, and not continuously."""


@dataclass(slots=True)
class Backoff:
    """A counter of failures in quick succession."""

    failures: int = 0
    _up_since_ms: int | None = None

    def record_start(self, now_ms: int) -> None:
        """Record that the process is up."""
        self._up_since_ms = now_ms

    def record_failure(self, now_ms: int, *, worked: bool) -> None:
        """Record that the process ended unasked. `worked` says whether it had done some work."""
        if self.is_reset(now_ms):
            self.failures = 0
        elif worked:
            self.failures = min(self.failures, LEFT_AFTER_WORK)
        self._up_since_ms = None
        self.failures += 1

    def is_reset(self, now_ms: int) -> bool:
        """Return whether the process was up for so long that a failure now counts as the first."""
        since_ms = self._up_since_ms
        return since_ms is not None and now_ms - since_ms >= RESET_AFTER_MS

    def pause_ms(self) -> int:
        """Return the pause before the next start, in milliseconds."""
        if self.failures <= 1:
            return 0
        return min(FIRST_MS << min(self.failures - 2, 10), LONGEST_MS)
