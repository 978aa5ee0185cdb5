"""How long a slot with nothing to do waits for records before it looks at all else again.

Pure arithmetic over the times that it is told. Records of the slot's own partitions end a wait.
What other threads bring does not, control messages and records from other slots: a consumer that
waits cannot be woken. So a wait is by how much such a record or a barrier may come later, and each
look at nothing costs a tenth of a millisecond of CPU. Hence waits grow with the silence: who gets
ten records a second waits for milliseconds, and who gets none all day for a fifth of a second.
"""

from __future__ import annotations

from typing import Final

SHORTEST_S: Final = 0.004
SHARE_OF_SILENCE: Final = 0.05
"""A record from another slot comes later by this share of the time since the last one, at most."""

SHARE_OF_INTERVAL: Final = 0.05
ALWAYS_S: Final = 0.02
LONGEST_S: Final = 0.2
"""A barrier comes later by this share of the checkpoint interval at most; by the second number
where that is less, and never by more than the third, after which a waiting consumer wakes anyway,
to look for signals.

After a barrier, a control message, or what another thread has finished, more of them follow: the
next wait is no longer than the second number either, or a checkpoint would take a long one at each
step."""


class Idling:
    """What a slot's loop remembers of its silence."""

    def __init__(self, interval_s: float, now_s: float) -> None:
        """`interval_s`: from one checkpoint to the next."""
        self._longest_s = max(ALWAYS_S, min(SHARE_OF_INTERVAL * interval_s, LONGEST_S))
        self._batches, self._since_s = 0, now_s
        self._stirred = False

    def turned(self, now_s: float, batches: int, *, stirred: bool) -> None:
        """The loop has been round once, with or without a wait after it.

        `batches`: of records, taken in so far. `stirred`: another thread had something for the
        slot, or a barrier went through it.
        """
        if batches != self._batches:
            self._batches, self._since_s = batches, now_s
        self._stirred |= stirred

    def wait_s(self, now_s: float) -> float:
        """How long to wait now; asked once for each wait."""
        longest_s = ALWAYS_S if self._stirred else self._longest_s
        self._stirred = False
        return min(longest_s, max(SHORTEST_S, SHARE_OF_SILENCE * (now_s - self._since_s)))
