"""Pipelines that together use the whole API: every kind of step, state, policy and guarantee.

The output of each pipeline for a key depends only on the records of one partition, unless
`cases.py` says otherwise. Therefore a keyed step that follows a keyed step has a finer key. The
records of a coarser key would come from several subtasks, and their order would differ between
runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal

import msgspec

from tidegate import (
    ConsumerRecord,
    Context,
    Json,
    KafkaSink,
    KafkaSource,
    KeyedProcess,
    ListState,
    MapState,
    Pipeline,
    Process,
    ProcessContext,
    ProducerRecord,
    SideOutput,
    Utf8,
    ValueState,
)


class Event(msgspec.Struct, frozen=True):
    """An input event. No two events have the same name."""

    name: str
    key: str
    amount: int


class Result(msgspec.Struct, frozen=True):
    """An output: the event, and the contents of the state of `group` after the event."""

    name: str
    key: str
    amount: int
    group: str = ""
    count: int = 0
    total: int = 0


class MutableEvent(msgspec.Struct):
    """An event that user code changes in place."""

    name: str
    key: str
    amount: int


# --- without state ------------------------------------------------------------------------------


Whole = ConsumerRecord[str, Event | None]


class BySign(Process[Event, Event]):
    """A step that sends odd amounts to a side output, with the words that `open` has prepared."""

    odd = SideOutput(str)

    def open(self) -> None:
        self.words = {number: f"number {number}" for number in range(1, 100, 2)}

    def process(self, event: Event, ctx: ProcessContext) -> Iterable[Event]:
        if event.amount in self.words:
            ctx.output(self.odd, f"{event.name} has {self.words[event.amount]}")
        else:
            yield event

    def close(self) -> None:
        self.words.clear()


def copied(record: Whole) -> ProducerRecord[str, Event]:
    """Return the full record with a header that holds its position. A tombstone stays a
    tombstone.
    """
    where = f"{record.partition}:{record.offset}".encode()
    headers = (*record.headers, ("was", where))
    return ProducerRecord(record.key, record.value, headers, timestamp_ms=record.timestamp_ms)


def value_of(record: Whole) -> Event:
    if record.value is None:
        raise TypeError("a tombstone was let through")
    return record.value


def halves(event: Event) -> Iterable[Result]:
    """Yield zero, one or two results."""
    for part in range(event.amount % 3):
        yield Result(f"{event.name}/{part}", event.key, event.amount)


class Plain(Pipeline, name=None):
    """A pipeline of map, filter, flat_map and process, with full records, tombstones and all three
    guarantees.
    """

    events = KafkaSource.records("in", key=Utf8(), value=Json(Event), tombstones=True)
    copies = KafkaSink.records("copies", key=Utf8(), value=Json(Event))
    parts = KafkaSink(
        "parts", value=Json(Result), record_key=lambda part: part.key, guarantee="at_least_once"
    )
    even = KafkaSink("even", value=Json(Event), record_key=lambda event: event.key)
    odd = KafkaSink(
        "odd",
        value=Utf8(),
        record_key=lambda name: name,
        guarantee="none",
        linger="1 min",  # records that are not flushed are lost
    )

    def define(self) -> None:
        self.events.map(copied).to(self.copies)
        present = self.events.filter(lambda record: record.value is not None).map(value_of)
        present.flat_map(halves).to(self.parts)
        split = present.process(BySign())
        split.to(self.even)
        split.side_output(BySign.odd).map(str.upper, returns=str).to(self.odd)


# --- three keyed levels -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Corner:
    """A key that is a record. It is finer than (key, part)."""

    key: str
    part: int
    digit: str


class Counted(KeyedProcess[str, Event, Result]):
    """A step whose state has several kinds of values: a number, an optional record, a list that
    changes in place.
    """

    count = ValueState(int, default=0)
    last = ValueState(Event | None, default=None)
    newest = ValueState(list[str], factory=list)

    def process(self, event: Event, ctx: Context[str]) -> Iterable[Result]:
        before = self.last.value
        self.count.value += 1
        self.newest.value.append(event.name)
        del self.newest.value[:-3]
        self.last.value = event
        total = event.amount + (0 if before is None else before.amount)
        yield Result(event.name, event.key, event.amount, ctx.key, self.count.value, total)


class Recent(KeyedProcess[tuple[str, int], Result, Result]):
    """A step with a list of the last totals. Some totals clear the list, and go to a side
    output.
    """

    totals = ListState(int)
    restarts = SideOutput(Result)

    def process(self, result: Result, ctx: Context[tuple[str, int]]) -> Iterable[Result]:
        if result.total % 7 == 0:
            ctx.output(self.restarts, result)
            self.totals.clear()
            return
        self.totals.append(result.total)
        known = list(self.totals)[-5:]
        self.totals.replace(known)
        key, part = ctx.key
        yield Result(
            result.name, result.key, result.amount, f"{key}/{part}", len(known), sum(known)
        )


class Ledger(KeyedProcess[Corner, Result, Result]):
    """A step with a map whose entries are added, changed and removed."""

    entries = MapState(int, Decimal)

    def process(self, result: Result, ctx: Context[Corner]) -> Iterable[Result]:
        slot = result.amount % 5
        value = self.entries.get(slot, Decimal(0)) + Decimal(result.amount) / 4
        if value > 60:
            del self.entries[slot]
        else:
            self.entries[slot] = value
        known = sorted(self.entries.items())
        group = f"{ctx.key.key}/{ctx.key.part}/{ctx.key.digit}"
        total = int(4 * sum(entry for _, entry in known))
        yield Result(result.name, result.key, result.amount, group, len(known), total)


def corner(result: Result) -> Corner:
    """Return a key that is finer than the group of the previous step."""
    return Corner(result.key, result.amount % 2, result.name[-1])


class ThreeLevels(Pipeline, name=None):
    """A pipeline of three keyed steps in sequence, with every kind of state, and a sink at each
    step.
    """

    events = KafkaSource("in", value=Json(Event))
    first = KafkaSink("first", value=Json(Result), record_key=lambda result: result.group)
    restarts = KafkaSink(
        "restarts",
        value=Json(Result),
        record_key=lambda result: f"{result.key}/{result.amount % 2}",
        guarantee="at_least_once",
    )
    third = KafkaSink("third", value=Json(Result), record_key=lambda result: result.group)

    def define(self) -> None:
        counted = self.events.key_by(lambda event: event.key).process(Counted(), uid="counted")
        counted.to(self.first)
        recent = counted.key_by(
            lambda result: (result.key, result.amount % 2), returns=tuple[str, int]
        ).process(Recent(), uid="recent")
        recent.side_output(Recent.restarts).to(self.restarts)
        recent.key_by(corner).process(Ledger(), uid="ledger").to(self.third)


def key_of(event: Event) -> str:
    if event.amount % 19 == 0:
        raise ValueError("no key")
    return event.key


# --- unions, and a source that joins in the middle ----------------------------------------------


def renamed(event: MutableEvent) -> MutableEvent:
    """Change the given record in place, as Python users do."""
    event.name += "/changed"
    return event


def as_result(event: Event) -> Result:
    return Result(event.name, event.key, event.amount)


def frozen(event: MutableEvent) -> Event:
    return Event(event.name, event.key, event.amount)


class Joined(KeyedProcess[str, Result, Result]):
    """A step that counts the results of another keyed step and of a source of its own."""

    count = ValueState(int, default=0)

    def process(self, result: Result, ctx: Context[str]) -> Iterable[Result]:
        self.count.value += 1
        yield Result(
            result.name, result.key, result.amount, ctx.key, self.count.value, result.count
        )


class Unions(Pipeline, name=None):
    """A pipeline with two topics in one keyed step and a third topic that joins after it.

    One sink ends two chains, and one branch changes its records. Each topic has its own keys.
    """

    left = KafkaSource("left", value=Json(MutableEvent))
    right = KafkaSource("right", value=Json(Event))
    later = KafkaSource("later", value=Json(Event))
    joined = KafkaSink("joined", value=Json(Result), record_key=lambda result: result.key)
    kept = KafkaSink("kept", value=Json(MutableEvent))  # the key that the record was read with
    both = KafkaSink("both", value=Json(Event), record_key=lambda event: event.key)

    def define(self) -> None:
        changed = self.left.map(renamed)
        changed.map(frozen).to(self.both)
        self.later.to(self.both)
        self.left.to(self.kept)
        united = self.left.map(frozen).union(self.right)
        counted = united.key_by(
            key_of,
            on_error="dead_letter",
            dead_letter_topic="keyless",  # two edges lead into this one sink
        ).process(Counted(), uid="counted")
        counted.union(self.later.map(as_result)).key_by(lambda result: result.key).process(
            Joined(), uid="joined-count"
        ).to(self.joined)


# --- policies -----------------------------------------------------------------------------------


class Refusing(KeyedProcess[str, Event, Result]):
    """A step that raises on some records after it has changed its state."""

    count = ValueState(int, default=0)
    names = ListState(str)
    big = SideOutput(Result)

    def process(self, event: Event, ctx: Context[str]) -> Iterable[Result]:
        self.count.value += 1
        self.names.replace([*self.names, event.name][-3:])
        result = Result(event.name, event.key, event.amount, ctx.key, self.count.value)
        if event.amount > 80:
            ctx.output(self.big, result)
        yield result
        if event.amount % 13 == 0:
            raise ValueError(f"{event.name} is refused")


def checked(event: Event) -> Event:
    if event.amount % 17 == 0:
        raise ValueError("skipped")
    return event


def key_of_sink(result: Result) -> str:
    if result.amount % 11 == 0:
        raise ValueError("no key of the sink")
    return result.key


class Policies(Pipeline, name=None):
    """A pipeline whose records fail at every place that allows a policy, with a side output."""

    events = KafkaSource(
        "in", value=Json(Event), on_bad_record="dead_letter", dead_letter_topic="undecodable"
    )
    results = KafkaSink(
        "results",
        value=Json(Result),
        record_key=key_of_sink,
        on_error="dead_letter",
        dead_letter_topic="unwritable",
    )
    big = KafkaSink("big", value=Json(Result), record_key=lambda result: result.key)

    def define(self) -> None:
        refusing = (
            self.events.map(checked, on_error="skip")
            .key_by(key_of, on_error="dead_letter", dead_letter_topic="keyless")
            .process(
                Refusing(),
                uid="refusing",
                on_error="dead_letter",
                dead_letter_topic="unprocessable",
            )
        )
        refusing.to(self.results)
        refusing.side_output(Refusing.big).to(self.big)


# --- results that depend on how partitions interleave -------------------------------------------


class RegionTotal(KeyedProcess[str, Result, Result]):
    """A step that counts and adds up for a region, whose customers are in several partitions."""

    sums = MapState(str, int)

    def process(self, result: Result, ctx: Context[str]) -> Iterable[Result]:
        count = self.sums.get("count", 0) + 1
        total = self.sums.get("total", 0) + result.amount
        self.sums["count"], self.sums["total"] = count, total
        yield Result(result.name, result.key, result.amount, ctx.key, count, total)


class Regions(Pipeline, name=None):
    """A pipeline in which a coarser key follows a finer one. Each count occurs once, and chance
    decides which record gets it.
    """

    events = KafkaSource("in", value=Json(Event))
    regions = KafkaSink("regions", value=Json(Result), record_key=lambda result: result.group)

    def define(self) -> None:
        counted = self.events.key_by(lambda event: event.key).process(Counted(), uid="counted")
        counted.key_by(lambda result: result.key[:2]).process(RegionTotal(), uid="region-total").to(
            self.regions
        )
