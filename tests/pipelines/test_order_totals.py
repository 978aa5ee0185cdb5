"""The order pipeline's own tests, as users are meant to write them."""

from decimal import Decimal

from pipelines.order_totals import CustomerTotal, Order, OrderTotals, RunningTotal
from tidegate.testing import FunctionHarness, PipelineTest


def order(customer: str, amount: int) -> Order:
    return Order("o-1", customer, Decimal(amount), placed_at_ms=1_000)


def test_totals_run_per_customer_above_the_minimum() -> None:
    with PipelineTest(OrderTotals, minimum=1) as test:
        test.source(OrderTotals.orders).push(
            order("ann", 5), order("bob", 7), order("ann", 1), order("ann", 2)
        )
        assert test.sink(OrderTotals.totals).read() == [
            CustomerTotal("ann", Decimal(5)),
            CustomerTotal("bob", Decimal(7)),
            CustomerTotal("ann", Decimal(7)),
        ]


def test_a_total_is_kept_by_key() -> None:
    with FunctionHarness(RunningTotal()) as harness:
        assert harness.push("ann", order("ann", 5)) == [CustomerTotal("ann", Decimal(5))]
        harness.push("bob", order("bob", 7))
        assert harness.value(RunningTotal.total, "ann") == Decimal(5)
        assert harness.value(RunningTotal.total, "nobody") == Decimal(0)
