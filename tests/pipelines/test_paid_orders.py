"""Paid orders: the outcome follows from the times in the records, whatever arrives first."""

from __future__ import annotations

import itertools

import pytest

from pipelines.paid_orders import Order, Outcome, PaidOrders, Payment
from tidegate.testing import PipelineTest, Setup

WAIT_MS = 60_000
LATER_MS = 10_000_000


def outcomes(
    *records: Order | Payment, setup: Setup | None = None, crashes: bool = False
) -> list[Outcome]:
    """Push the records in this order, end the wait of all of them, and return the outcomes."""
    with PipelineTest(PaidOrders, setup or Setup(), wait_minutes=WAIT_MS // 60_000) as test:
        orders, payments = test.source(PaidOrders.orders), test.source(PaidOrders.payments)
        for record in records:
            if isinstance(record, Order):
                orders.push(record)
            else:
                payments.push(record)
            if crashes:
                test.checkpoint().crash()
        orders.push(Order("later", 0, LATER_MS))
        payments.push(Payment("later-too", LATER_MS))
        return sorted(test.sink(PaidOrders.outcomes).read(), key=lambda each: each.order_id)


CASES = {
    "in time": (1_000, Outcome("a", 5, paid=True, at_ms=1_000)),
    "at the deadline": (WAIT_MS, Outcome("a", 5, paid=True, at_ms=WAIT_MS)),
    "too late": (WAIT_MS + 1, Outcome("a", 5, paid=False, at_ms=WAIT_MS)),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("crashes", [False, True])
def test_outcome_does_not_depend_on_which_record_arrives_first(case: str, crashes: bool) -> None:
    paid_at_ms, outcome = CASES[case]
    records: list[Order | Payment] = [Order("a", 5, 0), Payment("a", paid_at_ms)]
    for order in itertools.permutations(records):
        assert outcomes(*order, crashes=crashes) == [outcome]


def test_order_without_a_payment_is_unpaid_and_a_payment_without_an_order_is_dropped() -> None:
    unpaid = Outcome("a", 5, paid=False, at_ms=WAIT_MS)
    assert outcomes(Order("a", 5, 0), Payment("b", 0)) == [unpaid]


def test_each_order_has_one_outcome_at_any_parallelism() -> None:
    orders = [Order(f"o{number:02d}", number, number * 100) for number in range(40)]
    paid = [Payment(order.order_id, order.placed_at_ms + 50) for order in orders[::2]]
    expected = outcomes(*orders, *paid)
    assert [each.order_id for each in expected] == [order.order_id for order in orders]
    assert outcomes(*orders, *paid, setup=Setup(parallelism=3, batch=2, seed=5)) == expected
