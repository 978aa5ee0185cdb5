"""The display of a run: a live table in an interactive terminal, log lines elsewhere, and JSON
lines for scripts.

Everything shown comes from JobReports. A rate is computed from two reports. After a restart the
counts continue from those of the last attempt, so work that is done again is counted again.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from tidegate.api.code.archive import CodeArchive
from tidegate.api.code.pipeline_files import CACHE, TOOL
from tidegate.config import CheckpointSettings, Config
from tidegate.controlplane.jobmaster.events import StopEnd
from tidegate.errors import Domain
from tidegate.exit_status import exit_text
from tidegate.message_text import counted
from tidegate.protocol.errors import ErrorReport
from tidegate.protocol.job_state import ENDED, JobState
from tidegate.protocol.reports import JobReport
from tidegate.protocol.slot_metrics import HangingCall
from tidegate.protocol.submission import Submission

LINE_INTERVAL_MS: Final = 5_000
"""Time in ms between two log lines of a healthy run. A change of state is printed at once."""

ERROR_INTERVAL_MS: Final = 10_000
"""Time in ms after which a line names a failure again, if the job has restarted since."""

ERROR_SHOWN_AT_END: Final = frozenset({JobState.CLOSING, JobState.FAILED})
"""States in which no line names the failure, because `end` and `failed` print it."""

LEFT_OUT_SHOWN: Final = 10
"""Number of files and folders that are listed by name if they are not stored with the code."""


OWN_FOLDER: Final = ".tidegate"


class Display:
    """The base of all displays. It prints interrupts, JobManager restarts and the job's end."""

    def __init__(self, submission: Submission, config: Config) -> None:
        self.job, self.config = submission.job, config
        self._before: JobReport | None = None
        self._noted: tuple[str, ...] = ()
        self._began_s = time.monotonic()
        self.is_json = False
        """Whether standard output belongs to JSON lines."""
        self.jobmanager_pid: Callable[[], int] = lambda: 0
        """Function that returns the pid of the present JobManager. `local_run` replaces it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Do nothing: the base display changes nothing that must be restored."""

    def left_out(self, archive: CodeArchive) -> None:
        """Report which files are not stored with the job."""
        print_left_out(self.job, archive)

    def drains(self, steps: Sequence[str]) -> None:
        """Report the steps that fire at the end of the run although the user has not chosen so."""
        print_drain(self.job, steps)

    def show(self, report: JobReport) -> None:
        """Show the present state of the job. The base display shows nothing."""

    def stopping(self, *, final_checkpoint: bool = True) -> None:
        """Report the first Ctrl-C, or a stop from another terminal."""
        how = "with" if final_checkpoint else "without"
        print_status(f"{self.job}: stopping {how} a final checkpoint (Ctrl-C again leaves at once)")

    def waiting_to_start(self, storage: str) -> None:
        """Report that the storage has not stored the job for some time."""
        text = f"waiting for the JobManager, which stores the job in {storage}"
        print_status(f"{self.job}: {text}")

    def interrupted(self) -> None:
        """Report the second Ctrl-C."""
        print_status(f"{self.job}: left without a final checkpoint; the next run recovers")

    def jobmanager_restarted(self, status: int) -> None:
        """Report that the JobManager exited with `status` and is started again."""
        print_status(f"{self.job}: the JobManager {exit_text(status)} and is started again")

    def end(self, report: JobReport) -> None:
        """Report how the job ended."""
        self._print_notes(report)
        print_status(
            f"{self.job}: {ended(report)}; {counted(report.records_in, 'record')} in, "
            f"{report.records_out:,} out in {self._duration()}, "
            f"{counted(report.checkpoints_completed, 'checkpoint')}, "
            f"{counted(report.restarts, 'restart')}{_bad_records(report)}"
        )
        self._print_hidden_offsets(report)

    def _duration(self) -> str:
        """Return the time since the display was made, just before the cluster starts."""
        return duration_text(int((time.monotonic() - self._began_s) * 1000))

    def _print_hidden_offsets(self, report: JobReport) -> None:
        if report.hidden_offsets:
            print_status(
                f"{self.job}: {counted(report.hidden_offsets, 'offset')} behind "
                "transactions that were open when the run began, and not read. `tidegate txn "
                "why-stuck` names the transactions; the next run reads their records."
            )

    def failed(self, report: JobReport) -> None:
        """Report why the job failed: first the traceback, then the error message."""
        if report.error is not None:
            # The traceback of an external failure is only in the log.
            if report.error.traceback and report.error.domain is not Domain.EXTERNAL:
                print_status(report.error.traceback.rstrip())
            print_status(f"tidegate: {report.error.message}")

    def _print_notes(self, report: JobReport) -> None:
        for note in report.notes if report.notes != self._noted else ():
            print_status(f"{self.job}: {note}")
        self._noted = report.notes

    def rates(self, report: JobReport) -> tuple[float, float]:
        """Return records in and records out per second since the previous report."""
        before = self._before
        if before is None or report.reported_ms <= before.reported_ms:
            return 0.0, 0.0
        seconds = (report.reported_ms - before.reported_ms) / 1000
        return (
            max(0, report.records_in - before.records_in) / seconds,
            max(0, report.records_out - before.records_out) / seconds,
        )


