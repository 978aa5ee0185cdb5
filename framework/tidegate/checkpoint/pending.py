"""A checkpoint that waits for its subtasks, and what it is when all have acknowledged.

Data with one rule each; the coordinator (`coordinator.py`) decides what to do with them. Neither
knows of the journal: a checkpoint whose acknowledgements are all in is nothing until it is
published.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from tidegate.ids import CheckpointId, SubtaskId
from tidegate.protocol.snapshots import PreparedTransaction, SubtaskSnapshot


class AcknowledgeResult(enum.Enum):
    """What an acknowledgement turned out to be; none of these is an error."""

    SUCCESS = "success"
    DUPLICATE = "duplicate"
    """The subtask had acknowledged this checkpoint: a repeated delivery."""
    UNKNOWN = "unknown"
    """No such subtask, or a checkpoint that this attempt never triggered."""
    DISCARDED = "discarded"
    """The checkpoint was aborted or completed before. Its transactions are remembered all the
    same."""


@dataclass(slots=True, kw_only=True)
class PendingCheckpoint:
    """A triggered checkpoint; `expected` are the subtasks that must acknowledge it."""

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
        """Take one subtask's part."""
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
        """Subtasks that have not acknowledged."""
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
    """From trigger to publication."""
    size: int
    """Bytes of keyed state that it refers to, shared files included."""
    alignment_ms: int
    """The longest of any subtask."""
    sync_ms: int
    """The longest standstill of any subtask."""
    transactions: int


def state_size(snapshots: tuple[SubtaskSnapshot, ...]) -> int:
    """Bytes of all files of keyed state that the parts refer to."""
    return sum(
        file.size for snapshot in snapshots for keyed in snapshot.keyed for file in keyed.files
    )


def union(
    parts: list[tuple[PreparedTransaction, ...]],
) -> tuple[PreparedTransaction, ...]:
    """All transactions of several lists once, in the order of their first appearance."""
    return tuple(dict.fromkeys(transaction for part in parts for transaction in part))
