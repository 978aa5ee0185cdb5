"""Who finds mutants: runs under a seed of the simulator and of the protocol's world, and tests."""

from __future__ import annotations

import functools
import itertools
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.commit.masters import simulate
from tests.commit.quiet import ProcedureRunner
from tests.dataplane.sinks.test_writer import Bench
from tests.dataplane.state.job import Step, declare
from tests.dataplane.test_task import World as TaskWorld
from tests.mutants.planting import COSTLY, Detector
from tests.simulator.plan import Plan
from tests.simulator.run import plan_of as plan
from tests.simulator.run import run_seed
from tidegate.api.state.state import ValueState

MISTAKES = ("NameError", "AttributeError", "ImportError", "SyntaxError")


def simulator(seed: int) -> None:
    """the simulator"""
    _judge(run_seed(seed).violation)


def backfills(seed: int) -> None:
    """the simulator, runs with backfills"""
    _judge(run_seed(seed, backfills=True).violation)


def event_time(seed: int) -> None:
    """the simulator, runs with event time"""
    _judge(run_seed(seed, event_time=True).violation)


def _judge(violation: str | None) -> None:
    if violation is None:
        return
    if any(mistake in violation for mistake in MISTAKES):
        raise RuntimeError(violation)  # in the mutant, and so no find
    raise AssertionError(violation)


COSTLY.update((simulator, backfills, event_time))


@functools.cache
def plan_of(seed: int) -> Plan:
    """The plan that a seed draws."""
    return Plan.drawn(random.Random(f"{seed}/plan"))


def first(count: int, wanted: Callable[[Plan], object]) -> tuple[int, ...]:
    """The first seeds whose plans are wanted."""
    seeds = (seed for seed in itertools.count() if wanted(plan_of(seed)))
    return tuple(itertools.islice(seeds, count))


def seeds_with(kind: str, count: int) -> tuple[int, ...]:
    """The first seeds whose runs have this mishap or this swap."""
    return first(
        count, lambda plan: kind in {each.kind for each in (*plan.mishaps, *plan.swaps) if each}
    )


def simulator_in(which: str, seeds: Callable[[], tuple[int, ...]]) -> Detector:
    """The simulator, in these runs only."""

    def run(number: int) -> None:
        simulator(seeds()[number])

    run.__doc__ = f"the simulator, runs {which}"
    COSTLY.add(run)
    return run


def simulator_where(kind: str, count: int) -> Detector:
    """The simulator, in the first runs that have a mishap or a swap of this kind."""
    return simulator_in(f"in which {kind}", functools.partial(seeds_with, kind, count))


def simulator_with_short_timeouts(count: int) -> Detector:
    """The simulator, in the first runs whose checkpoints soon time out."""

    def seeds() -> tuple[int, ...]:
        return first(count, lambda plan: plan.load.short_timeout_ms is not None)

    return simulator_in("whose checkpoints are soon given up", seeds)


def backfills_in(which: str, wanted: Callable[[Plan], object]) -> Detector:
    """The simulator, in the first runs with backfills whose plans are wanted."""
    seeds: list[int] = []
    rest = itertools.count()

    def run(number: int) -> None:
        while len(seeds) <= number:
            seeds.append(next(seed for seed in rest if wanted(plan(seed, backfills=True))))
        backfills(seeds[number])

    run.__doc__ = f"the simulator, runs with backfills {which}"
    COSTLY.add(run)
    return run


def event_time_in(which: str, wanted: Callable[[Plan], object]) -> Detector:
    """The simulator, in the first runs with event time whose plans are wanted."""
    seeds: list[int] = []
    rest = itertools.count()

    def run(number: int) -> None:
        while len(seeds) <= number:
            seeds.append(next(seed for seed in rest if wanted(plan(seed, event_time=True))))
        event_time(seeds[number])

    run.__doc__ = f"the simulator, runs with event time {which}"
    COSTLY.add(run)
    return run


def world(seed: int) -> None:
    """the protocol's world"""
    simulate(seed)


def aborting_world(seed: int) -> None:
    """the protocol's world, with timeouts"""
    simulate(seed, timeouts=4)


def once(test: Callable[..., object], made: Callable[[], Any] | None = None) -> Detector:
    """A test that draws nothing from our seeds; `made` makes what a fixture of it gives."""

    @functools.wraps(test)
    def run(_seed: int) -> None:
        test() if made is None else test(made())

    return run


def writer(test: Callable[[Bench], object]) -> Detector:
    """A test of the sink's writer, whose producers are pooled."""

    def made() -> Bench:
        bench = Bench()
        bench.harness.run_until_idle()
        return bench

    return once(test, made)


def quiet(test: Callable[[ProcedureRunner], object]) -> Detector:
    """A test of the procedures."""
    return once(test, ProcedureRunner)


def task(test: Callable[[TaskWorld], object]) -> Detector:
    """A test of a subtask's loop."""
    return once(test, TaskWorld)


def restored(test: Callable[[Step, int], object]) -> Detector:
    """A test of keyed state's restore, at another parallelism."""

    @functools.wraps(test)
    def run(_seed: int) -> None:
        with tempfile.TemporaryDirectory() as folder:
            states = declare(total=ValueState(int, default=0))
            step = Step(Path(folder), states, backend="memory", cache_entries=100)
            try:
                test(step, 2)
            finally:
                step.stop()

    return run
