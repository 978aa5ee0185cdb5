"""Event times from `with_timestamps` in some of the runs with event time.

The source of such a run has no strategy, and a step in its chain has it (`stamped_pipelines.py`).
Some records get a time that no strategy can use.

Each subtask has one watermark for the records of all its partitions, and after a restore all
subtasks continue from the least of these watermarks. So the model does not know which watermark the
last records reach. The last job run of each of these plans therefore drains. Then everything is
due.

The stream is separate, so all other seeds keep their plans.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Final

import msgspec

from tests.simulator.event_time_plan import draining
from tests.simulator.pipelines import OUT_B, Shape
from tests.simulator.plan import Plan
from tests.simulator.stamped_pipelines import STAMPED, WINDOWED_STAMPED
from tests.simulator.timed_pipelines import UNTIMED_MS, Watched
from tests.simulator.window_pipelines import Windowed

SHARE: Final = 0.5
"""Share of the runs of a pipeline with one source and one step that get the other one."""
UNTIMED: Final = (0.0, 0.05, 0.2)
"""Share of the records without a usable time."""
PARTITIONS_MAX: Final = 3


def with_stamps(plan: Plan, rng: random.Random) -> Plan:
    """Return the plan with event times from the middle, if it has one source and one step, and the
    stream draws it.
    """
    event_time, shape = plan.event_time, _stamped(plan.shape)
    if event_time is None or shape is None or rng.random() >= SHARE:
        return plan
    if plan.job_runs[-1].wave_offsets is not None:  # a backfill does not drain
        return plan
    untimed = rng.choice(UNTIMED)
    inputs = tuple(
        replace(each, event=msgspec.structs.replace(each.event, at_ms=UNTIMED_MS))
        if rng.random() < untimed
        else each
        for each in plan.inputs
    )
    partitions = {**plan.partitions, OUT_B: rng.randint(1, PARTITIONS_MAX)}
    return replace(
        plan,
        shape=shape,
        partitions=partitions,
        inputs=inputs,
        job_runs=draining(plan.job_runs),
        event_time=replace(event_time, stamped=True, drains=True),
    )


def _stamped(shape: Shape) -> Shape | None:
    """Return the shape with `with_timestamps` that replaces another one."""
    if shape.pipeline is Watched:
        return STAMPED
    return WINDOWED_STAMPED if shape.pipeline is Windowed else None
