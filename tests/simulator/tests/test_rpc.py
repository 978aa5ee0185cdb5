"""Simulated control calls: the contract, and what a careless network makes of a call."""

from __future__ import annotations

import pytest

from tests.contracts.clock import ClockContract
from tests.contracts.rpc import RpcContract
from tests.contracts.surroundings import ContractEnvironment
from tests.simulator.rpc import RpcNetwork, SimRpc
from tests.simulator.tests.contracts import Simulated, World, simulated


@simulated
class TestSimClock(Simulated, ClockContract):
    @pytest.fixture
    def environment(self, simulation: World) -> ContractEnvironment:
        return simulation.environment


@simulated
class TestSimRpc(Simulated, RpcContract):
    @pytest.fixture
    def rpc(self, simulation: World) -> SimRpc:
        return RpcNetwork(simulation.network).of(simulation.process)

    @pytest.fixture
    def environment(self, simulation: World) -> ContractEnvironment:
        return simulation.environment
