"""The pipelines with event time that simulated clusters run, and the log that each must write.

A record says which timers of its key a function sets, moves and cancels. The function writes an
entry for each call: for each record, and for each timer that fires. An entry has the number of the
call for its key, and the times that the function saw. So the output of a key is the log of what
happened to it, and `timed_results.py` repeats the log with a model of the key's timers.

A step with windows writes entries of another `kind` (`window_pipelines.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from tests.simulator import pipelines
from tests.simulator.pipelines import IN_A, IN_B, OUT_A, Event, Result, Shape
from tidegate.api.connectors.kafka_sink import KafkaSink
from tidegate.api.connectors.kafka_source import KafkaSource
from tidegate.api.functions import Context, CoProcess, KeyedProcess
from tidegate.api.pipeline import Pipeline
from tidegate.api.records.formats import Json
from tidegate.api.state.state import ValueState
from tidegate.api.time.timers import EventTimer, EventTimers, Fired, ProcessingTimer
from tidegate.api.time.watermarks import TIME_MAX_MS, BoundedOutOfOrderness

SILENCE, DEADLINE, ALARM = "silence", "deadline", "alarm"
"""The timers of a key: an event timer, event timers with names, and a processing timer."""
CANCELS, CANCELED, MOVES, MOVED = "a", "b", "c", "d"
"""Names of deadlines. When the first fires, it cancels the second. The third moves the fourth."""
DEADLINES: Final = (CANCELS, CANCELED, MOVES, MOVED)
MOVE_MS: Final = 300
"""The time from a deadline that moves another to the new time of that one."""
REPEAT_MS: Final = 150
"""The time from a firing to the next one, while the key has repetitions left."""
STAMP: Final = "stamp"
"""The step with `with_timestamps` (`stamped_pipelines.py`)."""
REJECTED: Final = "rejected"
"""The kind of an entry of a record that this step cannot use."""
UNTIMED_MS: Final = TIME_MAX_MS + 1
"""An event time that no strategy can use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowSettings:
    """The windows of a run (`window_pipelines.py`)."""

    kind: str
    size_ms: int
    """The size of the windows, or the gap of sessions."""
    every_ms: int
    """The step of sliding windows. For others, the size."""
    lateness_ms: int
    process: bool
    """Whether a `WindowProcess` gets the records, and not aggregates."""
    collects: bool
    """Whether the aggregates keep records, so that tumbling windows have rows of their own."""
    early: int
    """After how many records a window fires before its end; 0 if it does not."""
    twice: bool
    """Whether wider windows follow."""
    late: int
    """After how many late records a window fires."""
    early_ms: int = 0
    """The period of the firings before its end, in place of a number of records."""
    late_ms: int = 0
    """The period of the firings for late records, in place of a number of records."""
    processing: bool = False
    """Whether the periods are of processing time."""
    repeats: bool = False
    """Whether the trigger is `Repeatedly`: the early firings do not end with the window."""
    accumulates: bool = True
    """Whether a firing has the records of those before it."""
    together: bool = False
    """Whether the windows are of all records (`window_all`)."""
    zone: str = ""
    """The zone of local days."""

    def __str__(self) -> str:
        step = f" every {self.every_ms}" if self.every_ms != self.size_ms else ""
        triggers = f" early {self.early}" * bool(self.early) + f" late {self.late}"
        triggers += f" early {self.early_ms} ms" * bool(self.early_ms)
        triggers += f" late {self.late_ms} ms" * bool(self.late_ms)
        triggers += " in processing time" * self.processing + " repeatedly" * self.repeats
        triggers += " not accumulating" * (not self.accumulates) + " of all keys" * self.together
        return (
            f"{self.kind} {self.zone or f'{self.size_ms} ms'}{step} lateness {self.lateness_ms} ms"
            f"{' process' * self.process}{' collect' * self.collects}{triggers}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EventTime:
    """The event time of a run (`event_time_plan.py`)."""

    delay_ms: int
    """The bound of the strategy: how far a record may be behind its partition."""
    idle_after_ms: int | None
    alarms: bool
    """Whether there are processing timers."""
    drains: bool
    """Whether the last job run fires all event timers at its end."""
    partitions: tuple[tuple[str, int], ...]
    """All partitions of the sources."""
    limits: Mapping[str, int]
    """The patched limits, by qualified name."""
    windows: WindowSettings | None = None
    """The windows of the pipeline, if it has a step with windows."""
    stamped: bool = False
    """Whether event times and watermarks come from `with_timestamps`, and not from the source."""

    def __str__(self) -> str:
        limits = {name.rsplit(".", 1)[1]: size for name, size in self.limits.items()}
        return (
            f"event time with a delay of {self.delay_ms} ms, idle after {self.idle_after_ms}, "
            f"{'processing timers, ' * self.alarms}{'a drain, ' * self.drains}"
            f"{'with_timestamps, ' * self.stamped}"
            f"{f'{self.windows}, ' if self.windows else ''}{limits}"
        )


class TimerChange(msgspec.Struct, frozen=True):
    """A timer that a record sets, moves or cancels."""

    timer: str
    name: str
    at_ms: int | None
    """Its time; None cancels it. For a processing timer, the time from now."""


class TimedEvent(Event, frozen=True):
    """An input record with an event time."""

    at_ms: int
    changes: tuple[TimerChange, ...] = ()
    repeats: int | None = None
    """Number of times that `silence` is set again when it fires. None changes nothing."""


def has_time(event: Event) -> bool:
    """Return whether a record has an event time that a strategy can use."""
    return isinstance(event, TimedEvent) and event.at_ms != UNTIMED_MS


class Entry(Result, frozen=True):
    """One call of a function: a result of a record, or without a name that of a timer.

    `count` is the number of the call for the key `group`.
    """

    timer: str = ""
    """The timer that fires; empty for a record."""
    timer_name: str = ""
    at_ms: int = 0
    """The time for which the timer was set."""
    timestamp_ms: int = 0
    watermark_ms: int = 0
    processing_ms: int = 0
    relay: str = ""
    """The key of the second step, if there is one."""
    relay_count: int = 0
    relay_timestamp_ms: int = 0
    relay_watermark_ms: int = 0
    kind: str = ""
    """`WINDOW` or `LATE` for entries of a step with windows; `REJECTED`."""
    stage: int = 0
    """The number of the step with windows."""
    start_ms: int = 0
    end_ms: int = 0
    firing: str = ""
    number: int = 0
    names: tuple[str, ...] = ()
    """The records of a firing, by event time, or the late record."""
    window_watermark_ms: int | None = None
    """The watermark of the step with windows, if its function sees it."""


class _Calls:
    """The calls of a function with timers. A subclass declares the states and the timers."""

    count: Any
    repeats: Any
    silence: Any
    deadline: Any
    alarm: Any

    def open(self) -> None:
        pipelines.connect()

    def read(self, event: TimedEvent, ctx: Context[str]) -> Iterable[Entry]:
        """Set, move and cancel the timers that a record names."""
        pipelines.work()
        now_ms = ctx.processing_time_ms
        if event.repeats is not None:
            self.repeats.value = event.repeats
        for change in event.changes:
            self._change(change, now_ms)
        yield self._entry(ctx, now_ms, name=event.name, amount=event.amount)

    def on_timer(self, fired: Fired, ctx: Context[str]) -> Iterable[Entry]:
        pipelines.work()
        declared: Any = type(self)
        name = fired.name(declared.deadline)
        timer = SILENCE if fired.of(declared.silence) else ALARM if name is None else DEADLINE
        if timer == SILENCE and self.repeats.value:
            self.repeats.value -= 1
            self.silence.set(fired.at_ms + REPEAT_MS)
        if name == CANCELS:
            self.deadline.cancel(CANCELED)
        elif name == MOVES:
            self.deadline.set(MOVED, fired.at_ms + MOVE_MS)
        yield self._entry(
            ctx, ctx.processing_time_ms, timer=timer, timer_name=name or "", at_ms=fired.at_ms
        )

    def _change(self, change: TimerChange, now_ms: int) -> None:
        at_ms = change.at_ms
        if change.timer == DEADLINE:
            if at_ms is None:
                self.deadline.cancel(change.name)
            else:
                self.deadline.set(change.name, at_ms)
            return
        timer = self.silence if change.timer == SILENCE else self.alarm
        if at_ms is None:
            timer.cancel()
        else:
            timer.set(at_ms if change.timer == SILENCE else now_ms + at_ms)

    def _entry(
        self,
        ctx: Context[str],
        now_ms: int,
        *,
        name: str = "",
        amount: int = 0,
        timer: str = "",
        timer_name: str = "",
        at_ms: int = 0,
    ) -> Entry:
        self.count.value += 1
        return Entry(
            name,
            ctx.key,
            amount,
            ctx.key,
            self.count.value,
            timer=timer,
            timer_name=timer_name,
            at_ms=at_ms,
            timestamp_ms=ctx.timestamp_ms,
            watermark_ms=ctx.watermark_ms,
            processing_ms=now_ms,
        )


class Watch(_Calls, KeyedProcess[str, TimedEvent, Entry]):
    """A keyed step that does with its timers what the records say."""

    count = ValueState(int, default=0)
    repeats = ValueState(int, default=0)
    silence = EventTimer()
    deadline = EventTimers(str)

    def process(self, event: TimedEvent, ctx: Context[str]) -> Iterable[Entry]:
        return self.read(event, ctx)


class WatchAlarms(_Calls, KeyedProcess[str, TimedEvent, Entry]):
    """The same with a processing timer."""

    count = ValueState(int, default=0)
    repeats = ValueState(int, default=0)
    silence = EventTimer()
    deadline = EventTimers(str)
    alarm = ProcessingTimer()

    def process(self, event: TimedEvent, ctx: Context[str]) -> Iterable[Entry]:
        return self.read(event, ctx)


class WatchSides(_Calls, CoProcess[str, TimedEvent, TimedEvent, Entry]):
    """The same with two inputs, which share the timers of a key."""

    count = ValueState(int, default=0)
    repeats = ValueState(int, default=0)
    silence = EventTimer()
    deadline = EventTimers(str)

    def process_left(self, event: TimedEvent, ctx: Context[str]) -> Iterable[Entry]:
        return self.read(event, ctx)

    def process_right(self, event: TimedEvent, ctx: Context[str]) -> Iterable[Entry]:
        return self.read(event, ctx)


class Relay(KeyedProcess[str, Entry, Entry]):
    """A second keyed step, which adds the times that it sees."""

    count = ValueState(int, default=0)

    def open(self) -> None:
        pipelines.connect()

    def process(self, entry: Entry, ctx: Context[str]) -> Iterable[Entry]:
        pipelines.work()
        self.count.value += 1
        yield msgspec.structs.replace(
            entry,
            relay=ctx.key,
            relay_count=self.count.value,
            relay_timestamp_ms=ctx.timestamp_ms,
            relay_watermark_ms=ctx.watermark_ms,
        )


def event_ms(event: TimedEvent) -> int:
    """Return the event time of a record."""
    return event.at_ms


def timed_source(topic: str) -> KafkaSource[TimedEvent]:
    """Return a source. Each run patches its strategy (`event_time_plan.py`)."""
    return KafkaSource(
        topic,
        value=Json(TimedEvent),
        event_time=event_ms,
        watermarks=BoundedOutOfOrderness("0 s"),
    )


class Watched(Pipeline, name="watched"):
    """One source and one step with timers."""

    events = timed_source(IN_A)
    entries = KafkaSink(OUT_A, value=Json(Entry), record_key=lambda entry: entry.key)

    def define(self) -> None:
        by_key = self.events.key_by(lambda event: event.key)
        by_key.process(Watch(), uid="watch").to(self.entries)


class WatchedAlarms(Pipeline, name="watched-alarms"):
    """One source and one step that also has a processing timer. No backfill can run it."""

    events = timed_source(IN_A)
    entries = KafkaSink(OUT_A, value=Json(Entry), record_key=lambda entry: entry.key)

    def define(self) -> None:
        by_key = self.events.key_by(lambda event: event.key)
        by_key.process(WatchAlarms(), uid="watch").to(self.entries)


class WatchedUnion(Pipeline, name="watched-union"):
    """Two sources and one step with timers."""

    left = timed_source(IN_A)
    right = timed_source(IN_B)
    entries = KafkaSink(OUT_A, value=Json(Entry), record_key=lambda entry: entry.key)

    def define(self) -> None:
        by_key = self.left.union(self.right).key_by(lambda event: event.key)
        by_key.process(Watch(), uid="watch").to(self.entries)


class WatchedSides(Pipeline, name="watched-sides"):
    """Two sources and one step with two inputs and timers."""

    left = timed_source(IN_A)
    right = timed_source(IN_B)
    entries = KafkaSink(OUT_A, value=Json(Entry), record_key=lambda entry: entry.key)

    def define(self) -> None:
        left, right = (each.key_by(lambda event: event.key) for each in (self.left, self.right))
        left.connect(right).process(WatchSides(), uid="watch").to(self.entries)


class Relayed(Pipeline, name="relayed"):
    """A step with timers, and behind an exchange a second step that sees their results."""

    events = timed_source(IN_A)
    entries = KafkaSink(OUT_A, value=Json(Entry), record_key=lambda entry: entry.relay)

    def define(self) -> None:
        by_key = self.events.key_by(lambda event: event.key)
        watched = by_key.process(Watch(), uid="watch")
        watched.key_by(lambda entry: entry.key[:1]).process(Relay(), uid="relay").to(self.entries)


def _one(event: Event) -> tuple[str, ...]:
    return (event.name,)


SIDES: Final = Shape(WatchedSides, (IN_A, IN_B), {OUT_A: _one}, frozenset(), timed=True)
"""A shape that replaces `WatchedUnion` in some runs."""

ALARMS: Final = Shape(WatchedAlarms, (IN_A,), {OUT_A: _one}, frozenset(), timed=True)
"""A shape that replaces `Watched` in some runs without backfills."""

TIMED_SHAPES: Final[tuple[Shape, ...]] = (
    Shape(Watched, (IN_A,), {OUT_A: _one}, frozenset(), timed=True),
    Shape(WatchedUnion, (IN_A, IN_B), {OUT_A: _one}, frozenset(), timed=True),
    Shape(Relayed, (IN_A,), {OUT_A: _one}, frozenset(), timed=True),
)
