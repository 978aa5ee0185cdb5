"""What a job that has nothing to do gathers over ten thousand checkpoints: nothing."""

from __future__ import annotations

from typing import Any

import msgspec

from tests.commit.quiet import ProcedureRunner
from tidegate.checkpoint.coordinator import CheckpointCoordinator
from tidegate.checkpoint.coordinator_events import (
    Acknowledged,
    AttemptStarted,
    CheckpointTick,
    Published,
    TriggerBarriers,
)
from tidegate.checkpoint.coordinator_settings import CoordinatorSettings
from tidegate.commit import effects
from tidegate.commit.cleanup import CheckpointCleanup, clean_up
from tidegate.commit.effects import Effect
from tidegate.commit.journal.state import RECENT_MAX
from tidegate.commit.truncation import truncate
from tidegate.ids import Attempt, SubtaskId, SubtaskIndex, VertexId
from tidegate.protocol.subtask_snapshot import SubtaskSnapshot


def test_ten_thousand_idle_checkpoints_leave_nothing_in_the_coordinator() -> None:
    subtask = SubtaskId(VertexId("v"), SubtaskIndex(0))
    settings = CoordinatorSettings(interval_s=1, timeout_s=10)
    coordinator = CheckpointCoordinator(Attempt(1), {subtask}, settings)
    coordinator.handle(AttemptStarted(now_s=0.0))
    part = SubtaskSnapshot(vertex=subtask.vertex, index=subtask.index)
    for second in range(1, 10_001):
        now_s = float(second)
        (trigger,) = (
            i
            for i in coordinator.handle(CheckpointTick(now_s=now_s))
            if isinstance(i, TriggerBarriers)
        )
        coordinator.handle(
            Acknowledged(
                checkpoint=trigger.checkpoint, snapshot=part, now_s=now_s, alignment_ms=0, sync_ms=0
            )
        )
        coordinator.handle(Published(checkpoint=trigger.checkpoint, now_s=now_s))
    assert coordinator.counts.completed == 10_000
    sizes = [len(value) for value in vars(coordinator).values() if hasattr(value, "__len__")]
    assert max(sizes) < 100


def test_a_thousand_idle_checkpoints_leave_little_in_the_journal_and_in_memory() -> None:
    quiet = ProcedureRunner()
    objects = quiet.world.store.objects
    journal, cleaning = quiet.claim(), CheckpointCleanup()

    def delete(effect: Effect) -> Any:
        if isinstance(effect, effects.DeleteObject):
            objects.pop(effect.path, None)
            return None
        return NotImplemented

    most = 0
    for counter in range(1, 1_001):
        quiet.publish(journal, counter)
        quiet.run(clean_up(journal, cleaning, retained=2), delete)
        quiet.run(truncate(journal), delete)
        most = max(most, len(objects))
        quiet.asked.clear()
    assert most < 320, "three hundred entries, their snapshots and two manifests"
    assert len(cleaning.manifests) == 2
    assert not journal.ended
    assert len(journal.state.recent_checkpoints) == RECENT_MAX
    assert len(msgspec.json.encode(journal.state)) < 100_000
