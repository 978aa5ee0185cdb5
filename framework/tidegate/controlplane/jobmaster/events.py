"""What the job machine is told and what it asks for: its states, events and instructions.

Data without behaviour. The JobMaster's shell makes the events and carries out the instructions;
`machine.py` stands between them and says when which is right.
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
    """How a user's stop ended a job. In a report and in the journal, empty means: not by a stop."""

    WITH_CHECKPOINT = "with_checkpoint"
    """The final checkpoint was taken before the end of the input."""
    WITHOUT_CHECKPOINT = "without_checkpoint"
    """The last attempt ended before its final checkpoint; the next run repeats what it did after
    the last checkpoint."""


# --- events -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStarted:
    """The JobMaster process is up and has its submission."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """The journal holds our claim; its number is the attempt."""

    attempt: Attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecovered:
    """Settled and fenced. `final`: this same submit has already published its last checkpoint;
    `stopped`: for a user's stop.
    """

    attempt: Attempt
    final: bool = False
    stopped: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryFailed:
    """The claim, the settling or the fencing could not be done."""

    error: TidegateError


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRegistered:
    """A slot process of the attempt is up."""

    attempt: Attempt
    ordinal: int
    slot: SlotId
    serial: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotDisappeared:
    """A slot process of the attempt ended, or its TaskManager did, or it does not answer."""

    attempt: Attempt
    slot: SlotId
    reason: str
    serial: int = 0
    """Which use of the slot: news of an earlier one change nothing."""
    silent: bool = False
    """To this JobMaster: the ResourceManager takes it for a slot of the attempt still."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotReady:
    """The slot has restored its state and opened its functions."""

    attempt: Attempt
    ordinal: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRequestTimedOut:
    """The attempt has waited for its slots as long as a job may."""

    attempt: Attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartDelayElapsed:
    """The restart delay of the attempt has passed."""

    restart: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFailed:
    """A subtask, a checkpoint, a publication or a commit failed: the attempt cannot go on."""

    attempt: Attempt
    error: TidegateError


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotInputEnded:
    """A subtask has processed the last record of a bounded run."""

    attempt: Attempt
    subtask: SubtaskId


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequested:
    """By the user: with a final checkpoint, or by canceling."""

    final_checkpoint: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalCheckpointCommitted:
    """The final checkpoint is published and its transactions are ended."""

    attempt: Attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class JobClosed:
    """Settled, fenced, and `closed` is in the journal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseFailed:
    """The journal could not be closed: the outcome stands, the next submit settles."""

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
    | FinalCheckpointCommitted
    | JobClosed
    | CloseFailed
)


# --- instructions -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Recover:
    """Claim, settle, fence: `Claimed` and then `JobRecovered` follow, or `RecoveryFailed`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcquireSlots:
    """Request the slots of the attempt; older ones of the job are released by it."""

    attempt: Attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploySlots:
    """Tell every registered slot what to run."""

    attempt: Attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class StartAttempt:
    """Start the sources and the checkpoints."""

    attempt: Attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeFinalCheckpoint:
    """As soon as possible, repeated until one is published."""

    attempt: Attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class EndAttempt:
    """Forget the attempt's slots, checkpoints and timers."""

    attempt: Attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleRestart:
    """`RestartDelayElapsed` after this delay."""

    delay_s: float
    restart: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Close:
    """Settle, fence, write `closed`: the job ends as `outcome`, by a stop as `stopped` says."""

    outcome: JobState
    stopped: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitProcess:
    """End the process; the state and error to report are the machine's."""


Instruction = (
    Recover
    | AcquireSlots
    | DeploySlots
    | StartAttempt
    | TakeFinalCheckpoint
    | EndAttempt
    | ScheduleRestart
    | Close
    | ExitProcess
)
