"""What `tidegate run --json` says: one object a line, enough to find and follow every process."""

from __future__ import annotations

import json
import time

import msgspec
import pytest
from rich.console import Console

from tidegate.config import Config
from tidegate.errors import InternalError, KafkaError, UserCodeError
from tidegate.ids import JobName
from tidegate.protocol.errors import ErrorReport
from tidegate.protocol.job_state import JobState
from tidegate.protocol.reports import AttemptReport, CheckpointReport, JobReport, ProcessExit
from tidegate.protocol.submission import Submission
from tidegate.terminal.display import (
    JsonLines,
    LineDisplay,
    LiveDisplay,
    QuietDisplay,
    _table,
    describe,
    duration_text,
)

SUBMISSION = Submission(
    job=JobName("totals"),
    reference="a:B",
    working_folder=".",
    params={},
    parallelism=1,
    max_parallelism=128,
    settings={},
    fingerprint="",
    code_digest="",
    python_version="",
    tidegate_version="",
)


def display() -> JsonLines:
    shown = JsonLines(SUBMISSION, Config())
    shown.jobmanager_pid = lambda: 41
    return shown


def test_json_lines_show_the_process_ids_and_the_exits_of_processes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown = display()
    ended = ProcessExit(kind="slot", pid=7, status=-9, ended_ms=5)
    report = JobReport(
        job=JobName("totals"),
        state=JobState.RUNNING,
        jobmaster_pid=42,
        process_exits=(ended,),
        reported_ms=6,
    )
    shown.show(report)
    shown.show(report)  # the same again is not news
    shown.jobmanager_restarted(-9)
    shown.end(msgspec.structs.replace(report, state=JobState.FINISHED))
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["event"] for line in said] == ["report", "jobmanager_exited", "end"]
    assert {line.get("jobmanager_pid", line.get("pid")) for line in said} == {41}
    assert said[0]["jobmaster_pid"] == 42
    assert said[0]["process_exits"] == [{"kind": "slot", "pid": 7, "status": -9, "ended_ms": 5}]
    assert said[1]["status"] == -9


def test_quiet_display_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    LineDisplay(SUBMISSION, Config()).waiting_to_start("/mnt/x")
    assert "waiting for the JobManager, which stores the job in /mnt/x" in capsys.readouterr().err
    shown, report = QuietDisplay(SUBMISSION, Config()), failing(KafkaError, "no leader")
    shown.waiting_to_start("/mnt/x")
    shown.drains(["hourly"])
    shown.show(report)
    shown.stopping()
    shown.interrupted()
    shown.jobmanager_restarted(-9)
    shown.end(msgspec.structs.replace(report, state=JobState.FAILED))
    assert capsys.readouterr() == ("", "")


def failing(kind: type[Exception], text: str) -> JobReport:
    """A job that will restart because of that error."""
    error = ErrorReport.of(kind(text))
    return JobReport(job=JobName("totals"), state=JobState.RESTARTING, restarts=1, error=error)


def test_text_of_an_exception_is_not_shown_as_markup() -> None:
    report = failing(UserCodeError, "raised ValueError: [/bold] and [red]")
    console = Console(width=120)
    with console.capture() as shown:
        console.print(_table(report, (0.0, 0.0), Config()))
    assert "[/bold] and [red]" in shown.get()


