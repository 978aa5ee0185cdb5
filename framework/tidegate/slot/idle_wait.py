"""The time that an idle slot waits for records before its loop checks everything else again.

The module is pure arithmetic: the caller passes the times. Records of the slot's own partitions end
a wait. Control messages and records from other slots do not, because other threads bring them and a
waiting consumer cannot be woken. The wait is therefore the maximum added delay for such a record or
a barrier. Each empty poll costs 0.1 ms of CPU. So waits grow with the time since the last record. A
slot that gets ten records a second waits for milliseconds. A slot that gets no records waits for up
to 0.2 s.
"""

from __future__ import annotations

import math
from typing import Final

SHORTEST_S: Final = 0.004
SHARE_OF_SILENCE: Final = 0.02
"""The maximum added delay of a record from another slot, as a share of the time since the last
record. If no other slot sends records, each wait is as long as the silence before it.
"""

SHARE_OF_INTERVAL: Final = 0.05
UNNOTICEABLE_S: Final = 0.02
LONGEST_S: Final = 0.2
"""The longest wait, in seconds, is the maximum added delay of a barrier. It is `SHARE_OF_INTERVAL`
of the checkpoint interval, but at least `UNNOTICEABLE_S` and at most `LONGEST_S`. After `LONGEST_S`
a waiting consumer wakes in any case, to check for signals.

After a barrier, a control message, or finished work of another thread, more of them follow. So the
waits then begin at `UNNOTICEABLE_S` again and grow to their earlier length. Otherwise each step of
a checkpoint would take one long wait.
"""

RARE: Final = 2.0
SHARE_WHEN_RARE: Final = 0.5
"""If there was no barrier for `RARE` intervals, the job is idle, and checkpoints come at the
interval of an idle job. The longest wait is then the share of that interval, but at most
`SHARE_WHEN_RARE` of the checkpoint interval. So the first checkpoint after an idle time is not
later than others.
"""


class IdleWait:
    """The memory of a slot's loop of when it last had something to do."""

    def __init__(self, interval_s: float, when_idle_s: float, now_s: float) -> None:
        """Start at `now_s`. `interval_s` is the checkpoint interval in seconds, and `when_idle_s`
        that of an idle job.
        """
        self._longest_s = _longest_s(interval_s)
        self._longest_when_rare_s = max(
            self._longest_s, min(_longest_s(when_idle_s), SHARE_WHEN_RARE * interval_s)
        )
        self._rare_after_s, self._barrier_s = RARE * interval_s, now_s
        self._batches, self._since_s = 0, now_s
        self._woken_s = -math.inf

    def record_turn(self, now_s: float, batches: int, *, woken: bool) -> None:
        """Record one turn of the loop, with or without a wait after it.

        `batches` is the number of record batches that the slot has taken in so far. `woken` says
        whether another thread had something for the slot, or a task had something to do, such as a
        barrier.
        """
        if batches != self._batches:
            self._batches, self._since_s = batches, now_s
        if woken:
            self._woken_s = now_s

    def record_barrier(self, now_s: float) -> None:
        """Record that the JobMaster has triggered a checkpoint."""
        self._barrier_s = now_s

    def wait_s(self, now_s: float, *, has_remote_inputs: bool) -> float:
        """Return the time to wait now, in seconds. `has_remote_inputs` says whether other slots may
        send records.
        """
        are_rare = now_s - self._barrier_s > self._rare_after_s
        longest_s = self._longest_when_rare_s if are_rare else self._longest_s
        share = SHARE_OF_SILENCE if has_remote_inputs else 1.0
        return min(
            longest_s,
            max(UNNOTICEABLE_S, now_s - self._woken_s),
            max(SHORTEST_S, share * (now_s - self._since_s)),
        )


def _longest_s(interval_s: float) -> float:
    return max(UNNOTICEABLE_S, min(SHARE_OF_INTERVAL * interval_s, LONGEST_S))
