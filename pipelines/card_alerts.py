"""An event-driven application: a small payment and then a large one with the same card, within a
minute, give an alert.

Run it as a script, until Ctrl-C: `python pipelines/card_alerts.py`.
"""

from __future__ import annotations

from collections.abc import Iterable

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
    Param,
    Pipeline,
    ValueState,
)

WAIT_MS = 60_000


class CardPayment(msgspec.Struct, frozen=True):
    card: str
    cents: int
    at_ms: int


class Alert(msgspec.Struct, frozen=True):
    card: str
    tested_with: int
    cents: int
    at_ms: int


class Watch(KeyedProcess[str, CardPayment, Alert]):
    """Remembers the last small payment of a card for a minute of event time."""

    small = ValueState(CardPayment | None, default=None)
    forget = EventTimer()

    def __init__(self, small_max: int, large_min: int) -> None:
        self._small_max, self._large_min = small_max, large_min

    def process(self, payment: CardPayment, _ctx: Context[str]) -> Iterable[Alert]:
        before = self.small.value
        if payment.cents <= self._small_max:
            self.small.value = payment
            self.forget.set(payment.at_ms + WAIT_MS)
        elif payment.cents >= self._large_min and before is not None:
            if 0 <= payment.at_ms - before.at_ms <= WAIT_MS:
                yield Alert(payment.card, before.cents, payment.cents, payment.at_ms)
            self.small.clear()
            self.forget.cancel()

    def on_timer(self, _fired: Fired, _ctx: Context[str]) -> Iterable[Alert]:
        self.small.clear()
        return ()


class CardAlerts(Pipeline, name="card-alerts"):
    """One alert for each suspicious pair of payments."""

    small_max = Param(int, default=100, help="cents of the largest payment that is a test")
    large_min = Param(int, default=50_000, help="cents of the smallest payment that is large")

    payments = KafkaSource(
        "card-payments",
        value=Json(CardPayment),
        event_time=lambda payment: payment.at_ms,
        watermarks=BoundedOutOfOrderness("5 s", idle_after="1 min"),
    )
    alerts = KafkaSink("card-alerts", value=Json(Alert), record_key=lambda alert: alert.card)

    def define(self) -> None:
        by_card = self.payments.key_by(lambda payment: payment.card)
        by_card.process(Watch(self.small_max, self.large_min), uid="watch").to(self.alerts)


if __name__ == "__main__":
    print(CardAlerts().run())
