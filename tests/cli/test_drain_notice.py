"""A bounded run that drains says so before anything is started, unless the user has chosen it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pipelines.hourly_revenue import HourlyRevenue
from tidegate.cli.cluster import session
from tidegate.cli.main import app
from tidegate.cli.run import local_run
from tidegate.cli.scripts import script_run
from tidegate.controlplane.client.preflight import RunOptions
from tidegate.ids import JobName
from tidegate.protocol.job_state import JobState
from tidegate.protocol.reports import JobReport
from tidegate.protocol.submission import Submission

SAID = (
    "hourly-revenue: this run drains at the end of its input: all windows and timers of "
    "hourly-revenue fire, also those that are not due, and no later run continues from there. "
    "For a run that can be continued, use --no-drain (in a script drain=False). --drain "
    "(drain=True) chooses the drain, without this text."
)
WINDOWS = "pipelines.hourly_revenue:HourlyRevenue"
TOTALS = "pipelines.order_totals:OrderTotals"

Start = Callable[[str, RunOptions], None]


@pytest.fixture
def at_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> list[Any]:
    """Stderr up to the start of the job, and the submission."""
    found: list[Any] = []

    def run(submission: Submission, *_: object) -> JobReport:
        found[:] = [capsys.readouterr().err, submission]
        return JobReport(job=JobName("x"), state=JobState.FINISHED)

    class Client:
        def __init__(self, *_: object) -> None: ...

        def list(self) -> None: ...

        def submit(self, submission: Submission, _code: bytes) -> None:
            run(submission)

        def close(self) -> None: ...

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(local_run, "check_environment", lambda *_: None)
    monkeypatch.setattr(local_run, "_run", run)
    monkeypatch.setattr(session, "check_kafka", lambda *_: None)
    monkeypatch.setattr(session, "Client", Client)
    monkeypatch.setattr(script_run, "prestarted", lambda *_, **__: None)
    return found


def run_locally(reference: str, options: RunOptions) -> None:
    local_run.execute(reference, Path.cwd(), {}, options, as_json=False)


def run_locally_with_json(reference: str, options: RunOptions) -> None:
    local_run.execute(reference, Path.cwd(), {}, options, as_json=True)


def submit(reference: str, options: RunOptions) -> None:
    session.submit_job(reference, Path.cwd(), {}, options, installed=None, as_json=False)


@pytest.mark.parametrize("start", [run_locally, run_locally_with_json, submit])
@pytest.mark.parametrize(
    ("reference", "drain", "drains", "said"),
    [
        (WINDOWS, None, True, True),
        (WINDOWS, True, True, False),
        (WINDOWS, False, False, False),
        (TOTALS, None, True, False),
    ],
)
def test_notice_of_a_drain_comes_before_the_start_of_a_bounded_run(
    at_start: list[Any], start: Start, reference: str, drain: bool | None, drains: bool, said: bool
) -> None:
    start(reference, RunOptions(params={}, bounded=True, drain=drain))
    err, submission = at_start
    assert (SAID in err.splitlines(), submission.drain) == (said, drains)
    assert ("this run drains" in err) == said


@pytest.mark.parametrize(
    ("drain", "quiet", "said"),
    [(None, False, True), (None, True, False), (True, False, False), (False, False, False)],
)
def test_notice_of_a_drain_comes_before_a_bounded_run_of_a_script(
    at_start: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    drain: bool | None,
    quiet: bool,
    said: bool,
) -> None:
    monkeypatch.setattr(script_run, "reference_of", lambda *_: WINDOWS)
    HourlyRevenue().run(bounded=True, drain=drain, quiet=quiet)
    err, submission = at_start
    assert (SAID in err, submission.drain) == (said, drain is not False)


@pytest.mark.parametrize(
    ("words", "drain"), [([], None), (["--drain"], True), (["--no-drain"], False)]
)
def test_commands_tell_a_choice_from_none(
    monkeypatch: pytest.MonkeyPatch, words: list[str], drain: bool | None
) -> None:
    given: list[RunOptions] = []

    def take(_reference: object, _folder: object, _settings: object, options: Any, **_: Any) -> int:
        given.append(options)
        return 0

    monkeypatch.setattr(local_run, "execute", take)
    monkeypatch.setattr(session, "submit_job", take)
    monkeypatch.setattr("tidegate.cli.run.command.prestarted", lambda *_, **__: None)
    for command in ("run", "submit"):
        found = CliRunner().invoke(app, [command, "x.py", "--bounded", *words])
        assert found.exit_code == 0, found.output
    assert [options.drain for options in given] == [drain, drain]
