"""When a finding about a topic is final: Kafka has repeated it, for ten seconds by default.

A broker that has not heard of the newest metadata says "absent" of a topic that exists, and a
leader that was elected a moment ago says "beyond the end" of a position that it will have soon. Who
acts on one such answer ends a job that could go on. Pure: the caller asks again, with pauses, and
gives the time.
"""

from __future__ import annotations

from typing import Final

REPEATED_S: Final = 10.0
"""Longer than a broker needs to hear of a new leader or topic (its session timeout is 9 s)."""
ASK_AGAIN_S: Final = 0.5
"""The pause between two questions."""


class Confirmation:
    """Counts for how long every answer has been the same finding."""

    __slots__ = ("_finding", "_repeated_s", "_since_s")

    def __init__(self, repeated_s: float = REPEATED_S) -> None:
        self._repeated_s = repeated_s
        self._finding = ""
        self._since_s = 0.0

    def heard(self, finding: str, now_s: float) -> bool:
        """Take the finding of one answer, empty for none; True when it is final."""
        if not finding or finding != self._finding:
            self._finding, self._since_s = finding, now_s
        return bool(finding) and now_s - self._since_s >= self._repeated_s
