"""The open sessions of a key: which of them a record joins.

Pure. The sessions of a key are few, and in order of time. Invariant: two sessions of a key do not
touch. A session that ends when another one begins touches it, as in Flink, so records that are
exactly the gap apart are in one session.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Span(Protocol):
    """A session; `end_ms` is its last record's time plus the gap."""

    start_ms: int
    end_ms: int


def touched(sessions: Sequence[Span], start_ms: int, end_ms: int) -> range:
    """Return the indexes of the sessions that a span touches. An empty range begins where a new
    session belongs.
    """
    first = len(sessions)
    while first and sessions[first - 1].end_ms >= start_ms:
        first -= 1
    stop = first
    while stop < len(sessions) and sessions[stop].start_ms <= end_ms:
        stop += 1
    return range(first, stop)
