"""Simulated control calls: the contract, and what a careless network makes of a call."""

from __future__ import annotations

import pytest

from tests.contracts.clock import ClockContract
from tests.contracts.rpc import RpcContract
from tests.contracts.surroundings import Surroundings
from tests.sim.contracts import Simulated, World, simulated
from tidegate.sim.rpc import Calling, SimRpc


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
