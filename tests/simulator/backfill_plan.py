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

from tests.simulator.pipelines import SCATTERED
from tests.simulator.plan import TOLERATED_OUTAGE_MS, JobRun, Plan
from tests.simulator.wave_faults import WaveFaults

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


def with_backfills(plan: Plan, rng: random.Random) -> Plan:
    """Return the plan with at least one backfill."""
    scatters = rng.random() < SCATTER and plan.shape.sources == SCATTERED.sources
    shape = SCATTERED if scatters else replace(plan.shape, plain=frozenset())
    checkpoint = {**plan.settings["checkpoint"], "tolerated_outage": TOLERATED_OUTAGE_MS}
    at_once = int(len(plan.inputs) * AT_ONCE)
    job_runs = _convert_job_runs(plan.job_runs, rng)
    return replace(
        plan,
        shape=shape,
        fault_rates=replace(plan.fault_rates, blackout=0.0),
        job_runs=job_runs,
        inputs=tuple(
            replace(each, at_s=0.0) if number < at_once else each
            for number, each in enumerate(plan.inputs)
        ),
        settings={**plan.settings, "checkpoint": checkpoint},
        retention=False,
        mishaps=(),
        swaps=(None,) * len(job_runs),
        waves=WaveFaults.drawn(rng),
    )


def _convert_job_runs(job_runs: tuple[JobRun, ...], rng: random.Random) -> tuple[JobRun, ...]:
    made = [
        _as_backfill(job_run, rng) if rng.random() < BACKFILLED else job_run for job_run in job_runs
    ]
    if all(job_run.wave_offsets is None for job_run in made):
        made.insert(0, _as_backfill(_first(rng, "bounded"), rng))
    if made[0].wave_offsets is not None and rng.random() < LIVE_FIRST:
        made.insert(0, _first(rng, "stop"))
    return tuple(made)


def _first(rng: random.Random, ends: str) -> JobRun:
    parallelism = rng.randint(1, 3)
    return JobRun(parallelism, 1, parallelism, ends, rng.random())


def _as_backfill(job_run: JobRun, rng: random.Random) -> JobRun:
    if job_run.ends == "finished":
        return job_run  # input is still to come
    return replace(
        job_run,
        parallelism=rng.choice(PARALLELISMS),
        ends=ENDS.get(job_run.ends, "bounded"),
        restore_back=None,
        wave_offsets=rng.choice(WAVE_OFFSETS),
    )
