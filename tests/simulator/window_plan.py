"""The windows of a run that a stream of its own draws, and records between end and removal.

`event_time_plan.py` has drawn tumbling, sliding or session windows with triggers that count. Here
some of these plans get a global window, windows of all records, `Repeatedly`, firings after a
period, or firings without the records of those before them. The stream is separate, so all other
seeds keep their plans. `calendar_plan.py` draws local days. `stamped_plan.py` draws
`with_timestamps`.

If windows take late records, a part of the records comes when the watermark has ended their window
and their own partition cannot have removed it. So the model is certain that these are not late.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Final

import msgspec

from tests.simulator.plan import Input, Plan
from tests.simulator.timed_pipelines import EventTime, TimedEvent, WindowSettings
from tests.simulator.window_pipelines import GLOBAL, SESSION, SLIDING, TUMBLING

CHANGED: Final = 0.5
"""Share of the runs with windows that get other windows here."""
TOGETHER: Final = 0.2
GLOBALLY: Final = 0.2
REPEATS: Final = 0.25
BY_PERIOD: Final = 0.5
APART: Final = 0.4
"""Share of these whose firings do not accumulate."""
PERIODS_MS: Final = (40, 150, 400)
LONG_LATENESS: Final = 0.6
"""Share of the runs whose windows stay in state for long, so that each restore has some."""
LATENESSES_MS: Final = (1_000, 5_000, 20_000)
WITHIN_LATENESS: Final = 0.3
"""Share of the records that come between the end and the removal of their window."""


def with_more_windows(plan: Plan, rng: random.Random) -> Plan:
    """Return the plan with other windows and other event times, if it has windows."""
    event_time = plan.event_time
    if event_time is None or event_time.windows is None:
        return plan
    windows = event_time.windows
    if rng.random() < CHANGED:
        windows = _changed(windows, rng, backfills=plan.waves is not None)
    if windows.kind != GLOBAL and rng.random() < LONG_LATENESS:
        windows = replace(windows, lateness_ms=rng.choice(LATENESSES_MS))
        plan = _with_stop(plan, rng)
    event_time = replace(event_time, windows=windows)
    inputs = plan.inputs
    if windows.lateness_ms and windows.kind in (TUMBLING, SLIDING):
        inputs = _within_lateness(inputs, event_time, windows, rng)
    return replace(plan, event_time=event_time, inputs=inputs)


def _with_stop(plan: Plan, rng: random.Random) -> Plan:
    """Return the plan with one more job run before the last one, unless it has backfills. The user
    stops it, so the last one restores open windows.
    """
    if plan.waves is not None:
        return plan
    *others, last = plan.job_runs
    before = max((each.ends_at_share for each in others), default=0.0)
    share = before + (1 - before) * rng.uniform(0.4, 0.8)
    stop = replace(last, ends="stop", ends_at_share=share, restore_back=None)
    last = replace(last, restore_back=None)
    job_runs = (*others, stop, last)
    return replace(plan, job_runs=job_runs, swaps=(None,) * len(job_runs))


def _changed(windows: WindowSettings, rng: random.Random, *, backfills: bool) -> WindowSettings:
    together = not windows.twice and rng.random() < TOGETHER
    if windows.kind == SLIDING:
        return replace(windows, together=together)
    kind = windows.kind
    if not windows.twice and rng.random() < GLOBALLY:
        kind = GLOBAL
    repeats = kind == GLOBAL or rng.random() < REPEATS
    early, late = windows.early, windows.late
    early_ms = late_ms = 0
    if repeats:
        early = rng.choice((1, 2, 3))
    if rng.random() < BY_PERIOD:
        early, early_ms = 0, rng.choice(PERIODS_MS)
    if not repeats and rng.random() < BY_PERIOD:
        late_ms = rng.choice(PERIODS_MS)
    return replace(
        windows,
        kind=kind,
        lateness_ms=0 if kind == GLOBAL else windows.lateness_ms,
        early=early,
        early_ms=early_ms,
        late=late,
        late_ms=late_ms,
        processing=not backfills and bool(early_ms or late_ms) and rng.random() < 0.3,
        repeats=repeats,
        # The pieces of two sessions that touch cannot be distinguished.
        accumulates=kind == SESSION or rng.random() >= APART,
        together=together,
    )


def _within_lateness(
    inputs: tuple[Input, ...],
    event_time: EventTime,
    windows: WindowSettings,
    rng: random.Random,
) -> tuple[Input, ...]:
    """Move the event times of some records between the end and the removal of their window."""
    newest: dict[tuple[str, int], int] = {}
    moved = []
    for each in inputs:
        event, place = each.event, (each.topic, each.partition)
        at_ms = event.at_ms if isinstance(event, TimedEvent) else 0
        if len(newest) == len(event_time.partitions) and rng.random() < WITHIN_LATENESS:
            behind_ms = event_time.delay_ms + 1
            reached_ms = min(newest.values()) - behind_ms
            end_ms = reached_ms + 1 - rng.randint(0, windows.lateness_ms)
            start_ms = (end_ms - windows.size_ms) // windows.every_ms * windows.every_ms
            gone_ms = start_ms + windows.size_ms - 1 + windows.lateness_ms
            if newest[place] - behind_ms < gone_ms:  # this is the last window of such a record
                at_ms = start_ms + rng.randrange(windows.every_ms)
        if each.committed:
            newest[place] = max(at_ms, newest.get(place, at_ms))
        moved.append(replace(each, event=msgspec.structs.replace(event, at_ms=at_ms)))
    return tuple(moved)
