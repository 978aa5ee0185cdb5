"""Event time in `PipelineTest`: what a function sees, along chains, exchanges and unions."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import pytest

from tidegate import (
    BoundedOutOfOrderness,
    ConsumerRecord,
    Context,
    Count,
    HeaderTime,
    Json,
    KafkaSink,
    KafkaSource,
    KeyedProcess,
    Monotonous,
    Pipeline,
    PipelineError,
    Process,
    ProcessContext,
    Tumbling,
    ValueState,
    Window,
    build,
)
from tidegate.errors import BadRecordError
from tidegate.stream_elements import MIN_MS
from tidegate.testing import FunctionHarness, PipelineTest


class Click(msgspec.Struct, frozen=True):
    key: str
    at_ms: int


class Seen(msgspec.Struct, frozen=True):
    key: str
    at_ms: int
    watermark_ms: int


class Look(Process[Click, Seen]):
    def process(self, record: Click, ctx: ProcessContext) -> Iterable[Seen]:
        yield Seen(record.key, ctx.timestamp_ms, ctx.watermark_ms)


class LookByKey(KeyedProcess[str, Click, Seen]):
    count = ValueState(int, default=0)

    def process(self, record: Click, ctx: Context[str]) -> Iterable[Seen]:
        self.count.value += 1
        yield Seen(ctx.key, ctx.timestamp_ms, ctx.watermark_ms)


def is_kept(click: Click) -> bool:
    return click.key != "dropped"


class Clicks(Pipeline, name="clicks"):
    clicks = KafkaSource(
        "clicks",
        value=Json(Click),
        event_time=lambda click: click.at_ms,
        watermarks=BoundedOutOfOrderness("10 ms"),
    )
    looked = KafkaSink("looked", value=Json(Seen))
    by_key = KafkaSink("by-key", value=Json(Seen))

    def define(self) -> None:
        kept = self.clicks.filter(is_kept).flat_map(lambda click: [click, click], returns=Click)
        kept.process(Look()).to(self.looked)
        kept.key_by(lambda click: click.key).process(LookByKey(), uid="look").to(self.by_key)


class Whole(Pipeline, name="whole"):
    clicks = KafkaSource.records(
        "clicks", value=Json(Click), event_time=HeaderTime("at"), watermarks=Monotonous()
    )
    seen = KafkaSink("seen", value=Json(Seen))

    def define(self) -> None:
        self.clicks.map(lambda record: record.value, returns=Click).process(Look()).to(self.seen)


def test_function_sees_the_time_of_its_record_and_the_watermark_before_it() -> None:
    with PipelineTest(Clicks) as test:
        test.source(Clicks.clicks).push(Click("a", 100))
        test.source(Clicks.clicks).push(Click("dropped", 300), Click("b", 200))
        test.source(Clicks.clicks).push(Click("a", 400))
        due = [Seen("a", 100, MIN_MS), Seen("b", 200, 89), Seen("a", 400, 289)]
        twice = [seen for seen in due for _ in range(2)]
        assert test.sink(Clicks.looked).read() == twice
        assert test.sink(Clicks.by_key).read() == twice


class Marks(KeyedProcess[str, Click, int]):
    count = ValueState(int, default=0)

    def process(self, record: Click, ctx: Context[str]) -> Iterable[int]:
        yield ctx.watermark_ms


class UnitedMarks(Pipeline, name="united-marks"):
    first = KafkaSource(
        "first", value=Json(Click), event_time=lambda c: c.at_ms, watermarks=Monotonous()
    )
    second = KafkaSource("second", value=Json(Click))
    seen = KafkaSink("seen", value=Json(int))

    def define(self) -> None:
        both = self.first.union(self.second)
        both.key_by(lambda click: click.key).process(Marks(), uid="marks").to(self.seen)


def test_input_without_watermarks_takes_no_part_in_a_union() -> None:
    with PipelineTest(UnitedMarks) as test:
        test.source(UnitedMarks.first).push(Click("a", 50))
        test.source(UnitedMarks.second).push(Click("a", 1))
        assert test.sink(UnitedMarks.seen).read() == [MIN_MS, 49]


def test_time_of_a_header_reaches_the_function() -> None:
    with PipelineTest(Whole) as test:
        for number, at in enumerate((b"70", b"90")):
            test.source(Whole.clicks).push_bytes(
                b'{"key": "a", "at_ms": %d}' % number, headers=(("at", at),)
            )
        assert [(each.at_ms, each.watermark_ms) for each in test.sink(Whole.seen).read()] == [
            (70, MIN_MS),
            (90, 69),
        ]


def test_pipeline_without_event_time_refuses_the_timestamp_with_the_remedy() -> None:
    class Timeless(Pipeline, name="timeless"):
        clicks = KafkaSource("clicks", value=Json(Click))
        seen = KafkaSink("seen", value=Json(Seen))

        def define(self) -> None:
            self.clicks.process(Look()).to(self.seen)

    with (
        PipelineTest(Timeless) as test,
        pytest.raises(PipelineError, match="Give each source in front of it event_time= or water"),
    ):
        test.source(Timeless.clicks).push(Click("a", 1))


class Timestamped(Pipeline, name="timestamped"):
    clicks = KafkaSource("clicks", value=Json(Click))
    copies = KafkaSink("copies", value=Json(Click), timestamps="event_time")

    def define(self) -> None:
        self.clicks.to(self.copies)


def test_sink_with_event_times_is_refused_if_a_source_has_none() -> None:
    with pytest.raises(PipelineError, match=r"records of 'clicks' have no event time\. Give each"):
        build(Timestamped)


def test_harness_gives_times_and_watermarks_to_a_function() -> None:
    with FunctionHarness(LookByKey()) as harness:
        assert harness.push("a", Click("a", 0), timestamp_ms=50) == [Seen("a", 50, MIN_MS)]
        harness.watermark(49)
        harness.watermark(30)
        assert harness.push("a", Click("a", 0), timestamp_ms=60) == [Seen("a", 60, 49)]


class Ahead(Pipeline, name="ahead"):
    clicks = KafkaSource(
        "clicks",
        value=Json(Click),
        event_time=lambda click: click.at_ms,
        watermarks=Monotonous(max_ahead="1 d"),
    )
    seen = KafkaSink("seen", value=Json(Seen))

    def define(self) -> None:
        self.clicks.process(Look()).to(self.seen)


def test_pushed_record_is_not_ahead_of_kafkas_timestamp() -> None:
    with PipelineTest(Ahead) as test:
        test.source(Ahead.clicks).push(Click("a", 1_700_000_000_000))
        assert len(test.sink(Ahead.seen).read()) == 1


class Hours(Pipeline, name="hours"):
    """Windows over Kafka's own timestamps."""

    clicks = KafkaSource.records(
        "clicks",
        value=Json(str),
        watermarks=BoundedOutOfOrderness("0 s"),
        on_bad_record="dead_letter",
        dead_letter_topic="dead",
    )
    hours = KafkaSink("hours", value=Json(tuple[int, int]))
    late = KafkaSink("late", value=Json(str))

    def define(self) -> None:
        by_value = self.clicks.map(value_of, returns=str).key_by(lambda _: "all", returns=str)
        counts = by_value.window(Tumbling("1 h")).aggregate(
            Count(), uid="counts", into=start_and_count
        )
        counts.to(self.hours)
        counts.late.to(self.late)


