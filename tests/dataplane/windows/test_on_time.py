"""`AfterWatermark(on_time="always")`: each window fires at its end, also with nothing new.

Method: early firings take every record of a window, and then the job is restored at another
parallelism before the end. Without "always" nothing follows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.dataplane.windows import subtasks as subtasks_of_step
from tests.dataplane.windows.subtasks import Click, Subtasks, window_node
from tidegate import (
    AfterWatermark,
    BoundedOutOfOrderness,
    Collect,
    Count,
    EveryCount,
    First,
    Global,
    Json,
    KafkaSink,
    KafkaSource,
    Last,
    Max,
    Mean,
    Min,
    Pipeline,
    PipelineError,
    Repeatedly,
    Session,
    Sliding,
    Sum,
    TopN,
    Tumbling,
    WindowContext,
    WindowProcess,
    build,
)
from tidegate.stream_elements import MAX_MS
from tidegate.testing import PipelineTest, Setup


@pytest.fixture(autouse=True, params=[1_000, 1], ids=["in memory", "one in memory"])
def memory(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one window in memory, tables become rows as soon as they have two windows."""
    monkeypatch.setattr(subtasks_of_step, "CACHE_ENTRIES", request.param)


def firings(step: Subtasks) -> list[tuple[Any, ...]]:
    """Return the firings since the last call, by key: firing, number and the first value."""
    found = [(one.key, one.firing, one.number, one.values[0]) for one in step.results]
    step.results.clear()
    return sorted(found, key=lambda each: each[0])


@pytest.mark.parametrize("lateness", ["0 s", "5 ms"])
@pytest.mark.parametrize("accumulate", [True, False])
@pytest.mark.parametrize("kept", [(), (Collect(at_most=9),)], ids=["numbers", "records"])
@pytest.mark.parametrize(
    "assigner", [Tumbling("10 ms"), Session("10 ms")], ids=["tumbling", "session"]
)
def test_window_whose_records_were_all_in_early_results_fires_at_its_end(
    tmp_path: Path, assigner: Any, kept: tuple[Any, ...], *, accumulate: bool, lateness: str
) -> None:
    for on_time in ("always", "if_new"):
        trigger = AfterWatermark(early=EveryCount(2), accumulate=accumulate, on_time=on_time)
        node = window_node(
            Count(), *kept, assigner=assigner, trigger=trigger, allowed_lateness=lateness
        )
        step = Subtasks(tmp_path / on_time, node, 2)
        step.push([Click(key, at, 1) for at in (1, 2) for key in "abc"])
        assert firings(step) == [(key, "early", 0, 2) for key in "abc"]
        step.start(3, step.checkpoint())
        step.push([Click("a", 3, 1)])
        step.advance(30)
        rest = (3 if accumulate else 1), (2 if accumulate else 0)
        ends = [("a", "on_time", 1, rest[0])]
        if on_time == "always":
            ends += [(key, "on_time", 1, rest[1]) for key in "bc"]
        assert firings(step) == ends
        assert step.stored_rows() == 0


def test_window_fires_on_time_once_and_late_records_follow(tmp_path: Path) -> None:
    trigger = AfterWatermark(early=EveryCount(1), late=EveryCount(2), on_time="always")
    node = window_node(
        Count(), assigner=Tumbling("10 ms"), trigger=trigger, allowed_lateness="9 ms"
    )
    step = Subtasks(tmp_path, node)
    step.push([Click("a", 1, 1)])
    step.advance(9)
    step.start(2, step.checkpoint())
    step.push([Click("a", 2, 1), Click("b", 2, 1)])
    step.advance(MAX_MS)
    assert firings(step) == [
        *[("a", "early", 0, 1), ("a", "on_time", 1, 1), ("a", "late", 2, 2)],
        ("b", "late", 0, 1),
    ]


