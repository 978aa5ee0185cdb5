"""Processes that cannot be started, or end at once: what the fault is, that runs meet it, and that
a cluster which does not try again is found.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import pytest

from tests.contracts.behaviour import start_slot
from tests.mutants.planting import Edit, Mutant, planted
from tests.simulator.faults import FaultRates, RequestFaults
from tests.simulator.plan import Plan
from tests.simulator.processes import FAILED, SimProcesses, StartOutcome
from tests.simulator.run import run_seed
from tests.simulator.scheduler import Scheduler
from tests.simulator.tests.test_processes import Behaving
from tidegate.controlplane.jobmanager.service import JobManager
from tidegate.errors import ExternalError
from tidegate.ports.processes import (
    ForkServerEnded,
    ForkServerEvent,
    ForkServerReady,
    SlotEnded,
    SlotForked,
    SlotNotForked,
)

STARTS = 2_000
SEEDS = range(400)
FORGETS = Edit(JobManager._start_jobmaster, "        self.loop.post(failed)\n", "")


@pytest.fixture
def scheduler() -> Iterator[Scheduler]:
    scheduler = Scheduler(1)
    yield scheduler
    scheduler.close()


class Starting:
    """A parent whose children are born as a test says."""

    def __init__(self, scheduler: Scheduler, **draw_outcome: StartOutcome) -> None:
        self.scheduler = scheduler
        self.told: list[ForkServerEvent | int] = []
        self.processes = SimProcesses(
            scheduler.process("parent"),
            Behaving(),
            draw_outcome=lambda role: draw_outcome.get(role, StartOutcome.STARTED),
        )

    def fork_server(self) -> None:
        fork_server = self.processes.start_fork_server(
            {}, log="fork_server.log", listener=self.told.append
        )
        fork_server.fork(start_slot(0, "wait"))
        self.scheduler.run(5.0)

    def alive(self) -> list[str]:
        return [process.name for process in self.scheduler.processes if process.alive]


def test_refused_process_start_raises_and_leaves_no_process(scheduler: Scheduler) -> None:
    starting = Starting(
        scheduler, child=StartOutcome.REFUSED, **{"fork-server": StartOutcome.REFUSED}
    )
    with pytest.raises(ExternalError, match="Cannot start the child process"):
        starting.processes.spawn("child", {}, log="a.log", on_exit=starting.told.append)
    with pytest.raises(ExternalError, match="Cannot start the fork-server process"):
        starting.fork_server()
    assert (starting.alive(), starting.told) == (["parent"], [])


def test_process_that_dies_at_once_is_reported_with_status_failed(scheduler: Scheduler) -> None:
    starting = Starting(
        scheduler, child=StartOutcome.EXITS_AT_ONCE, **{"fork-server": StartOutcome.EXITS_AT_ONCE}
    )
    starting.processes.spawn("child", {"does": "wait"}, log="a.log", on_exit=starting.told.append)
    scheduler.run(4.0)
    assert starting.told == [FAILED]
    starting.fork_server()
    assert starting.told[1:] == [ForkServerEnded(status=FAILED)]
    assert starting.alive() == ["parent"]


def test_slot_that_dies_at_once_is_reported_as_forked_and_then_ended(scheduler: Scheduler) -> None:
    starting = Starting(scheduler, slot=StartOutcome.EXITS_AT_ONCE)
    starting.fork_server()
    ready, forked, ended = starting.told
    assert isinstance(ready, ForkServerReady)
    assert isinstance(forked, SlotForked)
    assert ended == SlotEnded(index=0, pid=forked.pid, status=FAILED)


def test_fork_server_reports_a_refused_fork_and_stays_alive(scheduler: Scheduler) -> None:
    starting = Starting(scheduler, slot=StartOutcome.REFUSED)
    starting.fork_server()
    assert starting.told[1:] == [SlotNotForked(index=0, reason="there is no room")]
    assert starting.alive() == ["parent", "fork_server"]


def plan(seed: int) -> Plan:
    return Plan.drawn(random.Random(f"{seed}/plan"))


def test_starts_fail_in_some_runs_never_twice_in_a_row_and_not_after_the_faults(
    scheduler: Scheduler,
) -> None:
    shares = [plan(seed).fault_rates.starts_fail for seed in SEEDS]
    assert 0.35 < sum(share > 0 for share in shares) / len(shares) < 0.5
    fault_rates = replace(FaultRates.drawn(random.Random(1)), starts_fail=0.3)
    request_faults = RequestFaults(scheduler, fault_rates)
    draw_outcome = [request_faults.of_start("slot") for _ in range(STARTS)]
    assert min(Counter(draw_outcome)[outcome] for outcome in StartOutcome) > STARTS / 100
    assert all(StartOutcome.STARTED in pair for pair in pairwise(draw_outcome))
    request_faults.stop()
    assert {request_faults.of_start("slot") for _ in range(STARTS)} == {StartOutcome.STARTED}


def test_simulation_finds_a_jobmanager_that_forgets_a_failed_jobmaster_start() -> None:
    failing = [seed for seed in SEEDS if plan(seed).fault_rates.starts_fail > 0.1]
    with planted(Mutant("a refusal is forgotten", (FORGETS,), run_seed, len(failing), 1)):
        violations = (run_seed(seed).violation or "" for seed in failing)
        assert any("has not come to its end" in each for each in violations)
