"""Whether a job works off a backlog, so that its checkpoints may come less often (FLIP-309).

A pure machine of one attempt. It is told what the slots have read, and how many records still wait
for slots that have more to read than time. It says that the job is behind while more of them wait
than it reads in a window of time, which is `checkpoint.interval_during_backlog`: what a job reads
when it is behind has waited for about as long as it may now wait for the next checkpoint.

Flink has its sources say so, by the lag in time of their watermarks. Here it is counted in records
against the job's own speed, which needs no clock of the producers. Records of slots that have time
do not count: they are just arriving, or a transaction of another producer hides them.

It is no measure of load and decides nothing: `coordinator.py` does, and exactly once holds
whatever is said here.
"""

from __future__ import annotations

import math
from typing import Final

CATCH_UP_RATIO: Final = 0.25
"""Share of a window's records that may wait when a job is behind no more. Fewer than made it so, or
it would be behind again as soon as its checkpoints cost more."""

CONFIRMATION_RATIO: Final = 0.1
"""Share of a window for which a job is watched before its speed is one, and again for which a
backlog must have been seen: a burst is read before that."""


class Backlog:
    """The machine; `window_s` of 0 is never behind."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._since_s, self._since_records = math.inf, 0
        #: Records read in the last window that was whole.
        self._read = 0.0
        self._suspected_s = math.inf
        self.is_processing_backlog = False

    def sample(self, now_s: float, records_in: int, waiting: int) -> bool:
        """Whether the job is behind, by the counts since its start; also in
        `is_processing_backlog`.

        A job that reads nothing never is: nothing is held up then that fewer checkpoints would
        free.
        """
        if self._window_s <= 0:
            return False
        if not waiting or self._since_s == math.inf:  # a window begins where records begin to wait
            self._begin_window(now_s, records_in)
            self._suspected_s, self.is_processing_backlog = math.inf, False
            return False
        elapsed_s = now_s - self._since_s
        if elapsed_s > 0:
            self._judge(now_s, elapsed_s, records_in - self._since_records, waiting)
        if elapsed_s >= self._window_s:
            self._begin_window(now_s, records_in)
        return self.is_processing_backlog

    def _judge(self, now_s: float, elapsed_s: float, records: int, waiting: int) -> None:
        windows = self._window_s / elapsed_s
        if windows <= 1:
            self._read = records * windows
        if self.is_processing_backlog:
            self.is_processing_backlog = waiting > CATCH_UP_RATIO * self._read > 0
            return
        read = max(self._read, records * windows)
        if elapsed_s < CONFIRMATION_RATIO * self._window_s or not records or waiting <= read:
            self._suspected_s = math.inf
            return
        self._suspected_s = min(self._suspected_s, now_s)
        self.is_processing_backlog = (
            now_s - self._suspected_s >= CONFIRMATION_RATIO * self._window_s
        )
        if self.is_processing_backlog:
            self._read = read

    def _begin_window(self, now_s: float, records_in: int) -> None:
        self._since_s, self._since_records = now_s, records_in
