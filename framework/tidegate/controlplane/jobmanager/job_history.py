"""The counters of a job, summed over all of its JobMasters.

A JobMaster counts records, checkpoints, restarts and ended attempts from its own start. When it
dies, the next one begins at zero. The Dispatcher keeps the sums here. So a counter in the status
never decreases, and the counters of a job survive its JobMasters. They do not survive a JobManager.
Pure; for display only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

from tidegate.protocol.errors import ErrorReport
from tidegate.protocol.reports import AttemptReport, JobReport, add_counts

HISTORY_MAX: Final = 20
"""Maximum number of ended attempts that are kept."""

COUNTERS: Final = (
    "records_in",
    "records_out",
    "skipped",
    "dead_letters",
    "checkpoints_completed",
    "checkpoints_failed",
    "restarts",
)
"""Fields of a JobReport that add up over JobMasters."""


@dataclass(slots=True)
class JobHistory:
    """The sums of the JobMasters before the current one."""

    before: JobReport | None = None
    """Counters, last completed checkpoint and hidden offsets; None before the first death."""
    attempts: tuple[AttemptReport, ...] = ()

    def add_sums(self, report: JobReport) -> JobReport:
        """Return a report of the current JobMaster with the sums added."""
        attempts = (*self.attempts, *report.failed_attempts)[-HISTORY_MAX:]
        if self.before is None:
            return msgspec.structs.replace(report, failed_attempts=attempts)
        sums = {name: getattr(self.before, name) + getattr(report, name) for name in COUNTERS}
        last = report.last_checkpoint or self.before.last_checkpoint
        late = add_counts([self.before.late, report.late])
        hidden = report.hidden_offsets or self.before.hidden_offsets
        return msgspec.structs.replace(
            report,
            failed_attempts=attempts,
            last_checkpoint=last,
            hidden_offsets=hidden,
            late=late,
            **sums,
        )

    def record_jobmaster_death(self, report: JobReport, error: ErrorReport, wall_ms: int) -> None:
        """Add the counters of the JobMaster. Count its death as a restart and keep the reason."""
        died = AttemptReport(attempt=report.attempt, ended_ms=wall_ms, error=error)
        summed = self.add_sums(report)
        self.attempts = (*summed.failed_attempts, died)[-HISTORY_MAX:]
        self.before = msgspec.structs.replace(
            summed, restarts=summed.restarts + 1, failed_attempts=()
        )

    def clear(self) -> None:
        """Clear the sums after the job has ended: its result holds them."""
        self.before, self.attempts = None, ()
