"""When a finding about a topic is final: Kafka has repeated it, for ten seconds by default.

One answer is not enough. A broker whose metadata is old answers "absent" for a topic that exists. A
newly elected leader can answer "beyond the end" for a position that it will have soon. If one such
answer counted, a healthy job would end. This module is pure: the caller repeats the request, with
pauses, and passes the time.
"""

from __future__ import annotations

from typing import Final

CONFIRMATION_S: Final = 10.0
"""The time in seconds for which a finding must be repeated. It is longer than a broker needs to
learn of a new leader or topic (its session timeout is 9 s).
"""
RENEW_CLIENT_S: Final = 0.5
"""The pause between two requests, in seconds."""


class Confirmation:
    """A timer that measures for how long every answer has been the same finding."""

    __slots__ = ("_finding", "_repeated_s", "_since_s")

    def __init__(self, repeated_s: float = CONFIRMATION_S) -> None:
        self._repeated_s = repeated_s
        self._finding = ""
        self._since_s = 0.0

    def observe(self, finding: str, now_s: float) -> bool:
        """Record the finding of one answer and return whether it is final. An empty finding means
        that the answer found nothing wrong.
        """
        if not finding or finding != self._finding:
            self._finding, self._since_s = finding, now_s
        return bool(finding) and now_s - self._since_s >= self._repeated_s
