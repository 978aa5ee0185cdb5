"""Runs on a session cluster, whose JobManager is replaced if it does not answer."""

from __future__ import annotations

import random

import pytest

from tests.simulator.cluster import host_of
from tests.simulator.network import Network
from tests.simulator.plan import Plan
from tests.simulator.rpc import RpcNetwork, service_address
from tests.simulator.run import run_seed
from tests.simulator.scheduler import Scheduler
from tests.simulator.trace import TraceEvent
from tidegate.protocol.messages import Acknowledge, ListJobs

RUNS = 24


def test_new_connection_to_a_service_address_reaches_the_newest_server() -> None:
    scheduler = Scheduler(0)
    rpc_network = RpcNetwork(Network(scheduler))
    heard: list[str] = []

    def serve(name: str) -> None:
        def handler(_: object) -> Acknowledge:
            heard.append(name)
            return Acknowledge()

        process = scheduler.process(name)
        process.start(lambda: rpc_network.of(process).serve(handler, 7), name="main")
        scheduler.run(scheduler.now + 1.0, lambda: False)

    def ask() -> None:
        process = scheduler.process("client")
        client = rpc_network.of(process).connect(service_address(7))
        process.start(lambda: client.call(ListJobs()), name="main")
        scheduler.run(scheduler.now + 1.0, lambda: False)

    try:
        for name in ("first", "second"):
            serve(name)
            ask()
    finally:
        scheduler.close()
    assert heard == ["first", "second"]


def test_a_session_jobmanager_has_a_host_of_its_own_and_a_local_one_has_not() -> None:
    scheduler = Scheduler(0)
    user = scheduler.process("run-1")
    session_cluster = scheduler.process("jobmanager-host-1", user)
    local = scheduler.process("jobmanager", user)
    assert host_of(scheduler.process("a/jobmaster", session_cluster)) is session_cluster
    assert host_of(scheduler.process("a/jobmaster", local)) is user
    scheduler.close()


@pytest.mark.seeds
def test_jobs_are_exact_although_the_session_jobmanager_is_replaced() -> None:
    seeds = (s for s in range(10_000) if Plan.drawn(random.Random(f"{s}/plan")).session_cluster)
    replaced: set[int] = set()
    violations = {}
    for _, seed in zip(range(RUNS), seeds, strict=False):

        def listen(told: TraceEvent, seed: int = seed) -> None:
            if "leads cluster" in str(told):
                replaced.add(seed)

        outcome = run_seed(seed, listen=listen)
        if outcome.violation is not None:
            violations[seed] = outcome.violation
    assert violations == {}
    assert len(replaced) > 2
