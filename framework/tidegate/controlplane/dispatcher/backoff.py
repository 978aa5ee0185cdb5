"""How long to wait before a process is started again.

The first death costs no pause: whoever was killed once should be back at once. Those that follow in
short order double it; a life of some length forgives everything, and one in which the process did
its work forgives all but one. The pauses are for a process that cannot live (a full disk, a broken
installation), and one that has worked can. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

FIRST_MS = 1_000
LONGEST_MS = 30_000
"""A process that cannot live then costs one start in 30 s."""
RESET_AFTER_MS = 20_000
"""Longer than any start takes, shorter than what a person waits between two tries by hand."""
LEFT_AFTER_WORK = 1
"""Failures that count on after a life with work in it: one that dies each time that it has done a
little is started once in `FIRST_MS`, and not all the time."""


@dataclass(slots=True)
class Backoff:
    """Counts deaths in short order."""

    failures: int = 0
    _lives_since_ms: int | None = None

    def record_start(self, now_ms: int) -> None:
        """The process is up."""
        self._lives_since_ms = now_ms

    def record_failure(self, now_ms: int, *, worked: bool) -> None:
        """The process ended without having been asked to; `worked` where it had done its work."""
        if self.is_reset(now_ms):
            self.failures = 0
        elif worked:
            self.failures = min(self.failures, LEFT_AFTER_WORK)
        self._lives_since_ms = None
        self.failures += 1

    def is_reset(self, now_ms: int) -> bool:
        """The process has been up for so long that a death now is the first again."""
        since_ms = self._lives_since_ms
        return since_ms is not None and now_ms - since_ms >= RESET_AFTER_MS

    def pause_ms(self) -> int:
        """Before the next start."""
        if self.failures <= 1:
            return 0
        return min(FIRST_MS << min(self.failures - 2, 10), LONGEST_MS)
