"""The true channels, alignment and task between simulated slots: see `traffic`."""

from __future__ import annotations

import pytest

from tests.simulator.tests.traffic import Traffic


@pytest.mark.parametrize("seed", range(30))
def test_records_arrive_once_at_their_owner_and_each_barrier_cuts_them_once(seed: int) -> None:
    Traffic(seed).run()
