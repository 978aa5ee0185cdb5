"""The records and the functions that drawn pipelines import.

Each record has a name of its own, so that an output says which records it contains. `Sorting` is
the function with timers: it takes the records of a key in the order of their event times, so its
results do not depend on the order of arrival. `judge.py` does the same without timers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import msgspec

from tidegate import (
    Aggregate,
    Context,
    CoProcess,
    EventTimers,
    Fired,
    KeyedProcess,
    MapState,
    SideOutput,
    ValueState,
    Window,
    WindowContext,
    WindowProcess,
)

ALL: Final = "all"
"""The key of the results of `window_all`."""
DEADLINES: Final = 4
"""The number of names of deadlines of a key."""
NAMES_MAX: Final = 1_000_000
"""Limit of `Collect`, which no window reaches."""


class Event(msgspec.Struct, frozen=True):
    """An input record. Without `at_ms`, its event time is unusable."""

    name: str
    key: str
    amount: int
    weight: float
    at_ms: int | None
    mark_ms: int | None = None
    """The watermark that the record carries, for `Punctuated`."""


class Row(msgspec.Struct, frozen=True):
    """A result of a window, or of a function with timers. `values` is a JSON object."""

    key: str
    start_ms: int
    end_ms: int
    firing: str
    number: int
    values: str
    total: int = 0


def event_ms(event: Event) -> Any:
    """Return the event time, or None."""
    return event.at_ms


def mark_ms(event: Event) -> int | None:
    """Return the watermark that an event carries."""
    return event.mark_ms


def key_of(event: Event) -> str:
    """Return the key of the steps."""
    return event.key


def first_letter(event: Event) -> str:
    """Return a coarser key."""
    return event.key[:1]


def kept(event: Event) -> bool:
    """Return whether the filter of some pipelines keeps an event."""
    return event.amount % 5 != 0


def gap_of(event: Event) -> str:
    """Return the gap of a session after an event."""
    return f"{gap_ms_of(event)} ms"


def gap_ms_of(event: Event) -> int:
    """Return the same in milliseconds. It is not a multiple of ten, in contrast to event times."""
    return 1_005 + 1_000 * (event.amount % 3)


class Names(Aggregate[Event, list[str], list[str]]):
    """The names of the records. With it, windows lie in the rows of their keys."""

    def create(self) -> list[str]:
        return []

    def add(self, accumulator: list[str], record: Event, /) -> list[str]:
        accumulator.append(record.name)
        return accumulator

    def merge(self, accumulator: list[str], other: list[str], /) -> list[str]:
        return accumulator + other

    def result(self, accumulator: list[str], /) -> list[str]:
        return sorted(accumulator)


def plain(value: Any) -> Any:
    """Return a result of an aggregate with names in place of events."""
    if isinstance(value, Event):
        return value.name
    return [plain(each) for each in value] if isinstance(value, list | tuple) else value


def row_of(window: Window[Any], values: dict[str, Any], total: int = 0) -> Row:
    """Return the row of a firing."""
    text = msgspec.json.encode({name: plain(value) for name, value in values.items()}).decode()
    key = ALL if window.key is None else str(window.key)
    return Row(key, window.start_ms, window.end_ms, window.firing, window.number, text, total)


def rows(*names: str) -> Callable[..., Row]:
    """Return the `into` of a step whose aggregates have these names."""

    def into(window: Window[Any], *values: Any) -> Row:
        found = dict(zip(names, values, strict=True))
        return row_of(window, found, found.get("sum", 0))

    return into


def combined(one: Event, other: Event) -> Event:
    """Return two events as one, whatever their order is."""
    return Event(
        "+".join(sorted([*one.name.split("+"), *other.name.split("+")])),
        min(one.key, other.key),
        one.amount + other.amount,
        max(one.weight, other.weight),
        max(one.at_ms or 0, other.at_ms or 0),
    )


class Whole(WindowProcess[Any, Event, Row]):
    """A window function that writes the records in the order that it gets."""

    def process(self, records: Sequence[Event], ctx: WindowContext[Any], /) -> Iterable[Row]:
        values = {"ordered": [each.name for each in records]}
        yield row_of(ctx.window, values, sum(each.amount for each in records))


class Pass(KeyedProcess[str, Event, Event]):
    """A keyed step that counts its records and passes them on."""

    count = ValueState(int, default=0)

    def process(self, record: Event, ctx: Context[str], /) -> Iterable[Event]:
        del ctx
        self.count.value += 1
        yield record


# --- timers -------------------------------------------------------------------------------------

Buffered = dict[str, int]
"""Amounts of the records of one time, by name."""


def deadline_of(amount: int, at_ms: int) -> tuple[str, int | None] | None:
    """Return which deadline a record moves, and to which time; None cancels it. Return None if it
    moves none.
    """
    name = str(amount % DEADLINES)
    if amount % 7 == 0:
        return name, None
    if amount % 3 == 0:
        return name, at_ms + (0, 10, 500, 4_000)[amount % 4]
    return None


class _Sorts:
    """The calls of a function that takes the records of a key by event time.

    `turn` has a timer for each time of a record. When it fires, all records of that time are there,
    if no record is later than the bound.
    """

    waiting: Any
    total: Any
    turn: Any
    deadline: Any
    late: Any

    def take(self, record: Event, ctx: Context[str]) -> None:
        at_ms = ctx.timestamp_ms
        if at_ms <= ctx.watermark_ms:
            ctx.output(self.late, record)
            return
        waiting = self.waiting.get(at_ms, {})
        self.waiting[at_ms] = dict(sorted({**waiting, record.name: record.amount}.items()))
        self.turn.set(at_ms, at_ms)

    def on_timer(self, fired: Fired, ctx: Context[str], /) -> Iterable[Row]:
        declared: Any = type(self)
        name = fired.name(declared.deadline)
        if name is not None:
            yield self._row(ctx, fired.at_ms, f"deadline {name}", [])
            return
        records = sorted(self.waiting[fired.at_ms].items())
        del self.waiting[fired.at_ms]
        for _, amount in records:
            self.total.value += amount
            moved = deadline_of(amount, fired.at_ms)
            if moved is not None and moved[1] is None:
                self.deadline.cancel(moved[0])
            elif moved is not None:
                self.deadline.set(*moved)
        yield self._row(ctx, fired.at_ms, "turn", [record for record, _ in records])

    def _row(self, ctx: Context[str], at_ms: int, what: str, names: list[str]) -> Row:
        values = msgspec.json.encode({"names": names, "time": ctx.timestamp_ms}).decode()
        return Row(ctx.key, at_ms, at_ms + 1, what, 0, values, self.total.value)


class Sorting(_Sorts, KeyedProcess[str, Event, Row]):
    """The function of one input."""

    waiting = MapState(int, Buffered)
    total = ValueState(int, default=0)
    turn = EventTimers(int)
    deadline = EventTimers(str)
    late = SideOutput(Event)

    def process(self, record: Event, ctx: Context[str], /) -> Iterable[Row]:
        self.take(record, ctx)
        return ()


class SortingSides(_Sorts, CoProcess[str, Event, Event, Row]):
    """The same function of two inputs, which share states and timers."""

    waiting = MapState(int, Buffered)
    total = ValueState(int, default=0)
    turn = EventTimers(int)
    deadline = EventTimers(str)
    late = SideOutput(Event)

    def process_left(self, record: Event, ctx: Context[str], /) -> Iterable[Row]:
        self.take(record, ctx)
        return ()

    def process_right(self, record: Event, ctx: Context[str], /) -> Iterable[Row]:
        self.take(record, ctx)
        return ()
