"""The meaning of windows, one rule at a time, with all subtasks over the real state backend.

`test_model.py` compares the default trigger with a model. Here are triggers, lateness, processing
time, calendars, restores with other windows, and what results share with state.
"""

from __future__ import annotations

import dataclasses
import itertools
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Self
from zoneinfo import ZoneInfo

import msgspec
import pytest

from tests.dataplane.windows import subtasks as subtasks_of_step
from tests.dataplane.windows.subtasks import Click, Result, Subtasks, window_node
from tidegate import (
    AfterWatermark,
    Aggregate,
    Calendar,
    Collect,
    Count,
    Every,
    EveryCount,
    Global,
    Max,
    Mean,
    Min,
    Repeatedly,
    Session,
    Sliding,
    Sum,
    Tumbling,
)
from tidegate.api.windows.windows import load_zone
from tidegate.dataplane.windows.operator import WindowOperator
from tidegate.errors import UserCodeError
from tidegate.stream_elements import MAX_MS

HOUR_MS = 3_600_000


def value_of(click: Click) -> int:
    return click.value


def total() -> Sum[Click, int]:
    return Sum(value_of)


def clicks(*times: int, key: str = "a") -> list[Click]:
    return [Click(key, at_ms, 1) for at_ms in times]


def subtasks(
    tmp_path: Path, assigner: Any, *aggregates: Any, parallelism: int = 1, **window: Any
) -> Subtasks:
    node = window_node(*(aggregates or (total(),)), assigner=assigner, **window)
    return Subtasks(tmp_path, node, parallelism)


def firings(step: Subtasks) -> list[tuple[Any, ...]]:
    """Return the firings since the last call: begin, firing, number and the first value."""
    found = [(one.start_ms, one.firing, one.number, one.values[0]) for one in step.results]
    step.results.clear()
    return found


LAYOUTS = pytest.mark.parametrize(
    "aggregates", [(), (total(), Collect(at_most=9))], ids=["in tables", "in rows"]
)


