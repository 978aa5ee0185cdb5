"""The events that the checkpoint coordinator handles, and the instructions that it returns.

This module has data without behaviour. The JobMaster's shell makes the events and executes the
instructions; `coordinator.py` decides which instructions follow from an event. Times are monotonic
seconds of the shell's own clock.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.checkpoint.pending import AcknowledgeResult
from tidegate.errors import TidegateError
from tidegate.ids import CheckpointId, SubtaskId
from tidegate.protocol.subtask_snapshot import PreparedTransaction, SubtaskSnapshot

# --- events -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStarted:
    """All sources of the attempt are reading."""

    now_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointTick:
    """Time has passed. The shell sends this event at or after each `WakeAt`."""

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
    """A subtask could not make its part, or the trigger did not reach a slot (`subtask`
    is None).
    """

    checkpoint: CheckpointId
    subtask: SubtaskId | None
    reason: str
    now_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """The checkpoint is in the journal."""

    checkpoint: CheckpointId
    now_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishFailed:
    """The checkpoint is certainly not in the journal and will never be there."""

    checkpoint: CheckpointId
    reason: str
    now_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionsCommitted:
    """These transactions were seen CompleteCommit, so no later publication has to list them."""

    transactions: tuple[PreparedTransaction, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequested:
    """A request for a final checkpoint as soon as possible. It may be repeated."""

    now_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogChanged:
    """The job has started to work off a backlog, or has finished it (`backlog.py`)."""

    behind: bool
    now_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleChanged:
    """The job has become idle, or has read or written a record after that (`idleness.py`)."""

    idle: bool
    now_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageStateChanged:
    """The checkpoint storage is gone, or is back."""

    gone: str
    """The reason why the storage cannot be used; empty if it can be used."""
    now_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskEnded:
    """A subtask has finished and will not acknowledge any more. Later checkpoints contain its last
    snapshot.
    """

    subtask: SubtaskId
    now_s: float


CoordinatorEvent = (
    AttemptStarted
    | CheckpointTick
    | Acknowledged
    | Declined
    | Published
    | PublishFailed
    | TransactionsCommitted
    | StopRequested
    | BacklogChanged
    | IdleChanged
    | StorageStateChanged
    | TaskEnded
)


# --- instructions -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerBarriers:
    """Make all sources inject the barrier."""

    checkpoint: CheckpointId
    final: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishCheckpoint:
    """Write the manifest and publish the checkpoint: all parts have arrived. Answer with
    `Published` or `PublishFailed`.
    """

    checkpoint: CheckpointId
    final: bool
    snapshots: tuple[SubtaskSnapshot, ...]
    transactions: tuple[PreparedTransaction, ...]
    """All transactions that are prepared and not known to be committed, each once. They are ordered
    by subtask, and those of one subtask have the order of its acknowledgement.
    """
    duration_ms: int = 0
    """The time from the trigger to the last acknowledgement, for display; 0 if it is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortCheckpoint:
    """Notify every slot that the checkpoint was aborted."""

    checkpoint: CheckpointId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LogIgnoredAcknowledge:
    """Log that an acknowledgement did not change the pending checkpoint, with the reason in
    `result`.
    """

    checkpoint: CheckpointId
    subtask: SubtaskId
    result: AcknowledgeResult


@dataclass(frozen=True, slots=True, kw_only=True)
class FailAttempt:
    """End the attempt; the restart strategy decides what follows. Returned once, as the last
    instruction.
    """

    error: TidegateError


@dataclass(frozen=True, slots=True, kw_only=True)
class WakeAt:
    """Send `CheckpointTick` at this time. It replaces every earlier `WakeAt`."""

    time_s: float


CoordinatorInstruction = (
    TriggerBarriers
    | PublishCheckpoint
    | AbortCheckpoint
    | LogIgnoredAcknowledge
    | FailAttempt
    | WakeAt
)
