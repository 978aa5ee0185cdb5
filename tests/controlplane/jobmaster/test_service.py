"""The JobMaster's shell: what it waits for before it fences its own transactional ids, and which
word of a slot's end it takes for which slot.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.controlplane.jobmaster.shell import JOB, SUBTASKS, Shell, committed, running
from tidegate.config import Config
from tidegate.controlplane.jobmaster import events as e
from tidegate.controlplane.jobmaster import service
from tidegate.controlplane.jobmaster.events import Close
from tidegate.controlplane.jobmaster.job_slots import RELEASE_S
from tidegate.controlplane.journal.effect_runner import ProcedureStopped
from tidegate.errors import (
    DataLossError,
    FencedError,
    KafkaUnavailableError,
    StorageError,
    TidegateError,
)
from tidegate.ids import Attempt, CheckpointId, SubtaskIndex, VertexId
from tidegate.protocol.errors import ErrorReport
from tidegate.protocol.job_state import JobState
from tidegate.protocol.messages import (
    Acknowledge,
    AcknowledgeCheckpoint,
    DeclineCheckpoint,
    ReleaseSlots,
    StopJob,
    TaskFailed,
)
from tidegate.protocol.slot_metrics import SlotMetrics
from tidegate.protocol.subtask_snapshot import SubtaskSnapshot


def fourth() -> Shell:
    """In attempt 4, of which nothing else is there."""
    shell = Shell()
    shell.master._machine.attempt = Attempt(4)
    return shell


def test_zombie_sweeps_run_soon_after_start_and_then_every_ten_seconds() -> None:
    """The recovery misses transactions if their coordinator was elected just before it. These
    transactions hold readers back until a sweep finds them.
    """
    shell, fencings = running(), []
    cast("Any", shell.master._journal).fence_zombies = lambda: fencings.append(shell.now_s)
    shell.run_until(40.0)
    assert fencings == [1.0, 3.0, 7.0, 15.0, 25.0, 35.0]


def test_job_is_closed_only_after_the_slots_are_released() -> None:
    shell = fourth()
    shell.master._close(Close(outcome=JobState.FINISHED))
    shell.run_until(1.0)
    assert isinstance(shell.sent[-1], ReleaseSlots)
    shell.run_until(5.0)
    shell.released(3)
    shell.run_until(6.0)
    assert shell.closed == [], "a slot may still open a transaction, which nobody would end"
    shell.released(4)
    shell.run_until(6.1)
    assert shell.closed == ["finished"]


def test_close_stops_waiting_for_the_slot_release_after_the_timeout() -> None:
    shell = fourth()
    shell.master._close(Close(outcome=JobState.CANCELED))
    shell.run_until(RELEASE_S - 0.1)
    assert shell.closed == []
    shell.run_until(RELEASE_S + 1)
    assert shell.closed == ["canceled"]


def test_close_waits_for_the_slots_of_a_failed_attempt() -> None:
    shell = fourth()
    shell.master._end_attempt(Attempt(4))
    shell.master._machine.attempt = None
    shell.master._close(Close(outcome=JobState.FAILED))
    shell.run_until(1.0)
    assert shell.closed == []
    shell.released(4)
    shell.run_until(1.1)
    assert shell.closed == ["failed"]


def test_a_job_that_never_had_slots_is_closed_at_once() -> None:
    shell = Shell()
    shell.master._close(Close(outcome=JobState.FAILED))
    shell.run_until(0.1)
    assert shell.closed == ["failed"]


def test_slots_are_released_only_after_all_of_them_have_exited() -> None:
    """They close the user's functions meanwhile; the last to go is waited for."""
    shell = Shell(slots=2)
    shell.claims(1)
    for ordinal in range(2):
        shell.registers(1, ordinal, allocation_id=1)
    before = len(shell.sent)
    shell.master._close(Close(outcome=JobState.FINISHED))
    shell.run_until(1.0)
    shell.loses(1, 0, allocation_id=1)
    shell.run_until(2.0)
    assert shell.sent[before:] == []
    shell.loses(1, 1, allocation_id=1)
    shell.run_until(2.1)
    assert [type(message) for message in shell.sent[before:]] == [ReleaseSlots]


def test_slot_that_does_not_exit_is_released_after_the_close_timeout() -> None:
    shell = Shell()
    shell.claims(1)
    shell.registers(1, 0, allocation_id=1)
    shell.master._close(Close(outcome=JobState.FINISHED))
    grace_s = Config().job.stop_grace_period / 1000
    shell.run_until(grace_s - 0.1)
    assert not isinstance(shell.sent[-1], ReleaseSlots)
    shell.run_until(grace_s + 0.1)
    assert isinstance(shell.sent[-1], ReleaseSlots)


