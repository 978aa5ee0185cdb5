"""Mistakes that mypy --strict must refuse, each on the line marked so. Type-checked, never run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Decimal

import msgspec

from pipelines.order_totals import CustomerTotal, Order, OrderTotals, RunningTotal
from tidegate import (
    AfterWatermark,
    BoundedOutOfOrderness,
    Collect,
    ConsumerRecord,
    Context,
    Count,
    First,
    Json,
    KafkaSink,
    KafkaSource,
    KeyedProcess,
    ListState,
    MapState,
    Param,
    Pipeline,
    Process,
    ProcessContext,
    Session,
    SideOutput,
    Sum,
    Tumbling,
    Utf8,
    ValueState,
    Window,
    WindowContext,
    WindowProcess,
)
from tidegate.testing import FunctionHarness, PipelineTest


class Payment(msgspec.Struct, frozen=True):
    order_id: str
    paid_at_ms: int


class Nameless(Pipeline):  # refused: name is required
    pass


class Misspelt(Pipeline, name="misspelt", paralelism=2):  # refused: no such option
    pass


TOTAL = Json(CustomerTotal)


class Wrong(Pipeline, name="wrong"):
    orders = KafkaSource("orders", value=Json(Order))
    payments = KafkaSource("payments", value=Json(Payment))
    whole = KafkaSource.records("orders", key=Utf8(), value=Json(Order))
    maybe = KafkaSource.records("orders", key=Utf8(), value=Json(Order), tombstones=True)
    keyless = KafkaSource.records("orders", value=Json(Order))
    late = KafkaSource("orders", value=Json(Order), starting_offsets="now")  # refused
    odd = KafkaSource("orders", value=Json(Order), on_bad="skip")  # refused: no such option
    totals = KafkaSink("t", value=Json(CustomerTotal), record_key=lambda t: t.customer_id)
    full = KafkaSink.records("t", key=Utf8(), value=Json(CustomerTotal))
    bad_key = KafkaSink("t", value=TOTAL, key=Utf8(), record_key=lambda t: t.total)  # refused
    no_format = KafkaSink("t", value=TOTAL, record_key=lambda t: t.total)  # refused: needs key=
    packed = KafkaSink("t", value=TOTAL, compression="rar")  # refused: no such codec
    limit = Param(int, default="5")  # passes: a Param of object; refused at class creation

    def define(self) -> None:
        orders = self.orders
        orders.to(self.totals)  # refused: Order into a sink of CustomerTotal
        orders.map(lambda order: order.amont)  # refused: no such field
        orders.filter(lambda order: order.customer_id)  # refused: a str is not a bool
        orders.flat_map(lambda order: order.amount)  # refused: a Decimal is not iterable
        orders.map(lambda order: order.order_id, returns=int)  # refused: the function returns str
        orders.filter(lambda order: True, on_error="drop")  # refused: no such policy
        orders.map(lambda order: order, on_eror="skip")  # refused: no such option
        orders.key_by(lambda order: float(order.amount))  # refused: float is not a key
        orders.key_by(lambda order: [order.order_id])  # refused: a list is not a key
        orders.key_by(lambda order: (order.order_id, 0.5))  # refused: a tuple with a float
        orders.union(self.payments)  # refused: streams of different types
        by_customer = orders.key_by(lambda order: order.customer_id)
        by_customer.process(RunningTotal())  # refused: uid is missing
        by_customer.process(RunningTotal, uid="c")  # refused: a class for an object
        by_customer.to(self.totals)  # refused: a keyed stream is not a stream
        by_customer.map(lambda order: order)  # refused: the same
        orders.process(RunningTotal())  # refused: a keyed function without a key
        by_time = orders.key_by(lambda order: order.placed_at_ms)
        by_time.process(RunningTotal(), uid="a")  # refused: key is int, the function wants str
        by_order = self.payments.key_by(lambda payment: payment.order_id)
        by_order.process(RunningTotal(), uid="b")  # refused: Payment for Order
        orders.map(lambda order: order.order_id).to(self.orders)  # refused: a source is no sink
        orders.map(lambda o: CustomerTotal("a", o.amount)).to(self.full)  # refused: ProducerRecord
        self.whole.map(lambda record: record.value.amont)  # refused: no such field
        self.maybe.map(lambda record: record.value.amount)  # refused: value may be None
        self.keyless.map(lambda record: record.key.lower())  # refused: key may be None
        self.whole.map(key_of)  # refused: the function wants other keys


def key_of(record: ConsumerRecord[int, Order]) -> int:
    return record.key


class BadFunction(KeyedProcess[str, Order, CustomerTotal]):
    total = ValueState(Decimal, default=Decimal(0))
    absent = ValueState(Decimal)  # refused: no default
    bad = ValueState(Decimal, default="0")  # passes: likewise
    counts = MapState(str, int)
    recent = ListState(Order)
    renamed = ListState(Order, renamed_from="recent_orders")
    wrongly_renamed = ListState(Order, renamed_from=recent)  # refused: a name is a str
    dropped_states = ("seen",)
    late = SideOutput(Payment)

    def process(self, order: Order, ctx: Context[str]) -> Iterable[CustomerTotal]:
        self.total.value += order.customer_id  # refused: a Decimal plus a str
        self.total = order.amount  # refused: a state is not assigned, its value is
        self.counts[order.customer_id] = "many"  # refused: str into a map of int
        self.recent.append("order")  # refused: str into a list of Order
        ctx.output(self.late, order)  # refused: Order into a side output of Payment
        yield order  # refused: Order is not CustomerTotal


class BadSignature(KeyedProcess[str, Order, CustomerTotal]):
    def process(self, order: Payment, ctx: Context[str]) -> Iterable[CustomerTotal]:  # refused
        return ()


class Unkeyed(Process[Order, Order]):
    def process(self, order: Order, ctx: ProcessContext) -> Iterable[Order]:
        print(ctx.key)  # refused: no key here
        return (order,)


class Hour(msgspec.Struct, frozen=True):
    customer: str
    total: Decimal
    count: int


class BadWindows(WindowProcess[str, Order, Hour]):
    def process(self, records: Sequence[Order], ctx: WindowContext[str]) -> Iterable[Hour]:
        yield Hour(ctx.window.key, records[0].amount, ctx.window.number)
        yield records[0]  # refused: Order is not Hour


class WrongWindows(Pipeline, name="wrong-windows"):
    orders = KafkaSource(
        "orders",
        value=Json(Order),
        event_time=lambda order: order.placed_at_ms,
        watermarks=BoundedOutOfOrderness("1 s"),
    )
    hours = KafkaSink("h", value=Json(Hour))
    late = KafkaSink("l", value=Json(Order))

    def define(self) -> None:
        by_customer = self.orders.key_by(lambda order: order.customer_id)
        hourly = by_customer.window(Tumbling("1 h"), allowed_lateness="1 h")
        passes = hourly.aggregate(
            Sum(lambda order: order.amount),
            Count(),
            into=lambda w, total, count: Hour(w.key, total, count),
            uid="a",
        )
        passes.to(self.hours)
        passes.late.to(self.late)
        passes.late.to(self.hours)  # refused: late records are Orders
        hourly.aggregate(Count(), into=lambda w, count: count)  # refused: uid is missing
        hourly.aggregate(Sum(lambda o: o.amont), into=lambda w, n: n, uid="b")  # refused
        hourly.aggregate(Count(), into=lambda w, a, b: a, uid="c")  # refused: one result
        hourly.aggregate(Count(), into=lambda w, n: n.lower(), uid="d")  # refused: an int
        hourly.aggregate(Count(), into=lambda w, n: w.key + 1, uid="e")  # refused: a str
        first = hourly.aggregate(First(lambda o: o.amount), into=lambda w, x: x, uid="f")
        first.map(lambda amount: amount.quantize(Decimal(1)))
        first.map(lambda amount: amount.lower())  # refused: a Decimal has no lower
        hourly.aggregate(Collect(), into=lambda w, n: n, uid="g")  # refused: no limit
        hourly.process(BadWindows(), uid="h").to(self.hours)
        hourly.process(BadWindows())  # refused: uid is missing
        hourly.reduce(lambda a, b: a.amount, uid="i")  # refused: an Order comes out
        by_customer.window(Tumbling("1 h", time="system"))  # refused: no such clock
        by_customer.window("1 h")  # refused: no assigner
        by_customer.window(Session(lambda order: order.amount))  # refused: no duration
        by_customer.window(Tumbling("1 h"), trigger=AfterWatermark(early="1 s"))  # refused
        everyone = self.orders.window_all(Tumbling("1 h"))
        everyone.aggregate(Count(), into=lambda w, n: w.key.lower(), uid="j")  # refused: no key


def name_of(window: Window[str]) -> int:
    return window.key  # refused: a str


with PipelineTest(OrderTotals) as test:
    test.source(OrderTotals.orders).push(CustomerTotal("a", Decimal(1)))  # refused: not an Order
    test.sink(OrderTotals.orders)  # refused: a source is not a sink
    print(test.sink(OrderTotals.totals).read()[0].amount)  # refused: no such field

harness = FunctionHarness(RunningTotal())
harness.push(5, Order("o", "c", Decimal(1), 0))  # refused: keys are str
harness.value(RunningTotal.total, "ann").lower()  # refused: a Decimal has no lower
