"""A story: several attacks, one after the other, on one running job, each a cell of the record.

What all scenarios of faults share: the job is started, every attack is made and overcome, the job
is ended, and the verdict on its output is that of every cell. The first attack that is not overcome
ends the story; it and what would have followed are then reported wrong, with what was seen.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from integration.chaos.live import RECOVERY_S_MAX, LiveJob
from integration.chaos.scenarios import Result, Stage

PIPELINES = {"stateless": "LargeOrders", "keyed": "Totals", "two sinks": "TwoSinks"}
"""As the record calls them, and their classes in `integration.killing.jobs`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """One attack of a story."""

    cell: str
    name: str
    signal: str
    """The fault, in a word."""
    make: Callable[[], float]
    """Make it; the moment, in seconds of the wall clock, from which output is waited for: that of
    the fault where it is over at once, else that of its end."""
    faults: int = 1
    after: Callable[[], object] = bool
    """Called when the job has come through: mend what is still broken."""
    check: Callable[[], str] = str
    """Called when the job has come through: what is wrong all the same, or nothing."""


def told(
    live: LiveJob, attacks: Sequence[Attack], *, version: str, pipeline: str, stage: Stage
) -> Iterator[Result]:
    """Carry the story out on a job that runs; results come when its output is judged."""
    recovered: list[tuple[Attack, float, int, str]] = []
    for attack in attacks:
        before = live.attempts
        live.attacked(attack.make() * 1000)
        wrong = attack.check()
        attack.after()
        recovered.append((attack, live.recoveries_s[-1], live.attempts - before, wrong))
        stage.say(f"      {attack.cell}: output again after {live.recoveries_s[-1]:.1f} s")
    verdict = live.finish()
    for attack, recovery_s, attempts, wrong in recovered:
        yield Result(
            cell=attack.cell,
            name=attack.name,
            version=version,
            pipeline=pipeline,
            signal=attack.signal,
            seed=stage.seed,
            kills=attack.faults,
            recovery_s=(round(recovery_s, 3),),
            verdict=wrong or verdict,
            date=stage.date,
            note={0: "no new attempt", 1: "1 new attempt"}.get(attempts, f"{attempts} attempts"),
        )


def lasting(begin: Callable[[], object], end: Callable[[], object], seconds: float) -> float:
    """A fault that lasts: begin, wait, end; the moment of its end."""
    with ExitStack() as fault:
        fault.callback(end)
        begin()
        time.sleep(seconds)
    return time.time()


def at_once(make: Callable[[], object]) -> float:
    """A fault that is over as soon as it is made: the moment before."""
    now_s = time.time()
    make()
    return now_s


def kill_one(live: LiveJob, role: str) -> float:
    """Kill one process of a role, as soon as there is one; the moment."""
    (victim, *_) = live.run.until(
        lambda: live.run.processes()[role], f"with a {role}", RECOVERY_S_MAX
    )
    killed_s = time.time()
    os.kill(victim.pid, signal.SIGKILL)
    return killed_s
