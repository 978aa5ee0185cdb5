"""ResourceManager and TaskManagers together, under any order, loss and repetition of messages."""

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.controlplane.parts import DELIVERIES, Cluster
from tidegate.controlplane.jobmanager import resource_manager_events as r
from tidegate.controlplane.taskmanager import machine as t
from tidegate.controlplane.taskmanager.machine import TaskManagerMachine
from tidegate.errors import InternalError
from tidegate.ids import JobName
from tidegate.protocol.messages import Acknowledge, StopSlot

JOBS = {"a": 3, "b": 2}
SLOTS = 2
TASK_MANAGERS = ("x", "y", "z")


def act(cluster: Cluster, draw: Callable[[int], int]) -> None:
    """One step: mostly something under way happens, sometimes the world intervenes."""
    choice = draw(12)
    job = ("a", "b")[draw(2)]
    if choice == 0:
        cluster.request(job, JOBS[job])
    elif choice == 1 and job in cluster.attempts:
        cluster.request_again(job, JOBS[job])
    elif choice == 2 and cluster.processes:
        cluster.kill(*sorted(cluster.processes)[draw(len(cluster.processes))])
    elif choice == 3:
        cluster.feed_resource_manager(r.ResourceManagerTick())
    elif choice == 4 and draw(4) == 0:
        cluster.feed_resource_manager(r.JobReleased(job=JobName(job)))
        cluster.attempts.setdefault(job, 0)
    elif choice == 5 and draw(6) == 0 and len(cluster.tms) > 1:
        cluster.kill_task_manager(min(cluster.tms))
    elif cluster.in_flight:
        cluster.in_flight.pop(draw(len(cluster.in_flight)))()


def live(seed: int) -> None:
    """A life of the cluster; fails where attempts meet in a slot, or the newest lacks one."""
    randrange = random.Random(seed).randrange
    cluster = Cluster(delivery=lambda: (DELIVERIES + ("good",) * 6)[randrange(11)])
    for name in TASK_MANAGERS:
        cluster.add_task_manager(name, SLOTS)
    for _ in range(120):
        act(cluster, randrange)
        assert cluster.occupied == []
    cluster.run_until_idle()
    while len(cluster.tms) < len(TASK_MANAGERS):
        cluster.add_task_manager(f"more-{len(cluster.tms)}", SLOTS)
    for job, count in JOBS.items():
        cluster.request(job, count)
    cluster.run_until_idle()
    assert cluster.occupied == []
    for job, count in JOBS.items():
        newest = cluster.attempts[job]
        assert cluster.running(job) == [(newest, ordinal) for ordinal in range(count)]


@settings(max_examples=settings().max_examples * 3 // 2)
@given(st.integers(min_value=0))
def test_slot_never_runs_two_attempts_and_the_newest_attempt_gets_its_slots(seed: int) -> None:
    live(seed)


def test_simulation_detects_a_task_manager_that_forgets_a_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original = TaskManagerMachine._stop

    def forgetful(machine: TaskManagerMachine, ask: int, stop: StopSlot) -> list[t.Instruction]:
        slot = machine._slots[stop.index]
        before = slot.allocation_id
        instructions = original(machine, ask, stop)
        slot.allocation_id = before
        return instructions

    monkeypatch.setattr(TaskManagerMachine, "_stop", forgetful)
    assert fails_at_some_seed()


def test_simulation_detects_a_task_manager_that_acknowledges_a_stop_too_early(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def hasty(machine: TaskManagerMachine, ask: int, stop: StopSlot) -> list[t.Instruction]:
        slot = machine._slots[stop.index]
        slot.allocation_id = max(slot.allocation_id, stop.allocation_id)
        kill: list[t.Instruction] = [t.KillSlot(pid=slot.pid)] if slot.pid else []
        return [t.Reply(request_id=ask, message=Acknowledge()), *kill]

    monkeypatch.setattr(TaskManagerMachine, "_stop", hasty)
    assert fails_at_some_seed()


def fails_at_some_seed() -> bool:
    for seed in range(200):
        try:
            live(seed)
        except (AssertionError, InternalError):
            return True
    return False
