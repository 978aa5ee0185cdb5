"""Threads of the simulator: the contract on both drivers, and what only the simulator promises."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.contracts.threads import RULES
from tests.simulator.scheduler import KILLED, Scheduler
from tests.simulator.threads import SimClock, SimCurrentProcess, SimThreads
from tests.simulator.trace import Trace
from tidegate.drivers.threads import SystemThreads
from tidegate.ports.threads import Threads

Rule = Callable[[Threads], None]


@pytest.mark.parametrize("rule", RULES)
def test_the_standard_library_keeps_the_contract(rule: Rule) -> None:
    rule(SystemThreads())


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("rule", RULES)
def test_the_simulator_keeps_the_contract(rule: Rule, seed: int) -> None:
    scheduler = Scheduler(seed)
    process = scheduler.process("process")
    ended = []

    def main() -> int:
        rule(SimThreads(process))
        ended.append(rule)
        return 0

    process.run_main(main)
    scheduler.run(until_s=100.0)
    scheduler.close()
    assert [error for _, error in scheduler.bugs] == []
    assert ended == [rule]


def shouting(seed: int) -> tuple[list[str], str]:
    """Three processes of three threads that tell what they do, and the digest of that."""
    scheduler = Scheduler(seed, story=Trace().with_digest())
    order: list[str] = []
    for name in "abc":
        process = scheduler.process(name)
        clock = SimClock(process)
        for thread in range(3):

            def work(who: str = f"{name}{thread}", clock: SimClock = clock) -> None:
                for _ in range(3):
                    clock.sleep(0.5)
                    order.append(who)
                    scheduler.record_event("%s", who)

            process.start(work, name=str(thread))
    scheduler.run(until_s=100.0)
    scheduler.close()
    return order, scheduler.story.digest()


def test_seed_determines_the_order_of_threads() -> None:
    assert shouting(1) == shouting(1)
    assert len({tuple(shouting(seed)[0]) for seed in range(10)}) == 10


def test_simulated_sleep_passes_exactly_the_given_virtual_time() -> None:
    scheduler = Scheduler(1)
    process = scheduler.process("sleeper")
    clock, slept = SimClock(process), []

    def main() -> int:
        began_s = clock.monotonic()
        clock.sleep(86_400.0)
        slept.append(clock.monotonic() - began_s)
        return 0

    process.run_main(main)
    scheduler.run(until_s=1e6)
    scheduler.close()
    assert slept == [pytest.approx(86_400.0, abs=0.01)]
    assert process.status == 0


def test_thread_that_only_reads_the_clock_lets_virtual_time_pass() -> None:
    scheduler = Scheduler(1)
    process = scheduler.process("busy")
    clock, told = SimClock(process), list[str]()

    def spin() -> None:
        while not told:
            clock.monotonic()

    process.start(spin, name="spin")
    scheduler.call_later(1.0, lambda: told.append("stop"))
    scheduler.run(until_s=10.0)
    assert not process.threads
    scheduler.close()


def test_a_killed_process_does_nothing_any_more() -> None:
    scheduler = Scheduler(1)
    parent, world = scheduler.process("parent"), list[str]()
    child = scheduler.process("child", parent)
    for process in (parent, child):

        def work(process: object = process) -> int:
            try:
                SimClock(parent).sleep(10.0)
            finally:
                SimThreads(parent).queue().put("refused")  # the fakes refuse who unwinds
                world.append("a finally block of a dead process")
            return 0

        process.run_main(work)
    scheduler.call_later(1.0, parent.kill)
    scheduler.run(until_s=100.0)
    assert (parent.status, child.status) == (KILLED, KILLED)
    assert scheduler.now < 2.0
    scheduler.close()
    assert world == []


def test_a_frozen_process_is_a_zombie_that_wakes_up_later() -> None:
    scheduler = Scheduler(1)
    process = scheduler.process("zombie")
    clock, told = SimClock(process), []

    def main() -> int:
        clock.sleep(1.0)
        told.append(scheduler.now)
        return 0

    process.run_main(main)
    scheduler.call_later(0.5, process.freeze)
    scheduler.call_later(7.0, process.thaw)
    scheduler.run(until_s=100.0)
    scheduler.close()
    assert told == [pytest.approx(7.0, abs=0.01)]


def test_exit_of_a_process_ends_all_its_threads_at_once() -> None:
    scheduler = Scheduler(1)
    process = scheduler.process("leaver")
    world: list[str] = []

    def other() -> None:
        SimClock(process).sleep(2.0)
        world.append("went on")

    def main() -> int:
        SimClock(process).sleep(1.0)
        SimCurrentProcess(process).exit(3)

    process.start(other, name="other")
    process.run_main(main)
    scheduler.run(until_s=100.0)
    scheduler.close()
    assert (process.status, world) == (3, [])


def test_exception_that_leaves_a_simulated_thread_is_recorded_as_a_bug() -> None:
    scheduler = Scheduler(1)
    process = scheduler.process("buggy")
    process.start(lambda: 1 // 0, name="divides")
    SimThreads(process).pool(1, name="pool").submit(lambda: int("x"))
    scheduler.run(until_s=100.0)
    scheduler.close()
    assert {type(error) for _, error in scheduler.bugs} == {ZeroDivisionError, ValueError}
