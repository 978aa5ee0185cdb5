"""The real clock keeps the contract of clocks."""

from __future__ import annotations

import pytest

from tests.contracts.clock import ClockContract
from tests.contracts.surroundings import Surroundings
from tidegate.drivers.clock import SystemClock


class TestSystemClock(ClockContract):
    @pytest.fixture
    def around(self) -> Surroundings:
        around = Surroundings()
        assert isinstance(around.clock, SystemClock)
        return around
