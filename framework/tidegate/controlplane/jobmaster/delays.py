"""What a job waits for, told once that has lasted longer than ten seconds.

A job that does not move must say why: the slots that are missing, the subtasks that have not
acknowledged a checkpoint, the brokers that do not answer while the journal is closed. The JobMaster
says twice a second what the job waits for at the moment; this class remembers since when, and which
error of a repeated request explains it. It is pure: times are given. It decides nothing: deadlines
belong to who waits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SHOWN_AFTER_S: Final = 10.0
"""A shorter wait is part of ordinary work."""

CAUSE_S: Final = 60.0
"""How long an error of a repeated request explains a wait: pauses between two tries are shorter."""

LOG_INTERVAL_S: Final = 60.0
"""Between two log lines of the same wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delay:
    """A wait that has lasted long enough to be told."""

    waiting_for: str
    since_s: float
    cause: str
    """The last error of a request that is repeated; empty where there was none lately."""

    @property
    def text(self) -> str:
        """What the job waits for, and the cause."""
        return f"{self.waiting_for}. Last error: {self.cause}" if self.cause else self.waiting_for


class DelayMonitor:
    """Remembers what a job waits for."""

    def __init__(self) -> None:
        self._waiting_for = ""
        self._since_s = 0.0
        self._cause, self._caused_s = "", -CAUSE_S
        self._logged: tuple[str, float] | None = None

    def observe(self, now_s: float, waiting_for: str) -> None:
        """What the job waits for now; empty if it does not wait.

        Another text is another wait: a text that names what is still missing shows progress.
        """
        if waiting_for != self._waiting_for:
            self._waiting_for, self._since_s = waiting_for, now_s

    def failed(self, now_s: float, cause: str) -> None:
        """A request failed and is repeated."""
        self._cause, self._caused_s = cause, now_s

    def delay(self, now_s: float) -> Delay | None:
        """The wait, if it has lasted for longer than `SHOWN_AFTER_S`."""
        if not self._waiting_for or now_s - self._since_s < SHOWN_AFTER_S:
            return None
        recent = now_s - self._caused_s < CAUSE_S and self._caused_s >= self._since_s
        cause = self._cause if recent else ""
        return Delay(waiting_for=self._waiting_for, since_s=self._since_s, cause=cause)

    def to_log(self, now_s: float) -> Delay | None:
        """The wait, if it is to be logged now: when it is new, and then once a minute."""
        found = self.delay(now_s)
        if found is None:
            return None
        if self._logged is not None:
            waiting_for, logged_s = self._logged
            if waiting_for == found.waiting_for and now_s - logged_s < LOG_INTERVAL_S:
                return None
        self._logged = (found.waiting_for, now_s)
        return found
