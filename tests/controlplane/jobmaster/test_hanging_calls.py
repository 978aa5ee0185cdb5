"""The grace period of a stop, and the error of an attempt that a call of user code holds up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from tidegate.checkpoint.coordinator import Phase
from tidegate.controlplane.jobmaster.hanging_calls import (
    HELD_UP_S,
    WAIT_SHARE,
    StopGrace,
    named_cause,
)
from tidegate.errors import (
    CheckpointError,
    ExternalError,
    KafkaUnavailableError,
    StorageError,
    UserCodeError,
)
from tidegate.ids import JobName
from tidegate.protocol.messages import StopJob
from tidegate.protocol.slot_metrics import HangingCall

CALL = HangingCall(
    step="running", subtask="running#0", since_ms=0, place="/job.py:5, in match", stack="STACK"
)
STOPS: Any = SimpleNamespace(stop_requested=True)
STOP = StopJob(job=JobName("a"))
CANCEL = StopJob(job=JobName("a"), final_checkpoint=False)
GONE = "The storage is gone."
FAILS = KafkaUnavailableError("No broker answers.")
RUNS: Any = SimpleNamespace(stop_requested=False)


def live(
    *calls: HangingCall,
    pending: int | None = 1,
    missing: int = 1,
    phase: Phase = Phase.PENDING,
) -> Any:
    coordinator = SimpleNamespace(pending=pending, missing=range(missing), phase=phase)
    return SimpleNamespace(hanging_calls=lambda: calls, coordinator=coordinator)


def test_grace_period_begins_with_the_stop() -> None:
    grace = StopGrace(15.0)
    assert not grace.is_over(100.0, RUNS, live(CALL))
    grace.requested(200.0, STOP)
    assert not grace.is_over(200.0, STOPS, live(CALL))
    assert not grace.is_over(214.0, STOPS, live(CALL))
    assert grace.is_over(215.0, STOPS, live(CALL))


def test_stop_waits_longer_if_no_call_hangs_or_the_final_checkpoint_is_complete() -> None:
    grace = StopGrace(0.0)
    grace.requested(1.0, STOP)
    assert not grace.is_over(1.0, STOPS, live())
    assert not grace.is_over(1.0, STOPS, live(CALL, missing=0))
    assert grace.is_over(1.0, STOPS, live(CALL, pending=None, missing=0))
    # The heartbeat of a call that has returned comes later than the publication.
    published = live(CALL, pending=None, missing=0, phase=Phase.FINISHED)
    assert not grace.is_over(1.0, STOPS, published)


@pytest.mark.parametrize("stop", [STOP, CANCEL])
def test_stop_ends_when_the_storage_is_away_for_most_of_the_grace_period(stop: StopJob) -> None:
    grace = StopGrace(20.0)
    assert grace.timeout_error(500.0, RUNS, GONE, None) is None
    grace.requested(100.0, stop)
    due_s = 100.0 + 20.0 * WAIT_SHARE
    assert grace.timeout_error(due_s - HELD_UP_S, STOPS, GONE, None) is None
    assert grace.timeout_error(due_s - 0.1, STOPS, GONE, None) is None
    error = grace.timeout_error(due_s, STOPS, GONE, None)
    assert error is not None
    assert "cancel" in str(error) if stop is CANCEL else "stop did not wait longer" in str(error)
    assert GONE in str(error)
    assert "The next run of the job settles both before it reads." in str(error)


def test_stop_continues_if_the_storage_was_away_only_for_a_moment() -> None:
    grace = StopGrace(20.0)
    grace.requested(100.0, CANCEL)
    for now_s in (112.0, 200.0, 300.0):
        assert grace.timeout_error(now_s, STOPS, GONE, None) is None
        assert grace.timeout_error(now_s + 0.5, STOPS, "", None) is None
    assert grace.timeout_error(300.5 + HELD_UP_S, STOPS, GONE, None) is None


def test_failing_brokers_end_a_cancel_and_a_failing_storage_ends_a_stop_too() -> None:
    grace = StopGrace(20.0)
    grace.requested(100.0, STOP)
    for now_s in (110.0, 150.0):
        assert grace.timeout_error(now_s, STOPS, "", FAILS) is None
    fails = StorageError("Checkpoint storage: cannot create X: Input/output error")
    said = str(grace.timeout_error(150.0, STOPS, "", fails))
    assert said.startswith("The stop did not wait longer within job.stop_grace_period. Checkpoint")
    assert "Input/output error. The journal of the job is not closed: " in said
    grace.requested(150.0, CANCEL)
    assert grace.timeout_error(158.0, STOPS, "", FAILS) is None
    error = grace.timeout_error(162.0, STOPS, "", FAILS)
    assert error is not None
    assert "The cancel did not wait longer" in str(error)
    assert "No broker answers." in str(error)


def test_grace_period_continues_in_the_next_jobmaster_and_with_a_repeated_stop() -> None:
    grace = StopGrace(20.0)
    grace.requested(100.0, msgspec.structs.replace(CANCEL, waited_ms=9_000))
    grace.requested(102.0, STOP)
    grace.requested(102.0, msgspec.structs.replace(CANCEL, waited_ms=0))
    assert grace.timeout_error(100.0, STOPS, GONE, None) is None
    assert grace.timeout_error(103.0, STOPS, GONE, None) is not None


def test_error_of_a_failed_checkpoint_names_the_call_and_has_its_stack() -> None:
    error, report = named_cause(CheckpointError("Three failed."), (CALL,), 60_000)
    assert isinstance(error, UserCodeError)
    assert report.message.startswith("Step 'running' of subtask running#0 has not returned for 60")
    assert "Three failed." in report.message
    assert "STACK" in report.traceback


def test_error_that_a_call_does_not_explain_stays() -> None:
    other = ExternalError("The disk is full.")
    assert named_cause(other, (CALL,), 0)[0] is other
    assert named_cause(CheckpointError("x"), (), 0)[0].args == ("x",)
    assert named_cause(other, (CALL,), 0, silent=True)[0] is not other
