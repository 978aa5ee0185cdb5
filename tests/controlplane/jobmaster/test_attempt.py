"""The live attempt: which registrations are of one slot process, which of another; who stays; and
what its slots count.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from tests.checkpoint.examples import txn
from tidegate.checkpoint.backlog import Backlog
from tidegate.checkpoint.coordinator import CheckpointCoordinator
from tidegate.checkpoint.coordinator_events import CheckpointTick, Declined
from tidegate.checkpoint.coordinator_settings import CoordinatorSettings
from tidegate.controlplane.jobmaster.attempt import AttemptCallbacks, LiveAttempt
from tidegate.controlplane.journal.journal_worker import (
    CheckpointCommitted,
    CheckpointNotPublished,
    CheckpointPublished,
    PublicationEvent,
    PublicationFailed,
)
from tidegate.errors import ExternalError
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
from tidegate.protocol.subtask_snapshot import PreparedTransaction, SubtaskSnapshot
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


class Storage:
    """A storage that is there: a check ends at once."""

    gone = ""

    def __init__(self) -> None:
        self.checks = 0

    def check_storage_then(self, then: Callable[[], None]) -> None:
        self.checks += 1
        then()


def attempt(
    clock: Clock | None = None,
    wakes: list[float] | None = None,
    reported: list[object] | None = None,
    storage: Storage | None = None,
) -> tuple[LiveAttempt, list[Line]]:
    """Returns an attempt, and its lines to slots. `reported` receives what the service gets."""
    lines: list[Line] = []
    woken: list[float] = [] if wakes is None else wakes
    told: list[object] = [] if reported is None else reported

    def open_line(_: RegisterSlot) -> Any:
        lines.append(Line())
        return lines[-1]

    shell = AttemptCallbacks(
        clock=cast("Any", clock or Clock()),
        connect_slot=open_line,
        wake_at=woken.append,
        stops_early=lambda: False,
        committed=told.append,
        fail=told.append,
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
    live = LiveAttempt(
        JobName("job"),
        Attempt(1),
        coordinator,
        backlog,
        shell,
        journal=cast("Any", SimpleNamespace(publish=lambda *_, **__: None)),
        storage=cast("Any", storage or Storage()),
    )
    return live, lines


LEAVE = CloseTasks(job=JobName("job"), attempt=Attempt(1))


def committed(
    checkpoint: CheckpointId,
    transactions: tuple[PreparedTransaction, ...] = (),
    reusable: tuple[PreparedTransaction, ...] = (),
) -> CheckpointCommitted:
    return CheckpointCommitted(
        checkpoint=checkpoint, final=False, committed=transactions, reusable=reusable
    )


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
    live.handle_publication(committed(checkpoint, (txn(2),), (txn(1), txn(2))))
    live.handle_publication(committed(checkpoint, (), ()))
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
        live.handle_publication(CheckpointPublished(checkpoint=CheckpointId(live.attempt, counter)))
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


CHECKPOINT = CheckpointId(Attempt(1), 1)


@pytest.mark.parametrize(
    "event",
    [
        CheckpointPublished(checkpoint=CHECKPOINT),
        CheckpointNotPublished(checkpoint=CHECKPOINT, reason="the storage does not answer"),
        committed(CHECKPOINT, (txn(1),), (txn(1),)),
        PublicationFailed(error=ExternalError("no broker answers")),
    ],
    ids=lambda event: type(event).__name__,
)
@pytest.mark.parametrize("ended", [False, True])
def test_late_event_of_a_publication_is_ignored_after_the_end_of_its_attempt(
    event: PublicationEvent, *, ended: bool
) -> None:
    """The journal thread cannot stop a publication that has begun. Its events would fail or finish
    the job that the next attempt already runs.
    """
    reported: list[object] = []
    live, lines = attempt(reported=reported)
    live.register(FIRST)
    live.start()
    live.dispatch(CheckpointTick(now_s=1))
    acknowledge(live, 1, SlotMetrics())
    if not isinstance(event, CheckpointNotPublished | CheckpointPublished):
        live.handle_publication(CheckpointPublished(checkpoint=CHECKPOINT))
    if ended:
        live.end()
    before = seen(live, lines, reported)
    live.handle_publication(event)
    assert (seen(live, lines, reported) == before) is ended


def seen(live: LiveAttempt, lines: list[Line], reported: list[object]) -> object:
    """Everything that the event of a publication can change."""
    counts = live.coordinator.counts
    return counts.completed, counts.failed, len(lines[0].sent), len(reported)


def test_failed_publication_is_judged_after_a_check_of_the_storage() -> None:
    """A storage that has vanished fails each publication. The job would count these failures and
    restart, although no restart helps.
    """
    storage = Storage()
    live, _ = attempt(storage=storage)
    live.register(FIRST)
    live.start()
    live.dispatch(CheckpointTick(now_s=1))
    acknowledge(live, 1, SlotMetrics())
    storage.gone = "The storage is gone."
    live.handle_publication(CheckpointNotPublished(checkpoint=CHECKPOINT, reason="no folder"))
    assert storage.checks == 1
    assert (live.coordinator.counts.failed, live.coordinator.counts.failed_in_a_row) == (1, 0)


def test_heartbeat_of_an_unknown_slot_does_not_change_the_metrics() -> None:
    live, _ = attempt()
    live.heartbeat(3, SlotMetrics(records_in=10, lag=500))
    assert live.metrics() == SlotMetrics()