def test_end_of_a_burst_after_a_restore_fires_each_window_once(tmp_path: Path) -> None:
    trigger = AfterWatermark(early=EveryCount(1), on_time="always", accumulate=False)
    step = Subtasks(tmp_path, window_node(Count(), assigner=Tumbling("10 ms"), trigger=trigger))
    keys = [f"k{number}" for number in range(9)]
    step.push([Click(key, 1, 1) for key in keys])
    firings(step)
    for operator in step.operators:
        operator.set_piece(2)
    step.advance(9, 2)
    first = firings(step)
    assert 0 < len(first) < 9
    step.start(3, step.checkpoint())
    step.fire_all()
    assert sorted([*first, *firings(step)]) == [(key, "on_time", 1, 0) for key in keys]


@pytest.mark.parametrize("accumulate", [True, False])
@pytest.mark.parametrize(
    "assigner", [Tumbling("10 ms"), Session("10 ms")], ids=["tumbling", "session"]
)
def test_window_that_fired_early_fires_at_its_end_under_a_trigger_without_early_firings(
    tmp_path: Path, assigner: Any, *, accumulate: bool
) -> None:
    before = AfterWatermark(early=EveryCount(1), accumulate=accumulate)
    after = AfterWatermark(on_time="always", accumulate=accumulate)
    step = Subtasks(tmp_path, window_node(Count(), assigner=assigner, trigger=before))
    step.push([Click(key, 1, 1) for key in "ab"])
    firings(step)
    checkpoint = step.checkpoint()
    checkpoint.results.clear()
    step.node = window_node(Count(), assigner=assigner, trigger=after)
    step.start(2, checkpoint)
    step.push([Click("a", 2, 1)])
    step.advance(30)
    ends = (2, 1) if accumulate else (1, 0)
    assert firings(step) == [("a", "on_time", 1, ends[0]), ("b", "on_time", 1, ends[1])]


@pytest.mark.parametrize("lateness", ["0 s", "5 ms"])
@pytest.mark.parametrize("early", [None, EveryCount(9)])
@pytest.mark.parametrize("kept", [(), (Collect(at_most=9),)], ids=["numbers", "records"])
@pytest.mark.parametrize(
    "assigner", [Tumbling("10 ms"), Session("10 ms")], ids=["tumbling", "session"]
)
def test_window_whose_records_were_discarded_has_no_result_under_a_trigger_that_accumulates(
    tmp_path: Path, assigner: Any, kept: tuple[Any, ...], early: Any, lateness: str
) -> None:
    options: dict[str, Any] = {"assigner": assigner, "allowed_lateness": lateness}
    discards = AfterWatermark(early=EveryCount(1), accumulate=False)
    step = Subtasks(tmp_path, window_node(Count(), *kept, trigger=discards, **options))
    step.push([Click(key, 1, 1) for key in "ab"])
    checkpoint = step.checkpoint()
    checkpoint.results.clear()
    accumulates = AfterWatermark(early=early, on_time="always")
    step.node = window_node(Count(), *kept, trigger=accumulates, **options)
    step.start(2, checkpoint)
    step.push([Click("a", 2, 1)])
    step.advance(30)
    assert firings(step) == [("a", "on_time", 1, 1)]
    assert step.stored_rows() == 0


class Wait(Pipeline, name="wait"):
    """Results of no records reach `into`, and a window function."""

    events = KafkaSource(
        "events",
        value=Json(int),
        event_time=lambda number: number,
        watermarks=BoundedOutOfOrderness("0 s"),
    )
    sums = KafkaSink("sums", value=Json(list[str]))
    whole = KafkaSink("whole", value=Json(list[str]))

    def define(self) -> None:
        trigger = AfterWatermark(early=EveryCount(1), accumulate=False, on_time="always")
        windows = self.events.key_by(lambda number: 0, returns=int).window(
            Tumbling("1 s"), trigger=trigger
        )
        windows.aggregate(
            Sum(lambda number: number, returns=int),
            Sum(float, returns=float),
            Sum(Decimal, returns=Decimal),
            Collect(at_most=2),
            uid="sum",
            into=as_texts,
            returns=list[str],
        ).to(self.sums)
        windows.process(Texts(), uid="process").to(self.whole)


