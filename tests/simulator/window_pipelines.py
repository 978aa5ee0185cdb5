"""The pipelines with windows that simulated clusters run.

A firing writes the names of the records of its window, and the late stream the name of each late
record. Both go through one more keyed step, which numbers the entries of each key. So the output of
a key is the log of its windows, and `window_model.py` judges it. The firings are in their order in
it, and so are the late records. There is no order between both: they come through two channels.

A run draws its windows (`WindowSettings`) and patches `SETTINGS`, because a pipeline is declared
before the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from tests.simulator import pipelines
from tests.simulator.pipelines import IN_A, IN_B, OUT_A, Event, Shape
from tests.simulator.timed_pipelines import Entry, TimedEvent, WindowSettings, timed_source
from tidegate.api.connectors.kafka_sink import KafkaSink
from tidegate.api.functions import Context, KeyedProcess
from tidegate.api.pipeline import Pipeline
from tidegate.api.records.formats import Json
from tidegate.api.state.state import ValueState
from tidegate.api.steps.streams import Stream
from tidegate.api.windows.aggregates import Aggregate, Collect, Count, Sum
from tidegate.api.windows.triggers import (
    AfterWatermark,
    Every,
    EveryCount,
    Repeat,
    Repeatedly,
    TimeDomain,
)
from tidegate.api.windows.windows import (
    Calendar,
    Global,
    Session,
    Sliding,
    Tumbling,
    Window,
    WindowContext,
    WindowProcess,
)

TUMBLING, SLIDING, SESSION, GLOBAL = "tumbling", "sliding", "session", "global"
CALENDAR: Final = "calendar"
TOGETHER: Final = "*"
"""The key of the entries of windows of all records."""
WINDOW, LATE = "window", "late"
"""The kinds of entries."""
NAMES_MAX: Final = 1_000_000
"""Limit of `Collect`, which no window of a run reaches."""
WIDER: Final = 4
"""The size of the second windows of a pipeline is this multiple of the size of the first ones."""

SETTINGS = WindowSettings(
    kind=TUMBLING,
    size_ms=500,
    every_ms=500,
    lateness_ms=0,
    process=False,
    collects=False,
    early=0,
    late=1,
    twice=False,
)
"""The windows of the run."""


def firing_name(entry: Entry) -> str:
    """Return the name of a firing as a record of the second windows."""
    parts = entry.group, entry.start_ms, entry.end_ms, entry.number, entry.amount, entry.firing
    return "/".join(map(str, parts))


class Names(Aggregate[Any, list[tuple[int, str]], list[str]]):
    """The names that `Collect` would give. With it, windows lie in the rows of their keys."""

    def create(self) -> list[tuple[int, str]]:
        return []

    def add(self, accumulator: list[tuple[int, str]], record: Any, /) -> list[tuple[int, str]]:
        accumulator.append(_time_and_name(record))
        return accumulator

    def merge(
        self, accumulator: list[tuple[int, str]], other: list[tuple[int, str]], /
    ) -> list[tuple[int, str]]:
        return accumulator + other

    def result(self, accumulator: list[tuple[int, str]], /) -> list[str]:
        return [name for _, name in sorted(accumulator)]


def _time_and_name(record: TimedEvent | Entry) -> tuple[int, str]:
    if isinstance(record, TimedEvent):
        return record.at_ms, record.name
    return record.end_ms - 1, firing_name(record)


def _fired(
    window: Window[Any], records: Sequence[Any], total: int, amount: int, stage: int
) -> Entry:
    names = tuple(each if isinstance(each, str) else _time_and_name(each)[1] for each in records)
    key = TOGETHER if window.key is None else window.key
    return Entry(
        "",
        key,
        amount,
        key,
        total=total,
        kind=WINDOW,
        stage=stage,
        start_ms=window.start_ms,
        end_ms=window.end_ms,
        firing=window.firing,
        number=window.number,
        names=names,
    )


class Collected(WindowProcess[Any, TimedEvent, Entry]):
    """A window function that writes what the aggregates write, and the watermark that it sees."""

    def open(self) -> None:
        pipelines.connect()

    def process(self, records: Sequence[TimedEvent], ctx: WindowContext[Any]) -> Iterable[Entry]:
        pipelines.work()
        amount = sum(each.amount for each in records)
        entry = _fired(ctx.window, records, len(records), amount, 1)
        yield msgspec.structs.replace(entry, window_watermark_ms=ctx.watermark_ms)


class Number(KeyedProcess[str, Entry, Entry]):
    """A keyed step that numbers the entries of each key and adds the times that it sees."""

    count = ValueState(int, default=0)

    def open(self) -> None:
        pipelines.connect()

    def process(self, entry: Entry, ctx: Context[str]) -> Iterable[Entry]:
        pipelines.work()
        self.count.value += 1
        yield msgspec.structs.replace(
            entry,
            count=self.count.value,
            timestamp_ms=ctx.timestamp_ms,
            watermark_ms=ctx.watermark_ms,
        )


class Pass(KeyedProcess[str, TimedEvent, TimedEvent]):
    """A keyed step that passes its records on."""

    def process(self, event: TimedEvent, ctx: Context[str]) -> Iterable[TimedEvent]:
        del ctx
        pipelines.work()
        yield event


def _late(event: TimedEvent) -> Entry:
    pipelines.work()
    key = TOGETHER if SETTINGS.together else event.key
    return Entry("", key, event.amount, key, kind=LATE, stage=1, names=(event.name,))


def _late_firing(entry: Entry) -> Entry:
    pipelines.work()
    names = (firing_name(entry),)
    return Entry("", entry.key[:1], 0, entry.key[:1], kind=LATE, stage=2, names=names)


def _records() -> Any:
    return Collect(at_most=NAMES_MAX) if SETTINGS.collects else Names()


def _trigger() -> Any:
    early = _repeat(SETTINGS.early, SETTINGS.early_ms)
    late = _repeat(SETTINGS.late, SETTINGS.late_ms)
    if SETTINGS.repeats and early is not None:
        return Repeatedly(early, accumulate=SETTINGS.accumulates)
    return AfterWatermark(early=early, late=late, accumulate=SETTINGS.accumulates)


def _repeat(records: int, period_ms: int) -> Repeat | None:
    time: TimeDomain = "processing" if SETTINGS.processing else "event"
    if period_ms:
        return Every(f"{period_ms} ms", time=time)
    return EveryCount(records) if records else None


def windowed(events: Stream[TimedEvent]) -> Stream[Entry]:
    """Return the numbered entries of the windows of the run."""
    settings = SETTINGS
    size = f"{settings.size_ms} ms"
    assigner: Any = Tumbling(size)
    if settings.kind == SESSION:
        assigner = Session(size)
    elif settings.kind == SLIDING:
        assigner = Sliding(size, f"{settings.every_ms} ms")
    elif settings.kind == GLOBAL:
        assigner = Global()
    elif settings.kind == CALENDAR:
        assigner = Calendar("day", zone=settings.zone)
    by_key = events.key_by(lambda event: event.key)
    windows: Any = (events.window_all if settings.together else by_key.window)(
        assigner,
        allowed_lateness=f"{settings.lateness_ms} ms",
        trigger=None if settings.kind == SLIDING else _trigger(),
    )
    if settings.process:
        results = windows.process(Collected(), uid="windows")
    else:
        results = windows.aggregate(
            _records(),
            Count(),
            Sum(lambda event: event.amount, returns=int),
            uid="windows",
            into=lambda window, records, count, amount: _fired(window, records, count, amount, 1),
            returns=Entry,
        )
    entries = results.union(results.late.map(_late))
    numbered: Stream[Entry] = entries.key_by(lambda entry: entry.key).process(
        Number(), uid="number"
    )
    return numbered


class Windowed(Pipeline, name="windowed"):
    """One source and one step with windows."""

    events = timed_source(IN_A)
    entries = KafkaSink(OUT_A, value=Json(Entry), record_key=lambda entry: entry.key)

    def define(self) -> None:
        windowed(self.events).to(self.entries)


class WindowedUnion(Pipeline, name="windowed-union"):
    """Two sources and one step with windows."""

    left = timed_source(IN_A)
    right = timed_source(IN_B)
    entries = KafkaSink(OUT_A, value=Json(Entry), record_key=lambda entry: entry.key)

    def define(self) -> None:
        united = self.left.union(self.right)
        windowed(united).to(self.entries)


class WindowedBehind(Pipeline, name="windowed-behind"):
    """A step with windows behind another keyed step of another key."""

    events = timed_source(IN_A)
    entries = KafkaSink(OUT_A, value=Json(Entry), record_key=lambda entry: entry.key)

    def define(self) -> None:
        passed = self.events.key_by(lambda event: event.key[:1], returns=str).process(
            Pass(), uid="pass"
        )
        windowed(passed).to(self.entries)


class WindowedTwice(Pipeline, name="windowed-twice"):
    """Windows, and wider tumbling windows of their results by the first letter of the key."""

    events = timed_source(IN_A)
    entries = KafkaSink(OUT_A, value=Json(Entry), record_key=lambda entry: entry.key)

    def define(self) -> None:
        first = windowed(self.events)
        first.to(self.entries)
        firings = first.filter(lambda entry: entry.kind == WINDOW)
        wider = firings.key_by(lambda entry: entry.key[:1], returns=str).window(
            Tumbling(f"{WIDER * SETTINGS.size_ms} ms"),
            allowed_lateness=f"{SETTINGS.lateness_ms} ms",
        )
        second = wider.aggregate(
            _records(),
            Count(),
            Sum(lambda entry: entry.amount, returns=int),
            uid="wider",
            into=lambda window, records, count, amount: _fired(window, records, count, amount, 2),
            returns=Entry,
        )
        numbered = second.union(second.late.map(_late_firing)).key_by(lambda entry: entry.key)
        numbered.process(Number(), uid="number-wider").to(self.entries)


def no_result(event: Event) -> tuple[str, ...]:
    """Return that a record has no result of its own: its windows have."""
    del event
    return ()


WINDOW_SHAPES: Final[tuple[Shape, ...]] = tuple(
    Shape(pipeline, sources, {OUT_A: no_result}, frozenset(), timed=True)
    for pipeline, sources in (
        (Windowed, (IN_A,)),
        (WindowedUnion, (IN_A, IN_B)),
        (WindowedBehind, (IN_A,)),
        (WindowedTwice, (IN_A,)),
    )
)
