"""`with_timestamps` in a `PipelineTest`: times, rejected records, idleness and restores."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given

from tidegate import (
    BoundedOutOfOrderness,
    Context,
    EventTimer,
    Fired,
    Json,
    KafkaSink,
    KafkaSource,
    KeyedProcess,
    Monotonous,
    Pipeline,
    Process,
    ProcessContext,
    ValueState,
)
from tidegate.dataplane.task_builder import source_keys_wanted
from tidegate.stream_elements import MIN_MS
from tidegate.testing import PipelineTest, Setup

ANYWHERE = pytest.mark.parametrize("parallelism", [1, 2, 3])
DELAY_MS = 20


class Click(msgspec.Struct, frozen=True):
    key: str
    at_ms: int | None
    number: int = 0


class Seen(msgspec.Struct, frozen=True):
    key: str
    at_ms: int
    watermark_ms: int
    number: int
    count: int


class Look(KeyedProcess[str, Click, Seen]):
    count = ValueState(int, default=0)
    silence = EventTimer()

    def process(self, click: Click, ctx: Context[str]) -> Iterable[Seen]:
        self.count.value += 1
        self.silence.set(ctx.timestamp_ms + 100)
        yield Seen(ctx.key, ctx.timestamp_ms, ctx.watermark_ms, click.number, self.count.value)

    def on_timer(self, fired: Fired, ctx: Context[str]) -> Iterable[Seen]:
        yield Seen(ctx.key, fired.at_ms, ctx.watermark_ms, -1, self.count.value)


class Bare(Pipeline, name="bare"):
    """The source has neither event times nor watermarks."""

    clicks = KafkaSource("clicks", value=Json(Click))
    seen = KafkaSink("seen", value=Json(Seen))
    rejected = KafkaSink("rejected", value=Json(Click))

    def define(self) -> None:
        stamped = self.clicks.with_timestamps(
            lambda click: click.at_ms,  # type: ignore[arg-type, return-value]
            watermarks=BoundedOutOfOrderness(f"{DELAY_MS} ms", idle_after="1 min"),
            uid="stamp",
        )
        stamped.key_by(lambda click: click.key).process(Look(), uid="look").to(self.seen)
        stamped.rejected.to(self.rejected)


def is_kept(click: Click) -> bool:
    return click.key != "dropped"


class Mixed(Pipeline, name="mixed"):
    """One source declares watermarks, the other none. No step reads the rejected records."""

    marked = KafkaSource(
        "marked", value=Json(Click), event_time=lambda _: 1_000_000, watermarks=Monotonous()
    )
    bare = KafkaSource("bare", value=Json(Click))
    seen = KafkaSink("seen", value=Json(Seen), timestamps="event_time")

    def define(self) -> None:
        both = self.marked.union(self.bare).filter(is_kept)
        stamped = both.with_timestamps(
            lambda click: click.at_ms,  # type: ignore[arg-type, return-value]
            watermarks=BoundedOutOfOrderness(f"{DELAY_MS} ms"),
            uid="stamp",
        )
        stamped.key_by(lambda click: click.key).process(Look(), uid="look").to(self.seen)


def last(test: PipelineTest, sink: KafkaSink[Seen]) -> Seen:
    return test.sink(sink).read()[-1]


@ANYWHERE
def test_records_have_the_times_and_the_watermark_of_the_step(parallelism: int) -> None:
    with PipelineTest(Bare, Setup(parallelism=parallelism)) as test:
        clicks = test.source(Bare.clicks).push(Click("a", 500)).push(Click("a", 490, 1))
        clicks.push(Click("a", None, 2)).push(Click("a", 505, 3))
        assert test.sink(Bare.seen).read() == [
            Seen("a", 500, MIN_MS, 0, 1),
            Seen("a", 490, 479, 1, 2),
            Seen("a", 505, 479, 3, 3),
        ]
        assert test.sink(Bare.rejected).read() == [Click("a", None, 2)]
        assert test.counters.skipped == 0
        clicks.push(Click("b", 700))
        assert [each.at_ms for each in test.sink(Bare.seen).read()] == [700, 605]


@ANYWHERE
def test_subtasks_without_records_hold_nothing_back_once_they_are_idle(parallelism: int) -> None:
    with PipelineTest(Bare, Setup(parallelism=parallelism)) as test:
        first = test.source(Bare.clicks)
        test.source(Bare.clicks, partition=1)
        first.push(Click("a", 500)).push(Click("a", 501))
        together = parallelism == 1  # one subtask has one watermark for all partitions
        assert last(test, Bare.seen).watermark_ms == (479 if together else MIN_MS)
        test.advance("59 s")
        first.push(Click("a", 502)).push(Click("a", 503))
        assert last(test, Bare.seen).watermark_ms == (481 if together else MIN_MS)
        test.advance("2 s")
        first.push(Click("a", 504))
        assert last(test, Bare.seen).watermark_ms == 482


@ANYWHERE
def test_subtask_that_returns_from_idleness_holds_the_watermark_back_again(
    parallelism: int,
) -> None:
    with PipelineTest(Bare, Setup(parallelism=parallelism)) as test:
        first, second = test.source(Bare.clicks), test.source(Bare.clicks, partition=1)
        first.push(Click("a", 500))
        test.advance("2 min")
        second.push(Click("a", 600))
        first.push(Click("a", 900), Click("b", 900))
        first.push(Click("a", 901))
        assert last(test, Bare.seen).watermark_ms == (879 if parallelism == 1 else 579)


@ANYWHERE
def test_watermark_of_the_step_is_a_floor_after_a_restore(parallelism: int) -> None:
    with PipelineTest(Bare, Setup(parallelism=parallelism)) as test:
        clicks = test.source(Bare.clicks).push(Click("a", 500))
        for number in (1, 3, 2):
            test.checkpoint().crash(parallelism=number)
            clicks.push(Click("new", 481 + number))
            assert last(test, Bare.seen).watermark_ms == 479


def test_subtask_that_is_ahead_makes_no_record_of_another_late_after_a_restore() -> None:
    """Each of two subtasks reads one partition, and one partition is far ahead."""
    with PipelineTest(Bare, Setup(parallelism=2)) as test:
        ahead, behind = test.source(Bare.clicks), test.source(Bare.clicks, partition=1)
        ahead.push(Click("a", 9_000))
        behind.push(Click("b", 500))
        test.checkpoint().crash()
        behind.push(Click("c", 600)).push(Click("c", 700))
        assert [each.watermark_ms for each in test.sink(Bare.seen).read()[-2:]] == [479, 479]
        ahead.push(Click("a", 9_001))
        behind.push(Click("c", 650))
        assert last(test, Bare.seen).watermark_ms == 679


@ANYWHERE
def test_drain_ends_the_time_of_the_step_and_fires_what_waits(parallelism: int) -> None:
    with PipelineTest(Bare, Setup(parallelism=parallelism)) as test:
        test.source(Bare.clicks).push(Click("a", 500), Click("b", 490))
        test.drain()
        assert sorted(each.at_ms for each in test.sink(Bare.seen).read()) == [490, 500, 590, 600]


@ANYWHERE
def test_stop_fires_nothing_and_the_next_run_continues(parallelism: int) -> None:
    with PipelineTest(Bare, Setup(parallelism=parallelism)) as test:
        clicks = test.source(Bare.clicks).push(Click("a", 500))
        test.stop().crash(parallelism=2)
        assert len(test.sink(Bare.seen).read()) == 1
        clicks.push(Click("b", 621))
        assert [each.at_ms for each in test.sink(Bare.seen).read()] == [621, 600]


@ANYWHERE
def test_watermarks_in_front_are_ignored_also_if_only_one_source_has_them(
    parallelism: int,
) -> None:
    with PipelineTest(Mixed, Setup(parallelism=parallelism)) as test:
        marked, bare = test.source(Mixed.marked), test.source(Mixed.bare)
        marked.push(Click("a", 500)).push(Click("a", 510), Click("a", None))
        bare.push(Click("a", 495), Click("dropped", 900)).push(Click("a", 500))
        assert test.counters.skipped == 1
        seen = test.sink(Mixed.seen).read()
        assert [each.at_ms for each in seen] == [500, 510, 495, 500]
        assert not [each for each in seen if each.at_ms <= each.watermark_ms]


@ANYWHERE
@pytest.mark.parametrize("first", ["marked", "bare"])
def test_time_ends_when_both_sources_have_ended(parallelism: int, first: str) -> None:
    with PipelineTest(Mixed, Setup(parallelism=parallelism)) as test:
        sources = {"marked": test.source(Mixed.marked), "bare": test.source(Mixed.bare)}
        for source in sources.values():
            source.push(Click("a", 500))
        sources.pop(first).end()
        [other] = sources.values()
        other.push(Click("a", 510))
        assert len(test.sink(Mixed.seen).read()) == 3
        other.end()
        assert [each.at_ms for each in test.sink(Mixed.seen).read()] == [610]


class Pass(KeyedProcess[str, Click, Click]):
    count = ValueState(int, default=0)

    def process(self, click: Click, ctx: Context[str]) -> Iterable[Click]:
        yield click


class Plain(Process[Click, Seen]):
    def process(self, click: Click, ctx: ProcessContext) -> Iterable[Seen]:
        yield Seen(click.key, ctx.timestamp_ms, ctx.watermark_ms, click.number, 0)


class BehindKeys(Pipeline, name="behind-keys"):
    """The step is behind an exchange, and a function without state is directly behind it."""

    clicks = KafkaSource("clicks", value=Json(Click))
    seen = KafkaSink("seen", value=Json(Seen))
    plain = KafkaSink("plain", value=Json(Seen))

    def define(self) -> None:
        passed = self.clicks.key_by(lambda click: click.key).process(Pass(), uid="pass")
        stamped = passed.with_timestamps(
            lambda click: click.at_ms,  # type: ignore[arg-type, return-value]
            watermarks=BoundedOutOfOrderness(f"{DELAY_MS} ms", idle_after="1 min"),
            uid="stamp",
        )
        stamped.key_by(lambda click: click.key).process(Look(), uid="look").to(self.seen)
        stamped.process(Plain()).to(self.plain)


KEYS = "abcdefgh"


@ANYWHERE
def test_time_behind_an_exchange_ends_with_the_input(parallelism: int) -> None:
    with PipelineTest(BehindKeys, Setup(parallelism=parallelism)) as test:
        test.source(BehindKeys.clicks).push(*(Click(key, 500) for key in KEYS))
        test.drain()
        assert len(test.sink(BehindKeys.seen).read()) == 2 * len(KEYS), "all timers have fired"


@ANYWHERE
def test_idle_subtask_that_is_ahead_holds_nothing_back(parallelism: int) -> None:
    with PipelineTest(BehindKeys, Setup(parallelism=parallelism)) as test:
        clicks = test.source(BehindKeys.clicks).push(*(Click(key, 900) for key in KEYS))
        for at_ms in (910, 920, 2_000):
            test.advance("59 s")
            clicks.push(Click("a", at_ms))
        clicks.push(Click("a", 2_001))
        assert last(test, BehindKeys.seen).watermark_ms == 1_979


@ANYWHERE
def test_step_itself_continues_from_its_watermark(parallelism: int) -> None:
    with PipelineTest(BehindKeys, Setup(parallelism=parallelism)) as test:
        clicks = test.source(BehindKeys.clicks).push(*(Click(key, 900) for key in KEYS))
        for number in (1, 3, 2):
            test.checkpoint().crash(parallelism=number)
            clicks.push(*(Click(key, 890) for key in KEYS))
            assert {each.watermark_ms for each in test.sink(BehindKeys.plain).read()[-8:]} == {879}


@ANYWHERE
def test_partition_that_is_named_later_holds_back_the_step(parallelism: int) -> None:
    with PipelineTest(Bare, Setup(parallelism=parallelism)) as test:
        first = test.source(Bare.clicks).push(Click("a", 500))
        test.source(Bare.clicks, partition=1)
        first.push(Click("a", 900)).push(Click("b", 901))
        assert last(test, Bare.seen).watermark_ms == (879 if parallelism == 1 else 479)


class Keeps(Pipeline, name="keeps"):
    """A sink without a key of its own writes the key with which a record was read."""

    clicks = KafkaSource("clicks", value=Json(Click))
    times = KafkaSink("times", value=Json(Click))
    rejected = KafkaSink("rejected", value=Json(Click))

    def define(self) -> None:
        stamped = self.clicks.with_timestamps(
            lambda click: click.at_ms,  # type: ignore[arg-type, return-value]
            watermarks=Monotonous(),
            uid="stamp",
        )
        stamped.filter(is_kept).to(self.times)
        stamped.rejected.to(self.rejected)


def test_records_keep_the_keys_with_which_they_were_read() -> None:
    with PipelineTest(Keeps) as test:
        test.source(Keeps.clicks).push(Click("a", 1), Click("b", None))
        assert source_keys_wanted(test._run.graph, "clicks")
        assert test.sink(Keeps.times).read() == [Click("a", 1)]
        assert test.sink(Keeps.rejected).read() == [Click("b", None)]


steps = st.lists(
    st.one_of(
        st.tuples(st.just("push"), st.integers(0, 2), st.integers(1, 5)),
        st.just(("checkpoint",)),
        st.tuples(st.just("crash"), st.none() | st.integers(1, 4)),
    ),
    max_size=25,
)
SETUPS = st.builds(
    Setup, parallelism=st.integers(1, 4), batch=st.integers(1, 5), seed=st.integers(0, 1000)
)


@given(SETUPS, steps, st.lists(st.integers(0, DELAY_MS), min_size=125, max_size=125))
def test_no_record_is_late_and_no_watermark_goes_back_at_any_parallelism_and_crash(
    setup: Setup, drawn: list[Any], jitter: list[int]
) -> None:
    """Records come in any order within the delay, in any partition and batch."""
    number = 0
    with PipelineTest(Bare, setup) as test:
        for partition in range(3):
            test.source(Bare.clicks, partition=partition)
        for step in drawn:
            if step[0] == "push":
                clicks = []
                for _ in range(step[2]):
                    at_ms = 7 * number + DELAY_MS - jitter[number]
                    clicks.append(Click("abc"[number % 3], at_ms, number))
                    number += 1
                test.source(Bare.clicks, partition=step[1]).push(*clicks)
            elif step[0] == "checkpoint":
                test.checkpoint()
            else:
                test.crash(parallelism=step[1])
        found = test.sink(Bare.seen).read()
    records = [each for each in found if each.number >= 0]
    assert sorted(each.number for each in records) == list(range(number))
    assert not [each for each in records if each.at_ms <= each.watermark_ms]
    by_key: dict[str, list[Seen]] = defaultdict(list)
    for each in found:
        by_key[each.key].append(each)
    for of_key in by_key.values():
        watermarks = [each.watermark_ms for each in of_key]
        assert watermarks == sorted(watermarks)
