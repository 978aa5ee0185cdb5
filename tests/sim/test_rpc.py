"""Simulated control calls: the contract, and what a careless network makes of a call."""

from __future__ import annotations

from typing import Any, cast

import pytest

from tests.contracts.clock import ClockContract
from tests.contracts.rpc import RpcContract
from tests.contracts.surroundings import Surroundings
from tests.sim.contracts import Simulated, World, simulated
from tidegate.testing.sim.rpc import Calling, SimRpc


@simulated
class TestSimClock(Simulated, ClockContract):
    @pytest.fixture
    def around(self, simulation: World) -> Surroundings:
        return simulation.around


@simulated
class TestSimRpc(Simulated, RpcContract):
    @pytest.fixture
    def rpc(self, simulation: World) -> SimRpc:
        return Calling(simulation.network).of(simulation.process)

    @pytest.fixture
    def around(self, simulation: World) -> Surroundings:
        return simulation.around


class Answering:
    """A server, alive or not."""

    def __init__(self) -> None:
        self.alive = True

    def answers(self) -> bool:
        return self.alive


def test_behind_a_service_is_the_newest_server_that_lives() -> None:
    """A JobManager that is slow to start and dies would else hide the one that leads."""
    calling = Calling(cast("Any", None))
    assert calling.at("sim:service:1") is None
    leads, dies = Answering(), Answering()
    for server in (leads, dies):
        calling.add("sim:service:1", cast("Any", server))
    found: list[Any] = [calling.at("sim:service:1")]
    dies.alive = False
    found.append(calling.at("sim:service:1"))
    leads.alive = False
    found.append(calling.at("sim:service:1"))
    assert found == [dies, leads, dies]
