"""What the Dispatcher knows of one job, where the job stands, and what is shown of it.

Pure data and its views: `machine.py` decides what an event changes here.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

import msgspec

from tidegate.controlplane.dispatcher.backoff import Backoff
from tidegate.controlplane.dispatcher.job_history import JobHistory
from tidegate.protocol.errors import ErrorReport
from tidegate.protocol.job_state import JobState
from tidegate.protocol.messages import JobReport, StopJob, Submission

"""States of a terminal report."""


class Phase(enum.Enum):
    """Where a job stands with the Dispatcher."""

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
        (Phase.STARTING, Phase.ENDING),  # died, although it was only to close the job
        (Phase.RUNNING, Phase.WAITING),  # died without a terminal report
        (Phase.RUNNING, Phase.ENDING),  # the same, or a terminal report
        (Phase.WAITING, Phase.STARTING),  # the pause is over
        (Phase.ENDING, Phase.ENDED),  # the result is durable
        (Phase.ENDING, Phase.WAITING),  # deposed, and by no other cluster
    }
)


@dataclass(slots=True)
class JobRecord:
    """One job. Only the Dispatcher changes it."""

    submission: Submission
    phase: Phase
    start: int = 0
    """Number of the present or last start of its JobMaster."""
    pid: int = 0
    """Of the JobMaster; 0 when there is none."""
    address: str = ""
    since_ms: int = 0
    """When the phase began; of STARTING, when its process did, which may have been put off."""
    last_heartbeat_ms: int = 0
    worked: bool = False
    """The present or last JobMaster has completed a checkpoint."""
    reported: bool = False
    """The present JobMaster has: it is through its import, and reports at intervals from then."""
    report: JobReport | None = None
    stop: StopJob | None = None
    """What a client has asked for; every JobMaster until the end is told."""
    stop_told: bool = False
    """To the present one, or it is on its way."""
    failed_starts: int = 0
    put_off_since_ms: int = 0
    """Wall clock of the first of the starts in a row that the host did not allow."""
    other_version: str = ""
    """Why the present JobMaster was refused, if its tidegate or Python is another one."""
    close_only: ErrorReport | None = None
    """The job has failed by this, and its next JobMasters only close it."""
    backoff: Backoff = field(default_factory=Backoff)
    asks: list[int] = field(default_factory=list)
    """Of SubmitJob while STORING, of the terminal ReportJob while ENDING."""
    history: JobHistory = field(default_factory=JobHistory)
    """Of the JobMasters that died."""
    result_stored: bool = False
    result_under_way: bool = False
    claim_stored: bool = False
    """It is durable, or about to be, that the submission has claimed a journal."""


def view(job: JobRecord) -> JobReport:
    """What is shown. That a job was deposed is not before another cluster is known to have it."""
    report = report_of(job)
    if job.phase is Phase.ENDING and report.state == JobState.DEPOSED:
        return msgspec.structs.replace(report, state=JobState.RECOVERING)
    return report


def report_of(job: JobRecord) -> JobReport:
    """The last report, over the restarts of JobMasters before it."""
    if job.report is None:
        return JobReport(job=job.submission.job, state=JobState.CREATED, jobmaster_pid=job.pid)
    return msgspec.structs.replace(job.history.over(job.report), jobmaster_pid=job.pid)
