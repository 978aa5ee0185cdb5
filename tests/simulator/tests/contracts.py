"""Runs the test methods of a contract in a thread of a simulated process.

A contract's test blocks as if time were real; here it is one thread among the simulator's, and time
is virtual. Fixtures are made outside of any thread.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest

from tests.contracts.surroundings import ContractEnvironment
from tests.simulator.network import Network
from tests.simulator.network_conditions import MessageFaults, NetworkConditions
from tests.simulator.scheduler import Scheduler
from tests.simulator.threads import SimClock, SimThreads

SEEDS = range(5)
VIRTUAL_S_MAX = 3_600.0

C = TypeVar("C", bound=type)


class World:
    """One simulated process for the test, and a network."""

    def __init__(self, seed: int) -> None:
        self.scheduler = Scheduler(seed)
        # Nothing is lost, which a contract would not allow for, but nothing comes on the dot.
        message_faults = MessageFaults(
            NetworkConditions(latency_s=0.001), self.scheduler.random_for("weather")
        )
        self.network = Network(self.scheduler, message_faults)
        self.process = self.scheduler.process("test")
        self.environment = ContractEnvironment(SimClock(self.process), SimThreads(self.process))

    def run(self, test: Callable[[], object]) -> None:
        """Run a test to its end, and raise what it raised."""
        ended: list[BaseException | None] = []

        def body() -> None:
            try:
                test()
            except Exception as error:  # noqa: BLE001  # raised below
                ended.append(error)
            except pytest.fail.Exception as error:
                ended.append(error)
            else:
                ended.append(None)

        self.process.start(body, name="test")
        self.scheduler.run(VIRTUAL_S_MAX, lambda: bool(ended))
        assert ended, f"the test does not end; at {self.scheduler.now} s"
        if ended[0] is not None:
            raise ended[0]


class Simulated:
    """Base of a contract's class whose tests run in a `World`; see `simulated`."""

    @pytest.fixture(params=SEEDS)
    def simulation(self, request: pytest.FixtureRequest) -> Iterator[World]:
        self._world = World(request.param)
        yield self._world
        self._world.scheduler.close()


def simulated(tests: C) -> C:
    """Have every test of a class run in its world."""
    for name in dir(tests):
        if name.startswith("test_"):
            setattr(tests, name, _in_world(getattr(tests, name)))
    return tests


def _in_world(test: Callable[..., object]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(self: Any, **fixtures: object) -> None:
        self._world.run(functools.partial(test, self, **fixtures))

    return run
