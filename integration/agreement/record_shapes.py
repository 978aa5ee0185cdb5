"""A pipeline whose records hold everything that a record can hold in addition to plain fields.

Each step writes what user code sees of its records and of its state, as text. So the bytes of the
sinks differ if a hop to another slot, a restore or a backfill changes a record: a zone, an
undeclared field or a private attribute. They also differ if an initialiser runs again.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from itertools import count
from typing import Any, Final

import msgspec

from integration.agreement.inputs import Record
from integration.agreement.shapes import Event
from tests.api.record_kinds import (
    BERLIN,
    FREE,
    REPEATED,
    ZONES,
    Doubled,
    Everything,
    Line,
    Open,
    Session,
    Slotted,
    Tag,
    computed,
    facts,
    opened,
)
from tidegate import (
    Context,
    Json,
    KafkaSink,
    KafkaSource,
    KeyedProcess,
    ListState,
    MapState,
    Pipeline,
    SideOutput,
    ValueState,
)

Item = tuple[str, str, Everything]
"""Key and name of an event, and a record that is made from it."""


class Seen(msgspec.Struct, frozen=True):
    """The text of a record in a step, of the record before it, and of a few earlier ones."""

    key: str
    name: str
    now: str
    before: str
    earlier: str


def item_of(event: Event) -> Item:
    """Return a record that is drawn from the name of an event."""
    rng = random.Random(event.name)
    moment = (REPEATED + timedelta(minutes=rng.randrange(-90, 90))).replace(
        tzinfo=rng.choice(ZONES), fold=rng.randrange(2)
    )
    union: list[Any] = [
        Doubled(event.amount, moment),
        computed(Line(event.amount)),
        opened(user=event.key, at=moment, page=event.name),
        2**70 + event.amount,
        moment,
        None,
    ]
    found = Everything(
        moment,
        rng.choice(union),
        rng.choice(FREE),
        {event.key: [Tag(first_name=event.key, ratio=event.amount, counts=(1, 2))]},
        sessions(rng, event),
        {event.amount: opened(user=event.name, number=event.amount)},
    )
    return event.key, event.name, found


def sessions(rng: random.Random, event: Event) -> tuple[Session, ...]:
    """Return one TypedDict with its keys in any order, and sometimes with one that is not
    declared.
    """
    pairs: list[tuple[str, Any]] = [("user", event.key), ("pages", ["/"]), ("zone", BERLIN.key)]
    pairs = pairs[: rng.choice((2, 3))]
    rng.shuffle(pairs)
    session: Any = dict(pairs)
    return (session,)


class Keeps(KeyedProcess[str, Item, Item]):
    """A step that keeps records in every kind of state, and writes what it sees of them."""

    last = ValueState(Item | None, default=None)
    moment = ValueState(datetime | None, default=None)
    recent = ListState(Everything)
    by_name = MapState(str, Everything)
    seen = SideOutput(Seen)

    def process(self, item: Item, ctx: Context[str]) -> Iterable[Item]:
        key, name, record = item
        before = (self.last.value, self.moment.value, list(self.recent))
        earlier = list(self.by_name.items())
        ctx.output(self.seen, Seen(key, name, text(item), text(before), text(earlier)))
        self.last.value, self.moment.value = item, record.at
        self.recent.replace([*self.recent, record][-2:])
        self.by_name[name[-1]] = record
        yield item


class Passes(KeyedProcess[tuple[str, int], Item, Seen]):
    """A step behind another hop."""

    first = ValueState(Item | None, default=None)

    def process(self, item: Item, ctx: Context[tuple[str, int]]) -> Iterable[Seen]:
        del ctx
        if self.first.value is None:
            self.first.value = item
        yield Seen(item[0], item[1], text(item), text(self.first.value), "")


class Opens(KeyedProcess[str, Open, Open]):
    """A step whose records come directly from a format."""

    last = ValueState(Open | None, default=None)

    def process(self, record: Open, ctx: Context[str]) -> Iterable[Open]:
        del ctx
        before, self.last.value = self.last.value, record
        yield record
        if before is not None:
            yield before


def text(value: Any) -> str:
    """Return what code sees of a value."""
    return repr(facts(value))


def opens_of(item: Item) -> list[Open]:
    """Return the models of a record."""
    return list(item[2].by_number.values())


class SameRecords(Pipeline, name=None):
    """Two hops with state behind them, and a format in front of a third one."""

    events = KafkaSource("in", value=Json(Event))
    entries = KafkaSource("entries", value=Json(Open))
    seen = KafkaSink("seen", value=Json(Seen), record_key=lambda seen: seen.key)
    passed = KafkaSink(
        "passed", value=Json(Seen), record_key=lambda seen: f"{seen.key}/{len(seen.name) % 2}"
    )
    opened = KafkaSink("opened", value=Json(Open), record_key=lambda one: one.user)
    tags = KafkaSink("tags", value=Json(Tag), record_key=lambda tag: tag.first_name)
    slotted = KafkaSink("slotted", value=Json(Slotted), record_key=lambda one: one.name)
    sessions = KafkaSink("sessions", value=Json(Session), record_key=lambda one: one["user"])
    models = KafkaSink("models", value=Json(Open), record_key=lambda one: one.user)

    def define(self) -> None:
        items = self.events.map(item_of)
        kept = items.key_by(lambda item: item[0]).process(Keeps(), uid="keeps")
        kept.side_output(Keeps.seen).to(self.seen)
        kept.flat_map(opens_of, returns=Open).to(self.opened)
        kept.flat_map(lambda item: item[2].tags[item[0]], returns=Tag).to(self.tags)
        kept.map(lambda item: Slotted(name=item[0]), returns=Slotted).to(self.slotted)
        kept.flat_map(lambda item: item[2].sessions, returns=Session).to(self.sessions)
        by_two = kept.key_by(lambda item: (item[0], len(item[1]) % 2), returns=tuple[str, int])
        by_two.process(Passes(), uid="passes").to(self.passed)
        by_user = self.entries.key_by(lambda one: one.user)
        by_user.process(Opens(), uid="opens").to(self.models)


OFFSETS: Final = ("Z", "+02:00", "-03:30", "")


def entries() -> Iterator[Record]:
    """Yield JSON of models with zones and undeclared fields."""
    for number in count():
        user = f"user-{number * 7 % 20:02d}"
        entry: dict[str, object] = {"user": user, "page": f"/{number}", "n": [number, None]}
        if number % 3:
            entry["at"] = f"2026-06-01T00:30:00{OFFSETS[number % 4]}"
        yield Record(user, user.encode(), json.dumps(entry).encode())
