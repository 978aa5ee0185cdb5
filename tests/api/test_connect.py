"""`connect`: two keyed streams, one function, one set of states and timers for each key."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import pytest

from tidegate import (
    BoundedOutOfOrderness,
    Context,
    CoProcess,
    EventTimer,
    Fired,
    Json,
    KafkaSink,
    KafkaSource,
    Pipeline,
    PipelineError,
    ValueState,
    build,
)
from tidegate.testing import PipelineTest


class Order(msgspec.Struct, frozen=True):
    id: str
    cents: int
    at_ms: int


class Payment(msgspec.Struct, frozen=True):
    order_id: str
    at_ms: int


class Outcome(msgspec.Struct, frozen=True):
    id: str
    what: str
    at_ms: int


class Match(CoProcess[str, Order, Payment, Outcome]):
    """An order waits for its payment for ten seconds of event time."""

    order = ValueState(Order | None, default=None)
    paid = ValueState(bool, default=False)
    deadline = EventTimer()

    def process_left(self, record: Order, ctx: Context[str]) -> Iterable[Outcome]:
        if self.paid.value:
            return (Outcome(ctx.key, "paid", ctx.timestamp_ms),)
        self.order.value = record
        self.deadline.set(ctx.timestamp_ms + 10_000)
        return ()

    def process_right(self, record: Payment, ctx: Context[str]) -> Iterable[Outcome]:
        self.paid.value = True
        if self.order.value is None:
            return ()
        self.deadline.cancel()
        self.order.clear()
        return (Outcome(ctx.key, "paid", ctx.timestamp_ms),)

    def on_timer(self, fired: Fired, ctx: Context[str]) -> Iterable[Outcome]:
        self.order.clear()
        yield Outcome(ctx.key, "unpaid", fired.at_ms)


class PaidOrders(Pipeline, name="paid-orders"):
    orders = KafkaSource(
        "orders",
        value=Json(Order),
        event_time=lambda order: order.at_ms,
        watermarks=BoundedOutOfOrderness("1 s"),
    )
    payments = KafkaSource(
        "payments",
        value=Json(Payment),
        event_time=lambda payment: payment.at_ms,
        watermarks=BoundedOutOfOrderness("1 s"),
    )
    outcomes = KafkaSink("outcomes", value=Json(Outcome))

    def define(self) -> None:
        payments = self.payments.key_by(lambda payment: payment.order_id)
        self.orders.key_by(lambda order: order.id).connect(payments).process(
            Match(), uid="match"
        ).to(self.outcomes)


def test_records_of_both_sides_meet_under_one_key_with_one_timer() -> None:
    with PipelineTest(PaidOrders) as test:
        orders, payments = test.source(PaidOrders.orders), test.source(PaidOrders.payments)
        outcomes = test.sink(PaidOrders.outcomes)
        orders.push(Order("a", 5, 1_000), Order("b", 6, 1_000))
        payments.push(Payment("a", 2_000))
        assert outcomes.read() == [Outcome("a", "paid", 2_000)]
        payments.push(Payment("c", 3_000))
        orders.push(Order("c", 7, 4_000))
        assert outcomes.read() == [Outcome("c", "paid", 4_000)]
        orders.push(Order("d", 8, 13_000))
        assert outcomes.read() == [], "the payments hold back the watermark"
        payments.push(Payment("x", 13_000))
        assert outcomes.read() == [Outcome("b", "unpaid", 11_000)]


def test_fingerprint_knows_the_sides() -> None:
    nodes = build(PaidOrders)
    match = next(node for node in nodes if node.id == "match")
    assert [edge.side for edge in match.inputs] == [0, 1]


class OtherKeys(PaidOrders, name="other-keys"):
    def define(self) -> None:
        payments = self.payments.key_by(lambda payment: payment.at_ms)
        orders = self.orders.key_by(lambda order: order.id)
        both = orders.connect(payments)  # type: ignore[arg-type]
        both.process(Match(), uid="match").to(self.outcomes)


class Swapped(PaidOrders, name="swapped"):
    def define(self) -> None:
        orders = self.orders.key_by(lambda order: order.id)
        self.payments.key_by(lambda payment: payment.order_id).connect(orders).process(
            Match(),  # type: ignore[arg-type]
            uid="match",
        ).to(self.outcomes)


class NoWatermarks(PaidOrders, name="no-watermarks"):
    orders = KafkaSource("orders", value=Json(Order))
    payments = KafkaSource("payments", value=Json(Payment))


MISTAKES = {
    "other keys": (OtherKeys, "the left stream has keys of str, the right one of int"),
    "swapped": (Swapped, "Match declares records of Order, the stream has Payment"),
    "no watermarks": (NoWatermarks, "Match.deadline is a timer of event time, and no source"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_at_connect_is_refused_with_file_and_line(mistake: str) -> None:
    pipeline, words = MISTAKES[mistake]
    with pytest.raises(PipelineError, match=words) as caught:
        build(pipeline)
    assert str(caught.value).startswith("tests/api/test_connect.py:")


def test_timer_without_a_method_that_handles_it_is_refused() -> None:
    with pytest.raises(PipelineError, match=r"Deaf.deadline is a timer, and the class has no on_t"):

        class Deaf(CoProcess[str, Order, Payment, Outcome]):
            deadline = EventTimer()
