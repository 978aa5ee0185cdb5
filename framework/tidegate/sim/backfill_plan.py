"""The plan of a run with backfills: some job runs in the plan of a seed become backfills.

The plan of the seed without backfills (`plan.py`) does not change, because this module draws from a
separate random stream. A job run that is stopped or crashes does the same as a backfill. A job run
that is cancelled becomes a backfill to the end of its input. The last job run, which reads all
input, becomes a backfill only if all input exists when it begins.

These plans exclude faults with other rules: sinks that are written at least once (a wave that runs
again writes them again), swapped storages and clusters, deleted inputs, and blackouts that outlast
transactions.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Final

from tidegate.sim.pipelines import SCATTERED
from tidegate.sim.plan import TOLERATED_OUTAGE_MS, JobRun, Plan
from tidegate.sim.wave_faults import WaveFaults

WAVE_OFFSETS: Final = (8, 15, 30, 60)
PARALLELISMS: Final = (1, 2, 2, 3, 3)
BACKFILLED: Final = 0.7
"""Share of the job runs that become backfills."""
LIVE_FIRST: Final = 0.2
"""Share of the runs with a live job first, among those that would begin with a backfill."""
SCATTER: Final = 0.6
"""Share of the runs in which each run of a task sends records to other subtasks."""
AT_ONCE: Final = 0.8
"""Share of the input that exists when the first job run begins."""
ENDS: Final = {"stop": "stop", "crash": "crash"}
"""End of a backfill, by the end of the live job that it replaces. Others end at their bounds."""


def with_backfills(plan: Plan, chance: random.Random) -> Plan:
    """Return the plan with at least one backfill."""
    scatters = chance.random() < SCATTER and plan.shape.sources == SCATTERED.sources
    shape = SCATTERED if scatters else replace(plan.shape, plain=frozenset())
    checkpoint = {**plan.settings["checkpoint"], "tolerated_outage": TOLERATED_OUTAGE_MS}
    at_once = int(len(plan.inputs) * AT_ONCE)
    lives = _lives(plan.job_runs, chance)
    return replace(
        plan,
        shape=shape,
        weights=replace(plan.weights, blackout=0.0),
        job_runs=lives,
        inputs=tuple(
            replace(each, at_s=0.0) if number < at_once else each
            for number, each in enumerate(plan.inputs)
        ),
        settings={**plan.settings, "checkpoint": checkpoint},
        retention=False,
        mishaps=(),
        swaps=(None,) * len(lives),
        waves=WaveFaults.drawn(chance),
    )


def _lives(lives: tuple[JobRun, ...], chance: random.Random) -> tuple[JobRun, ...]:
    made = [_backfilled(life, chance) if chance.random() < BACKFILLED else life for life in lives]
    if all(life.wave_offsets is None for life in made):
        made.insert(0, _backfilled(_first(chance, "bounded"), chance))
    if made[0].wave_offsets is not None and chance.random() < LIVE_FIRST:
        made.insert(0, _first(chance, "stop"))
    return tuple(made)


def _first(chance: random.Random, ends: str) -> JobRun:
    parallelism = chance.randint(1, 3)
    return JobRun(parallelism, 1, parallelism, ends, chance.random())


def _backfilled(life: JobRun, chance: random.Random) -> JobRun:
    if life.ends == "finished":
        return life  # input is still to come
    return replace(
        life,
        parallelism=chance.choice(PARALLELISMS),
        ends=ENDS.get(life.ends, "bounded"),
        restore_back=None,
        wave_offsets=chance.choice(WAVE_OFFSETS),
    )
