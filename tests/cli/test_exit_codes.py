"""What a stop makes of a run: its exit code, and what is said of it at the end."""

from __future__ import annotations

import pytest

from tidegate.cli.run.local_run import finished_code
from tidegate.controlplane.jobmaster.events import StopEnd
from tidegate.ids import JobName
from tidegate.protocol.job_state import JobState
from tidegate.protocol.reports import CheckpointReport, JobReport
from tidegate.terminal.display import describe, ended


def report(stopped: str, state: str = "FINISHED") -> JobReport:
    last = CheckpointReport(id="3-17", completed_ms=0, duration_ms=1, size=1, transactions=0)
    return JobReport(
        job=JobName("totals"), state=JobState(state), stopped=stopped, last_checkpoint=last
    )


@pytest.mark.parametrize(
    ("stopped", "bounded", "code"),
    [
        ("", True, 0),
        ("", False, 0),
        (StopEnd.WITH_CHECKPOINT, True, 3),
        (StopEnd.WITH_CHECKPOINT, False, 0),
        (StopEnd.WITHOUT_CHECKPOINT, True, 4),
        (StopEnd.WITHOUT_CHECKPOINT, False, 4),
    ],
)
def test_exit_code_of_a_finished_run_depends_on_how_the_run_was_stopped(
    stopped: str, *, bounded: bool, code: int
) -> None:
    assert finished_code(report(stopped), bounded=bounded) == code


def test_end_message_says_whether_there_is_a_final_checkpoint() -> None:
    assert ended(report("")) == "finished"
    assert ended(report(StopEnd.WITH_CHECKPOINT)).startswith("stopped with a final checkpoint")
    without = ended(report(StopEnd.WITHOUT_CHECKPOINT))
    assert without.startswith("stopped without a final checkpoint")
    assert "continues from checkpoint 3-17" in without
    assert describe(report(StopEnd.WITHOUT_CHECKPOINT), None).startswith("stopped without")
    assert describe(report(StopEnd.WITHOUT_CHECKPOINT, "CLOSING"), None).startswith("closing")
