"""The live attempt: which registrations are of one slot process, which of another; who stays; and
what its slots count.
"""

from __future__ import annotations

from typing import Any, cast

import msgspec

from tests.checkpoint.examples import txn
from tidegate.checkpoint.backlog import Backlog
from tidegate.checkpoint.coordinator import CheckpointCoordinator
from tidegate.checkpoint.coordinator_events import CheckpointTick, Declined
from tidegate.checkpoint.coordinator_settings import CoordinatorSettings
from tidegate.controlplane.jobmaster.attempt import AttemptCallbacks, LiveAttempt
from tidegate.ids import (
    Attempt,
    CheckpointId,
    JobName,
    SlotId,
    SubtaskId,
    SubtaskIndex,
    TaskManagerId,
    VertexId,
)
from tidegate.protocol.messages import (
    AcknowledgeCheckpoint,
    CheckpointCompleted,
    CloseTasks,
    Message,
    RegisterSlot,
    TriggerCheckpoint,
)
from tidegate.protocol.slot_metrics import SlotMetrics
from tidegate.protocol.subtask_snapshot import SubtaskSnapshot
from tidegate.protocol.versions import PYTHON, TIDEGATE

FIRST = RegisterSlot(
    job=JobName("job"),
    attempt=Attempt(1),
    ordinal=0,
    slot=SlotId(TaskManagerId("tm-1"), 0),
    pid=100,
    task_manager_pid=99,
    address="host-1:1",
    exchange_address="host-1:2",
    host="host-1",
    tidegate_version=TIDEGATE,
    python_version=PYTHON,
)


OTHER = msgspec.structs.replace(
    FIRST,
    slot=SlotId(TaskManagerId("tm-2"), 0),
    address="host-2:1",
    exchange_address="host-2:2",
    host="host-2",
)


class Line:
    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.closed = False

    def send(self, message: Message) -> None:
        assert not self.closed
        self.sent.append(message)

    def close(self) -> None:
        self.closed = True


class Clock:
    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


def attempt(
    clock: Clock | None = None, wakes: list[float] | None = None
) -> tuple[LiveAttempt, list[Line]]:
    lines: list[Line] = []
    woken: list[float] = [] if wakes is None else wakes

    def open_line(_: RegisterSlot) -> Any:
        lines.append(Line())
        return lines[-1]

    shell = AttemptCallbacks(
        clock=cast("Any", clock or Clock()),
        connect_slot=open_line,
        wake_at=woken.append,
        publish=lambda _: None,
        fail=lambda _: None,
    )
    subtasks = {SubtaskId(VertexId("v"), SubtaskIndex(0))}
    settings = CoordinatorSettings(
        interval_s=1,
        interval_during_backlog_s=5,
        interval_when_idle_s=4,
        timeout_s=1,
        tolerable_failed_checkpoints=1,
    )
    coordinator = CheckpointCoordinator(Attempt(1), subtasks, settings)
    backlog = Backlog(window_s=1)
    return LiveAttempt(JobName("job"), Attempt(1), coordinator, backlog, shell), lines


LEAVE = CloseTasks(job=JobName("job"), attempt=Attempt(1))


def test_a_slot_on_another_host_replaces_one_of_the_same_pid() -> None:
    live, lines = attempt()
    assert live.register(FIRST)
    assert not live.register(msgspec.structs.replace(FIRST)), "delivered twice"
    assert live.register(OTHER)
    assert [line.closed for line in lines] == [True, False]
    assert lines[0].sent == [LEAVE]
    assert live.slots[0].registered == OTHER
    [shown] = live.reports()
    assert (shown.slot, shown.pid, shown.host) == (OTHER.slot, 100, "host-2")


def test_late_slot_of_an_older_allocation_does_not_replace_the_newer_one() -> None:
    """The end of that slot would not be reported a second time, and the job would be deployed to
    it.
    """
    live, lines = attempt()
    newer = msgspec.structs.replace(OTHER, allocation_id=FIRST.allocation_id + 1)
    assert live.register(newer)
    assert not live.register(FIRST)
    assert live.slots[0].registered == newer
    assert [line.closed for line in lines] == [False, True]
    assert lines[1].sent == [LEAVE]


