"""Orders to running totals: one total per customer, updated by every order, each counted exactly
once.
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal

import msgspec

from tidegate import (
    Context,
    Json,
    KafkaSink,
    KafkaSource,
    KeyedProcess,
    Param,
    Pipeline,
    ValueState,
)


class Order(msgspec.Struct, frozen=True):
    order_id: str
    customer_id: str
    amount: Decimal
    placed_at_ms: int


class CustomerTotal(msgspec.Struct, frozen=True):
    customer_id: str
    total: Decimal


class RunningTotal(KeyedProcess[str, Order, CustomerTotal]):
    """Adds up the amounts of each customer."""

    total = ValueState(Decimal, default=Decimal(0))

    def process(self, order: Order, ctx: Context[str]) -> Iterable[CustomerTotal]:
        self.total.value += order.amount
        yield CustomerTotal(ctx.key, self.total.value)


class OrderTotals(Pipeline, name="order-totals"):
    """The running total of each customer, of orders above a minimum."""

    minimum = Param(Decimal, default=Decimal(0), help="orders up to this amount are left out")

    orders = KafkaSource("orders", value=Json(Order))
    totals = KafkaSink(
        "order-totals", value=Json(CustomerTotal), record_key=lambda total: total.customer_id
    )

    def define(self) -> None:
        minimum = self.minimum
        (
            self.orders.filter(lambda order: order.amount > minimum)
            .key_by(lambda order: order.customer_id)
            .process(RunningTotal(), uid="running-total")
            .to(self.totals)
        )
