"""The pure parts of windows: spans of times, panes, local time, and the generated functions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.dataplane.windows.subtasks import window_node
from tidegate import Count, Sliding, Sum, Tumbling
from tidegate.api.records.type_inference import field_path
from tidegate.api.windows.windows import UNITS
from tidegate.dataplane.windows.accumulators import make_accumulators
from tidegate.dataplane.windows.assigners import tumbling
from tidegate.dataplane.windows.calendars import LocalTime
from tidegate.dataplane.windows.panes import PaneTimes, TwoStacks
from tidegate.errors import PipelineError, UserCodeError

TIMES = st.integers(-(10**14), 10**14)
HOUR_MS = 3_600_000


@given(st.lists(TIMES, min_size=1, max_size=9), st.integers(1, 10**7), st.integers(0, 10**7))
def test_each_time_lies_in_its_tumbling_window(times: list[int], size: int, offset: int) -> None:
    starts, ends, first_end = tumbling(size, offset % size)(times)
    spans = list(zip(islice(starts, len(times)), islice(ends, len(times)), strict=False))
    for time, (start, end) in zip(times, spans, strict=True):
        assert start <= time < end == start + size
        assert (start - offset) % size == 0
    assert first_end == min(end for _, end in spans)


@pytest.mark.parametrize("offset", ["-8 h", " - 8h", "16 h", timedelta(hours=-8), "-32 h"])
def test_offset_may_be_negative(offset: Any) -> None:
    assert Tumbling("1 d", offset=offset).offset_ms == 16 * HOUR_MS
    assert Sliding("2 d", "1 d", offset=offset).offset_ms == 16 * HOUR_MS


@pytest.mark.parametrize("offset", ["--8 h", "-", "-8", "8 h -"])
def test_malformed_offset_is_refused(offset: str) -> None:
    with pytest.raises(PipelineError, match=r"Tumbling, offset: .* is not a duration"):
        Tumbling("1 d", offset=offset)


@given(st.integers(1, 20), st.integers(1, 20), st.integers(0, 19), st.integers(-200, 200))
def test_windows_of_a_pane_are_those_that_contain_it(
    size: int, every: int, offset: int, time: int
) -> None:
    size, offset = max(size, every), offset % every
    import math

    pane = math.gcd(size, every)
    times = PaneTimes(size_ms=size, every_ms=every, offset_ms=offset, pane_ms=pane)
    start = time - (time - offset) % pane
    ends = [
        k * every + offset + size
        for k in range(-300, 300)
        if k * every + offset <= start and start + pane <= k * every + offset + size
    ]
    assert (times.first_end(start), times.last_end(start)) == (ends[0], ends[-1])


@given(st.lists(st.tuples(st.sampled_from(["push", "evict", "query"]), st.integers(0, 3))))
def test_two_stacks_combine_the_panes_that_are_left_in_their_order(steps: list[Any]) -> None:
    calls = 0

    def combine(x: tuple[Any, ...], y: tuple[Any, ...]) -> tuple[Any, ...]:
        nonlocal calls
        calls += 1
        return (x[0] + y[0],)

    stacks, model, start, before = TwoStacks(combine), [], 0, 0
    pushes = queries = 0
    for kind, by in steps:
        if kind == "push":
            start += 1 + by
            pushes += 1
            stacks.push(start, ((start,),))
            model.append(start)
        elif kind == "evict":
            before = max(before, start - 2 * by)
            stacks.evict(before)
            model = [one for one in model if one >= before]
        else:
            queries += 1
            found = stacks.query()
            assert (found or ((),))[0] == tuple(model)
    assert calls <= 2 * pushes + queries, "each pane is combined at most twice, and once a query"


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize(
    "zone", ["UTC", "Europe/Berlin", "America/Sao_Paulo", "Australia/Lord_Howe", "Asia/Beirut"]
)
@given(seconds=st.integers(0, 4_000_000_000))
def test_windows_of_a_calendar_are_local_and_leave_no_gap(
    unit: Any, zone: str, seconds: int
) -> None:
    local, time = LocalTime(ZoneInfo(zone), unit), seconds * 1000
    start, end = local.span(time)
    assert start <= time < end
    assert LocalTime(ZoneInfo(zone), unit).span(end - 1) == (start, end)
    assert LocalTime(ZoneInfo(zone), unit).span(start) == (start, end)
    assert LocalTime(ZoneInfo(zone), unit).span(end)[0] == end
    if unit == "hour":
        assert end - start <= HOUR_MS
    else:
        first = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=start)).astimezone(
            ZoneInfo(zone)
        )
        assert (unit, first.day) in {("day", first.day), ("week", first.day), (unit, 1)}
        assert unit != "week" or first.weekday() == 0


def test_hour_that_clocks_repeat_is_a_window_of_its_own() -> None:
    local = LocalTime(ZoneInfo("Europe/Berlin"), "hour")
    before = int(datetime(2026, 10, 25, 0, 30, tzinfo=UTC).timestamp() * 1000)
    first, second = local.span(before), local.span(before + HOUR_MS)
    assert first[1] == second[0]
    assert first[1] - first[0] == second[1] - second[0] == HOUR_MS


def test_time_outside_of_the_calendar_is_an_error_with_the_remedy() -> None:
    with pytest.raises(UserCodeError, match=r"outside of the calendar.*max_ahead="):
        LocalTime(ZoneInfo("UTC"), "day").span(1 << 60)


def test_function_that_only_reads_fields_is_inlined() -> None:
    assert field_path(lambda click: click.value) == ("value",)
    assert field_path(lambda click: click.a.b) == ("a", "b")
    assert field_path(lambda click: click.value + 1) is None
    assert field_path(lambda click: click) is None
    assert field_path(str) is None
    node = window_node(Sum(lambda click: click.value), Count(), assigner=Tumbling("1 s"))
    source = make_accumulators(node.function).source  # type: ignore[arg-type]
    assert "w.sum_0 = w.sum_0 + value.value" in source
