"""The live attempt: which registrations are of one slot process, and which of another."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from tidegate.checkpoint.coordinator import CheckpointCoordinator, CoordinatorSettings
from tidegate.controlplane.jobmaster.attempt import AttemptShell, LiveAttempt
from tidegate.ids import Attempt, JobName, SlotId, SubtaskId, SubtaskIndex, TaskManagerId, VertexId
from tidegate.protocol.messages import RegisterSlot

FIRST = RegisterSlot(
    job=JobName("job"),
    attempt=Attempt(1),
    ordinal=0,
    slot=SlotId(TaskManagerId("tm-1"), 0),
    pid=100,
    task_manager_pid=99,
    address="host-1:1",
    exchange_address="host-1:2",
)


class Line:
    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True


class Clock:
    def monotonic(self) -> float:
        return 0.0


def test_a_slot_on_another_host_replaces_one_of_the_same_pid() -> None:
    lines: list[Line] = []

    def open_line(_: RegisterSlot) -> Any:
        lines.append(Line())
        return lines[-1]

    shell = AttemptShell(
        clock=cast("Any", Clock()),
        open_line=open_line,
        wake_at=lambda _: None,
        publish=lambda _: None,
        fail=lambda _: None,
    )
    subtasks = {SubtaskId(VertexId("v"), SubtaskIndex(0))}
    settings = CoordinatorSettings(interval_s=1, timeout_s=1)
    coordinator = CheckpointCoordinator(Attempt(1), subtasks, settings)
    live = LiveAttempt(JobName("job"), Attempt(1), coordinator, shell)
    assert live.attach(FIRST)
    assert not live.attach(msgspec.structs.replace(FIRST)), "delivered twice"
    other = msgspec.structs.replace(
        FIRST,
        slot=SlotId(TaskManagerId("tm-2"), 0),
        address="host-2:1",
        exchange_address="host-2:2",
    )
    assert live.attach(other)
    assert [line.closed for line in lines] == [True, False]
    assert live.slots[0].registered == other