class LineDisplay(Display):
    """A display that prints a line at each change of state, and one every five seconds."""

    def __init__(self, submission: Submission, config: Config) -> None:
        super().__init__(submission, config)
        self._errors_shown: list[ErrorReport] = []
        """Failures that a line has already named."""
        self._error_shown_ms = self._restarts_shown = 0
        self._hanging: tuple[HangingCall, ...] = ()
        """Calls whose stacks were printed."""

    def show(self, report: JobReport) -> None:
        self._print_notes(report)
        before = self._before
        if (
            before is not None
            and before.state == report.state
            and before.storage_trouble == report.storage_trouble
            and before.hanging_calls == report.hanging_calls
            and report.reported_ms - before.reported_ms < LINE_INTERVAL_MS
        ):
            return
        # A failure is not printed twice in a row, but again after more restarts.
        error = None if report.state in ERROR_SHOWN_AT_END else report.error
        why = ""
        again = (
            report.restarts > self._restarts_shown
            and report.reported_ms - self._error_shown_ms >= ERROR_INTERVAL_MS
        )
        if error is not None and (again or error not in self._errors_shown[-1:]):
            self._error_shown_ms, self._restarts_shown = report.reported_ms, report.restarts
            why = f", last failure: {error.message}"
            self._errors_shown.append(error)
        print_status(f"{self.job}: {describe(report, self.rates(report))}{why}")
        for call in report.hanging_calls if report.hanging_calls != self._hanging else ():
            print_status(f"{self.job}: stack of step {call.step!r}:\n{call.stack}")
        self._hanging = report.hanging_calls
        self._before = report

    def end(self, report: JobReport) -> None:
        """Print the failures that no line has named yet, then report how the job ended.

        `failed` prints the failure that ended the job.
        """
        last = report.error if report.state is JobState.FAILED else None
        for failed in report.failed_attempts:
            if failed.error not in (last, *self._errors_shown):
                print_status(f"{self.job}: earlier failure: {failed.error.message}")
                self._errors_shown.append(failed.error)
        super().end(report)


class JsonLines(Display):
    """A display that prints each report as one JSON object on stdout."""

    def __init__(self, submission: Submission, config: Config) -> None:
        super().__init__(submission, config)
        self.is_json = True

    def show(self, report: JobReport) -> None:
        if self._before is None or self._before.reported_ms != report.reported_ms:
            self._print("report", report)
            self._before = report

    def stopping(self, *, final_checkpoint: bool = True) -> None:
        """Print nothing: scripts see the change of state in a report."""

    def jobmanager_restarted(self, status: int) -> None:
        self._print_event(
            {"event": "jobmanager_exited", "pid": self.jobmanager_pid(), "status": status}
        )

    def end(self, report: JobReport) -> None:
        self._print("end", report)

    def _print(self, event: str, report: JobReport) -> None:
        pid = self.jobmanager_pid()
        self._print_event({"event": event, **report_json(report), "jobmanager_pid": pid})

    def _print_event(self, event: dict[str, Any]) -> None:
        # One write, because the thread that notices the JobManager's exit prints too.
        sys.stdout.write(json.dumps(event) + "\n")
        sys.stdout.flush()


