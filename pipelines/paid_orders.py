"""Orders that wait for their payment: paid in time, or unpaid when event time has passed the
deadline. The result depends on the times in the records only, not on the order of arrival.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from tidegate import (
    BoundedOutOfOrderness,
    Context,
    CoProcess,
    EventTimer,
    Fired,
    Json,
    KafkaSink,
    KafkaSource,
    Param,
    Pipeline,
    ValueState,
)


class Order(msgspec.Struct, frozen=True):
    order_id: str
    cents: int
    placed_at_ms: int


class Payment(msgspec.Struct, frozen=True):
    order_id: str
    paid_at_ms: int


class Outcome(msgspec.Struct, frozen=True):
    order_id: str
    cents: int
    paid: bool
    at_ms: int
    """The time of the payment, or the end of the wait."""


class AwaitPayment(CoProcess[str, Order, Payment, Outcome]):
    """Keeps an order until it is paid, and a payment until its order comes."""

    order = ValueState(Order | None, default=None)
    payment = ValueState(Payment | None, default=None)
    deadline = EventTimer()

    def __init__(self, wait_ms: int) -> None:
        self._wait_ms = wait_ms

    def process_left(self, record: Order, _ctx: Context[str]) -> Iterable[Outcome]:
        self.order.value = record
        self.deadline.set(record.placed_at_ms + self._wait_ms)
        return self._match()

    def process_right(self, record: Payment, _ctx: Context[str]) -> Iterable[Outcome]:
        self.payment.value = record
        if self.order.value is None:
            self.deadline.set(record.paid_at_ms + self._wait_ms)  # then it is dropped
        return self._match()

    def on_timer(self, fired: Fired, _ctx: Context[str]) -> Iterable[Outcome]:
        order = self.order.value
        if order is not None:
            yield Outcome(order.order_id, order.cents, paid=False, at_ms=fired.at_ms)
        self.order.clear()
        self.payment.clear()

    def _match(self) -> Iterable[Outcome]:
        order, payment = self.order.value, self.payment.value
        if order is None or payment is None:
            return
        if payment.paid_at_ms <= order.placed_at_ms + self._wait_ms:
            self.order.clear()
            self.payment.clear()
            self.deadline.cancel()
            yield Outcome(order.order_id, order.cents, paid=True, at_ms=payment.paid_at_ms)


class PaidOrders(Pipeline, name="paid-orders"):
    """One outcome for each order."""

    wait_minutes = Param(int, default=15, help="minutes for which an order waits for its payment")

    orders = KafkaSource(
        "shop-orders",
        value=Json(Order),
        event_time=lambda order: order.placed_at_ms,
        watermarks=BoundedOutOfOrderness("10 s", idle_after="1 min"),
    )
    payments = KafkaSource(
        "shop-payments",
        value=Json(Payment),
        event_time=lambda payment: payment.paid_at_ms,
        watermarks=BoundedOutOfOrderness("10 s", idle_after="1 min"),
    )
    outcomes = KafkaSink(
        "order-outcomes", value=Json(Outcome), record_key=lambda outcome: outcome.order_id
    )

    def define(self) -> None:
        payments = self.payments.key_by(lambda payment: payment.order_id)
        orders = self.orders.key_by(lambda order: order.order_id)
        orders.connect(payments).process(
            AwaitPayment(self.wait_minutes * 60_000), uid="await-payment"
        ).to(self.outcomes)
