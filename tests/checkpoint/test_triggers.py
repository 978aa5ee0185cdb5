"""When the coordinator begins a checkpoint: by the interval, the pause, a backlog, or a stop."""

from __future__ import annotations

import pytest

from tests.checkpoint.coordinated import ATTEMPT, A, B, cid, complete, started
from tidegate.checkpoint.coordinator import CheckpointCoordinator
from tidegate.checkpoint.coordinator_events import (
    AttemptStarted,
    BacklogChanged,
    CheckpointTick,
    IdleChanged,
    Published,
    StopRequested,
    TriggerBarriers,
    WakeAt,
)
from tidegate.checkpoint.coordinator_settings import FIRST_S, CoordinatorSettings
from tidegate.config import CheckpointSettings


def test_the_first_checkpoint_begins_one_interval_after_the_start() -> None:
    coordinator = started()
    assert coordinator.handle(CheckpointTick(now_s=109.9)) == []
    assert coordinator.handle(CheckpointTick(now_s=110)) == [
        TriggerBarriers(checkpoint=cid(1), final=False),
        WakeAt(time_s=170),
    ]


@pytest.mark.parametrize(
    ("interval_s", "min_pause_s", "after_s"),
    [(10, 0, 0.5), (10, 2, 2), (10, 20, 10), (0.1, 0, 0.1)],
)
def test_first_checkpoint_begins_sooner_if_the_interval_is_long(
    interval_s: float, min_pause_s: float, after_s: float
) -> None:
    settings = CoordinatorSettings(
        interval_s=interval_s, timeout_s=60, first_s=0.5, min_pause_s=min_pause_s
    )
    coordinator = CheckpointCoordinator(ATTEMPT, [A], settings)
    assert coordinator.handle(AttemptStarted(now_s=100)) == [WakeAt(time_s=100 + after_s)]
    assert coordinator.handle(CheckpointTick(now_s=100 + after_s))[0] == TriggerBarriers(
        checkpoint=cid(1), final=False
    )


def test_next_checkpoint_begins_one_interval_after_the_last_trigger() -> None:
    coordinator = started()
    coordinator.handle(CheckpointTick(now_s=110))
    complete(coordinator, 1)
    assert coordinator.handle(Published(checkpoint=cid(1), now_s=113)) == [WakeAt(time_s=120)]
    assert coordinator.handle(CheckpointTick(now_s=120))[0] == TriggerBarriers(
        checkpoint=cid(2), final=False
    )


def test_overdue_checkpoint_begins_when_the_last_checkpoint_is_published() -> None:
    coordinator = started()
    coordinator.handle(CheckpointTick(now_s=110))
    complete(coordinator, 1)
    assert coordinator.handle(Published(checkpoint=cid(1), now_s=125)) == [
        TriggerBarriers(checkpoint=cid(2), final=False),
        WakeAt(time_s=185),
    ]


def test_minimum_pause_is_measured_from_the_last_publication() -> None:
    settings = CoordinatorSettings(interval_s=10, timeout_s=60, min_pause_s=30)
    coordinator = started(settings)
    coordinator.handle(CheckpointTick(now_s=110))
    complete(coordinator, 1)
    assert coordinator.handle(Published(checkpoint=cid(1), now_s=125)) == [WakeAt(time_s=155)]
    assert coordinator.handle(CheckpointTick(now_s=154)) == []
    assert coordinator.handle(CheckpointTick(now_s=155))[0] == TriggerBarriers(
        checkpoint=cid(2), final=False
    )


def test_no_checkpoint_begins_while_one_is_under_way() -> None:
    coordinator = started()
    coordinator.handle(CheckpointTick(now_s=110))
    assert coordinator.handle(CheckpointTick(now_s=160)) == []
    complete(coordinator, 1)
    assert coordinator.handle(CheckpointTick(now_s=1000)) == [], (
        "no timeout once it may be in the journal"
    )


BACKLOG = CoordinatorSettings(interval_s=10, interval_during_backlog_s=40, timeout_s=60)


def test_during_a_backlog_the_longer_interval_counts_from_the_last_trigger() -> None:
    coordinator = started(BACKLOG)
    coordinator.handle(CheckpointTick(now_s=110))
    coordinator.handle(BacklogChanged(behind=True, now_s=111))
    complete(coordinator, 1)
    assert coordinator.handle(Published(checkpoint=cid(1), now_s=113)) == [WakeAt(time_s=150)]
    assert coordinator.handle(CheckpointTick(now_s=149)) == []
    assert coordinator.handle(CheckpointTick(now_s=150))[0] == TriggerBarriers(
        checkpoint=cid(2), final=False
    )


def test_a_shorter_interval_for_a_backlog_changes_nothing() -> None:
    coordinator = started(CoordinatorSettings(interval_s=10, timeout_s=60))
    coordinator.handle(CheckpointTick(now_s=110))
    coordinator.handle(BacklogChanged(behind=True, now_s=111))
    complete(coordinator, 1)
    assert coordinator.handle(Published(checkpoint=cid(1), now_s=113)) == [WakeAt(time_s=120)]


