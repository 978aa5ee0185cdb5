"""The grace period of a stop, and the error of an attempt that a call of user code holds up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tidegate.checkpoint.coordinator import Phase
from tidegate.controlplane.jobmaster.hanging_calls import StopGrace, named_cause
from tidegate.errors import CheckpointError, ExternalError, UserCodeError
from tidegate.protocol.slot_metrics import HangingCall

CALL = HangingCall(
    step="running", subtask="running#0", since_ms=0, place="/job.py:5, in match", stack="STACK"
)
STOPS: Any = SimpleNamespace(stop_requested=True)
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
    assert not grace.is_over(200.0, STOPS, live(CALL))
    assert not grace.is_over(214.0, STOPS, live(CALL))
    assert grace.is_over(215.0, STOPS, live(CALL))


def test_stop_waits_longer_if_no_call_hangs_or_the_final_checkpoint_is_complete() -> None:
    grace = StopGrace(0.0)
    assert not grace.is_over(1.0, STOPS, live())
    assert not grace.is_over(1.0, STOPS, live(CALL, missing=0))
    assert grace.is_over(1.0, STOPS, live(CALL, pending=None, missing=0))
    # The heartbeat of a call that has returned comes later than the publication.
    published = live(CALL, pending=None, missing=0, phase=Phase.FINISHED)
    assert not grace.is_over(1.0, STOPS, published)


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
