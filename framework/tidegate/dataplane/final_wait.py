"""`FinalWait`: how long a final barrier waits for outputs that take nothing.

Before a final barrier, a subtask fires what is due. If channels have no credit, it waits: the
subtasks behind take their records soon. It does not wait for a sink, which may wait for the
transactional id that only this checkpoint frees. A subtask behind a channel may have such a sink
too, so the wait has a limit. Then the barrier passes, and what is due is in the state: the next run
fires it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tidegate.dataplane.chain import OperatorChain

WAIT_S: Final = 1.0
"""The longest wait, in seconds, in which no channel takes a record."""


class FinalWait:
    """The wait of one subtask."""

    def __init__(self, chain: OperatorChain, now_s: Callable[[], float]) -> None:
        self._chain, self._now_s = chain, now_s
        self._since_s: float | None = None

    def holds(self, *, due: bool) -> bool:
        """Return whether the barrier waits: something is due, and only channels are full."""
        chain = self._chain
        full = not chain.writable() and all(sink.writable() for sink in chain.sinks.values())
        if not (full and due):
            self._since_s = None
            return False
        now_s = self._now_s()
        if self._since_s is None:
            self._since_s = now_s
        return now_s - self._since_s < WAIT_S