class StrictHours(Pipeline, name="strict-hours"):
    clicks = KafkaSource.records("clicks", value=Json(str), watermarks=Monotonous())
    out = KafkaSink("out", value=Json(str))

    def define(self) -> None:
        self.clicks.map(value_of, returns=str).to(self.out)


def value_of(record: ConsumerRecord[bytes | None, str]) -> str:
    return record.value or ""


def start_and_count(window: Window[str], count: int) -> tuple[int, int]:
    return window.start_ms, count


def at(timestamp_ms: int, offset: int) -> ConsumerRecord[bytes | None, str]:
    return ConsumerRecord(None, "click", "clicks", 0, offset, timestamp_ms)


def test_record_without_a_timestamp_is_a_bad_record_and_moves_no_watermark() -> None:
    with PipelineTest(Hours) as test:
        clicks = test.source(Hours.clicks)
        clicks.push(at(-1, 0), at(-1, 1))
        test.checkpoint().crash()
        clicks.push(at(5, 2), at(-1, 3), at(6, 4))
        clicks.push(at(-1, 5))
        test.drain()
        assert test.sink(Hours.hours).read() == [(0, 2)]
        assert test.sink(Hours.late).read() == []
        letters = test.dead_letters("dead")
        assert [dict(letter.headers)["tidegate.source.offset"] for letter in letters] == [
            *(b"0", b"1", b"3", b"5")
        ]


def test_record_without_a_timestamp_fails_a_source_without_a_policy() -> None:
    with (
        PipelineTest(StrictHours) as test,
        pytest.raises(BadRecordError, match="clicks-0 at offset 1: Kafka has no timestamp of it"),
    ):
        test.source(StrictHours.clicks).push(at(1, 0), at(-1, 1))


def test_times_before_1970_are_not_compared_with_a_timestamp_that_kafka_cannot_have() -> None:
    with PipelineTest(Ahead) as test:
        test.source(Ahead.clicks).push(Click("a", -5))
        assert [seen.at_ms for seen in test.sink(Ahead.seen).read()] == [-5]