@pytest.fixture(autouse=True, params=[1_000, 1], ids=["in memory", "one in memory"])
def memory(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one window in memory, tables become rows as soon as they have two windows."""
    monkeypatch.setattr(subtasks_of_step, "CACHE_ENTRIES", request.param)


@LAYOUTS
def test_window_fires_when_the_watermark_reaches_its_last_millisecond(
    tmp_path: Path, aggregates: tuple[Any, ...]
) -> None:
    step = subtasks(tmp_path, Tumbling("10 ms"), *aggregates)
    step.push(clicks(0, 9, 10))
    step.advance(8)
    assert firings(step) == []
    step.advance(9)
    assert firings(step) == [(0, "on_time", 0, 2)]
    assert step.watermarks == [8, 9]


@LAYOUTS
def test_late_firings_follow_each_record_until_the_allowed_lateness_is_over(
    tmp_path: Path, aggregates: tuple[Any, ...]
) -> None:
    step = subtasks(tmp_path, Tumbling("10 ms"), *aggregates, allowed_lateness="5 ms")
    step.push(clicks(1))
    step.advance(13)
    step.push(clicks(2, 3))
    assert firings(step) == [(0, "on_time", 0, 1), (0, "late", 1, 2), (0, "late", 2, 3)]
    step.advance(14)
    step.push(clicks(4))
    assert firings(step) == []
    assert step.late == clicks(4)
    assert step.counters.late == {"w": 1}
    assert step.stored_rows() == 0


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize(
    "assigner", [Tumbling("10 ms"), Session("10 ms")], ids=["tumbling", "session"]
)
def test_state_of_open_windows_does_not_depend_on_the_order_of_arrival(
    tmp_path: Path, assigner: Any, *, together: bool
) -> None:
    states = []
    for number, order in enumerate(itertools.permutations((0, 7, 14, 40))):
        step = subtasks(tmp_path / str(number), assigner)
        for batch in [order] if together else [(at_ms,) for at_ms in order]:
            step.push(clicks(*batch))
        states.append(sorted(msgspec.to_builtins(step.rows())))
    assert states[0]
    assert all(state == states[0] for state in states)


@LAYOUTS
def test_window_without_an_on_time_firing_begins_with_a_late_one(
    tmp_path: Path, aggregates: tuple[Any, ...]
) -> None:
    step = subtasks(tmp_path, Tumbling("10 ms"), *aggregates, allowed_lateness="5 ms")
    step.advance(11)
    step.push(clicks(1))
    assert firings(step) == [(0, "late", 0, 1)]
    step.advance(100)
    assert (firings(step), step.stored_rows()) == ([], 0)


@LAYOUTS
def test_early_and_late_firings_by_count_show_the_rest_when_the_window_goes(
    tmp_path: Path, aggregates: tuple[Any, ...]
) -> None:
    trigger = AfterWatermark(early=EveryCount(2), late=EveryCount(3))
    step = subtasks(
        tmp_path, Tumbling("10 ms"), *aggregates, trigger=trigger, allowed_lateness="5 ms"
    )
    step.push(clicks(1, 2, 3))
    step.advance(9)
    assert firings(step) == [(0, "early", 0, 2), (0, "on_time", 1, 3)]
    step.push(clicks(4, 5))
    assert firings(step) == []
    step.advance(20)
    assert firings(step) == [(0, "late", 2, 5)]


@LAYOUTS
def test_firing_without_accumulation_has_only_what_is_new(
    tmp_path: Path, aggregates: tuple[Any, ...]
) -> None:
    trigger = AfterWatermark(early=EveryCount(2), accumulate=False)
    step = subtasks(
        tmp_path, Tumbling("10 ms"), *aggregates, trigger=trigger, allowed_lateness="5 ms"
    )
    step.push(clicks(1, 2, 3))
    step.advance(9)
    step.push(clicks(4))
    assert firings(step) == [(0, "early", 0, 2), (0, "on_time", 1, 1), (0, "late", 2, 1)]
    step.push(clicks(11, 12))
    step.advance(30)
    assert firings(step) == [(10, "early", 0, 2)], "nothing new at the end"


@LAYOUTS
def test_every_fires_at_multiples_of_the_clock_and_survives_a_restore(
    tmp_path: Path, aggregates: tuple[Any, ...]
) -> None:
    trigger = AfterWatermark(early=Every("1 s"))
    step = subtasks(tmp_path, Tumbling("10 ms"), *aggregates, trigger=trigger)
    step.tick(1_500)
    step.push(clicks(1, 2))
    step.tick(1_999)
    assert firings(step) == []
    step.start(3, step.checkpoint())
    step.tick(2_000)
    assert firings(step) == [(0, "early", 0, 2)]
    step.tick(5_000)
    assert firings(step) == [], "nothing is new"


@LAYOUTS
def test_every_of_event_time_fires_when_the_watermark_passes_a_multiple(
    tmp_path: Path, aggregates: tuple[Any, ...]
) -> None:
    trigger = AfterWatermark(early=Every("10 ms", time="event"))
    step = subtasks(tmp_path, Tumbling("100 ms"), *aggregates, trigger=trigger)
    step.push(clicks(5, 95))
    step.advance(8)
    assert firings(step) == []
    step.advance(9)
    assert firings(step) == [(0, "early", 0, 2)]
    step.advance(98)
    assert firings(step) == []


@LAYOUTS
def test_repeatedly_fires_without_a_watermark_and_the_rest_at_the_end(
    tmp_path: Path, aggregates: tuple[Any, ...]
) -> None:
    step = subtasks(tmp_path, Tumbling("10 ms"), *aggregates, trigger=Repeatedly(EveryCount(2)))
    step.push(clicks(1, 2, 3))
    assert firings(step) == [(0, "early", 0, 2)]
    step.advance(50)
    assert firings(step) == [(0, "on_time", 1, 3)]


def test_global_window_fires_by_count_and_at_the_end_of_the_input(tmp_path: Path) -> None:
    step = subtasks(tmp_path, Global(), trigger=Repeatedly(EveryCount(2)))
    step.push(clicks(1, 1 << 40, 5))
    step.advance(1 << 50)
    assert [one[1:] for one in firings(step)] == [("early", 0, 2)]
    step.advance(MAX_MS)
    assert [one[1:] for one in firings(step)] == [("on_time", 1, 3)]
    assert all(operator.state.watermark_ms == 1 << 50 for operator in step.operators)


def test_windows_of_processing_time_end_by_the_clock(tmp_path: Path) -> None:
    step = subtasks(tmp_path, Tumbling("10 ms", time="processing"))
    step.tick(3)
    step.push(clicks(777, 888))
    step.tick(9)
    assert step.results == []
    step.tick(10)
    assert step.results == [Result("a", 0, 10, "on_time", 0, (2,))]
    step.push(clicks(999))
    step.advance(MAX_MS)
    assert step.results[1:] == [Result("a", 10, 20, "on_time", 0, (1,))]


def test_window_all_has_no_key_and_one_subtask(tmp_path: Path) -> None:
    step = subtasks(tmp_path, Tumbling("10 ms"), by_key=False, parallelism=3)
    step.push([*clicks(1), *clicks(2, key="b")])
    step.start(2, step.checkpoint())
    step.advance(9)
    assert step.results == [Result(None, 0, 10, "on_time", 0, (2,))]


@LAYOUTS
def test_burst_fires_in_pieces_and_a_checkpoint_between_two_loses_and_repeats_nothing(
    tmp_path: Path, aggregates: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WindowOperator, "piece", 10)
    step = subtasks(tmp_path, Tumbling("10 ms"), *aggregates)
    keys = [f"k{number}" for number in range(95)]
    step.push([Click(key, 5, 1) for key in keys])
    step.advance(30, pieces=3)
    assert (len(step.results), step.watermarks) == (30, [])
    step.start(2, step.checkpoint())
    assert any(operator.firing for operator in step.operators)
    step.fire_all()
    step.push(clicks(40))
    assert sorted(str(one.key) for one in step.results) == sorted(keys)
    step.advance(31)
    assert step.watermarks == [31]


@LAYOUTS
def test_late_firings_by_event_time_come_at_multiples_of_the_period(
    tmp_path: Path, aggregates: tuple[Any, ...]
) -> None:
    step = subtasks(
        tmp_path,
        Tumbling("10 ms"),
        *aggregates,
        trigger=AfterWatermark(late=Every("20 ms", time="event")),
        allowed_lateness="100 ms",
    )
    step.push(clicks(5))
    step.advance(12)
    assert firings(step) == [(0, "on_time", 0, 1)]
    step.push(clicks(6, 7))
    step.advance(18)
    assert firings(step) == []
    step.start(2, step.checkpoint())
    step.advance(19)
    assert firings(step) == [(0, "late", 1, 3)]
    step.push(clicks(8))
    step.advance(500)
    assert firings(step) == [(0, "late", 2, 4)]


def test_windows_beyond_the_cache_become_rows_and_end_as_they_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subtasks_of_step, "CACHE_ENTRIES", 10)
    step = subtasks(tmp_path, Tumbling("10 ms"), allowed_lateness="20 ms")
    for number in range(60):
        step.push([Click(f"k{number % 30}", number // 10, 1), Click(f"k{number}", 15, 1)])
        assert in_tables(step) <= 10 + 2
    step.advance(11)
    step.push([Click("k3", 4, 1), Click("new", 4, 1)])
    assert sorted(step.results) == sorted(
        [
            *(Result(f"k{number}", 0, 10, "on_time", 0, (2,)) for number in range(30)),
            Result("k3", 0, 10, "late", 1, (3,)),
            Result("new", 0, 10, "late", 0, (1,)),
        ]
    )
    step.start(2, step.checkpoint())
    step.results.clear()
    step.push([Click("k3", 16, 1)])
    step.advance(500)
    expected = {f"k{number}": 2 if number == 3 else 1 for number in range(60)}
    assert {one.key: one.values[0] for one in step.results} == expected
    assert step.rows() == []


def test_span_that_lies_in_rows_of_one_subtask_and_a_table_of_another_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subtasks_of_step, "CACHE_ENTRIES", 10)
    step = subtasks(tmp_path, Tumbling("10 ms"), parallelism=2)
    keys = [f"k{number}" for number in range(40)]
    of_first = [key for key in keys if step._owner(Click(key, 0, 1)) == 0]
    of_second = [key for key in keys if key not in of_first]
    step.push([Click(key, 5, 1) for key in of_first])
    step.push([Click(key, 5, 1) for key in of_first[:1] + of_second[:3]])
    assert in_tables(step) == 3
    step.start(1, step.checkpoint())
    step.push([Click(key, 6, 1) for key in keys])
    step.advance(500)
    expected = dict.fromkeys(keys, 1) | dict.fromkeys(of_first + of_second[:3], 2)
    expected[of_first[0]] = 3
    assert {one.key: one.values[0] for one in step.results} == expected
    assert len(step.results) == len(keys)


def in_tables(step: Subtasks) -> int:
    """Return the number of windows in the tables of all subtasks."""
    found = 0
    for operator in step.operators:
        tables = operator.state.tables
        assert tables is not None
        found += tables.window_count
    return found


def test_size_and_gap_may_change_and_open_windows_end_as_they_began(tmp_path: Path) -> None:
    for name, old, new, ends in (
        ("tumbling", Tumbling("10 ms"), Tumbling("25 ms"), [10, 25]),
        ("session", Session("10 ms"), Session("2 ms"), [15, 22]),
    ):
        before = subtasks(tmp_path / name, old)
        before.push(clicks(5))
        saved = before.checkpoint()
        node = window_node(total(), assigner=new)
        after = Subtasks(tmp_path / f"{name}-new", node)
        after._step.blobs = before._step.blobs
        after.start(1, saved)
        after.push(clicks(20))
        after.advance(100)
        assert [one.end_ms for one in after.results] == ends


def test_session_joins_a_live_one_although_its_record_is_behind_the_watermark(
    tmp_path: Path,
) -> None:
    step = subtasks(tmp_path, Session("10 ms"))
    step.push(clicks(10, 15))
    step.advance(20)
    step.push(clicks(2))
    step.advance(24)
    assert step.results == [Result("a", 2, 25, "on_time", 0, (3,))]
    step.push(clicks(12))
    assert step.late == clicks(12)


def test_gap_of_a_session_may_depend_on_the_record(tmp_path: Path) -> None:
    step = subtasks(tmp_path, Session(lambda click: f"{click.value} ms"))
    step.push([Click("a", 0, 100), Click("a", 90, 1), Click("b", 0, 5), Click("b", 6, 5)])
    step.advance(1_000)
    assert [(one.key, one.start_ms, one.end_ms) for one in step.results] == [
        ("b", 0, 5),
        ("b", 6, 11),
        ("a", 0, 100),
    ]


def test_calendar_days_have_23_to_25_hours(tmp_path: Path) -> None:
    step = subtasks(tmp_path, Calendar("day", zone="Europe/Berlin"))
    berlin = ZoneInfo("Europe/Berlin")
    for month, day in ((3, 29), (10, 25), (7, 1)):
        noon = datetime(2026, month, day, 12, tzinfo=berlin)
        step.push(clicks(int(noon.timestamp() * 1000)))
    step.advance(MAX_MS)
    hours = [(one.end_ms - one.start_ms) / HOUR_MS for one in step.results]
    assert hours == [23, 24, 25]


def test_result_of_a_window_that_stays_shares_nothing_with_its_state(tmp_path: Path) -> None:
    class Box(msgspec.Struct):
        values: list[int]

    class Boxed(Aggregate[Click, Box, Box]):
        def create(self) -> Box:
            return Box([])

        def add(self, accumulator: Box, record: Click, /) -> Box:
            accumulator.values.append(record.value)
            return accumulator

        def merge(self, accumulator: Box, other: Box, /) -> Box:
            accumulator.values += other.values
            return accumulator

        def result(self, accumulator: Box, /) -> Box:
            return accumulator

    for assigner in (Tumbling("10 ms"), Session("10 ms"), Sliding("20 ms", "10 ms")):
        trigger = None if isinstance(assigner, Sliding) else AfterWatermark(early=EveryCount(1))
        step = subtasks(tmp_path / assigner.kind, assigner, Boxed(), trigger=trigger)
        step.push(clicks(1))
        step.push(clicks(2))
        step.advance(29)
        lengths = [len(one.values[0].values) for one in step.results]
        expected = {"tumbling": [1, 2], "session": [1, 2], "sliding": [2, 2]}
        assert lengths == expected[assigner.kind]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (1, 2, 0)])
def test_min_and_max_are_nan_if_a_value_is_in_any_order(
    tmp_path: Path, order: tuple[int, ...]
) -> None:
    values = [1.0, float("nan"), 3.0]
    least: Any = Min(lambda click: values[click.value], returns=float)
    greatest: Any = Max(lambda click: values[click.value], returns=float)
    step = subtasks(tmp_path, Tumbling("10 ms"), least, greatest)
    step.push([Click("a", 1, number) for number in order])
    step.advance(9)
    assert [str(value) for value in step.results[0].values] == ["nan", "nan"]


def test_sums_of_big_ints_and_decimals_are_exact_after_a_restore(tmp_path: Path) -> None:
    big: Any = Sum(lambda click: 1 << 70, returns=int)
    exact: Any = Sum(lambda click: Decimal("0.1"), returns=Decimal)
    step = subtasks(tmp_path, Tumbling("10 ms"), big, exact, Mean(value_of))
    step.push(clicks(1, 2))
    step.start(2, step.checkpoint())
    step.push(clicks(3))
    step.advance(9)
    assert step.results[0].values == (3 << 70, Decimal("0.3"), 1.0)


def test_error_of_a_window_names_the_step_and_the_window(tmp_path: Path) -> None:
    node = window_node(Count(), assigner=Tumbling("10 ms"))
    node.function.into = lambda w, count: 1 // 0  # type: ignore[attr-defined]
    step = Subtasks(tmp_path, node)
    step.push(clicks(1))
    words = r"step uid 'w' .* raised ZeroDivisionError: .* of key 'a' from 0 to 10"
    with pytest.raises(UserCodeError, match=words):
        step.advance(9)


def test_error_of_an_aggregate_names_the_record(tmp_path: Path) -> None:
    step = subtasks(tmp_path, Tumbling("10 ms"), Sum(lambda click: 6 // click.value, returns=int))
    with pytest.raises(UserCodeError, match=r"ZeroDivisionError.* came from clicks-0 at offset 1"):
        step.push([Click("a", 1, 2), Click("a", 2, 0)])


def test_zones_come_from_the_package() -> None:
    assert load_zone("Europe/Berlin").utcoffset(datetime(2026, 7, 1, tzinfo=UTC)) is not None


@LAYOUTS
def test_batch_waits_until_all_that_is_due_has_fired(
    tmp_path: Path, aggregates: tuple[Any, ...]
) -> None:
    step = subtasks(tmp_path, Tumbling("10 ms"), *aggregates, allowed_lateness="1 s")
    step.push(clicks(5))
    step.advance(30, pieces=0)
    step.push(clicks(6))
    assert firings(step) == [(0, "on_time", 0, 1), (0, "late", 1, 2)]


@LAYOUTS
def test_restore_finds_the_timer_of_each_open_window_of_a_key(
    tmp_path: Path, aggregates: tuple[Any, ...]
) -> None:
    step = subtasks(tmp_path, Tumbling("10 ms"), *aggregates)
    step.push(clicks(15, 5, 25))
    step.start(2, step.checkpoint())
    step.advance(9)
    assert firings(step) == [(0, "on_time", 0, 1)]
    step.advance(19)
    assert firings(step) == [(10, "on_time", 0, 1)]


def test_session_that_a_late_record_extends_fires_at_its_new_end(tmp_path: Path) -> None:
    step = subtasks(tmp_path, Session("10 ms"), allowed_lateness="50 ms")
    step.push(clicks(0))
    step.advance(15)
    step.push(clicks(9))
    step.advance(17)
    assert firings(step) == [(0, "on_time", 0, 1)]
    step.advance(18)
    assert firings(step) == [(0, "on_time", 1, 2)]


def test_record_behind_the_watermark_is_in_the_sliding_windows_that_are_open(
    tmp_path: Path,
) -> None:
    step = subtasks(tmp_path, Sliding("20 ms", "10 ms"))
    step.push(clicks(5))
    step.advance(9)
    step.push(clicks(7))
    step.advance(100)
    assert firings(step) == [(-10, "on_time", 0, 1), (0, "on_time", 0, 2)]
    assert step.late == []


def test_merge_that_changes_its_argument_changes_no_pane(tmp_path: Path) -> None:
    class Listed(Aggregate[Click, list[int], list[int]]):
        def create(self) -> list[int]:
            return []

        def add(self, accumulator: list[int], record: Click, /) -> list[int]:
            accumulator.append(record.at_ms)
            return accumulator

        def merge(self, accumulator: list[int], other: list[int], /) -> list[int]:
            accumulator += other
            return accumulator

        def result(self, accumulator: list[int], /) -> list[int]:
            return accumulator

    step = subtasks(tmp_path, Sliding("30 ms", "10 ms"), Listed())
    times = range(1, 90, 10)
    step.push(clicks(*times))
    for end in range(9, 200, 10):
        step.advance(end)
        step.start(1, step.checkpoint())
    expected = [tuple(at for at in times if end - 30 <= at < end) for end in range(10, 120, 10)]
    assert [one.values[0] for one in step.results] == expected


def test_sum_changes_no_value_of_a_record(tmp_path: Path) -> None:
    @dataclasses.dataclass
    class Money:
        cents: int

        def __add__(self, other: Money) -> Money:
            return Money(self.cents + other.cents)

        def __iadd__(self, other: Money) -> Self:
            self.cents += other.cents
            return self

    purses = [Money(1), Money(2)]
    spent: Any = Sum(lambda click: purses[click.value], returns=Money)
    step = subtasks(tmp_path, Tumbling("10 ms"), spent)
    step.push([Click("a", 1, 0), Click("a", 2, 1)])
    step.advance(9)
    assert (step.results[0].values, purses) == ((Money(3),), [Money(1), Money(2)])