class LiveDisplay(Display):
    """A display that draws a table again with each report."""

    def __init__(self, submission: Submission, config: Config) -> None:
        super().__init__(submission, config)
        from rich.console import Console
        from rich.live import Live as RichLive

        self._live = RichLive(console=Console(stderr=True), auto_refresh=False, transient=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.stop()

    def show(self, report: JobReport) -> None:
        if self._before is not None and self._before.reported_ms == report.reported_ms:
            return
        self._live.update(_table(report, self.rates(report), self.config), refresh=True)
        self._before = report

    def end(self, report: JobReport) -> None:
        """Remove the table, and print a summary that stays."""
        self._live.stop()
        self._print_notes(report)
        print_status("\n".join([f"{self.job}: {ended(report)}", *self._summary(report)]))
        self._print_hidden_offsets(report)

    def _summary(self, report: JobReport) -> list[str]:
        seconds = time.monotonic() - self._began_s
        last = report.last_checkpoint
        newest = "" if last is None else f", the last one {last.id} of {size_text(last.size)}"
        failed = f", {report.checkpoints_failed} failed" if report.checkpoints_failed else ""
        rows = {
            "records": f"{report.records_in:,} in, {report.records_out:,} out",
            "duration": f"{self._duration()} ({report.records_in / seconds:,.0f} records/s)",
            "checkpoints": f"{report.checkpoints_completed}{failed}{newest}",
            "restarts": str(report.restarts),
        }
        if bad := _bad_records(report):
            rows["bad records"] = bad.removeprefix(", ")
        return [f"  {name:<12} {value}" for name, value in rows.items()]


class QuietDisplay(Display):
    """A display that prints nothing, for callers that use only the result of the run."""

    def left_out(self, archive: CodeArchive) -> None:
        """Print nothing."""

    def drains(self, steps: Sequence[str]) -> None:
        """Print nothing."""

    def stopping(self, *, final_checkpoint: bool = True) -> None:
        """Print nothing."""

    def waiting_to_start(self, storage: str) -> None:
        """Print nothing."""

    def interrupted(self) -> None:
        """Print nothing."""

    def jobmanager_restarted(self, status: int) -> None:
        """Print nothing."""

    def end(self, report: JobReport) -> None:
        """Print nothing."""


def open_display(submission: Submission, config: Config, *, as_json: bool) -> Display:
    """Return the display that fits the destination of the output."""
    if as_json:
        return JsonLines(submission, config)
    kinds: Callable[[Submission, Config], Display] = (
        LiveDisplay if sys.stderr.isatty() else LineDisplay
    )
    return kinds(submission, config)


def print_status(text: str) -> None:
    """Print a line on stderr, because stdout is for the output that scripts read."""
    print(text, file=sys.stderr, flush=True)


def report_json(report: JobReport) -> dict[str, Any]:
    """Return a report as a JSON object. Its keys are the names of the fields in Python, which may
    differ from those on disk and between processes.
    """
    stored: dict[str, Any] = msgspec.to_builtins(report)
    return {field.name: stored[field.encode_name] for field in msgspec.structs.fields(report)}


def process_rows(report: JobReport) -> list[dict[str, Any]]:
    """Return the processes of a job that has not ended: the role, the process id and the host of
    each, and the number of a slot. The JobManager and a TaskManager may serve other jobs too.
    """
    if report.state in ENDED:
        return []
    managers = {(slot.task_manager_pid, slot.host): None for slot in report.slots}
    rows: list[dict[str, Any]] = [
        {"role": "JobManager", "pid": report.jobmanager_pid, "host": report.host},
        {"role": "JobMaster", "pid": report.jobmaster_pid, "host": report.host},
        *({"role": "TaskManager", "pid": pid, "host": host} for pid, host in managers),
        *(
            {"role": "slot", "slot": slot.ordinal, "pid": slot.pid, "host": slot.host}
            for slot in report.slots
        ),
    ]
    return [row for row in rows if row["pid"]]


def process_lines(report: JobReport) -> list[str]:
    """Return a line for each process of a job, such as "slot 0: pid 4711 on host-1"."""
    lines = []
    for row in process_rows(report):
        name = f"slot {row['slot']}" if "slot" in row else row["role"]
        lines.append(f"  {name}: pid {row['pid']}" + (f" on {row['host']}" if row["host"] else ""))
    return lines


def ended(report: JobReport) -> str:
    """Return how the job ended: its state, or the kind of the stop that has ended it."""
    last = report.last_checkpoint
    since = "its last checkpoint" if last is None else f"checkpoint {last.id}"
    match report.stopped:
        case "":
            return report.state.shown
        case StopEnd.WITHOUT_CHECKPOINT:
            return f"stopped without a final checkpoint (the next run continues from {since})"
        case _:
            return "stopped with a final checkpoint (the next run continues from it)"


def print_left_out(job: str, archive: CodeArchive) -> None:
    """Print which files are not stored with the job.

    Python's caches, tidegate's own folder and those of tools are not listed, because the user has
    not made them.
    """
    names = [
        str(each)
        for each in archive.left_out
        if each.reason not in {CACHE, TOOL} and Path(each.path).name != OWN_FOLDER
    ]
    if names:
        more = f" and {len(names) - LEFT_OUT_SHOWN} more" if len(names) > LEFT_OUT_SHOWN else ""
        shown = ", ".join(names[:LEFT_OUT_SHOWN])
        print_status(f"{job}: not stored with the code: {shown}{more}")


def print_drain(job: str, steps: Sequence[str]) -> None:
    """Print, before a bounded run, that these steps fire at its end, and the other choice."""
    if not steps:
        return
    print_status(
        f"{job}: this run drains at the end of its input: all windows and timers of "
        f"{', '.join(steps)} fire, also those that are not due, and no later run continues from "
        "there. For a run that can be continued, use --no-drain (in a script drain=False). --drain "
        "(drain=True) chooses the drain, without this text."
    )


def describe(report: JobReport, rates: tuple[float, float] | None) -> str:
    """Return a line about a job. `rates` is None if the caller has only one report."""
    closing = report.state is not JobState.FINISHED  # a job that is not finished may still fail
    parts = [report.state.shown if closing else ended(report)]
    if report.slots_missing and report.state is JobState.WAITING_FOR_SLOTS:
        parts.append(f"{counted(report.slots_missing, 'slot')} missing")
    if rates is None:
        parts.append(f"in {report.records_in:,}, out {report.records_out:,}")
    else:
        parts.append(f"in {report.records_in:,} ({rates[0]:,.0f}/s)")
        parts.append(f"out {report.records_out:,} ({rates[1]:,.0f}/s)")
    if report.lag is not None:
        parts.append(f"lag {report.lag:,}{' (backlog)' if report.processing_backlog else ''}")
    if report.watermark_held_by:
        parts.append(f"watermark {_watermark(report)}")
    if report.last_checkpoint is not None:
        last = report.last_checkpoint
        parts.append(f"checkpoint {last.id} in {last.duration_ms} ms, {size_text(last.size)}")
    if report.restarts:
        parts.append(counted(report.restarts, "restart"))
    if report.waiting_for:
        parts.append(_wait(report))
    parts.extend(call.describe(report.reported_ms) for call in report.hanging_calls)
    if bad := _bad_records(report):
        parts.append(bad.removeprefix(", "))
    return ", ".join(parts) + (f". {report.storage_trouble}" if report.storage_trouble else "")


def _interval(checkpoint: CheckpointSettings, report: JobReport) -> str:
    if report.processing_backlog:
        return f"every {checkpoint.interval_during_backlog / 1000:g} s, for the backlog"
    idle_ms = checkpoint.interval_when_idle
    while_idle = f", {idle_ms / 1000:g} s while idle" if idle_ms > checkpoint.interval else ""
    return f"every {checkpoint.interval / 1000:g} s{while_idle}"


def _watermark(report: JobReport) -> str:
    """Return how far the watermark is behind the clock, and what holds it back."""
    if report.watermark_ms is None:
        return f"none yet (held back by {report.watermark_held_by})"
    behind_s = max(0, report.reported_ms - report.watermark_ms) / 1000
    return f"{behind_s:,.0f} s behind ({report.watermark_held_by})"


def _table(report: JobReport, rates: tuple[float, float], config: Config) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    table.add_row("job", f"{report.job}  [bold]{report.state.shown}[/bold]")
    table.add_row("records in", f"{report.records_in:,}  ({rates[0]:,.0f}/s)")
    table.add_row("records out", f"{report.records_out:,}  ({rates[1]:,.0f}/s)")
    if report.storage_trouble:
        table.add_row("storage", Text(report.storage_trouble, style="red"))
    table.add_row("lag", "not known" if report.lag is None else f"{report.lag:,}")
    if report.watermark_held_by:
        table.add_row("watermark", _watermark(report))
    last = report.last_checkpoint
    told = (
        "none yet" if last is None else f"{last.id}, {last.duration_ms} ms, {size_text(last.size)}"
    )
    table.add_row("last checkpoint", f"{told}  ({_interval(config.checkpoint, report)})")
    failed = f", {report.checkpoints_failed} failed" if report.checkpoints_failed else ""
    table.add_row("checkpoints", f"{report.checkpoints_completed}{failed}")
    table.add_row("restarts", str(report.restarts))
    table.add_row("slots", f"{len(report.slots)} of {len(report.slots) + report.slots_missing}")
    if report.skipped or report.dead_letters:
        table.add_row(
            "bad records",
            f"{report.skipped:,} skipped, {counted(report.dead_letters, 'dead letter')}",
        )
    if report.late:
        table.add_row("late records", late_records(report.late))
    if report.waiting_for:
        table.add_row("waiting", Text(_wait(report).removeprefix("waiting ")))
    for call in report.hanging_calls:
        told = f"{call.describe(report.reported_ms)}\n{call.stack}"
        table.add_row("not returned", Text(told, style="red"))
    for note in report.notes:
        table.add_row("note", Text(note))
    if report.error is not None:
        # Plain text, because a bracket in the text of a user's exception is not mark-up.
        table.add_row("last failure", Text(report.error.message))
    return table


def _wait(report: JobReport) -> str:
    """Return how long the job has waited, and for what."""
    seconds = max(0, report.reported_ms - report.waiting_since_ms) // 1000
    return f"waiting for {seconds} s: {report.waiting_for}"


def _bad_records(report: JobReport) -> str:
    """Return how many records the policies have skipped or dead-lettered, and how many came too
    late for their windows; empty if none.
    """
    skipped = f", {counted(report.skipped, 'bad record')} skipped" if report.skipped else ""
    letters = f", {counted(report.dead_letters, 'dead letter')}" if report.dead_letters else ""
    late = f", {counted(sum(report.late.values()), 'late record')}" if report.late else ""
    return skipped + letters + late


def late_records(late: Mapping[str, int]) -> str:
    """Return how many records came too late for their windows, by the uid of the step."""
    return ", ".join(f"{count:,} at {uid}" for uid, count in sorted(late.items()))


def duration_text(ms: int) -> str:
    """Return a duration for people: "850 ms", "12.3 s", "4 min 5 s" or "2 h 3 min"."""
    seconds = ms // 1000
    if ms < 1000:  # noqa: PLR2004  # a second
        return f"{ms} ms"
    if seconds < 60:  # noqa: PLR2004  # a minute
        return f"{ms / 1000:.1f} s"
    minutes, seconds = divmod(seconds, 60)
    if minutes < 60:  # noqa: PLR2004  # an hour
        return f"{minutes} min {seconds} s"
    return f"{minutes // 60} h {minutes % 60} min"


def size_text(size: float) -> str:
    """Return a number of bytes for people."""
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:  # noqa: PLR2004 - a KiB
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
