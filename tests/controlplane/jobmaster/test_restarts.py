"""Restart strategies: when a failed attempt is followed by another, and when the job fails."""

from __future__ import annotations

import pytest

from tidegate.config import RestartSettings
from tidegate.config_load import checked
from tidegate.controlplane.jobmaster.restarts import (
    RestartStrategy,
    StartFailures,
    restart_strategy,
)
from tidegate.errors import (
    ExternalError,
    StartFailedError,
    StorageError,
    StorageGoneError,
    is_recoverable,
)


def strategy(chance: float = 0.5, **settings: object) -> RestartStrategy:
    return restart_strategy(checked(RestartSettings, settings), lambda: chance)


def test_default_restart_delay_doubles_up_to_its_maximum_without_an_attempt_limit() -> None:
    default = strategy()
    delays = [default.next_backoff(0.0) for _ in range(14)]
    assert delays[:5] == [0.1, 0.2, 0.4, 0.8, 1.6]
    assert delays[10:] == [60.0] * 4


def test_jitter_spreads_the_delay_and_does_not_add_up() -> None:
    assert strategy(0.0).next_backoff(0.0) == pytest.approx(0.09)
    high = strategy(1.0)
    assert [high.next_backoff(0.0) for _ in range(2)] == pytest.approx([0.11, 0.22])


def test_restart_delay_resets_after_an_attempt_ran_for_the_reset_threshold() -> None:
    one = strategy(reset_backoff_threshold="10 s", attempts=2)
    assert one.next_backoff(0.0) == 0.1
    assert one.next_backoff(10.0) == 0.2, "ran for less than 10 s"
    assert one.next_backoff(20.2) == 0.1, "ran for 10 s"
    assert one.next_backoff(20.3) == 0.2
    assert one.next_backoff(20.4) is None


def delays_of_attempts_that_run_for(seconds: float) -> list[float]:
    """Twelve delays of the default strategy."""
    one, now_s, delays = strategy(), 0.0, list[float]()
    for _ in range(12):
        delay_s = one.next_backoff(now_s)
        assert delay_s is not None
        delays.append(delay_s)
        now_s += delay_s + seconds
    return delays


def test_restart_delay_stays_short_for_attempts_that_run_30_seconds() -> None:
    """Processes that are killed every half a minute, say: each wait was up to a minute."""
    assert max(delays_of_attempts_that_run_for(30.0)) == pytest.approx(1.5)


def test_restart_delay_grows_to_its_maximum_for_attempts_that_run_below_20_seconds() -> None:
    """A record that stops every attempt stops the long pauses only if the attempt ran for long."""
    delays = delays_of_attempts_that_run_for(19.9)
    assert delays[:5] == [0.1, 0.2, 0.4, 0.8, 1.6]
    assert delays[10:] == [60.0, 60.0]


def test_long_run_does_not_reset_the_count_of_attempts() -> None:
    one = strategy(attempts=2)
    assert [one.next_backoff(now_s) for now_s in (0.0, 100.0, 200.0)] == [0.1, 0.2, None]


def test_fixed_delay_strategy_stops_after_its_number_of_attempts() -> None:
    one = strategy(strategy="fixed_delay", delay="3 s", attempts=2)
    assert [one.next_backoff(float(n)) for n in range(3)] == [3.0, 3.0, None]
    endless = strategy(strategy="fixed_delay", delay="3 s")
    assert {endless.next_backoff(float(n)) for n in range(100)} == {3.0}


def test_a_failure_rate_fails_the_job_when_it_is_exceeded() -> None:
    one = strategy(
        strategy="failure_rate",
        max_failures_per_interval=3,
        failure_rate_interval="10 s",
        delay="1 s",
    )
    assert [one.next_backoff(now_s) for now_s in (0, 6, 12, 17)] == [1.0, 1.0, 1.0, 1.0]
    assert one.next_backoff(22) is None, "12, 17, 22"


def test_failure_rate_strategy_with_one_failure_per_interval_never_restarts() -> None:
    assert strategy(strategy="failure_rate", max_failures_per_interval=1).next_backoff(0) is None


def test_strategy_none_never_restarts() -> None:
    assert strategy(strategy="none").next_backoff(0.0) is None


FULL = StorageError("The disk is full.")


def test_job_that_cannot_write_its_storage_for_a_minute_from_the_start_fails() -> None:
    failures = StartFailures(is_first_start=True)
    for now_s in (100.0, 130.0, 159.9):
        assert failures.judge(now_s, FULL) is FULL
        assert failures.judge(now_s, ExternalError("A slot was lost.")) is not FULL
    error = failures.judge(160.0, FULL)
    assert isinstance(error, StartFailedError)
    assert not is_recoverable(error)
    assert "has failed for 60 s: The disk is full. The job fails, because" in str(error)


def test_storage_that_has_worked_between_two_failures_before_the_first_checkpoint_goes_on() -> None:
    failures = StartFailures(is_first_start=True)
    for now_s in (100.0, 401.0, 702.0):
        assert failures.judge(now_s, FULL) is FULL
    assert isinstance(failures.judge(762.0, FULL), StartFailedError)


def test_storage_failures_of_a_job_that_has_a_checkpoint_or_waits_do_not_count() -> None:
    gone = StorageGoneError("It is gone.")
    started, later, waits = (StartFailures(is_first_start=first) for first in (True, False, True))
    started.started()
    for now_s in (100.0, 1_000.0):
        assert started.judge(now_s, FULL) is FULL
        assert later.judge(now_s, FULL) is FULL
        assert waits.judge(now_s, gone) is gone
