"""Whether a slot must report its progress to the JobMaster at once.

A job that is idle takes checkpoints less often (`checkpoint/idleness.py`). Its first record must
not wait for that, so the slot that reads it reports it at once. A slot does not know whether the
whole job is idle. It knows a necessary condition: since its acknowledgement of the checkpoint
before the last one, it has neither read nor written a record.

Invariant: while the job is idle for the JobMaster, the next record of each slot is news, or news of
the slot is still on its way. A slot with many records reports at most one of them at once for each
checkpoint.
"""

from __future__ import annotations

from tidegate.ids import CheckpointId


class ProgressNews:
    """The memory of what a slot has acknowledged. The mailbox thread calls it."""

    def __init__(self) -> None:
        self._checkpoint: CheckpointId | None = None
        self._acknowledged = -1
        self._quiet = False
        """Whether the last acknowledged checkpoint brought no progress, and there was none
        since.
        """

    def acknowledged(self, checkpoint: CheckpointId, progress: int) -> None:
        """Note an acknowledgement. A slot with several subtasks acknowledges a checkpoint several
        times, and each time counts.
        """
        unchanged = progress == self._acknowledged
        self._quiet = unchanged and (self._quiet or checkpoint != self._checkpoint)
        self._checkpoint, self._acknowledged = checkpoint, progress

    def take(self, progress: int) -> bool:
        """Return whether this progress is news that must be reported now. It is news once."""
        is_news = self._quiet and progress != self._acknowledged
        if is_news:
            self._quiet = False
        return is_news
