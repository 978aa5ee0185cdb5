"""Whether a job works off a backlog, so that it may take checkpoints less often (FLIP-309).

`Backlog` is a pure state machine of one attempt. Its inputs are the number of records that the
slots have read, and the number of records that wait for busy slots. The job is behind while more
records wait than the job reads in one window. The window is `checkpoint.interval_during_backlog`.
While a job is behind, a record has already waited for about one window when it is read. So it may
wait about as long again for the next checkpoint.

In Flink the sources report a backlog, by the time lag of their watermarks. This module counts
records and compares them with the job's own speed, so it does not depend on the producers' clocks.
Records that wait for slots which are not busy do not count: they are just arriving, or an open
transaction of another producer hides them.

This class only reports. `coordinator.py` chooses the interval, and exactly-once does not depend on
either. A reported backlog is not a measure of load.
"""

from __future__ import annotations

import math
from typing import Final

CATCH_UP_RATIO: Final = 0.25
"""The share of a window's records at which a backlog ends: the job is no longer behind when at most
this share waits. This limit is lower than the one at which a backlog starts. With equal limits the
job would be behind again as soon as more frequent checkpoints slow it down.
"""

CONFIRMATION_RATIO: Final = 0.1
"""The share of a window for which a job is observed before its measured speed counts. A backlog
must then last for the same share of a window before it is reported. A short burst is read sooner.
"""


class Backlog:
    """The state machine. With a `window_s` of 0 it never reports a backlog."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._since_s, self._since_records = math.inf, 0
        #: Records that the job reads per window: measured over the last complete window, or when
        #: the backlog was detected.
        self._read = 0.0
        self._suspected_s = math.inf
        self.is_processing_backlog = False

    def sample(self, now_s: float, records_in: int, waiting: int) -> bool:
        """Take a sample and return whether the job is behind; the result is also in
        `is_processing_backlog`.

        `records_in` counts all records since the start of the attempt. `waiting` counts the records
        that wait for busy slots now. A job that reads nothing is never reported as behind, because
        fewer checkpoints would not help it.
        """
        if self._window_s <= 0:
            return False
        if not waiting or self._since_s == math.inf:  # a window begins when records begin to wait
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
