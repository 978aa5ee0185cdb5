"""A job's counters add up over its JobMasters."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidegate.controlplane.jobmanager.job_history import COUNTERS, HISTORY_MAX, JobHistory
from tidegate.errors import ExternalError
from tidegate.ids import JobName
from tidegate.protocol.errors import ErrorReport
from tidegate.protocol.reports import CheckpointReport, JobReport

DIED = ErrorReport.of(ExternalError("The JobMaster died."))
LAST = CheckpointReport(id="1-2", completed_ms=1, duration_ms=1, size=1, transactions=1)


def report(**counted: object) -> JobReport:
    return JobReport(job=JobName("a"), state="RUNNING", **counted)  # type: ignore[arg-type]


@given(st.lists(st.lists(st.integers(0, 9), min_size=7, max_size=7), min_size=1, max_size=30))
def test_counters_are_those_of_all_jobmasters_and_each_death_is_a_restart(
    lives: list[list[int]],
) -> None:
    history = JobHistory()
    *died, present = lives
    for counts in died:
        history.record_jobmaster_death(report(**dict(zip(COUNTERS, counts, strict=True))), DIED, 0)
    shown = history.add_sums(report(**dict(zip(COUNTERS, present, strict=True))))
    for index, name in enumerate(COUNTERS):
        deaths = len(died) if name == "restarts" else 0
        assert getattr(shown, name) == sum(life[index] for life in lives) + deaths
    assert len(shown.failed_attempts) == min(len(died), HISTORY_MAX)


def test_last_checkpoint_of_a_dead_jobmaster_is_shown_until_a_newer_one_completes() -> None:
    history = JobHistory()
    history.record_jobmaster_death(report(last_checkpoint=LAST), DIED, 0)
    assert history.add_sums(report()).last_checkpoint == LAST
    newer = CheckpointReport(id="4-1", completed_ms=2, duration_ms=1, size=1, transactions=1)
    assert history.add_sums(report(last_checkpoint=newer)).last_checkpoint == newer


def test_counters_begin_at_zero_after_the_history_is_cleared() -> None:
    history = JobHistory()
    history.record_jobmaster_death(report(records_in=5), DIED, 0)
    history.clear()
    assert history.add_sums(report(records_in=1)).records_in == 1
