"""The pipelines that simulated clusters run, and the output that each must write.

Every event has a unique name, and every result carries the name of the event that caused it. So
`oracle.py` can decide for each visible record whether it is allowed, in any interleaving of
partitions. It does not need a second implementation of the pipeline. The shapes below only say
which events reach which sink, and what the state before it counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from tidegate.api.connectors.kafka_sink import KafkaSink
from tidegate.api.connectors.kafka_source import KafkaSource
from tidegate.api.functions import Context, KeyedProcess, SideOutput
from tidegate.api.pipeline import Pipeline
from tidegate.api.records.formats import Json
from tidegate.api.state.state import ListState, MapState, ValueState

KEYS: Final = ("aa", "ab", "ba", "bb", "ca")
"""The keys of all events. The first letter of a key is its region."""
IN_A, IN_B, OUT_A, OUT_B = "in-a", "in-b", "out-a", "out-b"


class Event(msgspec.Struct, frozen=True):
    """An input record. `name` contains topic, partition and position."""

    name: str
    key: str
    amount: int


class Result(msgspec.Struct, frozen=True):
    """An output record: the name of the event, and the state of `group` after the event."""

    name: str
    key: str
    amount: int
    group: str = ""
    count: int = 0
    total: int = 0


class MutableEvent(msgspec.Struct):
    """An event whose records user code may change, with the fields of a result."""

    name: str
    key: str
    amount: int
    group: str = ""
    count: int = 0
    total: int = 0


def work() -> None:
    """Do nothing. User code calls it for each record. A run may patch it to take time or raise."""


def connect() -> None:
    """Do nothing. User code calls it when it opens, and a run may patch it to fail."""


def salt() -> str:
    """Return an empty text. A run with backfills patches it to return a salt (`patches.Salts`)."""
    return ""


class Total(KeyedProcess[str, Event, Result]):
    """A keyed step that counts the events of each key and sums their amounts."""

    count = ValueState(int, default=0)
    total = ValueState(int, default=0)

    def open(self) -> None:
        connect()

    def process(self, event: Event, ctx: Context[str]) -> Iterable[Result]:
        work()
        self.count.value += 1
        self.total.value += event.amount
        yield Result(
            event.name, event.key, event.amount, ctx.key, self.count.value, self.total.value
        )


class RegionTotal(KeyedProcess[str, Result, Result]):
    """A keyed step that counts and sums the results of another keyed step for each region."""

    totals = MapState(str, int)

    def open(self) -> None:
        connect()

    def process(self, result: Result, ctx: Context[str]) -> Iterable[Result]:
        work()
        count = self.totals.get("count", 0) + 1
        total = self.totals.get("total", 0) + result.amount
        self.totals["count"], self.totals["total"] = count, total
        yield Result(result.name, result.key, result.amount, ctx.key, count, total)


class Sorted(KeyedProcess[str, Event, Result]):
    """A keyed step that keeps the amounts of all events of a key in a list.

    Results with an odd amount go to a side output.
    """

    events = ListState(int)
    odd = SideOutput(Result)

    def open(self) -> None:
        connect()

    def process(self, event: Event, ctx: Context[str]) -> Iterable[Result]:
        work()
        self.events.append(event.amount)
        known = list(self.events)
        result = Result(event.name, event.key, event.amount, ctx.key, len(known), sum(known))
        if event.amount % 2:
            ctx.output(self.odd, result)
        else:
            yield result


def region(result: Result) -> str:
    """Return the region of a result: the first letter of its key. Several keys share a region."""
    return result.key[:1]


def passed(event: Event) -> Result:
    """Return a result that is computed without state."""
    work()
    return Result(event.name, event.key, event.amount)


def twice(event: Event) -> Iterable[Result]:
    """Return two results of one event, with different names."""
    work()
    return (
        Result(f"{event.name}/1", event.key, event.amount),
        Result(f"{event.name}/2", event.key, event.amount),
    )


class Stateless(Pipeline, name="stateless"):
    """A map and a filter. A JobMaster restores only offsets for this pipeline."""

    events = KafkaSource(IN_A, value=Json(Event))
    results = KafkaSink(OUT_A, value=Json(Result), record_key=lambda result: result.key)

    def define(self) -> None:
        self.events.filter(lambda event: event.amount % 5 != 0).map(passed).to(self.results)


class FlatMapped(Pipeline, name="flat-mapped"):
    """A flat map that makes two results of each event."""

    events = KafkaSource(IN_A, value=Json(Event))
    results = KafkaSink(OUT_A, value=Json(Result), record_key=lambda result: result.key)

    def define(self) -> None:
        self.events.flat_map(twice).to(self.results)


class Totals(Pipeline, name="totals"):
    """A keyed step that writes the running total of each key."""

    events = KafkaSource(IN_A, value=Json(Event))
    results = KafkaSink(OUT_A, value=Json(Result), record_key=lambda result: result.key)

    def define(self) -> None:
        self.events.key_by(lambda event: event.key).process(Total(), uid="total").to(self.results)


class TwoSinks(Pipeline, name="two-sinks"):
    """One source with two sinks: one after a keyed step, the other after a stateless step."""

    events = KafkaSource(IN_A, value=Json(Event))
    totals = KafkaSink(OUT_A, value=Json(Result), record_key=lambda result: result.key)
    plain = KafkaSink(OUT_B, value=Json(Result), record_key=lambda result: result.key)

    def define(self) -> None:
        self.events.key_by(lambda event: event.key).process(Total(), uid="total").to(self.totals)
        self.events.map(passed).to(self.plain)


class Sided(Pipeline, name="sided"):
    """One keyed step with a list of all events of a key, and two sinks after it."""

    events = KafkaSource(IN_A, value=Json(Event))
    even = KafkaSink(OUT_A, value=Json(Result), record_key=lambda result: result.key)
    odd = KafkaSink(OUT_B, value=Json(Result), record_key=lambda result: result.key)

    def define(self) -> None:
        by_key = self.events.key_by(lambda event: event.key).process(Sorted(), uid="sorted")
        by_key.to(self.even)
        by_key.side_output(Sorted.odd).to(self.odd)


class United(Pipeline, name="united"):
    """Two sources and one keyed step."""

    left = KafkaSource(IN_A, value=Json(Event))
    right = KafkaSource(IN_B, value=Json(Event))
    results = KafkaSink(OUT_A, value=Json(Result), record_key=lambda result: result.key)

    def define(self) -> None:
        united = self.left.union(self.right)
        united.key_by(lambda event: event.key).process(Total(), uid="total").to(self.results)


class Shuffled(Pipeline, name="shuffled"):
    """Two keyed steps with an exchange before each."""

    events = KafkaSource(IN_A, value=Json(Event))
    regions = KafkaSink(OUT_A, value=Json(Result), record_key=lambda result: result.group)

    def define(self) -> None:
        by_key = self.events.key_by(lambda event: event.key).process(Total(), uid="total")
        by_key.key_by(region).process(RegionTotal(), uid="region-total").to(self.regions)


def renamed(event: MutableEvent) -> MutableEvent:
    """Change the given record in place, as Python users do."""
    work()
    event.name += "/1"
    return event


class Branched(Pipeline, name="branched"):
    """Two branches of one source. The first branch changes its records in place."""

    events = KafkaSource(IN_A, value=Json(MutableEvent))
    changed = KafkaSink(OUT_A, value=Json(MutableEvent), record_key=lambda event: event.key)
    plain = KafkaSink(OUT_B, value=Json(MutableEvent), record_key=lambda event: event.key)

    def define(self) -> None:
        self.events.map(renamed).to(self.changed)
        self.events.to(self.plain)


def scattered(event: Event) -> Result:
    """Return a result whose group differs in each run of a task that reads the event."""
    return Result(event.name, event.key, event.amount, event.key + salt())


def rescattered(result: Result) -> Result:
    """Return the result with another such group."""
    return Result(result.name, result.key, result.amount, result.key + salt())


class Forward(KeyedProcess[str, Result, Result]):
    """A keyed step without state that passes its records on."""

    def open(self) -> None:
        connect()

    def process(self, result: Result, ctx: Context[str]) -> Iterable[Result]:
        del ctx
        work()
        yield result


class Scattered(Pipeline, name="scattered"):
    """Two keyed steps whose keys contain a salt.

    Each run of a task therefore sends its records to other subtasks than the run before.
    """

    events = KafkaSource(IN_A, value=Json(Event))
    results = KafkaSink(OUT_A, value=Json(Result), record_key=lambda result: result.key)

    def define(self) -> None:
        keyed = self.events.map(scattered).key_by(lambda result: result.group)
        again = keyed.process(Forward(), uid="forward").map(rescattered)
        by_region = again.key_by(lambda result: result.group)
        by_region.process(Forward(), uid="forward-again").to(self.results)


@dataclass(frozen=True, slots=True)
class Shape:
    """A pipeline and the output that it must write."""

    pipeline: type[Pipeline]
    sources: tuple[str, ...]
    sinks: Mapping[str, Callable[[Event], tuple[str, ...]]]
    """Names of the results that an event must cause, for each topic."""
    stateful: frozenset[str]
    """Topics whose results count without a gap within their group."""
    group: Callable[[Event], str] = lambda event: event.key
    """The group of an event, for stateful topics."""
    plain: frozenset[str] = frozenset()
    """Topics that are written at least once. All other topics are written exactly once."""
    timed: bool = False
    """Whether the pipeline has event time, and its results are entries (`timed_pipelines.py`)."""

    def at_least_once_sinks(self) -> list[KafkaSink[Result]]:
        """Return the sinks that write at least once during a run, unlike their declaration."""
        declared = vars(self.pipeline).values()
        return [
            each for each in declared if isinstance(each, KafkaSink) and each.topic in self.plain
        ]

    @property
    def reference(self) -> str:
        return f"{self.pipeline.__module__}:{self.pipeline.__name__}"


def _one(event: Event) -> tuple[str, ...]:
    return (event.name,)


def _two(event: Event) -> tuple[str, ...]:
    return f"{event.name}/1", f"{event.name}/2"


def _if(condition: Callable[[Event], bool]) -> Callable[[Event], tuple[str, ...]]:
    return lambda event: (event.name,) if condition(event) else ()


BRANCHED: Final = Shape(
    Branched,
    (IN_A,),
    {OUT_A: lambda event: (f"{event.name}/1",), OUT_B: _one},
    frozenset(),
)
"""A shape that replaces `TwoSinks` in some runs. The topics of both are the same."""

SCATTERED: Final = Shape(Scattered, (IN_A,), {OUT_A: _one}, frozenset())
"""A shape that replaces other shapes in some runs with backfills."""

SHAPES: Final[tuple[Shape, ...]] = (
    Shape(Stateless, (IN_A,), {OUT_A: _if(lambda event: event.amount % 5 != 0)}, frozenset()),
    Shape(FlatMapped, (IN_A,), {OUT_A: _two}, frozenset()),
    Shape(Totals, (IN_A,), {OUT_A: _one}, frozenset({OUT_A})),
    Shape(TwoSinks, (IN_A,), {OUT_A: _one, OUT_B: _one}, frozenset({OUT_A})),
    Shape(
        Sided,
        (IN_A,),
        {
            OUT_A: _if(lambda event: event.amount % 2 == 0),
            OUT_B: _if(lambda event: event.amount % 2 == 1),
        },
        frozenset(),  # the two sinks share one count, so the oracle checks both together
    ),
    Shape(United, (IN_A, IN_B), {OUT_A: _one}, frozenset({OUT_A})),
    Shape(
        Shuffled,
        (IN_A,),
        {OUT_A: _one},
        frozenset({OUT_A}),
        group=lambda event: event.key[:1],
    ),
)
