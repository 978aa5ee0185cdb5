"""The position of a source's rows among the rows of all senders, which follows Kafka's time.

A receiver takes its rows in the order of `ord`. The inputs of a step therefore meet in a wave
roughly as they meet in a live job, even if their topics have different rates. `ord` is the running
maximum of the timestamps at the ends of a source's polls. Polls without a newer timestamp are
counted in the low bits. Sources whose records have one timestamp, or none, therefore take turns.

Producers set the timestamps. A timestamp that is absent or in the future is ignored. The order is
then less accurate, and nothing else depends on it.

Invariant: the `ord` of a source only grows, and it stays below that of markers. The frames of a
channel therefore stay in their order, because all of them come from one source.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tidegate.dataplane.source_task import SourceTask
from tidegate.dataplane.waves.sending import RowSender
from tidegate.ids import VertexId

POLL_BITS: Final = 21
"""Number of low bits of `ord`. They count the polls since the timestamp has changed."""
POLLS_MAX: Final = (1 << POLL_BITS) - 1
TIME_MS_MAX: Final = (1 << 63 - POLL_BITS) - 2
"""Largest timestamp, in the year 2109. With it, `ord` is below LAST."""


class TimeOrder:
    """The `ord` of one source. Timestamps later than `now_ms` are ignored."""

    def __init__(self, now_ms: int) -> None:
        self._latest_ms = min(now_ms, TIME_MS_MAX)
        self._time_ms = self._polls = 0

    @property
    def ord(self) -> int:
        """The `ord` of the rows of the last poll."""
        return self._time_ms << POLL_BITS | self._polls

    def advance(self, timestamp_ms: int) -> None:
        """Note that a poll has returned records. The last one has this timestamp, or a negative
        one.
        """
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
        """Run `SourceTask.step`, with this source's `ord` for the rows that it sends."""
        self._sender.ord = self._order.ord
        reads = self.task.reads()
        worked = self.task.step(timeout_s)
        if reads and worked:
            self._order.advance(self.task.reader.last_timestamp_ms())
        return worked

    def flush(self) -> None:
        """Run `SourceTask.flush`, with this source's `ord` for the rows that it sends."""
        self._sender.ord = self._order.ord
        self.task.flush()


def poll_shares(offsets: Mapping[VertexId, int]) -> dict[VertexId, float]:
    """Return the share of a full poll that each source reads, by its number of offsets in the wave.

    All rows of a poll have one `ord`. A source with few records therefore reads few at a time. It
    takes as many polls for the wave as the largest source.
    """
    most = max(offsets.values(), default=0)
    return {source: count / most if most else 1.0 for source, count in offsets.items()}
