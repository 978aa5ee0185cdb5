"""What `tidegate run --json` says: one object a line, enough to find and follow every process."""

from __future__ import annotations

import json

import msgspec
import pytest

from tidegate.cli.display import JsonLines
from tidegate.config import Config
from tidegate.ids import JobName
from tidegate.protocol.messages import JobReport, ProcessExit, Submission


def display() -> JsonLines:
    submission = Submission(
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
    shown = JsonLines(submission, Config())
    shown.jobmanager_pid = lambda: 41
    return shown


def test_reports_are_lines_that_name_the_processes(capsys: pytest.CaptureFixture[str]) -> None:
    shown = display()
    ended = ProcessExit(kind="slot", pid=7, status=-9, ended_ms=5)
    report = JobReport(
        job=JobName("totals"), state="RUNNING", jobmaster_pid=42, exits=(ended,), reported_ms=6
    )
    shown.show(report)
    shown.show(report)  # the same again is not news
    shown.jobmanager_restarted(-9)
    shown.end(msgspec.structs.replace(report, state="FINISHED"))
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["event"] for line in said] == ["report", "jobmanager_exited", "end"]
    assert {line.get("jobmanager_pid", line.get("pid")) for line in said} == {41}
    assert said[0]["jobmaster_pid"] == 42
    assert said[0]["exits"] == [{"kind": "slot", "pid": 7, "status": -9, "ended_ms": 5}]
    assert said[1]["status"] == -9
