"""Small pipelines for the tests of `PipelineTest`: two steps with state, and event time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from tidegate import (
    BoundedOutOfOrderness,
    Context,
    EventTimer,
    Fired,
    Json,
    KafkaSink,
    KafkaSource,
    KeyedProcess,
    MapState,
    Monotonous,
    Pipeline,
    ProcessingTimer,
    ValueState,
)


class Order(msgspec.Struct, frozen=True):
    customer: str
    amount: int
    shop: str = "s"


class Total(msgspec.Struct, frozen=True):
    name: str
    total: int


class PerCustomer(KeyedProcess[str, Order, Order]):
    """The running total of a customer, as an order of its shop."""

    total = ValueState(int, default=0)

    def process(self, order: Order, ctx: Context[str]) -> Iterable[Order]:
        self.total.value += order.amount
        yield Order(ctx.key, self.total.value, order.shop)


class PerShop(KeyedProcess[str, Order, Total]):
    """The sum over a shop of the newest total of each customer."""

    newest = MapState(str, int)

    def process(self, order: Order, ctx: Context[str]) -> Iterable[Total]:
        self.newest[order.customer] = order.amount
        yield Total(ctx.key, sum(newest for _, newest in self.newest.items()))


class Totals(Pipeline, name="totals"):
    orders = KafkaSource("orders", value=Json(Order), on_bad_record="skip")
    customers = KafkaSink("customers", value=Json(Order))
    shops = KafkaSink("shops", value=Json(Total))
    copies = KafkaSink("copies", value=Json(Order), guarantee="at_least_once")

    def define(self) -> None:
        customers = self.orders.key_by(lambda order: order.customer).process(
            PerCustomer(), uid="customers-total"
        )
        customers.to(self.customers)
        customers.key_by(lambda order: order.shop).process(PerShop(), uid="shops-total").to(
            self.shops
        )
        self.orders.to(self.copies)


class Click(msgspec.Struct, frozen=True):
    user: str
    at_ms: int


class Seen(msgspec.Struct, frozen=True):
    user: str
    at_ms: int
    number: int
    watermark_ms: int
    late: bool


class Number(KeyedProcess[str, Click, Seen]):
    """Numbers the clicks of a user, and says which are late."""

    count = ValueState(int, default=0)

    def process(self, click: Click, ctx: Context[str]) -> Iterable[Seen]:
        self.count.value += 1
        late = ctx.timestamp_ms <= ctx.watermark_ms
        yield Seen(ctx.key, click.at_ms, self.count.value, ctx.watermark_ms, late)


class Clicks(Pipeline, name="clicks"):
    clicks = KafkaSource(
        "clicks",
        value=Json(Click),
        event_time=lambda click: click.at_ms,
        watermarks=BoundedOutOfOrderness("10 ms", idle_after="1 min"),
    )
    others = KafkaSource(
        "others",
        value=Json(Click),
        event_time=lambda click: click.at_ms,
        watermarks=Monotonous(),
    )
    seen = KafkaSink("seen", value=Json(Seen))

    def define(self) -> None:
        both = self.clicks.union(self.others)
        both.key_by(lambda click: click.user).process(Number(), uid="number").to(self.seen)


class OneSource(Pipeline, name="one-source"):
    clicks = KafkaSource(
        "clicks",
        value=Json(Click),
        event_time=lambda click: click.at_ms,
        watermarks=BoundedOutOfOrderness("10 ms", idle_after="1 min"),
    )
    seen = KafkaSink("seen", value=Json(Seen))

    def define(self) -> None:
        self.clicks.key_by(lambda click: click.user).process(Number(), uid="number").to(self.seen)


class Silence(msgspec.Struct, frozen=True):
    user: str
    kind: str
    at_ms: int
    clicks: int


class WatchSilence(KeyedProcess[str, Click, Silence]):
    """Says that a user has not clicked for 30 ms of event time, and each second by the clock."""

    count = ValueState(int, default=0)
    silence = EventTimer()
    each_second = ProcessingTimer()

    def process(self, click: Click, ctx: Context[str]) -> Iterable[Silence]:
        self.count.value += 1
        self.silence.set(click.at_ms + 30)
        if self.each_second.at_ms is None:
            self.each_second.set(1_000)
        return ()

    def on_timer(self, fired: Fired, ctx: Context[str]) -> Iterable[Silence]:
        if fired.declaration is WatchSilence.silence:
            yield Silence(ctx.key, "silence", fired.at_ms, self.count.value)
        else:
            self.each_second.set(fired.at_ms + 1_000)
            yield Silence(ctx.key, "second", ctx.processing_time_ms, self.count.value)


class Silences(Pipeline, name="silences"):
    clicks = KafkaSource(
        "clicks",
        value=Json(Click),
        event_time=lambda click: click.at_ms,
        watermarks=BoundedOutOfOrderness("10 ms", idle_after="1 min"),
    )
    silences = KafkaSink("silences", value=Json(Silence))

    def define(self) -> None:
        keyed = self.clicks.key_by(lambda click: click.user)
        keyed.process(WatchSilence(), uid="watch").to(self.silences)


CALLS: list[str] = []
OPENED: set[int] = set()
"""Identities of the function objects that were opened."""


class Noisy(PerCustomer):
    """Notes when it is opened and closed. It fails for an amount of 13, and keeps a text for 15."""

    def open(self) -> None:
        CALLS.append("open")
        OPENED.add(id(self))

    def close(self) -> None:
        CALLS.append("close")

    def process(self, order: Order, ctx: Context[str]) -> Iterable[Order]:
        if order.amount == 13:
            raise ValueError("unlucky")
        if order.amount == 15:
            untyped: Any = "fifteen"
            self.total.value = untyped
            return ()
        return super().process(order, ctx)


class NoisyTotals(Pipeline, name="noisy-totals"):
    orders = KafkaSource("orders", value=Json(Order))
    customers = KafkaSink("customers", value=Json(Order))

    def define(self) -> None:
        keyed = self.orders.key_by(lambda order: order.customer)
        keyed.process(Noisy(), uid="noisy").to(self.customers)


class Unencodable(Pipeline, name="unencodable"):
    """Half of a surrogate pair is no text that a frame can carry, and no sink gets it."""

    orders = KafkaSource("orders", value=Json(Order))
    lengths = KafkaSink("lengths", value=Json(int))

    def define(self) -> None:
        names = self.orders.map(lambda order: f"{order.customer}\ud800", returns=str)
        keyed = names.key_by(lambda name: name[0])
        keyed.process(Length(), uid="length").to(self.lengths)


class Length(KeyedProcess[str, str, int]):
    count = ValueState(int, default=0)

    def process(self, name: str, ctx: Context[str]) -> Iterable[int]:
        yield len(name)
