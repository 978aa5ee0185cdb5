"""Counts the JobMasters of a job that exit before they have a plan of it, and limits them.

A process that exits by itself at each start has an error of its own: the limit is five. A process
that is killed has no error of its own. But the system also kills a process whose import needs more
memory than there is. So kills have a limit too, which is higher. It applies only until the
submission has claimed an attempt: a job that has run once can be imported, and its host may have
enough memory again later. `backoff.py` has the pauses between the starts. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.errors import ExternalError, StartFailedError
from tidegate.exit_status import SIGKILLED, was_killed
from tidegate.ids import JobName
from tidegate.protocol.errors import ErrorReport

FAILED_STARTS_MAX = 5
"""Number of JobMasters in a row that end by themselves before they report that they have a plan of
the job. After so many the job fails. One failed start can be an accident; five in a row mean that
the start or the import itself fails. The next JobMaster imports no user code and only closes the
job. After the same number of these, the job fails without being closed."""
KILLED_STARTS_MAX = 10
"""Number of JobMasters in a row that something else kills before they report a plan. After so many
the job fails in the same way. The pauses between them take two minutes together. A JobManager may
be killed at its start for the same time (`client/local.py`)."""


@dataclass(slots=True)
class FailedStarts:
    """A counter of the JobMasters of one job that have ended since the last one with a plan."""

    failed: int = 0
    killed: int = 0

    def record(self, *, killed: bool, claimed: bool) -> None:
        """Count an end. `killed` says whether something else has killed the JobMaster, `claimed`
        whether the submission has claimed an attempt.
        """
        self.failed += not killed
        self.killed += killed and not claimed

    def reset(self) -> None:
        """Forget the ends: a JobMaster has a plan, or the next ones only close the job."""
        self.failed = self.killed = 0

    @property
    def exhausted(self) -> bool:
        """Whether the job fails."""
        return self.failed >= FAILED_STARTS_MAX or self.killed >= KILLED_STARTS_MAX

    def error(self, name: JobName, how: str, cause: str, *, closing: bool) -> ErrorReport:
        """Return the error of the job, if its limit is reached. `how` says how the last JobMaster
        ended, `cause` why something else has killed it (empty if nothing else has).
        """
        why = cause or (
            f"See its log, {name}/jobmaster.log. Often the import of the pipeline's module ends "
            "the process."
        )
        message = (
            f"The JobMaster of {name} ended {self.failed + self.killed} times in a row before it "
            f"reported anything; the last time {how}. {why}"
        )
        if closing:
            message += (
                " A JobMaster that was only to close the job could not be started either, so "
                "transactions may stay open until Kafka's transaction timeout: see `tidegate txn "
                "list`. The next run settles the job."
            )
        return ErrorReport.of(StartFailedError(message))


def cause_of_kill(status: int | None) -> str:
    """Return why something else kills a process at its start, and what to do; empty if the process
    has ended by itself.
    """
    if status is None or not was_killed(status):
        return ""
    if status == SIGKILLED:
        return (
            "The system kills a process in this way when the host or its container has no memory "
            "left (OOM killer; `dmesg` names the process). Give it more memory, or let the "
            "pipeline's module load less during its import."
        )
    return "Find out what sends this signal to the processes of the host, and stop it."


def lost_error(name: JobName, how: str, cause: str) -> ErrorReport:
    """Return the error that clients see until the next JobMaster has a plan."""
    message = f"The JobMaster of {name} was lost: {how}"
    return ErrorReport.of(
        ExternalError(f"{message}. {cause}" if cause else f"{message}; see its log.")
    )
