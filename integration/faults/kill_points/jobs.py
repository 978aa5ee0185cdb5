"""Defines the pipelines that are killed.

They have no state, keyed state, two sinks, two sources, or two keyed steps in sequence. The classes
are bases without a name. Each test runs a subclass with its own name, so that tests share a broker
without sharing transactional ids.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from pipelines.order_totals import CustomerTotal, Order, OrderTotals, RunningTotal
from tidegate import Context, Json, KafkaSink, KafkaSource, KeyedProcess, Pipeline, ValueState


class LargeOrder(msgspec.Struct, frozen=True):
    order_id: str
    customer_id: str


def large(order: Order) -> LargeOrder:
    return LargeOrder(order.order_id, order.customer_id)


class Totals(OrderTotals, name=None):
    """The unchanged example pipeline, with keyed state and one sink."""


class LargeOrders(Pipeline, name=None):
    """A pipeline with a filter and a map, without state."""

    orders = KafkaSource("orders", value=Json(Order))
    large = KafkaSink("large", value=Json(LargeOrder), record_key=lambda order: order.customer_id)

    def define(self) -> None:
        self.orders.filter(lambda order: order.amount > 100).map(large).to(self.large)


class TwoSinks(Pipeline, name=None):
    """A pipeline with the steps of `Totals` and `LargeOrders` from one source. A publication then
    holds two transactions of one subtask.
    """

    orders = KafkaSource("orders", value=Json(Order))
    totals = KafkaSink(
        "totals", value=Json(CustomerTotal), record_key=lambda total: total.customer_id
    )
    large = KafkaSink("large", value=Json(LargeOrder), record_key=lambda order: order.customer_id)

    def define(self) -> None:
        self.orders.filter(lambda order: order.amount > 100).map(large).to(self.large)
        self.orders.key_by(lambda order: order.customer_id).process(
            RunningTotal(), uid="running-total"
        ).to(self.totals)


class TwoSources(Pipeline, name=None):
    """A pipeline with two sources into one step. A bounded run reaches the end of one source before
    the end of the other.
    """

    orders = KafkaSource("orders", value=Json(Order))
    later = KafkaSource("later", value=Json(Order))
    totals = KafkaSink(
        "totals", value=Json(CustomerTotal), record_key=lambda total: total.customer_id
    )

    def define(self) -> None:
        self.orders.union(self.later).key_by(lambda order: order.customer_id).process(
            RunningTotal(), uid="running-total"
        ).to(self.totals)


class Numbered(KeyedProcess[str, CustomerTotal, CustomerTotal]):
    """A step that counts the totals that it forwards."""

    passed = ValueState(int, default=0)

    def process(self, total: CustomerTotal, ctx: Context[str]) -> Iterable[CustomerTotal]:
        self.passed.value += 1
        yield total


class ThreeLevels(Pipeline, name=None):
    """A pipeline with two exchanges. In a backfill it has the tasks of three levels."""

    orders = KafkaSource("orders", value=Json(Order))
    totals = KafkaSink(
        "totals", value=Json(CustomerTotal), record_key=lambda total: total.customer_id
    )

    def define(self) -> None:
        self.orders.key_by(lambda order: order.customer_id).process(
            RunningTotal(), uid="running-total"
        ).key_by(lambda total: total.customer_id).process(Numbered(), uid="numbered").to(
            self.totals
        )
