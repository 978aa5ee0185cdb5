"""What the Dispatcher's machine hears, and what it has done: events in, instructions out.

Of no behaviour; `machine.py` is the machine, `service.py` makes the events and carries out the
instructions.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.ids import JobName
from tidegate.ports.processes import ExitStatus
from tidegate.protocol.errors import ErrorReport
from tidegate.protocol.messages import JobReport, Message, StopJob, StoredCode, Submission

# --- events -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestReceived:
    """A message that waits for a reply under the number `request_id`."""

    request_id: int
    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionStored:
    """The submission is durable: the job will run, whatever happens to this process."""

    job: JobName
    code: StoredCode | None = None
    """Where the storage has the code."""


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
    """The storage failed; it is tried again with the next report."""

    job: JobName


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStillOwned:
    """The job was deposed, and no other cluster has it: by a JobMaster of this one that had been
    given up, or of an earlier JobManager, and woke up late.
    """

    job: JobName


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultNotStored:
    """The storage failed; it is tried again at the next tick."""

    job: JobName


@dataclass(frozen=True, slots=True, kw_only=True)
class StartDelayElapsed:
    """The pause before a JobMaster's start is over."""

    job: JobName
    start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobMasterStarted:
    """The process exists; it will register."""

    job: JobName
    start: int
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobMasterExited:
    """The process ended, or could not be started (`status` is None)."""

    job: JobName
    start: int
    status: ExitStatus | None
    reason: str = ""
    refused: bool = False
    """The operating system refused the start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopNotTaken:
    """The JobMaster did not take a StopJob: it is only starting, or did not answer."""

    job: JobName
    start: int


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
    | StopNotTaken
    | DispatcherTick
)


# --- instructions -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """Answer the message `request_id`."""

    request_id: int
    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSubmission:
    """Make it durable; SubmissionStored or SubmissionNotStored follows."""

    submission: Submission
    code: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreResult:
    """Make the job's end durable; ResultStored or ResultNotStored follows.

    A deposed job is only forgotten by this cluster where its name in the storage is another's by
    now; else JobStillOwned follows.
    """

    report: JobReport
    fenced: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreClaim:
    """Make it durable that an attempt of the job's submission has claimed the journal, for the
    JobManagers after this one; ClaimNotStored follows where the storage fails.
    """

    job: JobName
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleStart:
    """StartDelayElapsed after a pause."""

    job: JobName
    start: int
    after_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StartJobMaster:
    """Start the process; JobMasterStarted or JobMasterExited follows."""

    job: JobName
    start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KillJobMaster:
    """SIGKILL the process; JobMasterExited follows."""

    job: JobName
    start: int
    pid: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardStop:
    """Send StopJob on to the JobMaster; StopNotTaken follows if it does not take it."""

    job: JobName
    start: int
    address: str
    message: StopJob


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseJobSlots:
    """Nothing of this job may run any more: its JobMaster is gone, or the job ended."""

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
