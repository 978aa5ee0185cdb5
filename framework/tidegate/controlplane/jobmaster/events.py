"""The events that the job machine receives, and the instructions that it returns.

They are data without behaviour. The JobMaster (`service.py`) makes the events and carries out the
instructions. `machine.py` decides which instruction follows which event.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from tidegate.errors import TidegateError
from tidegate.ids import Attempt, SlotId, SubtaskId
from tidegate.protocol.job_state import JobState

STORAGE_HANGS: Final = 74
"""Exit status of a JobMaster whose storage call did not return (EX_IOERR of sysexits.h)."""


class StopEnd(enum.StrEnum):
    """The ways in which a user's stop ends a job. In a report and in the journal, an empty text
    means that no stop ended the job.
    """

    WITH_CHECKPOINT = "with_checkpoint"
    """The final checkpoint was taken before the end of the input."""
    WITHOUT_CHECKPOINT = "without_checkpoint"
    """The last attempt ended before its final checkpoint. The next run repeats the work of this
    attempt after the last checkpoint."""


# --- events -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEvent:
    """Base of the events of one attempt. An event of an attempt that is over changes nothing."""

    attempt: Attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStarted:
    """The JobMaster process has started and has its submission."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed(AttemptEvent):
    """The journal contains the claim of this process. The number of the claim is the attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecovered(AttemptEvent):
    """The job is settled and fenced. `final` means that this submission has already published its
    final checkpoint. `stopped` means that this was for a user's stop.
    """

    final: bool = False
    stopped: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryFailed:
    """The recovery failed: the plan, the claim, the settling, the fencing or the restore plan."""

    error: TidegateError


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRegistered(AttemptEvent):
    """A slot process of the attempt has started and registered."""

    ordinal: int
    slot: SlotId
    allocation_id: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotDisappeared(AttemptEvent):
    """A slot process of the attempt ended, its TaskManager ended, or the slot does not answer."""

    slot: SlotId
    reason: str
    allocation_id: int = 0
    """The use of the slot that this event belongs to. An event of an earlier use changes
    nothing."""
    silent: bool = False
    """Whether the slot is only silent to this JobMaster. The ResourceManager then still counts it
    as a slot of the attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotReady(AttemptEvent):
    """The slot has restored its state and opened its functions."""

    ordinal: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRequestTimedOut(AttemptEvent):
    """The attempt has waited for its slots for `cluster.slot_request_timeout`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartDelayElapsed:
    """The restart delay of the attempt has passed."""

    restart: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFailed(AttemptEvent):
    """A subtask, a checkpoint, a publication or a commit failed. The attempt cannot continue."""

    error: TidegateError


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotInputEnded(AttemptEvent):
    """A subtask has processed the last record of a bounded run."""

    subtask: SubtaskId


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequested:
    """The user asked to stop the job, either with a final checkpoint or by canceling it. With
    `drain`, all timers and windows fire before the final checkpoint.
    """

    final_checkpoint: bool
    drain: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StopGraceElapsed(AttemptEvent):
    """`job.stop_grace_period` has passed since the stop, and a call of user code has not returned.
    The final checkpoint cannot become complete.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class StopTimedOut:
    """A stop or a cancel has waited for a storage or for brokers that do not answer. The job ends
    without a close of its journal, and the next run settles it.
    """

    error: TidegateError


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalCheckpointCommitted(AttemptEvent):
    """The final checkpoint is published and its transactions are committed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobClosed:
    """The job is settled and fenced, and `closed` is in the journal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseFailed:
    """The journal could not be closed. The job ends as failed or fenced, and the next submission
    settles.
    """

    error: TidegateError


Event = (
    ProcessStarted
    | Claimed
    | JobRecovered
    | RecoveryFailed
    | SlotRegistered
    | SlotDisappeared
    | SlotReady
    | SlotRequestTimedOut
    | RestartDelayElapsed
    | AttemptFailed
    | SlotInputEnded
    | StopRequested
    | StopGraceElapsed
    | StopTimedOut
    | FinalCheckpointCommitted
    | JobClosed
    | CloseFailed
)


# --- instructions -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Recover:
    """Claim, settle and fence. `Claimed` and then `JobRecovered` follow, or `RecoveryFailed`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcquireSlots:
    """Request the slots of the attempt. The request also releases slots of the job's older
    attempts.
    """

    attempt: Attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploySlots:
    """Send every registered slot its deployment."""

    attempt: Attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class StartAttempt:
    """Start the sources and the checkpoints."""

    attempt: Attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class EndInput:
    """End the input of the attempt where its sources are now, and fire all timers and windows."""

    attempt: Attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeFinalCheckpoint:
    """Take a final checkpoint as soon as possible. Repeat this until one is published."""

    attempt: Attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class EndAttempt:
    """Drop the attempt's slots, checkpoints and timers."""

    attempt: Attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleRestart:
    """Send `RestartDelayElapsed` after this delay."""

    delay_s: float
    restart: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Close:
    """Settle, fence and write `closed`. The job ends as `outcome`. `stopped` is a `StopEnd` if a
    user's stop ended the job, else empty.
    """

    outcome: JobState
    stopped: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitProcess:
    """End the process. The state and the error to report are those of the machine."""


Instruction = (
    Recover
    | AcquireSlots
    | DeploySlots
    | StartAttempt
    | EndInput
    | TakeFinalCheckpoint
    | EndAttempt
    | ScheduleRestart
    | Close
    | ExitProcess
)
