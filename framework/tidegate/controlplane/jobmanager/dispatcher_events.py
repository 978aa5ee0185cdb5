"""The events that the Dispatcher's machine receives, and the instructions that it returns.

The classes have no behaviour. `dispatcher.py` is the machine; `service.py` makes the events and
carries out the instructions.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.ids import JobName
from tidegate.ports.processes import ExitStatus
from tidegate.protocol.errors import ErrorReport
from tidegate.protocol.messages import Message, StopJob
from tidegate.protocol.reports import JobReport
from tidegate.protocol.submission import StoredCode, Submission

# --- events -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestReceived:
    """A message arrived. It waits for a reply under the number `request_id`."""

    request_id: int
    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionStored:
    """The submission is durable: the job will run, even if this process dies."""

    job: JobName
    code: StoredCode | None = None
    """Path of the code in the storage, with its digest and size; None without code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionNotStored:
    """The storage failed; nothing was started."""

    job: JobName
    error: ErrorReport


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultStored:
    """The job's end is durable."""

    job: JobName


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimNotStored:
    """The storage failed. The Dispatcher stores the claim again after the next report."""

    job: JobName


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStillOwned:
    """The job was fenced, but no other cluster owns it.

    The fencing JobMaster was one of this cluster that woke up late: it had been declared lost, or
    it belonged to an earlier JobManager.
    """

    job: JobName


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultNotStored:
    """The storage failed. The Dispatcher stores the result again at the next tick."""

    job: JobName


@dataclass(frozen=True, slots=True, kw_only=True)
class StartDelayElapsed:
    """The pause before a JobMaster's start is over."""

    job: JobName
    launch_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobMasterStarted:
    """The process exists. It has not registered yet."""

    job: JobName
    launch_id: int
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobMasterExited:
    """The process ended, or could not be started; then `status` is None."""

    job: JobName
    launch_id: int
    status: ExitStatus | None
    reason: str = ""
    refused: bool = False
    """Whether the operating system refused the start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopNotAccepted:
    """The JobMaster refused a StopJob because it is still starting, or it did not answer."""

    job: JobName
    launch_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatcherTick:
    """Time has passed."""


Event = (
    RequestReceived
    | SubmissionStored
    | SubmissionNotStored
    | ResultStored
    | ClaimNotStored
    | JobStillOwned
    | ResultNotStored
    | StartDelayElapsed
    | JobMasterStarted
    | JobMasterExited
    | StopNotAccepted
    | DispatcherTick
)


# --- instructions -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """Reply to the request `request_id`."""

    request_id: int
    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSubmission:
    """Store the submission. SubmissionStored or SubmissionNotStored follows."""

    submission: Submission
    code: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreResult:
    """Store the job's result. ResultStored or ResultNotStored follows.

    If the job was fenced, nothing is stored. ResultStored then follows only if this cluster no
    longer owns the job's name in the storage. Otherwise JobStillOwned follows.
    """

    report: JobReport
    fenced: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreClaim:
    """Store that an attempt of the job's submission has claimed the journal.

    Later JobManagers read it. ClaimNotStored follows if the storage fails.
    """

    job: JobName
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleStart:
    """Post StartDelayElapsed after a pause."""

    job: JobName
    launch_id: int
    after_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StartJobMaster:
    """Start the process. JobMasterStarted or JobMasterExited follows."""

    job: JobName
    launch_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KillJobMaster:
    """Kill the process with SIGKILL. JobMasterExited follows."""

    job: JobName
    launch_id: int
    pid: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardStop:
    """Forward StopJob to the JobMaster. StopNotTaken follows if it does not accept it."""

    job: JobName
    launch_id: int
    address: str
    message: StopJob


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseJobSlots:
    """Release all slots of the job: its JobMaster is gone, or the job ended."""

    job: JobName


Instruction = (
    Reply
    | StoreSubmission
    | StoreResult
    | StoreClaim
    | ScheduleStart
    | StartJobMaster
    | KillJobMaster
    | ForwardStop
    | ReleaseJobSlots
)
