"""A checkpoint that waits for its subtasks, and the data of a completed checkpoint.

The classes are data with one rule each; `coordinator.py` decides what to do with them. They do not
know the journal: a checkpoint with all acknowledgements has no effect until it is published.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from tidegate.ids import CheckpointId, SubtaskId
from tidegate.protocol.subtask_snapshot import PreparedTransaction, SubtaskSnapshot


class AcknowledgeResult(enum.Enum):
    """The outcome of an acknowledgement. None of these is an error."""

    SUCCESS = "success"
    DUPLICATE = "duplicate"
    """The subtask has already acknowledged this checkpoint: the message was delivered twice."""
    UNKNOWN = "unknown"
    """The subtask does not exist, or this attempt never triggered the checkpoint."""
    DISCARDED = "discarded"
    """The checkpoint was aborted or completed before. The coordinator still remembers the
    transactions of this acknowledgement.
    """


@dataclass(slots=True, kw_only=True)
class PendingCheckpoint:
    """A triggered checkpoint; the subtasks in `expected` must acknowledge it."""

    id: CheckpointId
    final: bool
    started_s: float
    expected: frozenset[SubtaskId]
    acknowledged: dict[SubtaskId, SubtaskSnapshot] = field(default_factory=dict)
    alignment_ms_max: int = 0
    sync_ms_max: int = 0

    def acknowledge(
        self, snapshot: SubtaskSnapshot, *, alignment_ms: int, sync_ms: int
    ) -> AcknowledgeResult:
        """Add the part of one subtask."""
        subtask = SubtaskId(snapshot.vertex, snapshot.index)
        if subtask not in self.expected:
            return AcknowledgeResult.UNKNOWN
        if subtask in self.acknowledged:
            return AcknowledgeResult.DUPLICATE
        self.acknowledged[subtask] = snapshot
        self.alignment_ms_max = max(self.alignment_ms_max, alignment_ms)
        self.sync_ms_max = max(self.sync_ms_max, sync_ms)
        return AcknowledgeResult.SUCCESS

    @property
    def missing(self) -> frozenset[SubtaskId]:
        """The subtasks that have not acknowledged."""
        return self.expected - self.acknowledged.keys()

    @property
    def snapshots(self) -> tuple[SubtaskSnapshot, ...]:
        """All parts, ordered by vertex and index, so that equal checkpoints give equal
        manifests.
        """
        return tuple(self.acknowledged[subtask] for subtask in sorted(self.acknowledged))


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedCheckpoint:
    """A published checkpoint, for display."""

    id: CheckpointId
    final: bool
    duration_ms: int
    """Milliseconds from trigger to publication."""
    size: int
    """Bytes of keyed state that the checkpoint refers to, including files shared with other
    checkpoints.
    """
    alignment_ms: int
    """The longest alignment of any subtask, in milliseconds."""
    sync_ms: int
    """The longest synchronous phase of any subtask, in milliseconds: the subtask processes no
    records during that time.
    """
    transactions: int


def state_size(snapshots: tuple[SubtaskSnapshot, ...]) -> int:
    """Return the number of bytes in all files of keyed state that the parts refer to."""
    return sum(
        file.size for snapshot in snapshots for keyed in snapshot.keyed for file in keyed.files
    )


def union(
    parts: list[tuple[PreparedTransaction, ...]],
) -> tuple[PreparedTransaction, ...]:
    """Return all transactions of several lists, each once, in the order of their first
    appearance.
    """
    return tuple(dict.fromkeys(transaction for part in parts for transaction in part))
