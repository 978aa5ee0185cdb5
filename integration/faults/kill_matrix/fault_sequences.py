"""Makes several attacks on one running job, one after the other. This sequence is called a story.

Each attack is a cell of the record.

All scenarios of faults work in this way. The job is started, the attacks are made one by one, and
the job recovers from each. Then the job is ended, and the verdict on its output is the verdict of
every cell. The first attack from which the job does not recover ends the story. This attack and the
later ones are then reported wrong, with the observed facts.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from integration.faults.kill_matrix.live import RECOVERY_S_MAX, LiveJob
from integration.faults.kill_matrix.scenarios import Result, Stage

PIPELINES = {"stateless": "LargeOrders", "keyed": "Totals", "two sinks": "TwoSinks"}
"""Names of the pipelines in the record, and their classes in
`integration.faults.kill_points.jobs`.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """One attack of a story."""

    cell: str
    name: str
    signal: str
    """The fault, in one word."""
    make: Callable[[], float]
    """A function that makes the fault. It returns the wall-clock time, in seconds, from which
    output is awaited. That is the time of the fault if the fault ends at once, and otherwise the
    time of its end.
    """
    faults: int = 1
    after: Callable[[], object] = bool
    """A function that is called after the job has recovered. It repairs what is still broken."""
    check: Callable[[], str] = str
    """A function that is called after the job has recovered. It returns a problem, or an empty
    text.
    """


def told(
    live: LiveJob, attacks: Sequence[Attack], *, version: str, pipeline: str, stage: Stage
) -> Iterator[Result]:
    """Carry out the story on a running job. Yield the results after its output was judged."""
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
            note={0: "no new attempt", 1: "1 new attempt"}.get(
                attempts, f"{attempts} new attempts"
            ),
        )


def lasting(begin: Callable[[], object], end: Callable[[], object], seconds: float) -> float:
    """Begin a fault, wait for `seconds`, and end it. Return the time of its end."""
    with ExitStack() as fault:
        fault.callback(end)
        begin()
        time.sleep(seconds)
    return time.time()


def at_once(make: Callable[[], object]) -> float:
    """Make a fault that ends at once, and return the time before it."""
    now_s = time.time()
    make()
    return now_s


def kill_one(live: LiveJob, role: str) -> float:
    """Kill one process of a role, as soon as it exists, and return the time of the kill."""
    (victim, *_) = live.run.until(
        lambda: live.run.processes()[role], f"a {role} runs", RECOVERY_S_MAX
    )
    killed_s = time.time()
    os.kill(victim.pid, signal.SIGKILL)
    return killed_s
