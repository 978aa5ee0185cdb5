"""What the checkpoint coordinator is told and what it asks for: its events and instructions.

Data without behaviour. The JobMaster's shell makes the events and carries out the instructions;
`coordinator.py` stands between them. Times are monotonic seconds of the shell's own clock.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.checkpoint.pending import AcknowledgeResult
from tidegate.errors import TidegateError
from tidegate.ids import CheckpointId, SubtaskId
from tidegate.protocol.snapshots import PreparedTransaction, SubtaskSnapshot

# --- events -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStarted:
    """All sources of the attempt read."""

    now_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointTick:
    """Time has passed; sent at or after each `WakeAt`."""

    now_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledged:
    """A subtask's part of a checkpoint is complete and durable."""

    checkpoint: CheckpointId
    snapshot: SubtaskSnapshot
    now_s: float
    alignment_ms: int = 0
    sync_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Declined:
    """A part could not be made, or the trigger did not reach a slot (`subtask` is None)."""

    checkpoint: CheckpointId
    subtask: SubtaskId | None
    reason: str
    now_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """The checkpoint stands in the journal."""

    checkpoint: CheckpointId
    now_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishFailed:
    """It is certain that the checkpoint does not stand in the journal and never will."""

    checkpoint: CheckpointId
    reason: str
    now_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionsEnded:
    """Seen CompleteCommit: these need not be named again."""

    transactions: tuple[PreparedTransaction, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequested:
    """Take a final checkpoint as soon as possible. May be repeated."""

    now_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogChanged:
    """The job has begun to work off a backlog, or has done so (`backlog.py`)."""

    behind: bool
    now_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSeen:
    """The checkpoint storage has vanished, or is back."""

    gone: str
    """Why it cannot be used; empty if it is there."""
    now_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskEnded:
    """A subtask has finished and will acknowledge nothing more; its last snapshot is carried on."""

    subtask: SubtaskId
    now_s: float


CoordinatorEvent = (
    AttemptStarted
    | CheckpointTick
    | Acknowledged
    | Declined
    | Published
    | PublishFailed
    | TransactionsEnded
    | StopRequested
    | BacklogChanged
    | StorageSeen
    | TaskEnded
)


# --- instructions -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerBarriers:
    """Have all sources inject the barrier."""

    checkpoint: CheckpointId
    final: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishCheckpoint:
    """All parts are in: write the manifest and publish. Answer Published or PublishFailed."""

    checkpoint: CheckpointId
    final: bool
    snapshots: tuple[SubtaskSnapshot, ...]
    transactions: tuple[PreparedTransaction, ...]
    """Everything prepared and not known to be ended, oldest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortCheckpoint:
    """Tell every slot that the checkpoint was given up."""

    checkpoint: CheckpointId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LogIgnoredAcknowledge:
    """An acknowledgement changed nothing, and why; for the log."""

    checkpoint: CheckpointId
    subtask: SubtaskId
    result: AcknowledgeResult


@dataclass(frozen=True, slots=True, kw_only=True)
class FailAttempt:
    """End the attempt; the restart strategy decides what follows. Given once, as the last."""

    error: TidegateError


@dataclass(frozen=True, slots=True, kw_only=True)
class WakeAt:
    """Send `CheckpointTick` at this time; replaces every earlier WakeAt."""

    time_s: float


CoordinatorInstruction = (
    TriggerBarriers
    | PublishCheckpoint
    | AbortCheckpoint
    | LogIgnoredAcknowledge
    | FailAttempt
    | WakeAt
)
