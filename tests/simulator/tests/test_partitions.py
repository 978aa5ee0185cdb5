"""Partitions of the simulated network, for processes that start while one lasts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from tests.simulator.network import Network
from tests.simulator.scheduler import Scheduler, SimProcess
from tests.simulator.tests.test_network import Calls


@pytest.fixture
def scheduler() -> Iterator[Scheduler]:
    scheduler = Scheduler(1)
    yield scheduler
    scheduler.close()


def test_child_of_a_partitioned_process_is_partitioned_too(scheduler: Scheduler) -> None:
    calls = Calls(scheduler)
    calls.network.partition([calls.here], [calls.there])
    child = calls.scheduler.process("child", calls.here)
    calls.here = calls.scheduler.process("grandchild", child)
    calls.client = calls.rpc_network.of(calls.here).connect(calls.server.address)
    calls.call("from below")
    calls.run(11)
    assert calls.outcomes == {"from below": "no reply w after 10.0 s"}
    assert calls.handled == []
    calls.network.heal()
    calls.run(1)
    calls.call("healed")
    calls.run(1)
    assert calls.handled == ["from below", "healed"]


def test_host_that_starts_during_a_partition_gets_a_random_side_and_keeps_it(
    scheduler: Scheduler,
) -> None:
    hosts: set[SimProcess] = set()
    network = Network(scheduler, has_own_host=hosts.__contains__)
    manager, other = scheduler.process("manager"), scheduler.process("other")
    network.partition([manager], [other])
    reached = Counter[bool]()
    for number in range(50):
        host = scheduler.process(f"host {number}", manager)
        hosts.add(host)
        slot = scheduler.process(f"slot {number}", host)
        cut_off = network.hold_back(manager, host, _nothing)
        assert network.hold_back(slot, manager, _nothing) is cut_off
        assert network.hold_back(other, slot, _nothing) is not cut_off
        assert not network.hold_back(host, slot, _nothing)
        reached[cut_off] += 1
    assert min(reached[True], reached[False]) > 10


def _nothing() -> None:
    """A message that would arrive."""
