"""The Dispatcher's record of one job, with the job's phase and the report that clients see.

The module holds pure data and its views. `dispatcher.py` decides how events change the data.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Final

import msgspec

from tidegate.config import JobSettings, flattened
from tidegate.controlplane.jobmanager.backoff import Backoff
from tidegate.controlplane.jobmanager.failed_starts import FailedStarts
from tidegate.controlplane.jobmanager.job_history import JobHistory
from tidegate.errors import StopTimedOutError
from tidegate.message_text import clause
from tidegate.protocol.errors import ErrorReport
from tidegate.protocol.job_state import JobState
from tidegate.protocol.messages import StopJob
from tidegate.protocol.reports import JobReport
from tidegate.protocol.submission import Submission

CANCEL_WAIT_SHARE: Final = 0.6
"""Share of `job.stop_grace_period` for which a cancel waits for the start of a JobMaster."""


class Phase(enum.Enum):
    """The phases of a job in the Dispatcher."""

    STORING = "storing"
    STARTING = "starting"
    RUNNING = "running"
    WAITING = "waiting"
    ENDING = "ending"
    ENDED = "ended"


TRANSITIONS = frozenset(
    {
        (Phase.STORING, Phase.STARTING),  # the submission is durable
        (Phase.STARTING, Phase.RUNNING),  # registered
        (Phase.STARTING, Phase.WAITING),  # died, or could not be started
        (Phase.STARTING, Phase.ENDING),  # died, although it only had to close; or the cancel is due
        (Phase.RUNNING, Phase.WAITING),  # died without a terminal report
        (Phase.RUNNING, Phase.ENDING),  # the same, or a terminal report
        (Phase.WAITING, Phase.ENDING),  # canceled, and no JobMaster has started in time
        (Phase.WAITING, Phase.STARTING),  # the pause is over
        (Phase.ENDING, Phase.ENDED),  # the result is durable
        (Phase.ENDING, Phase.WAITING),  # fenced, but not by another cluster
    }
)


@dataclass(slots=True)
class JobRecord:
    """The record of one job. Only the Dispatcher changes it."""

    submission: Submission
    phase: Phase
    launch_id: int = 0
    """Number of the current or last start of its JobMaster."""
    pid: int = 0
    """Pid of the JobMaster; 0 if no JobMaster runs."""
    address: str = ""
    since_ms: int = 0
    """Monotonic time in ms at which the phase began. In STARTING, the time at which the process
    started, as soon as it has; that may be later."""
    last_heartbeat_ms: int = 0
    worked: bool = False
    """Whether the current or last JobMaster has completed a checkpoint."""
    reported: bool = False
    """Whether the current JobMaster has sent a report after its import of the user's module. From
    then on it reports at intervals."""
    report: JobReport | None = None
    killed: bool = False
    """Whether this JobManager kills the current JobMaster."""
    stop: StopJob | None = None
    """Stop request of a client. It is sent to every JobMaster until the job ends."""
    stop_since_ms: int = 0
    """Monotonic time in ms of the stop request. A cancel after a stop has a time of its own."""
    stop_sent: bool = False
    """Whether the stop was sent to the current JobMaster, or is being sent."""
    failed_starts: FailedStarts = field(default_factory=FailedStarts)
    postponed_since_ms: int = 0
    """Wall-clock time in ms of the first start in a row that was postponed; 0 if none was."""
    other_version: str = ""
    """Reason why the current JobMaster was refused, if its tidegate or Python version differs."""
    close_only: ErrorReport | None = None
    """Error by which the job has failed. Its next JobMasters only close the job."""
    backoff: Backoff = field(default_factory=Backoff)
    pending_request_ids: list[int] = field(default_factory=list)
    """Requests that wait: SubmitJob in STORING, the terminal ReportJob in ENDING."""
    history: JobHistory = field(default_factory=JobHistory)
    """Sums of the JobMasters that died."""
    result_under_way: bool = False
    claim_stored: bool = False
    """Whether the submission's claim on a journal is stored, or is being stored."""


def view(job: JobRecord) -> JobReport:
    """Return the report that clients see.

    A job that was fenced is shown as initializing until another cluster is known to own it.
    """
    report = report_of(job)
    if job.phase is Phase.ENDING and report.state == JobState.FENCED:
        return msgspec.structs.replace(report, state=JobState.INITIALIZING)
    return report


def report_of(job: JobRecord) -> JobReport:
    """Return the last report, with the sums of earlier JobMasters added."""
    if job.report is None:
        return JobReport(job=job.submission.job, state=JobState.CREATED, jobmaster_pid=job.pid)
    return msgspec.structs.replace(job.history.add_sums(job.report), jobmaster_pid=job.pid)


def cancel_is_due(job: JobRecord, now_ms: int) -> bool:
    """Return whether the job is canceled and `CANCEL_WAIT_SHARE` of its grace period is over."""
    if job.stop is None or job.stop.final_checkpoint:
        return False
    settings = dict(flattened(job.submission.settings))
    grace_ms = settings.get("job.stop_grace_period", JobSettings().stop_grace_period)
    return bool(now_ms - job.stop_since_ms >= CANCEL_WAIT_SHARE * grace_ms)


def failed_cancel(job: JobRecord) -> JobReport:
    """Return the last report of a canceled job whose JobMaster has not started in time."""
    last = job.report or JobReport(job=job.submission.job, state=JobState.CREATED)
    why = last.start_refused or (last.error.message if last.error is not None else "")
    cause = f" {clause(why)}." if why else ""
    message = (
        "The cancel did not wait longer within job.stop_grace_period for the start of a "
        f"JobMaster.{cause} The journal of the job is not closed: transactions may stay open until "
        "Kafka's transaction timeout. The next run of the job settles them before it reads."
    )
    error = ErrorReport.of(StopTimedOutError(message))
    return msgspec.structs.replace(last, state=JobState.FAILED, error=error)