def test_slot_that_registers_after_the_deployment_is_told_to_close() -> None:
    """The slot belongs to a TaskManager that was declared lost while the slot was starting. Seen in
    the kill matrix: the job hung, because all further messages went to the slot without tasks.
    """
    live, lines = attempt()
    assert live.register(FIRST)
    live.deployed = True
    assert not live.register(OTHER)
    assert live.slots[0].registered == FIRST
    live.start()
    assert [type(message).__name__ for message in lines[0].sent] == ["StartSources"]
    assert (lines[1].sent, lines[1].closed) == ([LEAVE], True)


def test_checkpoint_completed_carries_the_ended_and_released_transactional_ids() -> None:
    """The ids go to every slot as they were handed in; nothing is remembered here."""
    live, lines = attempt()
    live.register(FIRST)
    live.start()
    checkpoint = CheckpointId(live.attempt, 1)
    live.committed(checkpoint, (txn(2),), (txn(1), txn(2)))
    live.committed(checkpoint, (), ())
    one, two = (txn(1).transactional_id, txn(2).transactional_id)
    told = [
        (each.committed, each.reusable)
        for each in lines[0].sent
        if type(each) is CheckpointCompleted
    ]
    assert told == [((two,), (one, two)), ((), ())]


def test_summed_slot_metrics_decide_whether_the_job_has_a_backlog() -> None:
    clock, wakes = Clock(), list[float]()
    live, _ = attempt(clock, wakes)
    live.register(FIRST)
    live.register(msgspec.structs.replace(OTHER, ordinal=1))
    live.start()
    live.dispatch(
        CheckpointTick(now_s=1)
    )  # a checkpoint, which is aborted when the next one is long due
    busy = SlotMetrics(records_in=10, records_out=4, lag=500, busy=True)
    live.heartbeat(0, busy)
    live.heartbeat(1, SlotMetrics(records_in=10, skipped=1, dead_letters=2, busy=True))
    clock.now_s = 1.0
    live.heartbeat(0, busy)
    clock.now_s = 1.5
    other = SlotMetrics(records_in=100, skipped=1, dead_letters=2, lag=100, busy=True)
    live.heartbeat(1, other)
    assert live.metrics() == SlotMetrics(
        records_in=110, records_out=4, skipped=1, dead_letters=2, lag=600
    )
    live.dispatch(
        Declined(checkpoint=CheckpointId(live.attempt, 1), subtask=None, reason="", now_s=2)
    )
    assert wakes == [1, 2, 6], "one long interval after the last trigger"
    live.heartbeat(0, SlotMetrics(records_in=500, lag=9_000))
    live.heartbeat(1, SlotMetrics(records_in=200, lag=0, busy=True))
    assert wakes[3:] == [2], "one short interval after it"


def test_first_record_after_an_idle_time_triggers_the_overdue_checkpoint() -> None:
    clock, wakes = Clock(), list[float]()
    live, lines = attempt(clock, wakes)
    live.register(FIRST)
    live.start()
    for counter in (1, 2):
        clock.now_s = float(counter)
        live.tick()
        acknowledge(live, counter, SlotMetrics(records_in=5))
        live.published(CheckpointId(live.attempt, counter))
    assert wakes[-1] == 2 + 4, "the interval of an idle job"
    clock.now_s = 4.5
    live.heartbeat(0, SlotMetrics(records_in=5))
    assert len(triggered(lines[0])) == 2
    live.heartbeat(0, SlotMetrics(records_in=6))
    assert triggered(lines[0])[2:] == [CheckpointId(live.attempt, 3)]


def acknowledge(live: LiveAttempt, counter: int, metrics: SlotMetrics) -> None:
    live.acknowledged(
        AcknowledgeCheckpoint(
            job=live.job,
            attempt=live.attempt,
            checkpoint=CheckpointId(live.attempt, counter),
            snapshot=SubtaskSnapshot(vertex=VertexId("v"), index=SubtaskIndex(0)),
            alignment_ms=0,
            sync_ms=0,
            ordinal=0,
            metrics=metrics,
        )
    )


def triggered(line: Line) -> list[CheckpointId]:
    return [each.checkpoint for each in line.sent if isinstance(each, TriggerCheckpoint)]


def test_heartbeat_of_an_unknown_slot_does_not_change_the_metrics() -> None:
    live, _ = attempt()
    live.heartbeat(3, SlotMetrics(records_in=10, lag=500))
    assert live.metrics() == SlotMetrics()
