"""Windows of local days in some of the runs with tumbling windows.

The event times of a run cover less than a minute. So a run with `Calendar` windows has all of them
multiplied: records, bound and lateness. They then cover some days, and clocks change on one of
these days. Its window has 23 or 25 hours, or half an hour less or more on Lord Howe Island.

The stream is separate, so all other seeds keep their plans.
"""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

import msgspec

from tests.simulator.plan import Plan
from tests.simulator.timed_pipelines import TimedEvent
from tests.simulator.window_pipelines import CALENDAR, TUMBLING

SHARE: Final = 0.3
"""Share of the runs with one step of tumbling windows that get local days."""
CHANGES: Final = (
    ("Europe/Berlin", datetime(2026, 3, 29, tzinfo=UTC)),
    ("Europe/Berlin", datetime(2026, 10, 25, tzinfo=UTC)),
    ("America/New_York", datetime(2026, 11, 1, tzinfo=UTC)),
    ("Australia/Lord_Howe", datetime(2026, 4, 5, tzinfo=UTC)),
    ("Africa/Cairo", datetime(2026, 4, 24, tzinfo=UTC)),
)
"""Zones, with a day on which their clocks change. Those of Cairo skip a midnight."""
HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
DAYS: Final = 6
"""Number of days that the event times of a run cover, at least approximately."""
LATENESSES_MS: Final = (0, 0, HOUR_MS, 30 * HOUR_MS)


def with_local_days(plan: Plan, rng: random.Random) -> Plan:
    """Return the plan with local days, if it has tumbling windows and the stream draws days."""
    event_time = plan.event_time
    windows = None if event_time is None else event_time.windows
    if event_time is None or windows is None or windows.kind != TUMBLING or windows.twice:
        return plan
    if rng.random() >= SHARE:
        return plan
    zone, change = rng.choice(CHANGES)
    begin_ms = int(change.timestamp()) * 1000 - rng.randint(1, 3) * DAY_MS
    times = [each.event.at_ms for each in plan.inputs if isinstance(each.event, TimedEvent)]
    factor = DAYS * DAY_MS // max(1, *times)
    inputs = tuple(
        replace(each, event=msgspec.structs.replace(each.event, at_ms=begin_ms + at_ms * factor))
        for each, at_ms in zip(plan.inputs, times, strict=True)
    )
    windows = replace(
        windows,
        kind=CALENDAR,
        zone=zone,
        size_ms=DAY_MS,
        every_ms=DAY_MS,
        lateness_ms=rng.choice(LATENESSES_MS),
        early=windows.early or 2 * windows.repeats,
        early_ms=0,
        late_ms=0,
        processing=False,
    )
    delay_ms = event_time.delay_ms * factor
    return replace(
        plan, inputs=inputs, event_time=replace(event_time, delay_ms=delay_ms, windows=windows)
    )
