"""The wait of a job is reported after ten seconds, with the error that explains it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidegate.controlplane.jobmaster.delays import (
    CAUSE_S,
    FAILS_S,
    LOG_INTERVAL_S,
    SHOWN_AFTER_S,
    DelayMonitor,
)
from tidegate.errors import ExternalError


def monitor(waiting_for: str = "A slot is missing", at_s: float = 100.0) -> DelayMonitor:
    made = DelayMonitor()
    made.observe(at_s, waiting_for)
    return made


def test_delay_is_reported_after_the_wait_lasted_ten_seconds() -> None:
    watched = monitor()
    assert watched.delay(100.0 + SHOWN_AFTER_S - 0.1) is None
    found = watched.delay(100.0 + SHOWN_AFTER_S)
    assert found is not None
    assert (found.text, found.since_s) == ("A slot is missing", 100.0)


def test_a_job_that_does_not_wait_has_no_delay() -> None:
    watched = monitor()
    watched.observe(105.0, "")
    assert watched.delay(1_000.0) is None


def test_delay_begins_anew_when_the_reason_of_the_wait_changes() -> None:
    watched = monitor("2 slots are missing")
    watched.observe(109.0, "1 slot is missing")
    assert watched.delay(112.0) is None
    watched.observe(112.0, "1 slot is missing")
    found = watched.delay(119.0)
    assert found is not None
    assert found.since_s == 109.0


def test_the_last_error_of_a_repeated_request_explains_a_wait() -> None:
    watched = monitor()
    watched.failed(105.0, ExternalError("No broker answers."))
    found = watched.delay(111.0)
    assert found is not None
    assert found.text == "A slot is missing. Last error: No broker answers."


def test_an_error_from_before_the_wait_does_not_explain_it() -> None:
    watched = DelayMonitor()
    watched.failed(99.0, ExternalError("No broker answers."))
    watched.observe(100.0, "A slot is missing")
    found = watched.delay(111.0)
    assert found is not None
    assert found.cause == ""


def test_an_old_error_does_not_explain_a_wait() -> None:
    watched = monitor()
    watched.failed(101.0, ExternalError("No broker answers."))
    found = watched.delay(101.0 + CAUSE_S)
    assert found is not None
    assert found.cause == ""


def test_a_wait_is_logged_when_it_is_new_and_then_once_a_minute() -> None:
    watched = monitor()
    assert watched.to_log(109.0) is None
    assert watched.to_log(111.0) is not None
    assert watched.to_log(112.0) is None
    assert watched.to_log(111.0 + LOG_INTERVAL_S) is not None
    watched.observe(180.0, "Checkpoint 1-2 is published")
    assert watched.to_log(189.0) is None
    assert watched.to_log(190.0) is not None


@given(st.lists(st.tuples(st.floats(0.0, 30.0), st.sampled_from(["", "a", "b"])), max_size=30))
def test_reported_delay_begins_when_the_wait_was_first_observed(
    steps: list[tuple[float, str]],
) -> None:
    watched, now_s, since_s, last = DelayMonitor(), 0.0, 0.0, ""
    for pause_s, waiting_for in steps:
        now_s += pause_s
        if waiting_for != last:
            since_s, last = now_s, waiting_for
        watched.observe(now_s, waiting_for)
        found = watched.delay(now_s)
        told = last != "" and now_s - since_s >= SHOWN_AFTER_S
        assert (found is not None) == told
        assert found is None or (found.waiting_for, found.since_s) == (last, since_s)


def test_a_failure_counts_as_recent_for_a_few_seconds() -> None:
    watched, error = DelayMonitor(), ExternalError("No broker answers.")
    assert watched.recent_failure(0.0) is None
    watched.failed(100.0, error)
    assert watched.recent_failure(100.0 + FAILS_S - 0.1) is error
    assert watched.recent_failure(100.0 + FAILS_S) is None


def test_failures_last_until_a_longer_break() -> None:
    watched, error = DelayMonitor(), ExternalError("No broker answers.")
    for now_s in (100.0, 104.0, 108.0):
        watched.failed(now_s, error)
    assert watched.recent_failure(108.0, lasting_s=8.0) is error
    assert watched.recent_failure(108.0, lasting_s=8.1) is None
    watched.failed(108.0 + FAILS_S, error)
    assert watched.recent_failure(114.0) is error
    assert watched.recent_failure(114.0, lasting_s=1.0) is None