def test_slot_lost_of_an_older_allocation_is_ignored() -> None:
    shell = Shell()
    shell.claims(1)
    for allocation_id in (1, 3):  # given out again
        assert shell.registers(1, 0, allocation_id) == Acknowledge()
    shell.loses(1, 0, allocation_id=1)
    assert shell.slots_missing() == 0
    shell.loses(1, 0, allocation_id=3)
    assert shell.slots_missing() == 1


def test_storage_error_during_close_does_not_replace_the_error_of_a_failed_job() -> None:
    shell = running()
    shell.master._fail(Attempt(1), DataLossError("output is lost"))
    assert shell.state() is JobState.CLOSING
    shell.master._on_retry(StorageError("the storage does not answer"))
    shell.master.decide(e.JobClosed())
    assert shell.reports[-1].state == "FAILED"
    assert shell.reported_error() == "output is lost"


@pytest.mark.parametrize("final_checkpoint", [False, True])
@pytest.mark.parametrize("runs", [False, True])
def test_job_without_its_storage_ends_within_the_grace_period_of_a_stop(
    *, runs: bool, final_checkpoint: bool
) -> None:
    shell = running() if runs else Shell()
    if not runs:
        shell.master.decide(e.ProcessStarted())
        assert shell.state() is JobState.INITIALIZING
    shell.master._storage.gone = "The storage is gone."
    cast("Any", shell.master._storage)._begin = lambda: None
    shell.master.poll()
    shell.run_until(1.0)
    assert shell.state() is (JobState.RUNNING if runs else JobState.INITIALIZING)
    shell.master.receive(StopJob(job=JOB, final_checkpoint=final_checkpoint))
    grace_s = Config().job.stop_grace_period / 1000
    shell.run_until(1.0 + 0.8 * grace_s)
    assert shell.state() is JobState.FAILED
    assert shell.drained == [2.0], "the JobManager does not answer before the storage is back"
    assert shell.reports[-1].state is JobState.FAILED
    assert "did not wait longer within job.stop_grace_period" in str(shell.reported_error())
    assert "The storage is gone." in str(shell.reported_error())
    assert shell.closed == []


@pytest.mark.parametrize("has_checkpoint", [False, True])
def test_full_disk_at_the_start_restarts_for_a_minute_and_then_fails_the_job(
    *, has_checkpoint: bool
) -> None:
    shell = Shell()
    if has_checkpoint:
        shell.master._start_failures.started()
    shell.master.decide(e.ProcessStarted())
    recoveries = 0

    def recover(plan: object, claimed: object, done: Callable[[TidegateError], None]) -> None:
        nonlocal recoveries
        recoveries += 1
        shell.call_later(0.0, lambda: done(StorageError("The disk is full.")))

    cast("Any", shell.master._journal).recover = recover
    shell.master._recover()
    shell.run_until(50.0)
    assert shell.state() is JobState.RESTARTING
    assert shell.reported_error() == "The disk is full."
    assert 5 < recoveries < 12, "the restart delay grows"
    shell.run_until(200.0)
    if has_checkpoint:
        assert shell.state() is JobState.RESTARTING
    else:
        assert shell.closed == ["failed"]
        assert "its storage has failed for 60 s: The disk is full." in str(shell.reported_error())


@pytest.mark.parametrize("has_checkpoint", [False, True])
def test_full_disk_of_a_slot_counts_until_a_checkpoint_is_completed(
    *, has_checkpoint: bool
) -> None:
    shell = running()
    full = StorageError("The disk is full.")
    shell.master._start_failures.judge(shell.now_s, full)
    if has_checkpoint:
        shell.master._required_live().handle_publication(committed(1))
    shell.now_s += 61.0
    report = ErrorReport.of(full)
    shell.master.receive(TaskFailed(job=JOB, attempt=Attempt(1), subtask=None, error=report))
    assert shell.state() is (JobState.INITIALIZING if has_checkpoint else JobState.CLOSING)


@pytest.mark.parametrize("final_checkpoint", [False, True])
def test_close_that_fails_by_the_storage_ends_within_the_grace_period_of_a_stop(
    *, final_checkpoint: bool
) -> None:
    shell = running()

    def fail() -> None:
        shell.master._on_retry(StorageError("The disk is full."))
        shell.call_later(0.5, fail)

    shell.master.poll()
    shell.master.decide(e.StopRequested(final_checkpoint=final_checkpoint))
    stop = StopJob(job=JOB, final_checkpoint=final_checkpoint)
    shell.master._stop_grace.requested(shell.now_s, stop)
    fail()
    shell.run_until(1.0)
    assert shell.reports[-1].storage_trouble == "The disk is full."
    shell.run_until(Config().job.stop_grace_period / 1000)
    assert shell.state() is JobState.FAILED
    assert "The disk is full." in str(shell.reported_error())


