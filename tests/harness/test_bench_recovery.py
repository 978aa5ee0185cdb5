"""The phases of a recovery, as the bench reads them from a JobMaster's log."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from pathlib import Path

import pytest

from integration.bench.recovery_probes import phases, spans, told, transitions
from tidegate.drivers.logs import LogFormat
from tidegate.protocol.job_state import JobState

BEGAN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC).timestamp()


def line(after_s: float, message: str, **extra: object) -> str:
    """A line of the JobMaster's own log."""
    record = logging.makeLogRecord(
        {"name": "tidegate.x", "levelname": "INFO", "msg": message, "created": BEGAN + after_s}
    )
    record.__dict__.update(extra)
    return LogFormat(role="jobmaster", job="j", pid=1).format(record)


def test_each_state_line_of_the_jobmaster_log_begins_a_recovery_phase() -> None:
    lines = [
        line(0.0, "job state changed", state=JobState.INITIALIZING.shown, attempt=None),
        line(0.25, "claimed", attempt=7),
        line(0.5, "recovered", attempt=7, ended=1, fenced=2),
        line(0.75, "job state changed", state=JobState.WAITING_FOR_SLOTS.shown, attempt=7),
        line(1.0, "job state changed", state=JobState.DEPLOYING.shown, attempt=7),
        line(1.25, "a word about state=running", attempt=7),
        line(1.5, "job state changed", state=JobState.RUNNING.shown, attempt=7),
    ]
    found = [(at - BEGAN, phase) for at, phase in transitions(lines)]
    assert found == [
        (0.0, "claiming"),
        (0.25, "settling, fencing"),
        (0.5, "resolving the restore"),
        (0.75, "waiting for slots"),
        (1.0, "deploying, restoring"),
        (1.5, "running until visible"),
    ]


def test_recovery_phases_add_up_to_the_time_until_the_output() -> None:
    begun = [(1.0, "claiming"), (2.0, "deploying, restoring"), (3.0, "claiming"), (9.0, "late")]
    found = spans(begun, 0.5, 5.0, ran=True)
    assert found == {"noticing, starting": 0.5, "claiming": 3.0, "deploying, restoring": 1.0}
    assert told({**found, "short": 0.01}) == (
        "noticing, starting 0.5, claiming 3.0, deploying, restoring 1.0"
    )


@pytest.mark.parametrize(
    ("ran", "phase"), [(True, "running until visible"), (False, "noticing, starting")]
)
def test_recovery_without_log_lines_is_one_phase_of_running_or_starting(
    tmp_path: Path, ran: bool, phase: str
) -> None:
    log = tmp_path / "jobmaster.log"
    assert phases(log, BEGAN, 2.0, ran=ran) == f"{phase} 2.0"
    log.write_text(line(-1.0, "claimed", attempt=1) + "\n")
    assert phases(log, BEGAN, 2.0, ran=ran) == f"{phase} 2.0"
