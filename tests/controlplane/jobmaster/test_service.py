"""The JobMaster's shell: what it waits for before it fences its own transactional ids, and which
word of a slot's end it takes for which slot.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.controlplane.jobmaster.shell import JOB, SUBTASKS, Shell
from tidegate.checkpoint.coordinator_events import Published
from tidegate.controlplane.jobmaster import events as e
from tidegate.controlplane.jobmaster import service
from tidegate.controlplane.jobmaster.departure import CLOSE_TIMEOUT_S, RELEASE_S
from tidegate.controlplane.jobmaster.effect_runner import ProcedureStopped
from tidegate.controlplane.jobmaster.events import Close
from tidegate.errors import (
    DataLossError,
    FencedError,
    KafkaUnavailableError,
    StorageError,
    TidegateError,
)
from tidegate.ids import Attempt, CheckpointId, SubtaskIndex, VertexId
from tidegate.protocol.job_state import JobState
from tidegate.protocol.messages import (
    Acknowledge,
    AcknowledgeCheckpoint,
    DeclineCheckpoint,
    ReleaseSlots,
    SlotMetrics,
    TasksReady,
)
from tidegate.protocol.subtask_snapshot import SubtaskSnapshot


def fourth() -> Shell:
    """In attempt 4, of which nothing else is there."""
    shell = Shell()
    shell.master._machine.attempt = Attempt(4)
    return shell


def running() -> Shell:
    """In attempt 1, on one slot."""
    shell = Shell()
    shell.claims(1)
    shell.registers(1, 0, allocation_id=3)
    shell.recovers(1)
    shell.master.receive(TasksReady(job=JOB, attempt=Attempt(1), ordinal=0))
    assert shell.state() is JobState.RUNNING
    return shell


def test_the_first_sweeps_come_soon_and_then_every_ten_seconds() -> None:
    """The recovery misses transactions if their coordinator was elected just before it. These
    transactions hold readers back until a sweep finds them.
    """
    shell, swept = running(), []
    cast("Any", shell.master._journal).fence_zombies = lambda: swept.append(shell.now_s)
    shell.run_until(40.0)
    assert swept == [1.0, 3.0, 7.0, 15.0, 25.0, 35.0]


def test_own_ids_are_fenced_only_when_no_slot_is_left() -> None:
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


def test_the_wait_for_the_slots_has_an_end() -> None:
    shell = fourth()
    shell.master._close(Close(outcome=JobState.CANCELED))
    shell.run_until(RELEASE_S - 0.1)
    assert shell.closed == []
    shell.run_until(RELEASE_S + 1)
    assert shell.closed == ["canceled"]


def test_a_failed_attempts_slots_are_waited_for_too() -> None:
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


def test_the_slots_leave_before_they_are_stopped() -> None:
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


def test_a_slot_that_does_not_leave_is_stopped() -> None:
    shell = Shell()
    shell.claims(1)
    shell.registers(1, 0, allocation_id=1)
    shell.master._close(Close(outcome=JobState.FINISHED))
    shell.run_until(CLOSE_TIMEOUT_S - 0.1)
    assert not isinstance(shell.sent[-1], ReleaseSlots)
    shell.run_until(CLOSE_TIMEOUT_S + 0.1)
    assert isinstance(shell.sent[-1], ReleaseSlots)


def test_the_word_of_a_slots_end_says_which_use_of_the_slot() -> None:
    shell = Shell()
    shell.claims(1)
    for allocation_id in (1, 3):  # given out again
        assert shell.registers(1, 0, allocation_id) == Acknowledge()
    shell.loses(1, 0, allocation_id=1)
    assert shell.slots_missing() == 0
    shell.loses(1, 0, allocation_id=3)
    assert shell.slots_missing() == 1


def test_what_delays_the_close_of_a_failed_job_does_not_hide_why_it_has_failed() -> None:
    shell = running()
    shell.master._fail(Attempt(1), DataLossError("output is lost"))
    assert shell.state() is JobState.CLOSING
    shell.master._on_retry(StorageError("the storage does not answer"))
    shell.master.decide(e.JobClosed())
    assert shell.reports[-1].state == "FAILED"
    assert shell.reported_error() == "output is lost"


def test_a_report_without_news_is_sent_seldom() -> None:
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


def test_a_part_of_a_checkpoint_brings_what_its_slot_has_counted() -> None:
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


def test_how_long_subtasks_aligned_and_stood_still_is_reported() -> None:
    shell = running()
    live = shell.master._live
    assert live is not None
    shell.run_until(1.7)
    cast("Any", shell.master._journal).publish = lambda *_, **__: None
    checkpoint, (subtask,) = live.coordinator.pending, live.coordinator.missing
    assert checkpoint is not None
    shell.master.receive(
        AcknowledgeCheckpoint(
            job=JOB,
            attempt=Attempt(1),
            checkpoint=checkpoint,
            snapshot=SubtaskSnapshot(vertex=subtask.vertex, index=subtask.index),
            alignment_ms=40,
            sync_ms=7,
            ordinal=0,
            metrics=SlotMetrics(),
        )
    )
    live.dispatch(Published(checkpoint=checkpoint, now_s=1.8))
    complete = SimpleNamespace(checkpoint=checkpoint, final=False)
    shell.master._committed(live, cast("Any", complete), (), ())
    shell.master._report()
    last = shell.reports[-1].last_checkpoint
    assert last is not None
    assert (last.alignment_ms, last.sync_ms) == (40, 7)


def test_of_many_checkpoints_a_second_two_are_told_at_once() -> None:
    shell = running()
    live = shell.master._live
    assert live is not None
    shell.master.poll()
    shell.run_until(1.7)
    shell.reports.clear()
    for number in range(20):
        shell.run_until(1.7 + number / 10)
        complete = SimpleNamespace(checkpoint=CheckpointId(Attempt(1), number), final=False)
        shell.master._committed(live, cast("Any", complete), (), ())
    assert len(shell.reports) == 4


def test_a_silent_slot_is_given_up_and_stopped() -> None:
    """Nothing is deployed yet, and no other process would bring a slot in its place."""
    shell = Shell()
    shell.claims(1)
    shell.registers(1, 0, allocation_id=3)
    shell.now_s = 2.0 * shell.master._config.cluster.heartbeat_timeout / 1000
    shell.master.poll()
    assert shell.slots_missing() == 1
    assert isinstance(shell.sent[-1], ReleaseSlots)
    assert shell.sent[-1].attempt == 1


def test_a_slot_that_is_known_to_be_lost_is_not_found_silent_as_well() -> None:
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


def test_a_slot_whose_earlier_use_is_lost_may_be_found_silent() -> None:
    shell = Shell()
    shell.claims(1)
    shell.registers(1, 0, allocation_id=4)
    shell.loses(1, 0, allocation_id=3)
    shell.now_s = 2.0 * shell.master._config.cluster.heartbeat_timeout / 1000
    shell.master.poll()
    assert isinstance(shell.sent[-1], ReleaseSlots)


def test_a_slot_that_does_not_take_its_deployment_ends_the_attempt() -> None:
    shell = Shell()
    shell.claims(1)
    shell.registers(1, 0, allocation_id=3)
    shell.recovers(1)
    assert shell.state() is JobState.DEPLOYING
    shell.deliver(0)
    assert shell.state() is JobState.INITIALIZING
    assert shell.reported_error() == ("Slot tm-1/0 was lost: it refused StartSources: it leaves.")


def test_what_registers_after_the_deployment_takes_nobodys_place() -> None:
    shell = Shell()
    shell.claims(1)
    shell.registers(1, 0, allocation_id=1)
    shell.recovers(1)
    shell.registers(1, 0, allocation_id=2)
    live = shell.master._live
    assert live is not None
    assert live.slots[0].registered.allocation_id == 1


def test_the_slots_that_a_failure_takes_with_it_are_not_its_reason() -> None:
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


def test_the_slots_that_leave_at_the_end_are_not_its_reason() -> None:
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


def test_slots_begin_only_when_the_job_is_still_this_attempts() -> None:
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


def test_a_place_is_taken_while_it_is_asked_whose_the_job_is() -> None:
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
def test_a_declined_checkpoint_counts_only_if_the_storage_is_there(
    gone: str, restarts: int
) -> None:
    shell = running()
    live, looks = shell.master._required_live(), list[Callable[[], None]]()
    storage = SimpleNamespace(gone="", trouble="", check_storage_then=looks.append)
    cast("Any", shell.master)._storage = storage
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


def test_a_job_is_planned_when_its_code_is_there_and_reports_meanwhile(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shell, fetching, recovered = Shell(), list[Callable[[Any], None]](), list[object]()
    journal = cast("Any", shell.master._journal)
    journal.fetch_code = fetching.append
    journal.recover = lambda plan, claimed, done: recovered.append(plan)
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
    assert (imported, recovered) == ([tmp_path], [plan])
    shell.master.poll()
    assert shell.reports[-1].planned


def test_a_jobmaster_that_was_replaced_while_it_fetched_the_code_claims_nothing() -> None:
    shell, fetching = Shell(), list[Callable[[Any], None]]()
    cast("Any", shell.master._journal).fetch_code = fetching.append
    shell.master._plan = None
    shell.master.decide(e.ProcessStarted())
    fetching.pop()(ProcedureStopped("another JobMaster has the job"))
    assert shell.state() is JobState.RESTARTING


@pytest.mark.parametrize(("final_checkpoint", "outcome"), [(True, "finished"), (False, "canceled")])
def test_a_stop_does_not_wait_for_recoveries_that_fail(
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
