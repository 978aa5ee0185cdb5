"""A subtask whose first batches have refused records only: its results are those of the others.

Method: each kind of step runs behind each place that can refuse records. The run with the bad
records must give what a run without them gives, also after a checkpoint and a restore in which no
record has reached the step yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import msgspec
import pytest

from tidegate import (
    BoundedOutOfOrderness,
    Calendar,
    Collect,
    Context,
    CoProcess,
    Count,
    EventTimer,
    EveryCount,
    Fired,
    Global,
    Json,
    KafkaSink,
    KafkaSource,
    KeyedProcess,
    MapState,
    Pipeline,
    Process,
    ProcessContext,
    ProcessingTimer,
    Repeatedly,
    Session,
    SideOutput,
    Sliding,
    Stream,
    TopN,
    Tumbling,
    ValueState,
    WindowContext,
    WindowProcess,
)
from tidegate.testing import PipelineTest, Setup


class Event(msgspec.Struct, frozen=True):
    key: str
    at: int


class Result(msgspec.Struct, frozen=True):
    key: str
    count: int


class Counting(KeyedProcess[str, Event, Result]):
    side = SideOutput(Result)
    count = ValueState(int, default=0)

    def process(self, record: Event, ctx: Context[str]) -> Iterable[Result]:
        self.count.value += 1
        ctx.output(Counting.side, Result(ctx.key, -self.count.value))
        yield Result(ctx.key, self.count.value)


class TwoStates(KeyedProcess[str, Event, Result]):
    count = ValueState(int, default=0)
    seen = MapState(int, int)

    def process(self, record: Event, ctx: Context[str]) -> Iterable[Result]:
        self.count.value += 1
        self.seen[record.at] = self.count.value
        yield Result(ctx.key, self.count.value)


class Stateless(KeyedProcess[str, Event, Result]):
    def process(self, record: Event, ctx: Context[str]) -> Iterable[Result]:
        yield Result(ctx.key, 0)


class Timed(KeyedProcess[str, Event, Result]):
    count = ValueState(int, default=0)
    by_event = EventTimer()
    by_clock = ProcessingTimer()

    def process(self, record: Event, ctx: Context[str]) -> Iterable[Result]:
        self.count.value += 1
        self.by_event.set(ctx.timestamp_ms + 1_000)
        self.by_clock.set(ctx.processing_time_ms + 1_000)
        return ()

    def on_timer(self, fired: Fired, ctx: Context[str]) -> Iterable[Result]:
        yield Result(ctx.key, self.count.value)


class Both(CoProcess[str, Event, Event, Result]):
    count = ValueState(int, default=0)

    def process_left(self, record: Event, ctx: Context[str]) -> Iterable[Result]:
        self.count.value += 1
        yield Result(ctx.key, self.count.value)

    def process_right(self, record: Event, ctx: Context[str]) -> Iterable[Result]:
        self.count.value += 10
        yield Result(ctx.key, self.count.value)


class Whole(WindowProcess[str, Event, Result]):
    def process(self, records: Sequence[Event], ctx: WindowContext[str]) -> Iterable[Result]:
        yield Result(ctx.window.key, len(records))


class Plain(Process[Event, Result]):
    def process(self, record: Event, ctx: ProcessContext) -> Iterable[Result]:
        yield Result(record.key, 0)


def is_good(event: Event) -> Event:
    if event.key == "bad":
        raise ValueError("bad")
    return event


def key_of(event: Event) -> str:
    return is_good(event).key


def some_key(event: Event) -> str:
    return event.key


def wrong_type(event: Event) -> Any:
    return None if event.key == "bad" else event


def counted(keyed: Any, window: Any, **options: Any) -> Stream[Result]:
    into = options.pop("into", lambda w, count: Result(w.key, count))
    aggregate = options.pop("aggregate", Count())
    found: Stream[Result] = keyed.window(window, **options).aggregate(
        aggregate, uid="step", into=into
    )
    return found


STEPS: dict[str, Callable[[Any], Stream[Result]]] = {
    "one state": lambda keyed: keyed.process(Counting(), uid="step"),
    "one state, tolerant": lambda keyed: keyed.process(Counting(), uid="step", on_error="skip"),
    "two states": lambda keyed: keyed.process(TwoStates(), uid="step"),
    "two states, tolerant": lambda keyed: keyed.process(TwoStates(), uid="step", on_error="skip"),
    "no state": lambda keyed: keyed.process(Stateless(), uid="step"),
    "timers": lambda keyed: keyed.process(Timed(), uid="step"),
    "timers, tolerant": lambda keyed: keyed.process(Timed(), uid="step", on_error="skip"),
    "left": lambda keyed: keyed.connect(keyed).process(Both(), uid="step"),
    "tumbling": lambda keyed: counted(keyed, Tumbling("1 s")),
    "by clock": lambda keyed: counted(keyed, Tumbling("1 s", time="processing")),
    "calendar": lambda keyed: counted(keyed, Calendar("hour", zone="UTC")),
    "sliding": lambda keyed: counted(keyed, Sliding("2 s", "1 s")),
    "session": lambda keyed: counted(keyed, Session("1 s")),
    "global": lambda keyed: counted(keyed, Global(), trigger=Repeatedly(EveryCount(1))),
    "rows": lambda keyed: counted(
        keyed,
        Tumbling("1 s"),
        aggregate=Collect(at_most=3),
        into=lambda w, records: Result(w.key, len(records)),
    ),
    "sessions of records": lambda keyed: counted(
        keyed,
        Session("1 s"),
        aggregate=TopN(2, lambda event: event.at),
        into=lambda w, records: Result(w.key, len(records)),
    ),
    "window function": lambda keyed: keyed.window(Tumbling("1 s")).process(Whole(), uid="step"),
}

REFUSERS: dict[str, Callable[[Stream[Event]], Any]] = {
    "key_by": lambda stream: stream.key_by(key_of, on_error="skip"),
    "map": lambda stream: stream.map(is_good, on_error="skip").key_by(some_key),
    "type": lambda stream: stream.map(wrong_type, returns=Event, on_error="skip").key_by(some_key),
    "source": lambda stream: stream.key_by(some_key),
    "time": lambda stream: stream.with_timestamps(
        event_time=lambda event: is_good(event).at,
        watermarks=BoundedOutOfOrderness("0 s"),
        uid="time",
    ).key_by(some_key),
}
"""The places that refuse records. The source refuses what is no `Event`."""

GOOD = [Event("a", 2), Event("b", 3), Event("a", 3_500)]


def results(
    step: Callable[[Any], Stream[Result]],
    refuser: str,
    *,
    parallelism: int,
    with_bad: bool,
) -> list[Result]:
    class Job(Pipeline, name="job"):
        events = KafkaSource(
            "events",
            value=Json(Event),
            event_time=lambda event: event.at,
            watermarks=BoundedOutOfOrderness("0 s"),
            on_bad_record="skip",
        )
        out = KafkaSink("out", value=Json(Result))

        def define(self) -> None:
            step(REFUSERS[refuser](self.events)).to(self.out)

    def push_bad(test: PipelineTest) -> None:
        at: Any = "no time" if refuser == "source" else 1
        bad = Event("bad", at)
        if with_bad:
            test.source(Job.events).push(bad, bad)

    with PipelineTest(Job, Setup(parallelism=parallelism)) as test:
        test.source(Job.events)
        push_bad(test)
        test.watermark(1)
        test.checkpoint()
        push_bad(test)
        test.crash(parallelism=3 - parallelism)
        push_bad(test)
        for record in GOOD:
            test.source(Job.events).push(record)
            push_bad(test)
            test.advance("2 s")
        test.checkpoint().crash()
        push_bad(test)
        test.drain()
        if with_bad:
            assert test.counters.skipped >= 12
        return sorted(test.sink(Job.out).read(), key=lambda each: (each.key, each.count))


@pytest.mark.parametrize("step", STEPS)
def test_step_that_gets_no_record_of_its_first_batches_works_as_without_them(step: str) -> None:
    expected = results(STEPS[step], "key_by", parallelism=1, with_bad=False)
    assert expected
    for refuser in REFUSERS:
        assert results(STEPS[step], refuser, parallelism=1, with_bad=True) == expected, refuser


@pytest.mark.parametrize("step", ["one state", "timers", "tumbling", "left"])
def test_it_does_so_at_two_subtasks_too(step: str) -> None:
    expected = results(STEPS[step], "key_by", parallelism=2, with_bad=False)
    assert results(STEPS[step], "key_by", parallelism=2, with_bad=True) == expected


class Branches(Pipeline, name="branches"):
    """One stream with several readers: sinks with a policy, steps, and a side output."""

    events = KafkaSource("events", value=Json(Event))
    plain = KafkaSink("plain", value=Json(Result))
    strict = KafkaSink("strict", value=Json(Event), record_key=key_of, on_error="skip")
    counts = KafkaSink("counts", value=Json(Result))
    side = KafkaSink("side", value=Json(Result))

    def define(self) -> None:
        self.events.to(self.strict)
        self.events.map(is_good, on_error="dead_letter", dead_letter_topic="dead").process(
            Plain()
        ).to(self.plain)
        keyed = self.events.key_by(key_of, on_error="skip")
        counted = keyed.process(Counting(), uid="step")
        counted.to(self.counts)
        counted.side_output(Counting.side).to(self.side)


@pytest.mark.parametrize("parallelism", [1, 2])
def test_branches_sinks_and_side_outputs_get_nothing_of_first_batches_and_then_all(
    parallelism: int,
) -> None:
    with PipelineTest(Branches, Setup(parallelism=parallelism)) as test:
        test.source(Branches.events).push(Event("bad", 0), Event("bad", 1))
        test.checkpoint().crash(parallelism=3 - parallelism)
        test.source(Branches.events).push(Event("bad", 2))
        test.checkpoint()
        test.source(Branches.events).push(Event("a", 3))
        assert test.sink(Branches.plain).read() == [Result("a", 0)]
        assert test.sink(Branches.strict).read() == [Event("a", 3)]
        assert test.sink(Branches.counts).read() == [Result("a", 1)]
        assert test.sink(Branches.side).read() == [Result("a", -1)]
        assert len(test.dead_letters("dead")) == 3


@dataclass
class Sealed:
    """A value of a state. No image of it can be taken once it is sealed."""

    sealed: bool = False

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        if self.sealed:
            raise ValueError("sealed")
        return type(self)()


class Seals(KeyedProcess[str, Event, int]):
    value = ValueState(Sealed, factory=Sealed)

    def process(self, record: Event, ctx: Context[str]) -> Iterable[int]:
        self.value.value.sealed = record.key == "sealed"
        yield record.at


class Sealing(Pipeline, name="sealing"):
    events = KafkaSource("events", value=Json(Event))
    out = KafkaSink("out", value=Json(int))

    def define(self) -> None:
        self.events.key_by(some_key).process(Seals(), uid="seals", on_error="skip").to(self.out)


def test_first_records_of_an_attempt_are_refused_before_the_function_is_called() -> None:
    with PipelineTest(Sealing) as test:
        test.source(Sealing.events).push(Event("sealed", 1))
        test.checkpoint().crash()
        test.source(Sealing.events).push(Event("sealed", 2))
        test.source(Sealing.events).push(Event("sealed", 3), Event("a", 4))
        assert test.sink(Sealing.out).read() == [1, 4]
        assert test.counters.skipped == 2
