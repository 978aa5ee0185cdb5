"""The simulated exchange: the contract, and what only a simulated network does to it."""

from __future__ import annotations

import pytest

from tests.contracts.exchange import ExchangeContract, Slot
from tests.simulator.exchange import SimExchange
from tests.simulator.scheduler import SimProcess
from tests.simulator.tests.contracts import Simulated, World, simulated


class SimSlots:
    """Slots in processes of their own; the test runs their mailboxes."""

    def __init__(self, world: World) -> None:
        self.environment = world.environment
        self._world = world
        self.processes: dict[Slot, SimProcess] = {}

    def slot(self, ordinal: int, *, job: str = "job", attempt: int = 1) -> Slot:
        process = self._world.scheduler.process(f"slot {ordinal}")
        exchange = SimExchange(
            self._world.network, process, job=job, attempt=attempt, ordinal=ordinal
        )
        slot = Slot(exchange, self.environment)
        self.processes[slot] = process
        return slot

    def break_off(self, slot: Slot) -> None:
        self.processes[slot].kill()

    def unused_address(self) -> str:
        return "sim:nowhere"


@simulated
class TestSimExchange(Simulated, ExchangeContract):
    @pytest.fixture
    def world(self, simulation: World) -> SimSlots:
        return SimSlots(simulation)
