"""How long a slot with nothing to do waits for records before it looks at all else again.

Pure arithmetic over the times that it is told. Records of the slot's own partitions end a wait.
What other threads bring does not, control messages and records from other slots: a consumer that
waits cannot be woken. So a wait is by how much such a record or a barrier may come later, and each
look at nothing costs a tenth of a millisecond of CPU. Hence waits grow with the silence: who gets
ten records a second waits for milliseconds, and who gets none all day for a fifth of a second.
"""

from __future__ import annotations

import math
from typing import Final

SHORTEST_S: Final = 0.004
SHARE_OF_SILENCE: Final = 0.02
"""A record from another slot comes later by this share of the time since the last one, at most.
Where none can come, each wait is as long as the silence before it."""

SHARE_OF_INTERVAL: Final = 0.05
UNNOTICEABLE_S: Final = 0.02
LONGEST_S: Final = 0.2
"""A barrier comes later by this share of the checkpoint interval at most; by the second number
where that is less, and never by more than the third, after which a waiting consumer wakes anyway,
to look for signals.

After a barrier, a control message, or what another thread has finished, more of them follow: waits
then begin at the second number again and grow to what they were, or a checkpoint would take a long
one at each of its steps."""


class IdleWait:
    """What a slot's loop remembers of its silence."""

    def __init__(self, interval_s: float, now_s: float) -> None:
        """`interval_s`: from one checkpoint to the next."""
        self._longest_s = max(UNNOTICEABLE_S, min(SHARE_OF_INTERVAL * interval_s, LONGEST_S))
        self._batches, self._since_s = 0, now_s
        self._stirred_s = -math.inf

    def record_turn(self, now_s: float, batches: int, *, woken: bool) -> None:
        """The loop has been round once, with or without a wait after it.

        `batches`: of records, taken in so far. `woken`: another thread had something for the
        slot, or a barrier went through it.
        """
        if batches != self._batches:
            self._batches, self._since_s = batches, now_s
        if woken:
            self._stirred_s = now_s

    def wait_s(self, now_s: float, *, has_remote_inputs: bool) -> float:
        """How long to wait now; `has_remote_inputs`: other slots may send records."""
        share = SHARE_OF_SILENCE if has_remote_inputs else 1.0
        return min(
            self._longest_s,
            max(UNNOTICEABLE_S, now_s - self._stirred_s),
            max(SHORTEST_S, share * (now_s - self._since_s)),
        )
