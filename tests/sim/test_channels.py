"""The true channels, alignment and task between simulated slots: see `traffic`."""

from __future__ import annotations

import pytest

from tests.sim.traffic import Traffic


@pytest.mark.parametrize("seed", range(30))
def test_all_arrives_where_it_belongs_and_barriers_cut_it_once(seed: int) -> None:
    Traffic(seed).run()
