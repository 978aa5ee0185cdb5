"""A coordinator of two subtasks and the messages that it receives, for its tests."""

from __future__ import annotations

from tidegate.checkpoint.coordinator import CheckpointCoordinator
from tidegate.checkpoint.coordinator_events import (
    Acknowledged,
    AttemptStarted,
    PublishCheckpoint,
    WakeAt,
)
from tidegate.checkpoint.coordinator_settings import CoordinatorSettings
from tidegate.ids import Attempt, CheckpointId, SubtaskId, SubtaskIndex, Uid, VertexId
from tidegate.protocol.subtask_snapshot import (
    KeyedSnapshot,
    PreparedTransaction,
    StateFile,
    SubtaskSnapshot,
)

ATTEMPT = Attempt(7)
A = SubtaskId(VertexId("source"), SubtaskIndex(0))
B = SubtaskId(VertexId("sink"), SubtaskIndex(0))
SETTINGS = CoordinatorSettings(interval_s=10, timeout_s=60, tolerable_failed_checkpoints=2)


def cid(counter: int) -> CheckpointId:
    return CheckpointId(ATTEMPT, counter)


def part(subtask: SubtaskId, *transactions: PreparedTransaction, size: int = 0) -> SubtaskSnapshot:
    file = StateFile(name="a", path="files/7/a", size=size, sha256="")
    keyed = KeyedSnapshot(
        uid=Uid("total"),
        backend="memory",
        first_key_group=0,
        last_key_group=127,
        files=(file,),
        schemas={},
    )
    return SubtaskSnapshot(
        vertex=subtask.vertex,
        index=subtask.index,
        keyed=(keyed,) if size else (),
        transactions=transactions,
    )


def ack(
    counter: int, subtask: SubtaskId, *transactions: PreparedTransaction, now_s: float = 0
) -> Acknowledged:
    return Acknowledged(checkpoint=cid(counter), snapshot=part(subtask, *transactions), now_s=now_s)


def started(settings: CoordinatorSettings = SETTINGS) -> CheckpointCoordinator:
    coordinator = CheckpointCoordinator(ATTEMPT, [A, B], settings)
    assert coordinator.handle(AttemptStarted(now_s=100)) == [
        WakeAt(time_s=100 + settings.interval_s)
    ]
    return coordinator


def complete(coordinator: CheckpointCoordinator, counter: int) -> PublishCheckpoint:
    assert coordinator.handle(ack(counter, A)) == []
    found = coordinator.handle(ack(counter, B))[0]
    assert isinstance(found, PublishCheckpoint)
    return found