def test_unchanged_report_is_sent_only_every_three_seconds() -> None:
    shell = Shell()
    shell.claims(1)
    shell.registers(1, 0, allocation_id=3)
    shell.master.poll()
    shell.reports.clear()
    shell.run_until(2.9)
    assert shell.reports == []
    shell.run_until(3.0)
    assert len(shell.reports) == 1
    shell.loses(1, 0, allocation_id=3)
    shell.run_until(3.5)
    assert shell.reports[-1].slots_missing == 1
    before = len(shell.reports)
    shell.run_until(6.0)
    assert len(shell.reports) == before


def test_checkpoint_acknowledgement_updates_the_metrics_of_its_slot() -> None:
    shell = running()
    shell.master.receive(
        AcknowledgeCheckpoint(
            job=JOB,
            attempt=Attempt(1),
            checkpoint=CheckpointId(Attempt(1), 1),
            snapshot=SubtaskSnapshot(vertex=VertexId("orders"), index=SubtaskIndex(0)),
            alignment_ms=0,
            sync_ms=0,
            ordinal=0,
            metrics=SlotMetrics(records_in=7),
        )
    )
    shell.master._report()
    assert shell.reports[-1].records_in == 7


def test_silent_slot_is_declared_lost_and_released() -> None:
    """Nothing is deployed yet, and no other process would bring a slot in its place."""
    shell = Shell()
    shell.claims(1)
    shell.registers(1, 0, allocation_id=3)
    shell.now_s = 2.0 * shell.master._config.cluster.heartbeat_timeout / 1000
    shell.master.poll()
    assert shell.slots_missing() == 1
    assert isinstance(shell.sent[-1], ReleaseSlots)
    assert shell.sent[-1].attempt == 1


def test_lost_slot_is_not_reported_again_as_silent() -> None:
    shell = running()
    shell.loses(1, 0, allocation_id=3)
    shell.claims(2)
    shell.registers(2, 0, allocation_id=4)
    shell.loses(2, 0, allocation_id=4, reason="killed")
    timeout_s = shell.master._config.cluster.heartbeat_timeout / 1000
    shell.now_s += 2 * timeout_s
    shell.master.poll()
    assert shell.reported_error() == "Slot tm-1/0 was lost: killed."
    shell.registers(2, 0, allocation_id=5)
    shell.now_s += 2 * timeout_s
    shell.master.poll()
    assert shell.reported_error() == (
        "Slot tm-1/0 was lost: no heartbeat for cluster.heartbeat_timeout."
    )


def test_slot_whose_older_allocation_was_lost_may_time_out() -> None:
    shell = Shell()
    shell.claims(1)
    shell.registers(1, 0, allocation_id=4)
    shell.loses(1, 0, allocation_id=3)
    shell.now_s = 2.0 * shell.master._config.cluster.heartbeat_timeout / 1000
    shell.master.poll()
    assert isinstance(shell.sent[-1], ReleaseSlots)


def test_slot_that_refuses_its_deployment_fails_the_attempt() -> None:
    shell = Shell()
    shell.claims(1)
    shell.registers(1, 0, allocation_id=3)
    shell.recovers(1)
    assert shell.state() is JobState.DEPLOYING
    shell.deliver(0)
    assert shell.state() is JobState.INITIALIZING
    assert shell.reported_error() == ("Slot tm-1/0 was lost: it refused StartSources: it leaves.")


def test_slot_that_registers_after_the_deployment_replaces_none() -> None:
    shell = Shell()
    shell.claims(1)
    shell.registers(1, 0, allocation_id=1)
    shell.recovers(1)
    shell.registers(1, 0, allocation_id=2)
    live = shell.master._live
    assert live is not None
    assert live.slots[0].registered.allocation_id == 1


def test_slots_lost_after_the_first_failure_do_not_replace_its_error() -> None:
    shell = Shell(slots=2)
    shell.claims(1)
    for ordinal in range(2):
        shell.registers(1, ordinal, allocation_id=1)
    shell.recovers(1)
    shell.loses(1, 0, allocation_id=1, reason="out of memory")
    first = "Slot tm-1/0 was lost: out of memory."
    assert shell.reported_error() == first
    shell.loses(1, 1, allocation_id=1)  # while no attempt is there
    assert shell.reported_error() == first
    shell.claims(2)
    shell.loses(1, 1, allocation_id=1)  # while the next one is
    assert shell.reported_error() == first


def test_slots_that_exit_while_the_job_closes_do_not_replace_its_error() -> None:
    shell = Shell()
    shell.claims(1)
    shell.registers(1, 0, allocation_id=1)
    shell.recovers(1)
    shell.loses(1, 0, allocation_id=1, reason="out of memory")
    shell.claims(2)
    shell.registers(2, 0, allocation_id=2)
    shell.recovers(2)
    shell.master.decide(e.StopRequested(final_checkpoint=False))
    assert shell.state() is JobState.CLOSING
    shell.loses(2, 0, allocation_id=2, reason="ended with status 0")
    assert shell.reported_error() == "Slot tm-1/0 was lost: out of memory."


