"""What the JobMaster tells of its job: counts over all attempts, the last checkpoint, the history.

Display only: nothing here decides anything.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from tidegate.checkpoint.pending import CompletedCheckpoint
from tidegate.controlplane.jobmaster.attempt import LiveAttempt
from tidegate.controlplane.jobmaster.delays import Delay
from tidegate.controlplane.jobmaster.machine import JobMachine
from tidegate.errors import TidegateError
from tidegate.ids import JobName
from tidegate.ports.clock import Clock
from tidegate.protocol.errors import ErrorReport
from tidegate.protocol.job_state import JobState
from tidegate.protocol.messages import AttemptReport, CheckpointReport, JobReport, SlotMetrics

HISTORY_LENGTH: Final = 20
"""Ended attempts that are told of."""


class JobReporter:
    """Gathers what a JobReport says."""

    def __init__(self, job: JobName, pid: int, clock: Clock) -> None:
        self._job, self._pid, self._clock = job, pid, clock
        self._history: deque[AttemptReport] = deque(maxlen=HISTORY_LENGTH)
        self._last_error: ErrorReport | None = None
        self._last_checkpoint: CheckpointReport | None = None
        self._before = SlotMetrics()
        self._completed = self._failed = 0
        self._notes: tuple[str, ...] = ()
        self._told: JobReport | None = None
        self._told_s = 0.0
        self._hidden = 0
        #: The wait that was reported last: its beginning by the monotonic and by the wall clock.
        self._delay: tuple[float, int] | None = None

    @staticmethod
    def of_refused(job: JobName, pid: int, error: TidegateError) -> JobReport:
        """The report of a job whose settings cannot be read."""
        return JobReport(
            job=job,
            state=JobState.FAILED,
            jobmaster_pid=pid,
            error=ErrorReport.of(error),
        )

    def set_last_error(self, report: ErrorReport) -> None:
        """What ended an attempt, with the traceback of the process where it happened."""
        self._last_error = report

    def hidden(self, offsets: int) -> None:
        """Offsets that open transactions hide from a bounded run; 0 keeps what was told."""
        self._hidden = offsets or self._hidden

    def read_again(self, offsets: str) -> None:
        """The operator restores an older checkpoint."""
        note = (
            "Records after the restored checkpoint are read again, and their output is written "
            f"again: {offsets}."
        )
        self._notes = (note,)

    def attempt_ended(self, live: LiveAttempt) -> None:
        """Keep what the attempt counted, and why it ended."""
        self._before = _sum(self._before, live)
        self._completed += live.coordinator.counts.completed
        self._failed += live.coordinator.counts.failed
        if self._last_error is not None:
            self._history.append(
                AttemptReport(
                    attempt=live.attempt, ended_ms=self._clock.now_ms(), error=self._last_error
                )
            )

    def completed(self, checkpoint: CompletedCheckpoint) -> None:
        """A checkpoint was published and its transactions are ended."""
        self._last_checkpoint = CheckpointReport(
            id=str(checkpoint.id),
            completed_ms=self._clock.now_ms(),
            duration_ms=checkpoint.duration_ms,
            size=checkpoint.size,
            transactions=checkpoint.transactions,
            alignment_ms=checkpoint.alignment_ms,
            sync_ms=checkpoint.sync_ms,
        )

    def report_sent(self, report: JobReport) -> None:
        """A report was sent."""
        self._told, self._told_s = report, self._clock.monotonic()

    def is_recent(self, interval_s: float) -> bool:
        """Whether a report was sent no longer ago than that."""
        return self._told is not None and self._clock.monotonic() - self._told_s < interval_s

    def is_due(self, report: JobReport, quiet_ms: int) -> bool:
        """Whether a report says anything new, or the last one was sent so long ago."""
        long_ago = self._clock.monotonic() - self._told_s >= quiet_ms / 1000
        return long_ago or report.differs_from(self._told)

    def report(
        self,
        machine: JobMachine,
        live: LiveAttempt | None,
        delay: Delay | None = None,
        storage_trouble: str = "",
        *,
        planned: bool = True,
    ) -> JobReport:
        """The job as it stands; `delay` is what it has waited for."""
        metrics = self._before if live is None else _sum(self._before, live)
        counts = None if live is None else live.coordinator.counts
        failed = machine.state in {JobState.FAILED, JobState.DEPOSED}
        error = self._last_error
        if error is None and machine.error is not None:
            error = ErrorReport.of(machine.error)
        return JobReport(
            job=self._job,
            state=machine.state,
            attempt=machine.attempt or 0,
            restarts=machine.restarts,
            jobmaster_pid=self._pid,
            records_in=metrics.records_in,
            records_out=metrics.records_out,
            skipped=metrics.skipped,
            dead_letters=metrics.dead_letters,
            lag=metrics.lag,
            backlog=live is not None and live.backlog.is_processing_backlog,
            checkpoints_completed=self._completed + (counts.completed if counts else 0),
            checkpoints_failed=self._failed + (counts.failed if counts else 0),
            last_checkpoint=self._last_checkpoint,
            slots=live.reports() if live is not None else (),
            slots_missing=machine.slots_missing,
            waiting_for="" if delay is None else delay.text,
            waiting_since_ms=self._since_ms(delay),
            hidden_offsets=self._hidden,
            error=error if failed or machine.restarts else None,
            history=tuple(self._history),
            notes=self._notes,
            reported_ms=self._clock.now_ms(),
            storage_trouble=storage_trouble,
            stopped=machine.stopped,
            planned=planned,
        )

    def _since_ms(self, delay: Delay | None) -> int:
        """Wall clock of the beginning of a wait, the same in each report of it."""
        if delay is None:
            self._delay = None
            return 0
        if self._delay is None or self._delay[0] != delay.since_s:
            ago_ms = round((self._clock.monotonic() - delay.since_s) * 1000)
            self._delay = (delay.since_s, self._clock.now_ms() - ago_ms)
        return self._delay[1]


def _sum(before: SlotMetrics, live: LiveAttempt) -> SlotMetrics:
    """What earlier attempts counted and this one has; the lag is this one's."""
    now = live.metrics()
    return SlotMetrics(
        records_in=before.records_in + now.records_in,
        records_out=before.records_out + now.records_out,
        skipped=before.skipped + now.skipped,
        dead_letters=before.dead_letters + now.dead_letters,
        lag=now.lag,
    )
