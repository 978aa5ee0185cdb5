"""The real clock keeps the contract of clocks."""

from __future__ import annotations

import pytest

from tests.contracts.clock import ClockContract
from tests.contracts.surroundings import ContractEnvironment
from tidegate.drivers.clock import SystemClock


class TestSystemClock(ClockContract):
    @pytest.fixture
    def environment(self) -> ContractEnvironment:
        environment = ContractEnvironment()
        assert isinstance(environment.clock, SystemClock)
        return environment
