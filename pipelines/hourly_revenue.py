"""The revenue of each shop in each hour of event time. Sales that come later than two hours after
their hour go to a topic of their own.
"""

from __future__ import annotations

import msgspec

from tidegate import (
    BoundedOutOfOrderness,
    Count,
    Json,
    KafkaSink,
    KafkaSource,
    Pipeline,
    Sum,
    Tumbling,
)


class Sale(msgspec.Struct, frozen=True):
    shop: str
    cents: int
    sold_at_ms: int


class ShopHour(msgspec.Struct, frozen=True):
    """The revenue of one hour. A late sale gives a new result with a higher number."""

    shop: str
    start_ms: int
    cents: int
    sales: int
    firing: str
    number: int


class HourlyRevenue(Pipeline, name="hourly-revenue"):
    """A result for each shop and hour, and a further one for each late sale."""

    sales = KafkaSource(
        "sales",
        value=Json(Sale),
        event_time=lambda sale: sale.sold_at_ms,
        watermarks=BoundedOutOfOrderness("10 s", idle_after="1 min"),
    )
    revenue = KafkaSink("shop-revenue", value=Json(ShopHour), record_key=lambda row: row.shop)
    late = KafkaSink("late-sales", value=Json(Sale), record_key=lambda sale: sale.shop)

    def define(self) -> None:
        by_shop = self.sales.key_by(lambda sale: sale.shop)
        hours = by_shop.window(Tumbling("1 h"), allowed_lateness="2 h").aggregate(
            Sum(lambda sale: sale.cents),
            Count(),
            uid="hourly-revenue",
            into=lambda w, cents, sales: ShopHour(
                w.key, w.start_ms, cents, sales, w.firing, w.number
            ),
        )
        hours.to(self.revenue)
        hours.late.to(self.late)