def as_texts(window: Any, *values: Any) -> list[str]:
    return [window.firing, *map(repr, values)]


class Texts(WindowProcess[int, int, list[str]]):
    def process(self, records: Sequence[int], ctx: WindowContext[int]) -> Iterable[list[str]]:
        yield [ctx.window.firing, *map(str, records)]


@pytest.mark.parametrize("parallelism", [1, 2])
def test_result_of_no_records_is_that_of_an_empty_window(parallelism: int) -> None:
    with PipelineTest(Wait, Setup(parallelism=parallelism)) as test:
        test.source(Wait.events).push(5)
        test.checkpoint().crash(parallelism=3 - parallelism)
        test.watermark(1_000)
        assert test.sink(Wait.sums).read() == [
            ["early", "5", "5.0", "Decimal('5')", "[5]"],
            ["on_time", "0", "0.0", "Decimal('0')", "[]"],
        ]
        assert test.sink(Wait.whole).read() == [["early", "5"], ["on_time"]]


@pytest.mark.parametrize(
    ("aggregate", "name"),
    [
        (Min(lambda click: click.value), "Min"),
        (Max(lambda click: click.value), "Max"),
        (First(lambda click: click.value), "First"),
        (Last(lambda click: click.value), "Last"),
        (Mean(lambda click: click.value), "Mean"),
    ],
)
def test_aggregate_without_a_result_of_no_records_is_refused_only_if_it_needs_one(
    aggregate: Any, name: str
) -> None:
    early = EveryCount(1)
    discards = AfterWatermark(early=early, accumulate=False, on_time="always")
    with pytest.raises(PipelineError, match=f"and {name} has no such result"):
        window_node(Count(), aggregate, assigner=Tumbling("1 s"), trigger=discards)
    for trigger in (
        AfterWatermark(early=early, on_time="always"),
        AfterWatermark(early=early, accumulate=False),
    ):
        window_node(Count(), aggregate, assigner=Tumbling("1 s"), trigger=trigger)


def test_reduce_without_a_result_of_no_records_is_refused() -> None:
    class Reducing(Pipeline, name="reducing"):
        events = KafkaSource("events", value=Json(int), watermarks=BoundedOutOfOrderness("0 s"))
        out = KafkaSink("out", value=Json(int))

        def define(self) -> None:
            trigger = AfterWatermark(accumulate=False, on_time="always")
            windows = self.events.key_by(lambda number: 0, returns=int).window(
                Tumbling("1 s"), trigger=trigger
            )
            windows.reduce(lambda a, b: a + b, uid="w").to(self.out)

    with pytest.raises(PipelineError, match="and reduce has no such result"):
        build(Reducing)


def test_sliding_windows_take_always_because_each_fires_at_its_end(tmp_path: Path) -> None:
    trigger = AfterWatermark(on_time="always")
    node = window_node(
        Count(), TopN(1, lambda c: c.value), assigner=Sliding("20 ms", "10 ms"), trigger=trigger
    )
    step = Subtasks(tmp_path, node)
    step.push([Click("a", 1, 1)])
    step.start(2, step.checkpoint())
    step.advance(100)
    assert firings(step) == [("a", "on_time", 0, 1)] * 2


def test_wrong_choice_and_the_window_without_an_end_are_refused() -> None:
    with pytest.raises(PipelineError, match="on_time"):
        AfterWatermark(on_time="never")  # type: ignore[arg-type]
    with pytest.raises(PipelineError, match="the window of Global never ends"):
        window_node(Count(), assigner=Global(), trigger=AfterWatermark(on_time="always"))


def test_choice_is_in_the_fingerprint_and_the_default_changes_none() -> None:
    assert AfterWatermark().describe()["on_time"] is True
    assert AfterWatermark(on_time="always").describe()["on_time"] == "always"
    assert Repeatedly(EveryCount(1)).describe()["on_time"] is False
