"""Where the rows of a source stand among the rows of all senders: by Kafka's time.

A receiver takes its rows in the order of `ord`. So inputs of a step meet in a wave about as they
meet in a live job, also inputs from topics of different rates. `ord` is the running maximum of the
timestamps that stand at the ends of a source's polls. Polls without a newer timestamp are counted
behind it, so sources whose records have one timestamp, or none, take turns.

Timestamps are the word of producers. One that is absent or lies in the future counts for nothing:
the order degrades, and nothing else depends on it.

Invariant: the `ord` of a source only grows, and it stays below that of markers. So the frames of a
channel stay in their order, because all of them come from one source.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tidegate.dataplane.task import SourceTask
from tidegate.dataplane.waves.sending import RowSender
from tidegate.ids import VertexId

POLL_BITS: Final = 21
"""The low bits of `ord`: polls since the timestamp has changed."""
POLLS_MAX: Final = (1 << POLL_BITS) - 1
TIME_MS_MAX: Final = (1 << 63 - POLL_BITS) - 2
"""In the year 2109. With it `ord` is below LAST."""


class TimeOrder:
    """The `ord` of one source. Timestamps later than `now_ms` count for nothing."""

    def __init__(self, now_ms: int) -> None:
        self._latest_ms = min(now_ms, TIME_MS_MAX)
        self._time_ms = self._polls = 0

    @property
    def ord(self) -> int:
        """What the rows of the last poll carry."""
        return self._time_ms << POLL_BITS | self._polls

    def advance(self, timestamp_ms: int) -> None:
        """A poll has returned records; the last of them has this timestamp, or a negative one."""
        if self._time_ms < timestamp_ms <= self._latest_ms:
            self._time_ms, self._polls = timestamp_ms, 0
        elif self._polls < POLLS_MAX:
            self._polls += 1


class TimedSource:
    """A source whose rows are sent with its own `ord`."""

    def __init__(self, task: SourceTask, sender: RowSender, now_ms: int) -> None:
        self.task, self._sender = task, sender
        self._order = TimeOrder(now_ms)

    def step(self, timeout_s: float) -> bool:
        """As SourceTask.step."""
        self._sender.ord = self._order.ord
        reads = self.task.reads()
        worked = self.task.step(timeout_s)
        if reads and worked:
            self._order.advance(self.task.reader.last_timestamp_ms())
        return worked

    def flush(self) -> None:
        """As SourceTask.flush."""
        self._sender.ord = self._order.ord
        self.task.flush()


def poll_shares(offsets: Mapping[VertexId, int]) -> dict[VertexId, float]:
    """How much of a full poll each source reads, by the offsets that it has in the wave.

    A poll is sent with one `ord`. So a source with few records reads few at a time, and comes
    through the wave in as many polls as the largest one.
    """
    most = max(offsets.values(), default=0)
    return {source: count / most if most else 1.0 for source, count in offsets.items()}