def test_slots_are_not_deployed_if_the_attempt_was_fenced() -> None:
    shell, asked = Shell(), list[Callable[[TidegateError | None], None]]()
    cast("Any", shell.master._journal).check_ownership = asked.append
    shell.claims(1)
    shell.registers(1, 0, allocation_id=3)
    shell.recovers(1)
    (confirmed,) = asked
    live = shell.master._required_live()
    sent: list[object] = []
    cast("Any", live).send = lambda ordinal, message: sent.append(message)
    confirmed(FencedError("attempt 2 has claimed the job"))
    assert sent == []
    assert shell.state() is JobState.FENCED
    confirmed(None)
    assert sent == [], "of an attempt that is over"


def test_slot_that_registers_during_the_ownership_check_replaces_none() -> None:
    shell, asked = Shell(), list[Callable[[TidegateError | None], None]]()
    cast("Any", shell.master._journal).check_ownership = asked.append
    shell.claims(1)
    shell.registers(1, 0, allocation_id=3)
    shell.recovers(1)
    live = shell.master._required_live()
    shell.registers(1, 0, allocation_id=4)
    assert live.slots[0].registered.allocation_id == 3
    sent: list[int] = []
    cast("Any", live).send = lambda ordinal, message: sent.append(ordinal)
    asked[0](None)
    assert sent == [0]


@pytest.mark.parametrize(("gone", "restarts"), [("the storage is gone", 0), ("", 1)])
def test_declined_checkpoint_does_not_count_as_failed_while_the_storage_is_gone(
    gone: str, restarts: int
) -> None:
    shell = running()
    live, looks = shell.master._required_live(), list[Callable[[], None]]()
    storage = SimpleNamespace(gone="", problem="", check_storage_then=looks.append)
    cast("Any", live)._storage = storage
    tolerable = shell.master._config.checkpoint.tolerable_failed_checkpoints
    for counter in range(1, tolerable + 2):
        shell.now_s += 10.0
        live.tick()
        shell.master.receive(
            DeclineCheckpoint(
                job=JOB,
                attempt=Attempt(1),
                checkpoint=CheckpointId(Attempt(1), counter),
                subtask=next(iter(SUBTASKS)),
                reason="the folder does not exist",
            )
        )
        storage.gone = gone
        looks.pop()()
        if gone:
            break
    assert shell.master._machine.restarts == restarts
    assert live.coordinator.counts.failed_in_a_row == (0 if gone else tolerable + 1)


def test_job_is_planned_after_its_code_is_fetched_and_reports_this_before_its_claim(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shell, fetching, recovered = Shell(), list[Callable[[Any], None]](), list[object]()

    def recover(plan: object, claimed: object, done: object) -> None:
        recovered.append((plan, [report.planned for report in shell.reports]))

    journal = cast("Any", shell.master._journal)
    journal.fetch_code = fetching.append
    journal.recover = recover
    plan, imported = shell.master._plan, list[object]()

    def try_plan(*given: object) -> object:
        imported.append(given[2])
        return plan

    monkeypatch.setattr(service, "try_plan", try_plan)
    monkeypatch.setattr(service, "JobPlan", SimpleNamespace)
    shell.master._plan = None
    shell.master.decide(e.ProcessStarted())
    assert recovered == []
    assert shell.state() is JobState.INITIALIZING
    assert [report.planned for report in shell.reports] == [False]
    fetching.pop()(tmp_path)
    assert imported == [tmp_path]
    assert recovered == [(plan, [False, True])]


def test_jobmaster_replaced_during_the_code_fetch_makes_no_claim() -> None:
    shell, fetching = Shell(), list[Callable[[Any], None]]()
    cast("Any", shell.master._journal).fetch_code = fetching.append
    shell.master._plan = None
    shell.master.decide(e.ProcessStarted())
    fetching.pop()(ProcedureStopped("another JobMaster has the job"))
    assert shell.state() is JobState.RESTARTING


@pytest.mark.parametrize(("final_checkpoint", "outcome"), [(True, "finished"), (False, "canceled")])
def test_stop_during_a_failing_recovery_closes_the_job_at_once(
    final_checkpoint: bool, outcome: str
) -> None:
    shell = Shell()
    shell.master.decide(e.ProcessStarted())
    shell.master.decide(e.StopRequested(final_checkpoint=final_checkpoint))
    assert shell.state() is JobState.INITIALIZING
    shell.master.decide(e.RecoveryFailed(error=KafkaUnavailableError("no broker answers")))
    assert shell.state() is JobState.CLOSING
    shell.run_until(1.0)
    assert shell.closed == [outcome]
