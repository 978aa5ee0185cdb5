"""Any order of arrival, batches, watermarks, checkpoints between two pieces of a burst, kills and
restores at another parallelism give the results of the model.

The order of results is compared for each key. Where a record is late, the model decides; so each
record is in its windows or late, never both.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.dataplane.windows.model import Model, Span
from tests.dataplane.windows.subtasks import Checkpoint, Click, Result, Subtasks, window_node
from tidegate import (
    AfterWatermark,
    Aggregate,
    Collect,
    Count,
    EveryCount,
    First,
    Last,
    Max,
    Mean,
    Min,
    Session,
    Sliding,
    Sum,
    TopN,
    Tumbling,
)
from tidegate.dataplane.windows import session_tables
from tidegate.dataplane.windows.operator import WindowOperator
from tidegate.stream_elements import MAX_MS

KEYS = "abcdef"


Results = Callable[[list[Click]], tuple[Any, ...]]


def value_of(click: Click) -> int:
    return click.value


def in_order(clicks: list[Click]) -> list[Click]:
    return sorted(clicks, key=lambda click: click.at_ms)


def with_records(clicks: list[Click]) -> tuple[Any, ...]:
    """The results of Count, Min, Collect and TopN: aligned windows are rows."""
    ordered, values = in_order(clicks), list(map(value_of, clicks))
    top = sorted(ordered, key=lambda click: -click.value)[:2]
    return len(clicks), min(values), tuple(ordered[:4]), tuple(top)


def without_records(clicks: list[Click]) -> tuple[Any, ...]:
    """The results of Sum, First, Last, Max and Mean: aligned windows lie in tables."""
    ordered, values = in_order(clicks), list(map(value_of, clicks))
    total = sum(values)
    return total, ordered[0].value, ordered[-1].value, max(values), total / len(values)


def lists(clicks: list[Click]) -> tuple[Any, ...]:
    """The results of Collect and TopN, also of no records: aligned windows are rows."""
    ordered = in_order(clicks)
    top = sorted(ordered, key=lambda click: -click.value)[:2]
    return tuple(ordered[:4]), tuple(top)


def numbers(clicks: list[Click]) -> tuple[Any, ...]:
    """The results of Count, Sum and an own aggregate, also of no records: windows in tables."""
    values = list(map(value_of, clicks))
    return len(clicks), sum(values), sum(value * value for value in values)


class Squares(Aggregate[Click, int, int]):
    """The sum of the squares."""

    def create(self) -> int:
        return 0

    def add(self, accumulator: int, record: Click, /) -> int:
        return accumulator + record.value * record.value

    def merge(self, accumulator: int, other: int, /) -> int:
        return accumulator + other

    def result(self, accumulator: int, /) -> int:
        return accumulator


def aggregates_of(results: Results) -> tuple[Any, ...]:
    if results is lists:
        return Collect(at_most=4), TopN(2, value_of)
    if results is numbers:
        return Count(), Sum(value_of), Squares()
    if results is with_records:
        return Count(), Min(value_of), Collect(at_most=4), TopN(2, value_of)
    return Sum(value_of), First(value_of), Last(value_of), Max(value_of), Mean(value_of)


def sliding_spans(size: int, every: int, offset: int) -> Any:
    def spans(time: int) -> list[Span]:
        starts = (k * every + offset for k in range((time - size) // every - 2, time // every + 2))
        return [(start, start + size) for start in starts if start <= time < start + size]

    return spans


CASES: dict[str, tuple[Any, Any, int]] = {
    "tumbling": (lambda: Tumbling("10 ms", offset="3 ms"), sliding_spans(10, 10, 3), 0),
    "sliding": (lambda: Sliding("12 ms", "4 ms"), sliding_spans(12, 4, 0), 0),
    "sliding with narrow panes": (
        lambda: Sliding("10 ms", "4 ms", offset="1 ms"),
        sliding_spans(10, 4, 1),
        0,
    ),
    "session": (lambda: Session("5 ms"), None, 5),
    "session with coarse timers": (lambda: Session("5 ms"), None, 5),
}

CACHES = st.sampled_from([1, 4, 100])
"""Windows that may be in memory: with 100, no table becomes rows."""

STEPS = st.one_of(
    st.tuples(
        st.just("push"),
        st.lists(
            st.tuples(st.sampled_from(KEYS), st.integers(0, 40), st.integers(-3, 3)),
            min_size=1,
            max_size=8,
        ),
    ),
    st.tuples(st.just("advance"), st.integers(0, 15), st.one_of(st.none(), st.integers(0, 3))),
    st.tuples(st.just("checkpoint")),
    st.tuples(st.just("kill"), st.integers(1, 4)),
)


def run(subtasks: Subtasks, steps: Iterable[Any], *, in_bound: bool) -> list[tuple[Any, ...]]:
    """Carry the steps out. Return the input that took effect: clicks and watermarks in order."""
    watermark, base = -1, 0
    effective: list[tuple[Any, ...]] = []
    saved: tuple[Checkpoint | None, int, int, int] = (None, 0, -1, 0)
    for step in steps:
        match step:
            case ("push", drawn):
                lowest = watermark + 1 if in_bound else max(0, watermark - 30)
                clicks = [Click(key, lowest + at, value) for key, at, value in drawn]
                subtasks.push(clicks)
                effective += [("push", click) for click in clicks]
            case ("advance", by, pieces):
                watermark += by
                subtasks.advance(watermark, pieces)
                effective.append(("advance", watermark))
            case ("checkpoint",):
                saved = (subtasks.checkpoint(), len(effective), watermark, base)
            case ("kill", parallelism):
                checkpoint, length, watermark, base = saved
                subtasks.start(parallelism, checkpoint)
                del effective[length:]
            case _:
                raise AssertionError(step)
    subtasks.fire_all()
    subtasks.advance(MAX_MS)
    return [*effective, ("advance", MAX_MS)]


def by_key(results: Iterable[Result]) -> dict[Any, list[Result]]:
    found: dict[Any, list[Result]] = defaultdict(list)
    for result in results:
        found[result.key].append(result)
    return dict(found)


def check(
    case: str,
    results: Results,
    lateness: int,
    steps: list[Any],
    *,
    in_bound: bool,
    cache_entries: int = 4,
    early: int | None = None,
    accumulate: bool = True,
    always: bool = False,
) -> None:
    assigner, spans, gap = CASES[case]
    made = aggregates_of(results)
    trigger = AfterWatermark(
        early=None if early is None else EveryCount(early),
        accumulate=accumulate,
        on_time="always" if always else "if_new",
    )
    node = window_node(
        *made, assigner=assigner(), allowed_lateness=f"{lateness} ms", trigger=trigger
    )
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(WindowOperator, "piece", 2)
        if case == "session with coarse timers":
            patch.setattr(session_tables, "TICKS", 2)
        subtasks = Subtasks(Path(folder), node, cache_entries=cache_entries)
        effective = run(subtasks, steps, in_bound=in_bound)
        model = Model(results, spans, gap, lateness, early, accumulate, always)
        for kind, what in effective:
            model.push(what) if kind == "push" else model.advance(what)
        assert by_key(subtasks.results) == by_key(model.results)
        assert sorted(subtasks.late, key=repr) == sorted(model.late, key=repr)
        if in_bound:
            assert not subtasks.late
            assert {result.firing for result in subtasks.results} <= {"on_time", "early"}
            if always:
                ends = [one for one in subtasks.results if one.firing == "on_time"]
                assert {one[:3] for one in subtasks.results if case == "tumbling"} <= {
                    one[:3] for one in ends
                }
        assert subtasks.stored_rows() == 0, "no row is left behind the end of the input"


@pytest.mark.hypothesis
@pytest.mark.timeout(600)  # its stores wait for a disk that other tests use too
@pytest.mark.parametrize("case", CASES)
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    steps=st.lists(STEPS, max_size=25),
    results=st.sampled_from([with_records, without_records]),
    cache_entries=CACHES,
)
def test_results_in_the_bound_are_those_of_a_batch(
    case: str, steps: list[Any], results: Results, cache_entries: int
) -> None:
    check(case, results, 0, steps, in_bound=True, cache_entries=cache_entries)


@pytest.mark.hypothesis
@pytest.mark.timeout(600)  # its stores wait for a disk that other tests use too
@pytest.mark.parametrize("case", CASES)
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    steps=st.lists(STEPS, max_size=25),
    results=st.sampled_from([with_records, without_records]),
    lateness=st.sampled_from([0, 1, 7, 25]),
    cache_entries=CACHES,
)
def test_record_beyond_the_bound_is_in_its_windows_or_late(
    case: str, steps: list[Any], results: Results, lateness: int, cache_entries: int
) -> None:
    check(case, results, lateness, steps, in_bound=False, cache_entries=cache_entries)


@pytest.mark.hypothesis
@pytest.mark.timeout(600)  # its stores wait for a disk that other tests use too
@pytest.mark.parametrize("case", ["tumbling", "session", "session with coarse timers", "sliding"])
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    steps=st.lists(STEPS, max_size=25),
    results=st.sampled_from([lists, numbers]),
    lateness=st.sampled_from([0, 7]),
    cache_entries=CACHES,
    early=st.sampled_from([None, 1, 2]),
    accumulate=st.booleans(),
    always=st.booleans(),
    in_bound=st.booleans(),
)
def test_early_firings_and_the_result_at_the_end_are_those_of_the_model(
    case: str,
    steps: list[Any],
    results: Results,
    lateness: int,
    cache_entries: int,
    early: int | None,
    accumulate: bool,
    always: bool,
    in_bound: bool,
) -> None:
    if case == "sliding":  # it has no triggers of its own
        early, accumulate = None, True
    if in_bound:
        lateness = 0
    check(
        case,
        results,
        lateness,
        steps,
        in_bound=in_bound,
        cache_entries=cache_entries,
        early=early,
        accumulate=accumulate,
        always=always,
    )


def test_early_results_of_a_key_have_the_order_of_its_records() -> None:
    steps = [("push", [("a", 13, 0), ("a", 3, 0), ("a", 13, 0)])]
    check("tumbling", numbers, 0, steps, in_bound=False, early=1)
    late_first = [("advance", 3, None), ("push", [("a", 0, 0), ("a", 3, 0)])]
    for results in (lists, numbers):
        check("tumbling", results, 7, late_first, in_bound=False, early=1)


def test_restore_knows_the_last_firing_after_the_oldest_pane_is_gone() -> None:
    steps = [
        ("advance", 7, None),
        ("advance", 15, None),
        ("push", [("a", 12, 0), ("a", 16, 0)]),
        ("advance", 9, None),
        ("push", [("a", 0, 0)]),
        ("checkpoint",),
        ("kill", 1),
    ]
    check("sliding", without_records, 7, steps, in_bound=False)
