"""Whether a job is idle, so that it may take checkpoints less often.

`Idleness` is a pure state machine of one attempt. Its input is the progress of each slot: a count
that grows with each record that the slot reads or writes (`SlotMetrics.progress`). A job becomes
idle with a completed checkpoint that contains no progress since the completed one before. It is
idle until a slot reports progress. A slot that may be a part of an idle job reports its first
record at once (`slot/progress_news.py`), so the record does not wait for the longer interval.

A checkpoint of an idle job commits no output. It stores nothing new but times: watermarks, and what
timers without a result have changed. Kafka Streams
also commits a task only if it has done something (`commitNeeded` in its `StreamTask`).

This class only reports. `coordinator.py` chooses the interval, and exactly-once does not depend on
either.
"""

from __future__ import annotations


class Idleness:
    """The state machine. It is not idle before the second checkpoint of the attempt."""

    def __init__(self) -> None:
        #: The progress of each slot, by ordinal: as last reported, and with its last
        #: acknowledgement.
        self._reported: dict[int, int] = {}
        self._acknowledged: dict[int, int] = {}
        #: The acknowledged progress of all slots at the last completed checkpoint.
        self._completed: int | None = None
        self._unchanged = False

    @property
    def is_idle(self) -> bool:
        """Whether the last completed checkpoint contains no progress, and none was reported
        since.
        """
        return self._unchanged and sum(self._reported.values()) == self._completed

    def reported(self, ordinal: int, progress: int) -> None:
        """Note the progress that a slot has reported, with a heartbeat or an acknowledgement.

        A heartbeat may arrive after a newer acknowledgement, so a lower count is ignored.
        """
        self._reported[ordinal] = max(progress, self._reported.get(ordinal, 0))

    def acknowledged(self, ordinal: int, progress: int) -> None:
        """Note the progress at the time of a slot's acknowledgement. It contains at least what the
        checkpoint contains.
        """
        self.reported(ordinal, progress)
        self._acknowledged[ordinal] = progress

    def completed(self) -> None:
        """Note that a checkpoint is complete. Its acknowledgements have been noted."""
        total = sum(self._acknowledged.values())
        self._unchanged, self._completed = total == self._completed, total
