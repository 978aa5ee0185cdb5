"""Local days in the simulator: what a seed draws, and what the checker accepts."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from random import Random
from zoneinfo import ZoneInfo

import pytest

from tests.simulator.calendar_plan import CHANGES, DAY_MS, DAYS, HOUR_MS, with_local_days
from tests.simulator.plan import Plan
from tests.simulator.result_groups import Violation
from tests.simulator.run import plan_of, run_seed
from tests.simulator.tests.test_event_time import PLANS, event_time_of
from tests.simulator.tests.test_window_results import WINDOWS, Log
from tests.simulator.timed_pipelines import TimedEvent, WindowSettings
from tests.simulator.window_model import local_day
from tests.simulator.window_pipelines import CALENDAR, TUMBLING

MIDNIGHT_MS = int(datetime(2026, 3, 28, 23, tzinfo=UTC).timestamp()) * 1000
"""The begin of the day of 23 hours in Berlin."""


def windows_of(plan: Plan) -> WindowSettings | None:
    return event_time_of(plan).windows


def days_of(plan: Plan) -> list[tuple[int, int]]:
    """The local days of the records of a plan."""
    windows = windows_of(plan)
    assert windows is not None
    zone = ZoneInfo(windows.zone)
    times = [each.event.at_ms for each in plan.inputs if isinstance(each.event, TimedEvent)]
    return sorted({local_day(at_ms, zone) for at_ms in times})


WITH_DAYS = [plan for plan in PLANS if (w := windows_of(plan)) is not None and w.kind == CALENDAR]


@pytest.mark.parametrize(
    ("zone", "changes_at", "hours"),
    [
        ("Europe/Berlin", CHANGES[0][1], 23),
        ("Europe/Berlin", CHANGES[1][1], 25),
        ("America/New_York", CHANGES[2][1], 25),
        ("Australia/Lord_Howe", CHANGES[3][1], 24.5),
        ("Africa/Cairo", CHANGES[4][1], 23),
    ],
)
def test_day_on_which_clocks_change_has_another_length(
    zone: str, changes_at: datetime, hours: float
) -> None:
    noon_ms = int(changes_at.replace(tzinfo=ZoneInfo(zone), hour=12).timestamp()) * 1000
    begin_ms, end_ms = local_day(noon_ms, ZoneInfo(zone))
    assert end_ms - begin_ms == hours * HOUR_MS
    assert local_day(begin_ms, ZoneInfo(zone)) == local_day(end_ms - 1, ZoneInfo(zone))


def test_some_plans_have_local_days_and_most_of_these_have_the_day_of_a_change() -> None:
    assert len(WITH_DAYS) >= 5
    spans = [days_of(plan) for plan in WITH_DAYS]
    assert all(len(days) >= DAYS for days in spans)
    changing = [any(end - begin != DAY_MS for begin, end in days) for days in spans]
    assert sum(changing) > len(WITH_DAYS) / 2


def test_plans_without_tumbling_windows_are_as_before() -> None:
    for plan in PLANS:
        windows = windows_of(plan)
        if windows is None or windows.kind not in (TUMBLING, CALENDAR) or windows.twice:
            assert all(with_local_days(plan, Random(n)) == plan for n in range(5))


def test_some_plans_with_backfills_have_local_days() -> None:
    plans = [plan_of(seed, backfills=True, event_time=True) for seed in range(120)]
    found = [windows for plan in plans if (windows := windows_of(plan)) is not None]
    assert any(windows.kind == CALENDAR for windows in found)


def test_a_sample_of_seeds_with_local_days_is_exact() -> None:
    for plan in WITH_DAYS[:3]:
        outcome = run_seed(PLANS.index(plan), event_time=True)
        assert outcome.violation is None, plan
        assert outcome.fired, plan


def test_the_checker_accepts_a_day_of_23_hours_and_refuses_one_of_24() -> None:
    for hours, refused in ((23, False), (24, True)):
        log = Log(replace(WINDOWS, kind=CALENDAR, zone="Europe/Berlin", size_ms=DAY_MS))
        event = log.record(MIDNIGHT_MS + HOUR_MS)
        log.record(MIDNIGHT_MS + 3 * DAY_MS)
        if refused:
            with pytest.raises(Violation, match="and has records of"):
                log.fires(MIDNIGHT_MS, MIDNIGHT_MS + hours * HOUR_MS, event)
        else:
            log.fires(MIDNIGHT_MS, MIDNIGHT_MS + hours * HOUR_MS, event)
            log.checker.complete()
