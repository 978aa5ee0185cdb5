"""The JobMaster's reports of its job: counts over all attempts, the last checkpoint, the history.

Reports are for display only. This module decides nothing.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import msgspec

from tidegate.checkpoint.pending import CompletedCheckpoint
from tidegate.config import RestartSettings
from tidegate.controlplane.jobmaster.attempt import LiveAttempt
from tidegate.controlplane.jobmaster.delays import Delay
from tidegate.controlplane.jobmaster.machine import JobMachine
from tidegate.controlplane.jobmaster.restarts import final_message
from tidegate.errors import TidegateError
from tidegate.ids import JobName
from tidegate.ports.clock import Clock
from tidegate.protocol.errors import ErrorReport
from tidegate.protocol.job_state import JobState
from tidegate.protocol.reports import AttemptReport, CheckpointReport, JobReport, add_counts
from tidegate.protocol.slot_metrics import SlotMetrics
from tidegate.stream_elements import MIN_MS

HISTORY_LENGTH: Final = 20
"""The most ended attempts that a report lists."""


class JobReporter:
    """A collector of the content of `JobReport`."""

    def __init__(
        self, job: JobName, pid: int, clock: Clock, restarts: RestartSettings | None = None
    ) -> None:
        self._restarts = restarts or RestartSettings()
        self._job, self._pid, self._clock = job, pid, clock
        self._history: deque[AttemptReport] = deque(maxlen=HISTORY_LENGTH)
        self._last_error: ErrorReport | None = None
        self._last_checkpoint: CheckpointReport | None = None
        self._before = SlotMetrics()
        self._completed = self._failed = 0
        self._notes: tuple[str, ...] = ()
        self._last_sent: JobReport | None = None
        self._last_sent_s = 0.0
        self._hidden = 0
        #: The start of the wait that was reported last, by the monotonic and by the wall clock.
        self._delay: tuple[float, int] | None = None

    @staticmethod
    def of_refused(job: JobName, pid: int, error: TidegateError) -> JobReport:
        """Return the report of a job whose settings cannot be read."""
        return JobReport(
            job=job,
            state=JobState.FAILED,
            jobmaster_pid=pid,
            error=ErrorReport.of(error),
        )

    def set_last_error(self, report: ErrorReport) -> None:
        """Record what ended an attempt, with the traceback of the process where it happened."""
        self._last_error = report

    def set_hidden_offsets(self, offsets: int) -> None:
        """Record the number of offsets that open transactions hide from a bounded run. The value 0
        keeps the earlier number.
        """
        self._hidden = offsets or self._hidden

    def read_again(self, offsets: str) -> None:
        """Note that the user restores an older checkpoint, so that `offsets` are read again."""
        note = (
            "Records after the restored checkpoint are read again, and their output is written "
            f"again: {offsets}."
        )
        self._notes = (note,)

    def add_note(self, note: str) -> None:
        """Add a fact that the operator must know."""
        self._notes = (*self._notes, note)

    def attempt_ended(self, live: LiveAttempt) -> None:
        """Keep the counts of an attempt that has ended, and the reason for its end."""
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
        """Record a checkpoint that was published and whose transactions are committed."""
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
        """Record the last report that was sent."""
        self._last_sent, self._last_sent_s = report, self._clock.monotonic()

    def is_recent(self, interval_s: float) -> bool:
        """Return whether a report was sent in the last `interval_s`."""
        return (
            self._last_sent is not None and self._clock.monotonic() - self._last_sent_s < interval_s
        )

    def is_due(self, report: JobReport, quiet_ms: int) -> bool:
        """Return whether the report must be sent. It must if its content is new, or if the last
        report was sent at least `quiet_ms` ago.
        """
        long_ago = self._clock.monotonic() - self._last_sent_s >= quiet_ms / 1000
        return long_ago or report.differs_from(self._last_sent)

    def report(
        self,
        machine: JobMachine,
        live: LiveAttempt | None,
        delay: Delay | None = None,
        storage_trouble: str = "",
        *,
        planned: bool = True,
    ) -> JobReport:
        """Return a report of the current state of the job. `delay` is its current wait."""
        metrics = self._before if live is None else _sum(self._before, live)
        counts = None if live is None else live.coordinator.counts
        failed = machine.state in {JobState.FAILED, JobState.FENCED}
        error = self._last_error
        if error is None and machine.error is not None:
            error = ErrorReport.of(machine.error)
        if failed and error is not None:
            final = final_message(error.message, self._restarts)
            error = msgspec.structs.replace(error, message=final)
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
            watermark_ms=None if metrics.watermark_ms == MIN_MS else metrics.watermark_ms,
            watermark_held_by=metrics.watermark_held_by,
            backward_watermarks=metrics.backward_watermarks,
            late=metrics.late,
            processing_backlog=live is not None and live.backlog.is_processing_backlog,
            checkpoints_completed=self._completed + (counts.completed if counts else 0),
            checkpoints_failed=self._failed + (counts.failed if counts else 0),
            last_checkpoint=self._last_checkpoint,
            slots=live.reports() if live is not None else (),
            slots_missing=machine.slots_missing,
            waiting_for="" if delay is None else delay.text,
            waiting_since_ms=self._since_ms(delay),
            hidden_offsets=self._hidden,
            error=error if failed or machine.restarts else None,
            failed_attempts=tuple(self._history),
            notes=self._notes,
            hanging_calls=() if live is None else live.hanging_calls(),
            reported_ms=self._clock.now_ms(),
            storage_trouble=storage_trouble,
            stopped=machine.stopped,
            planned=planned,
        )

    def _since_ms(self, delay: Delay | None) -> int:
        """Return the wall-clock start of a wait, in ms. All reports of one wait have the same
        start.
        """
        if delay is None:
            self._delay = None
            return 0
        if self._delay is None or self._delay[0] != delay.since_s:
            ago_ms = round((self._clock.monotonic() - delay.since_s) * 1000)
            self._delay = (delay.since_s, self._clock.now_ms() - ago_ms)
        return self._delay[1]


def _sum(before: SlotMetrics, live: LiveAttempt) -> SlotMetrics:
    """Return the sum of the counts of earlier attempts and the live one. The lag is only that of
    the live attempt.
    """
    now = live.metrics()
    return SlotMetrics(
        records_in=before.records_in + now.records_in,
        records_out=before.records_out + now.records_out,
        skipped=before.skipped + now.skipped,
        dead_letters=before.dead_letters + now.dead_letters,
        lag=now.lag,
        watermark_ms=now.watermark_ms,
        watermark_held_by=now.watermark_held_by,
        backward_watermarks=before.backward_watermarks + now.backward_watermarks,
        late=add_counts([before.late, now.late]),
    )