def idle_in_a_backlog() -> CheckpointCoordinator:
    coordinator = started(BACKLOG)
    coordinator.handle(CheckpointTick(now_s=110))
    complete(coordinator, 1)
    coordinator.handle(Published(checkpoint=cid(1), now_s=113))
    assert coordinator.handle(BacklogChanged(behind=True, now_s=114)) == [WakeAt(time_s=150)]
    return coordinator


def test_end_of_a_backlog_brings_the_next_checkpoint_forward() -> None:
    coordinator = idle_in_a_backlog()
    assert coordinator.handle(BacklogChanged(behind=False, now_s=115)) == [WakeAt(time_s=120)]


def test_overdue_checkpoint_begins_at_once_at_the_end_of_a_backlog() -> None:
    coordinator = idle_in_a_backlog()
    ended = coordinator.handle(BacklogChanged(behind=False, now_s=130))
    assert ended == [TriggerBarriers(checkpoint=cid(2), final=False), WakeAt(time_s=190)]


def test_neither_the_first_nor_the_final_checkpoint_waits_for_a_backlog() -> None:
    coordinator = started(BACKLOG)
    coordinator.handle(BacklogChanged(behind=True, now_s=101))
    assert coordinator.handle(CheckpointTick(now_s=110))[0] == TriggerBarriers(
        checkpoint=cid(1), final=False
    )
    coordinator = idle_in_a_backlog()
    assert coordinator.handle(StopRequested(now_s=116))[0] == TriggerBarriers(
        checkpoint=cid(2), final=True
    )


def test_backlog_does_not_change_a_checkpoint_under_way() -> None:
    coordinator = started(BACKLOG)
    coordinator.handle(CheckpointTick(now_s=110))
    for behind in (True, False):
        assert coordinator.handle(BacklogChanged(behind=behind, now_s=130)) == []
    assert coordinator.missing == {A, B}
    complete(coordinator, 1)
    assert coordinator.handle(BacklogChanged(behind=True, now_s=131)) == []
    assert coordinator.handle(Published(checkpoint=cid(1), now_s=132)) == [WakeAt(time_s=150)]


IDLE = CoordinatorSettings(interval_s=10, interval_when_idle_s=40, timeout_s=60)


def waiting_while_idle() -> CheckpointCoordinator:
    coordinator = started(IDLE)
    coordinator.handle(CheckpointTick(now_s=110))
    complete(coordinator, 1)
    assert coordinator.handle(IdleChanged(idle=True, now_s=112)) == []
    assert coordinator.handle(Published(checkpoint=cid(1), now_s=113)) == [WakeAt(time_s=150)]
    return coordinator


def test_while_idle_the_longer_interval_counts_from_the_last_trigger() -> None:
    coordinator = waiting_while_idle()
    assert coordinator.handle(CheckpointTick(now_s=149)) == []
    assert coordinator.handle(CheckpointTick(now_s=150))[0] == TriggerBarriers(
        checkpoint=cid(2), final=False
    )


def test_end_of_an_idle_time_brings_the_next_checkpoint_forward() -> None:
    coordinator = waiting_while_idle()
    assert coordinator.handle(IdleChanged(idle=False, now_s=115)) == [WakeAt(time_s=120)]


def test_overdue_checkpoint_begins_at_once_at_the_end_of_an_idle_time() -> None:
    coordinator = waiting_while_idle()
    ended = coordinator.handle(IdleChanged(idle=False, now_s=130))
    assert ended == [TriggerBarriers(checkpoint=cid(2), final=False), WakeAt(time_s=190)]


def test_final_checkpoint_does_not_wait_for_the_end_of_an_idle_time() -> None:
    coordinator = waiting_while_idle()
    assert coordinator.handle(StopRequested(now_s=116))[0] == TriggerBarriers(
        checkpoint=cid(2), final=True
    )


def test_longer_of_both_intervals_counts_if_an_idle_job_has_a_backlog() -> None:
    both = CoordinatorSettings(
        interval_s=10, interval_during_backlog_s=20, interval_when_idle_s=40, timeout_s=60
    )
    coordinator = started(both)
    coordinator.handle(CheckpointTick(now_s=110))
    complete(coordinator, 1)
    coordinator.handle(IdleChanged(idle=True, now_s=112))
    coordinator.handle(BacklogChanged(behind=True, now_s=112))
    assert coordinator.handle(Published(checkpoint=cid(1), now_s=113)) == [WakeAt(time_s=150)]
    assert coordinator.handle(IdleChanged(idle=False, now_s=114)) == [WakeAt(time_s=130)]


def test_shorter_interval_for_an_idle_job_changes_nothing() -> None:
    coordinator = started(CoordinatorSettings(interval_s=10, interval_when_idle_s=1, timeout_s=60))
    coordinator.handle(CheckpointTick(now_s=110))
    complete(coordinator, 1)
    coordinator.handle(IdleChanged(idle=True, now_s=112))
    assert coordinator.handle(Published(checkpoint=cid(1), now_s=113)) == [WakeAt(time_s=120)]


def test_coordinator_settings_come_from_the_configuration() -> None:
    assert CoordinatorSettings.of(CheckpointSettings()) == CoordinatorSettings(
        interval_s=10,
        interval_during_backlog_s=3,
        interval_when_idle_s=1,
        timeout_s=120,
        first_s=FIRST_S,
        min_pause_s=0,
        tolerable_failed_checkpoints=2,
        tolerated_outage_s=180,
    )
