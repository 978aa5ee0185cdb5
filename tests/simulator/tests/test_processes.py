"""Simulated processes: the contract, and what is different about a frozen one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

import pytest

from tests.contracts.behaviour import behave
from tests.contracts.processes import ProcessesContract
from tests.contracts.surroundings import ContractEnvironment
from tests.simulator.processes import Announce, SimChild, SimForkServer, SimProcesses
from tests.simulator.scheduler import Scheduler, SimProcess
from tests.simulator.tests.contracts import Simulated, World, simulated
from tidegate.ports.processes import ExitStatus, ForkServerEvent
from tidegate.protocol.messages import StartSlot


class SimStarter:
    """Starts simulated processes with a given behaviour."""

    def __init__(self, owner: SimProcess) -> None:
        self._processes = SimProcesses(owner, Behaving())

    def spawn(
        self,
        does: str,
        on_exit: Callable[[ExitStatus], None],
        on_ready: Callable[[dict[str, Any]], None] | None = None,
    ) -> SimChild:
        return self._processes.spawn(
            "child", {"does": does}, log="child.log", on_exit=on_exit, on_ready=on_ready
        )

    def start_fork_server(self, listener: Callable[[ForkServerEvent], None]) -> SimForkServer:
        return self._processes.start_fork_server({}, log="fork_server.log", listener=listener)


class Behaving:
    """The code that simulated processes run."""

    def __init__(self) -> None:
        self.roles = {"child": self._child}

    def slot(
        self, process: SimProcess, start: StartSlot, _fork_server: Mapping[str, Any]
    ) -> ExitStatus:
        return behave(str(start.settings["does"]), SimMe(process, _nobody))

    def _child(
        self, process: SimProcess, arguments: Mapping[str, Any], announce: Announce
    ) -> ExitStatus:
        return behave(arguments["does"], SimMe(process, announce))


class SimMe:
    """A process that behaves."""

    def __init__(self, process: SimProcess, announce: Announce) -> None:
        self.pid = process.pid
        self._process, self._announce = process, announce

    def announce(self, facts: dict[str, Any]) -> None:
        self._announce(facts)

    def wait(self) -> NoReturn:
        while True:
            self._process.scheduler.wait(60.0)

    def starter(self) -> SimStarter:
        return SimStarter(self._process)


def _nobody(_facts: Mapping[str, Any]) -> None:
    """Ignores what a slot announces."""


class SimProcessesWorld(SimStarter):
    """Processes below the test's own."""

    def __init__(self, world: World) -> None:
        super().__init__(world.process)
        self.environment: ContractEnvironment = world.environment
        self._world = world

    def process(self, pid: int) -> SimProcess:
        (found,) = (one for one in self._world.scheduler.processes if one.pid == pid)
        return found

    def alive(self, pid: int) -> bool:
        return self.process(pid).alive

    def kill(self, pid: int) -> None:
        self.process(pid).kill()


@simulated
class TestSimProcesses(Simulated, ProcessesContract):
    @pytest.fixture
    def world(self, simulation: World) -> SimProcessesWorld:
        return SimProcessesWorld(simulation)


@pytest.fixture
def scheduler() -> Iterator[Scheduler]:
    scheduler = Scheduler(1)
    yield scheduler
    scheduler.close()


def test_frozen_parent_receives_the_exit_of_its_child_when_it_wakes_up(
    scheduler: Scheduler,
) -> None:
    parent = scheduler.process("parent")
    told: list[float] = []
    child = SimStarter(parent).spawn("exit 3", lambda _status: told.append(scheduler.now))
    parent.freeze()
    scheduler.call_later(20.0, parent.thaw)
    scheduler.run(10.0)
    assert not next(one for one in scheduler.processes if one.pid == child.pid).alive
    assert told == []
    scheduler.run(100.0)
    assert told == [pytest.approx(20.0, abs=0.01)]


def test_a_frozen_orphan_lives_until_it_wakes_up(scheduler: Scheduler) -> None:
    parent = scheduler.process("parent")
    SimStarter(parent).spawn("wait", lambda _status: None)
    scheduler.run(5.0)
    child = scheduler.processes[1]
    child.freeze()
    parent.kill()
    scheduler.run(100.0)
    assert child.alive
    child.thaw()
    scheduler.run(101.0)
    assert not child.alive
