"""The contract of `ports/processes.py`: processes that are watched and end with their parent, and
slots that are forked from a fork server.

A test class inherits it and gives a `world`. One or two words name the behaviour of a process under
test, see `behaviour.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import pytest

from tests.contracts.behaviour import Starter, start_slot
from tests.contracts.surroundings import ContractEnvironment
from tidegate.ports.processes import (
    ExitStatus,
    ForkServerEnded,
    ForkServerEvent,
    ForkServerReady,
    SlotEnded,
    SlotForked,
)

SHORT_S = 0.3
"""Time for something that must not happen."""


class ProcessesWorld(Starter, Protocol):
    """Where processes live; what was started is ended after the test."""

    environment: ContractEnvironment

    def alive(self, pid: int) -> bool:
        """Whether a process runs; false once it is dead, reaped or not."""
        ...

    def kill(self, pid: int) -> None:
        """SIGKILL from outside."""
        ...


class Watched:
    """A child, and the events that it reported, in order."""

    def __init__(self, world: ProcessesWorld, does: str, *, announces: bool = False) -> None:
        self.told: list[ExitStatus | dict[str, Any]] = []
        on_ready = self.told.append if announces else None
        self.child = world.spawn(does, self.told.append, on_ready)

    @property
    def pid(self) -> int:
        return self.child.pid


class Slots:
    """A fork server, and the events that it reported, in order."""

    def __init__(self, world: ProcessesWorld) -> None:
        self.told: list[ForkServerEvent] = []
        self._around = world.environment
        self.fork_server = world.start_fork_server(self.told.append)

    def wait_for(self, kind: type[ForkServerEvent], count: int = 1) -> list[Any]:
        """The events of a kind, once there are so many."""
        self._around.until(lambda: len(self._of(kind)) >= count)
        return self._of(kind)

    def _of(self, kind: type[ForkServerEvent]) -> list[Any]:
        return [event for event in list(self.told) if isinstance(event, kind)]


class ProcessesContract:
    """Inherit, and override the fixture `world`."""

    @pytest.fixture
    def world(self) -> Iterator[ProcessesWorld]:
        raise NotImplementedError

    # --- children ---

    def test_exit_of_a_child_process_is_reported_once_with_its_status(
        self, world: ProcessesWorld
    ) -> None:
        children = {does: Watched(world, does) for does in ("exit 0", "exit 7", "raise")}
        world.environment.until(lambda: all(child.told for child in children.values()))
        world.environment.clock.sleep(SHORT_S)
        assert children["exit 0"].told == [0]
        assert children["exit 7"].told == [7]
        (status,) = children["raise"].told
        assert status != 0
        assert not any(world.alive(child.pid) for child in children.values())

    def test_killed_child_process_is_reported_once_and_later_signals_are_ignored(
        self, world: ProcessesWorld
    ) -> None:
        killed, terminated, shot = (Watched(world, "announce", announces=True) for _ in range(3))
        every = (killed, terminated, shot)
        world.environment.until(lambda: all(child.told for child in every))
        assert len({child.pid for child in every}) == 3
        assert all(world.alive(child.pid) for child in every)
        killed.child.kill()
        terminated.child.terminate()
        world.kill(shot.pid)
        world.environment.until(lambda: all(len(child.told) == 2 for child in every))
        assert [child.told[1] for child in every] == [-9, 0, -9]
        for child in every:
            child.child.terminate()
            child.child.kill()
        world.environment.clock.sleep(SHORT_S)
        assert all(len(child.told) == 2 for child in every)

    def test_announcement_of_a_child_process_is_reported_before_its_exit(
        self, world: ProcessesWorld
    ) -> None:
        serving = Watched(world, "announce", announces=True)
        mute = Watched(world, "exit 3", announces=True)
        world.environment.until(lambda: serving.told and mute.told)
        assert serving.told == [{"pid": serving.pid, "text": "two\nlines, ä"}]
        assert mute.told == [3], "it ended before it had anything to say"

    @pytest.mark.parametrize("end", ["kill", "terminate"])
    def test_child_process_ends_with_its_parent(self, world: ProcessesWorld, end: str) -> None:
        parent = Watched(world, "parent", announces=True)
        world.environment.until(lambda: parent.told)
        (facts,) = parent.told
        assert isinstance(facts, dict)
        assert world.alive(facts["child"])
        getattr(parent.child, end)()
        world.environment.until(lambda: not world.alive(facts["child"]))
        world.environment.until(lambda: len(parent.told) == 2)

    # --- a fork server and its slots ---

    def test_fork_requested_before_the_fork_server_is_ready_is_done_after(
        self, world: ProcessesWorld
    ) -> None:
        slots = Slots(world)
        slots.fork_server.fork(start_slot(3, "wait"))
        (forked,) = slots.wait_for(SlotForked)
        assert slots.told == [ForkServerReady(pid=slots.fork_server.pid), forked]
        assert forked.index == 3
        assert world.alive(forked.pid)

    def test_fork_and_end_of_every_slot_are_reported_once(self, world: ProcessesWorld) -> None:
        slots = Slots(world)
        for index in range(12):
            slots.fork_server.fork(start_slot(index, f"exit {index}"))
        slots.fork_server.fork(start_slot(12, "raise"))
        slots.wait_for(SlotEnded, 13)
        world.environment.clock.sleep(SHORT_S)
        pids: dict[int, int] = {}
        ended: dict[int, ExitStatus] = {}
        for event in slots.told[1:]:
            match event:
                case SlotForked(index=index, pid=pid):
                    assert index not in pids
                    pids[index] = pid
                case SlotEnded(index=index, pid=pid, status=status):
                    assert pids[index] == pid, "it ended before it was forked"
                    assert index not in ended
                    ended[index] = status
                case _:
                    pytest.fail(f"{event}")
        assert list(pids) == list(range(13)), "forked in the order asked for"
        assert len(set(pids.values())) == 13
        assert [ended[index] for index in range(12)] == list(range(12))
        assert ended[12] != 0
        assert not any(world.alive(pid) for pid in pids.values())

    def test_fork_server_kills_only_the_slot_with_the_given_pid(
        self, world: ProcessesWorld
    ) -> None:
        slots = Slots(world)
        for index in range(2):
            slots.fork_server.fork(start_slot(index, "wait"))
        one, two = slots.wait_for(SlotForked, 2)
        foreign = Watched(world, "wait")
        for pid in (foreign.pid, one.pid, one.pid):
            slots.fork_server.kill(pid)
        ended = slots.wait_for(SlotEnded)
        assert ended == [SlotEnded(index=0, pid=one.pid, status=-9)]
        slots.fork_server.kill(one.pid)
        slots.fork_server.fork(start_slot(0, "wait"))
        slots.wait_for(SlotForked, 3)
        world.environment.clock.sleep(SHORT_S)
        assert len(slots.told) == 5
        assert world.alive(two.pid)
        assert world.alive(foreign.pid)

    def test_slot_that_is_killed_from_outside_is_reported(self, world: ProcessesWorld) -> None:
        slots = Slots(world)
        slots.fork_server.fork(start_slot(0, "wait"))
        (forked,) = slots.wait_for(SlotForked)
        world.kill(forked.pid)
        assert slots.wait_for(SlotEnded) == [SlotEnded(index=0, pid=forked.pid, status=-9)]

    @pytest.mark.parametrize("end", ["close", "kill"])
    def test_end_of_a_fork_server_is_its_last_reported_event(
        self, world: ProcessesWorld, end: str
    ) -> None:
        slots = Slots(world)
        slots.fork_server.fork(start_slot(0, "wait"))
        (forked,) = slots.wait_for(SlotForked)
        if end == "close":
            slots.fork_server.close()
        else:
            world.kill(slots.fork_server.pid)
        slots.wait_for(ForkServerEnded)
        if end == "close":
            world.environment.until(lambda: not world.alive(forked.pid))
        slots.fork_server.fork(start_slot(1, "wait"))
        slots.fork_server.kill(forked.pid)
        slots.fork_server.close()
        world.environment.clock.sleep(SHORT_S)
        assert slots.told == [
            ForkServerReady(pid=slots.fork_server.pid),
            forked,
            ForkServerEnded(status=0 if end == "close" else -9),
        ]

    @pytest.mark.parametrize("first", ["taskmanager", "fork-server"])
    def test_slots_end_with_their_task_manager(self, world: ProcessesWorld, first: str) -> None:
        """Slots end even if their fork server is gone and cannot kill them."""
        manager = Watched(world, "taskmanager", announces=True)
        world.environment.until(lambda: manager.told)
        (facts,) = manager.told
        assert isinstance(facts, dict)
        assert world.alive(facts["slot"])
        if first == "fork-server":
            world.kill(facts["fork-server"])
            world.environment.until(lambda: not world.alive(facts["fork-server"]))
        world.kill(manager.pid)
        for pid in (facts["fork-server"], facts["slot"]):
            world.environment.until(lambda pid=pid: not world.alive(pid))  # type: ignore[misc]