def test_failure_is_shown_once_and_again_when_the_job_fails(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown = LineDisplay(SUBMISSION, Config())
    report = failing(KafkaError, "no broker")
    for state in (JobState.RESTARTING, JobState.DEPLOYING, JobState.FAILED):
        shown.show(msgspec.structs.replace(report, state=state))
    shown.failed(report)
    assert capsys.readouterr().err.count("no broker") == 2


def test_failure_that_repeats_is_shown_again_after_more_restarts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown = LineDisplay(SUBMISSION, Config())
    report = failing(KafkaError, "no broker")
    told = []
    for restarts, now_ms in ((1, 1_000), (2, 7_000), (2, 12_000), (2, 30_000), (2, 40_000)):
        shown.show(msgspec.structs.replace(report, restarts=restarts, reported_ms=now_ms))
        told.append("no broker" in capsys.readouterr().err)
    assert told == [True, False, True, False, False]


def test_failure_between_two_reports_is_shown_at_the_end(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown = LineDisplay(SUBMISSION, Config())
    seen, unseen = failing(KafkaError, "no broker"), failing(UserCodeError, "no database")
    assert seen.error is not None
    assert unseen.error is not None
    shown.show(seen)
    history = tuple(
        AttemptReport(attempt=number, ended_ms=0, error=error)
        for number, error in enumerate((seen.error, unseen.error, unseen.error), 3)
    )
    shown.end(
        msgspec.structs.replace(seen, state=JobState.FINISHED, error=None, failed_attempts=history)
    )
    said = capsys.readouterr().err
    assert said.count("no broker") == 1
    assert said.count("totals: earlier failure: no database\n") == 1


def test_failure_in_the_first_report_of_a_closing_job_is_shown_at_the_end(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown = LineDisplay(SUBMISSION, Config())
    report = failing(UserCodeError, "no database")
    assert report.error is not None
    history = (AttemptReport(attempt=1, ended_ms=0, error=report.error),)
    report = msgspec.structs.replace(report, state=JobState.CLOSING, failed_attempts=history)
    shown.show(report)
    assert "no database" not in capsys.readouterr().err
    shown.end(msgspec.structs.replace(report, state=JobState.FINISHED))
    assert capsys.readouterr().err.count("earlier failure: no database\n") == 1


def test_failure_that_ends_a_job_is_shown_only_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown = LineDisplay(SUBMISSION, Config())
    report = failing(UserCodeError, "no database")
    assert report.error is not None
    history = (AttemptReport(attempt=1, ended_ms=0, error=report.error),)
    report = msgspec.structs.replace(report, state=JobState.FAILED, failed_attempts=history)
    shown.show(report)
    shown.end(report)
    shown.failed(report)
    assert capsys.readouterr().err.count("no database") == 1


def test_traceback_is_shown_only_for_user_code_errors_and_internal_errors(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown = LineDisplay(SUBMISSION, Config())
    for kind, expected in ((UserCodeError, True), (InternalError, True), (KafkaError, False)):
        report = failing(kind, "it failed")
        assert report.error is not None
        error = msgspec.structs.replace(report.error, traceback="Traceback of it")
        shown.failed(msgspec.structs.replace(report, error=error))
        assert ("Traceback of it" in capsys.readouterr().err) == expected


def test_skipped_records_and_dead_letters_are_shown_at_the_end(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown = LineDisplay(SUBMISSION, Config())
    shown.end(
        JobReport(job=JobName("totals"), state=JobState.FINISHED, skipped=3, dead_letters=1_000)
    )
    assert capsys.readouterr().err.endswith("3 bad records skipped, 1,000 dead letters\n")


def test_backlog_and_its_checkpoint_interval_are_shown() -> None:
    checkpoint = {"interval": 100, "interval_during_backlog": 2_000, "interval_when_idle": 500}
    config = Config.from_dict({"checkpoint": checkpoint})
    report = JobReport(job=JobName("totals"), state=JobState.RUNNING, lag=70_000)
    told = {}
    for backlog in (False, True):
        console = Console(width=120)
        with console.capture() as shown:
            now = msgspec.structs.replace(report, processing_backlog=backlog)
            console.print(_table(now, (0.0, 0.0), config))
        told[backlog] = describe(now, None), shown.get()
    assert "lag 70,000" in told[False][0]
    assert "backlog" not in " ".join(told[False])
    assert "(every 0.1 s, 0.5 s while idle)" in told[False][1]
    assert "lag 70,000 (backlog)" in told[True][0]
    assert "(every 2 s, for the backlog)" in told[True][1]


def test_note_of_a_report_is_shown_once(capsys: pytest.CaptureFixture[str]) -> None:
    shown = LineDisplay(SUBMISSION, Config())
    note = "Records after the restored checkpoint are read again: orders-0 offsets 1 to 9."
    report = JobReport(job=JobName("totals"), state=JobState.RUNNING, notes=(note,))
    shown.show(report)
    shown.show(msgspec.structs.replace(report, state=JobState.STOPPING))
    shown.end(msgspec.structs.replace(report, state=JobState.FINISHED))
    assert capsys.readouterr().err.count(note) == 1


def test_note_is_printed_at_the_end_of_the_live_display(capsys: pytest.CaptureFixture[str]) -> None:
    report = JobReport(
        job=JobName("totals"), state=JobState.FINISHED, notes=("Offsets are read again.",)
    )
    LiveDisplay(SUBMISSION, Config()).end(report)
    assert "totals: Offsets are read again." in capsys.readouterr().err


def test_terminal_shows_a_summary_that_stays(capsys: pytest.CaptureFixture[str]) -> None:
    shown = LiveDisplay(SUBMISSION, Config())
    shown._began_s = time.monotonic() - 125
    last = CheckpointReport(id="3-17", completed_ms=0, duration_ms=58, size=2048, transactions=1)
    report = JobReport(
        job=JobName("totals"),
        state=JobState.FINISHED,
        stopped="final checkpoint",
        records_in=250_000,
        records_out=1_000,
        checkpoints_completed=12,
        checkpoints_failed=1,
        restarts=2,
        skipped=3,
        last_checkpoint=last,
    )
    with shown:
        shown.show(report)
        shown.end(report)
    lines = capsys.readouterr().err.splitlines()
    expected = [
        "totals: stopped with a final checkpoint (the next run continues from it)",
        "  records      250,000 in, 1,000 out",
        "  duration     2 min 5 s (2,000 records/s)",
        "  checkpoints  12, 1 failed, the last one 3-17 of 2.0 KiB",
        "  restarts     2",
        "  bad records  3 bad records skipped",
    ]
    shown_rate = lines[-4].partition(" (")[0]
    assert [*lines[-6:-4], shown_rate, *lines[-3:]] == [
        *expected[:2],
        "  duration     2 min 5 s",
        *expected[3:],
    ]


@pytest.mark.parametrize(
    ("ms", "text"),
    [(850, "850 ms"), (12_340, "12.3 s"), (245_000, "4 min 5 s"), (7_380_000, "2 h 3 min")],
)
def test_duration_is_shown_with_two_units_at_most(ms: int, text: str) -> None:
    assert duration_text(ms) == text
