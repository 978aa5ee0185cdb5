"""Card alerts: a small payment, then a large one within a minute of event time."""

from __future__ import annotations

import pytest

from pipelines.card_alerts import WAIT_MS, Alert, CardAlerts, CardPayment
from tidegate.testing import PipelineTest, Setup


def alerts(
    *payments: CardPayment, setup: Setup | None = None, crashes: bool = False
) -> list[Alert]:
    with PipelineTest(CardAlerts, setup or Setup()) as test:
        source = test.source(CardAlerts.payments)
        for payment in payments:
            source.push(payment)
            if crashes:
                test.checkpoint().crash()
        return sorted(test.sink(CardAlerts.alerts).read(), key=lambda each: each.card)


@pytest.mark.parametrize("crashes", [False, True])
@pytest.mark.parametrize(
    ("wait_ms", "found"), [(0, True), (WAIT_MS, True), (WAIT_MS + 1, False), (100 * WAIT_MS, False)]
)
def test_alert_needs_a_large_payment_within_a_minute_after_a_small_one(
    wait_ms: int, *, found: bool, crashes: bool
) -> None:
    small, large = CardPayment("a", 1, 0), CardPayment("a", 99_000, wait_ms)
    expected = [Alert("a", 1, 99_000, wait_ms)] if found else []
    assert alerts(small, large, crashes=crashes) == expected


def test_large_payment_alone_and_one_of_another_card_and_a_second_one_give_no_alert() -> None:
    small, large = CardPayment("a", 1, 0), CardPayment("a", 99_000, 10)
    assert alerts(large, small) == []
    assert alerts(small, CardPayment("b", 99_000, 10)) == []
    assert alerts(small, CardPayment("a", 500, 5)) == []
    assert len(alerts(small, large, large)) == 1


def test_alerts_do_not_depend_on_the_parallelism() -> None:
    payments = [
        payment
        for card in (f"c{number:02d}" for number in range(20))
        for payment in (CardPayment(card, 50, 0), CardPayment(card, 60_000, 1_000))
    ]
    expected = alerts(*payments)
    assert len(expected) == 20
    assert alerts(*payments, setup=Setup(parallelism=3, batch=2, seed=3)) == expected
