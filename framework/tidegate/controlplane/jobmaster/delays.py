"""The current wait of a job, reported once it has lasted for ten seconds.

A job that makes no progress must say why. Slots may be missing, subtasks may not have acknowledged
a checkpoint, or brokers may not answer while the journal is closed. The JobMaster passes the
current wait at least twice a second. This module remembers when the wait began, and which error of
a repeated request explains it. It is pure: the caller passes the times. It decides nothing, and the
waiting code has its own deadlines.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidegate.errors import TidegateError

SHOWN_AFTER_S: Final = 10.0
"""The shortest wait that is reported, in seconds. Shorter waits are part of ordinary work."""

CAUSE_S: Final = 60.0
"""The time in seconds for which the error of a repeated request explains a wait. The pauses between
two tries are shorter."""

FAILS_S: Final = 5.0
"""The time in seconds for which such an error shows that the requests still fail. It is longer than
the pause between two tries."""

LOG_INTERVAL_S: Final = 60.0
"""The time between two log lines of the same wait, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delay:
    """A wait that has lasted long enough to be reported."""

    waiting_for: str
    since_s: float
    cause: str
    """The last error of a request that is repeated. Empty if no request failed recently."""

    @property
    def text(self) -> str:
        """The thing that the job waits for, and the cause."""
        return f"{self.waiting_for}. Last error: {self.cause}" if self.cause else self.waiting_for


class DelayMonitor:
    """A memory of what a job waits for, since when, and why."""

    def __init__(self) -> None:
        self._waiting_for = ""
        self._since_s = 0.0
        self._error: TidegateError | None = None
        self._caused_s = -CAUSE_S
        self._fails_since_s = 0.0
        self._logged: tuple[str, float] | None = None

    def observe(self, now_s: float, waiting_for: str) -> None:
        """Record what the job waits for now. An empty text means that the job does not wait.

        A different text starts a new wait: the text lists what is missing, so a change is progress.
        """
        if waiting_for != self._waiting_for:
            self._waiting_for, self._since_s = waiting_for, now_s

    def failed(self, now_s: float, error: TidegateError) -> None:
        """Record that a request failed and is repeated."""
        if now_s - self._caused_s >= FAILS_S:
            self._fails_since_s = now_s
        self._error, self._caused_s = error, now_s

    def recent_failure(self, now_s: float, *, lasting_s: float = 0.0) -> TidegateError | None:
        """Return the last error of a repeated request, if it is not older than `FAILS_S`, and if
        requests have failed for at least `lasting_s` without a longer break.
        """
        fails = now_s - self._caused_s < FAILS_S
        return self._error if fails and self._caused_s - self._fails_since_s >= lasting_s else None

    def delay(self, now_s: float) -> Delay | None:
        """Return the wait if it has lasted for at least `SHOWN_AFTER_S`."""
        if not self._waiting_for or now_s - self._since_s < SHOWN_AFTER_S:
            return None
        recent = now_s - self._caused_s < CAUSE_S and self._caused_s >= self._since_s
        cause = str(self._error) if recent else ""
        return Delay(waiting_for=self._waiting_for, since_s=self._since_s, cause=cause)

    def to_log(self, now_s: float) -> Delay | None:
        """Return the wait if it must be logged now. A new wait is logged at once, then every minute
        (`LOG_INTERVAL_S`).
        """
        found = self.delay(now_s)
        if found is None:
            return None
        if self._logged is not None:
            waiting_for, logged_s = self._logged
            if waiting_for == found.waiting_for and now_s - logged_s < LOG_INTERVAL_S:
                return None
        self._logged = (found.waiting_for, now_s)
        return found
