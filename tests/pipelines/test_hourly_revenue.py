"""Hourly revenue: hours follow from the times in the records. No sale is lost or doubled."""

from __future__ import annotations

import random
from collections import Counter, defaultdict

import pytest

from pipelines.hourly_revenue import HourlyRevenue, Sale, ShopHour
from tidegate import PipelineError
from tidegate.testing import PipelineTest, Setup

MINUTE = 60_000
HOUR = 60 * MINUTE
BOUND_MS = 10_000
LATER = Sale("later", 0, 1_000 * HOUR)
"""A sale that is later than every window of the others."""


def run(
    *sales: Sale, setup: Setup | None = None, crash_after: int = 0
) -> tuple[list[ShopHour], list[Sale]]:
    """Push the sales one by one and end their windows. Return the results and the late sales, each
    by shop.

    `crash_after`: number of sales between two crashes. A checkpoint is taken in the middle of them,
    and the parallelism changes.
    """
    with PipelineTest(HourlyRevenue, setup or Setup()) as test:
        source = test.source(HourlyRevenue.sales)
        for number, sale in enumerate(sales, 1):
            source.push(sale)
            if crash_after and number % crash_after == crash_after // 2:
                test.checkpoint()
            if crash_after and number % crash_after == 0:
                test.crash(parallelism=1 + number % 4)
        source.push(LATER)
        rows = test.sink(HourlyRevenue.revenue).read()
        late = test.sink(HourlyRevenue.late).read()
        return sorted(rows, key=lambda row: row.shop), sorted(late, key=lambda sale: sale.shop)


def hours_of(*sales: Sale) -> list[ShopHour]:
    """Return the results of a batch over the sales, by shop and hour."""
    found: dict[tuple[str, int], list[int]] = defaultdict(list)
    for sale in sales:
        found[sale.shop, sale.sold_at_ms // HOUR * HOUR].append(sale.cents)
    return [
        ShopHour(shop, start_ms, sum(cents), len(cents), "on_time", 0)
        for (shop, start_ms), cents in sorted(found.items())
    ]


def arrivals(seed: int, delay_ms: int = BOUND_MS) -> list[Sale]:
    """Return sales of six hours. They arrive in the order of their times plus a delay of less than
    `delay_ms`.
    """
    rng = random.Random("sales")
    sales = [
        Sale(f"shop-{rng.randrange(5)}", rng.randrange(1, 10_000), rng.randrange(6 * HOUR))
        for _ in range(150)
    ]
    sales += [Sale("edge", 1, HOUR - 1), Sale("edge", 2, HOUR)]
    order = random.Random(seed)
    return sorted(sales, key=lambda sale: sale.sold_at_ms + order.randrange(delay_ms))


def test_hour_is_half_open_and_comes_when_the_watermark_passes_its_end() -> None:
    with PipelineTest(HourlyRevenue) as test:
        sales, revenue = test.source(HourlyRevenue.sales), test.sink(HourlyRevenue.revenue)
        sales.push(Sale("a", 5, 0), Sale("a", 2, HOUR - 1), Sale("a", 9, HOUR))
        sales.push(Sale("a", 1, HOUR + BOUND_MS - 1))
        assert revenue.read() == []
        sales.push(Sale("b", 1, HOUR + BOUND_MS))
        assert revenue.read() == [ShopHour("a", 0, 7, 2, "on_time", 0)]


def test_late_sale_within_two_hours_gives_a_new_result_of_its_hour() -> None:
    last_moment = HOUR + 2 * HOUR + BOUND_MS - 1
    sales = [Sale("a", 5, 0), Sale("b", 0, last_moment), Sale("a", 3, HOUR - 1)]
    rows, late = run(*sales)
    assert rows[:2] == [ShopHour("a", 0, 5, 1, "on_time", 0), ShopHour("a", 0, 8, 2, "late", 1)]
    assert late == []


def test_first_sale_of_an_hour_may_be_late() -> None:
    rows, late = run(Sale("b", 0, 2 * HOUR), Sale("a", 3, 0))
    assert rows[0] == ShopHour("a", 0, 3, 1, "late", 0)
    assert late == []


@pytest.mark.parametrize("crash_after", [0, 1, 2])
def test_sale_after_two_hours_goes_to_the_late_sales_only(crash_after: int) -> None:
    sales = [Sale("a", 5, 0), Sale("b", 0, 3 * HOUR + BOUND_MS), Sale("a", 3, HOUR - 1)]
    rows, late = run(*sales, crash_after=crash_after)
    assert rows == hours_of(*sales[:2])
    assert late == [Sale("a", 3, HOUR - 1)]


@pytest.mark.parametrize("crash_after", [0, 14])
@pytest.mark.parametrize(
    "setup", [Setup(), Setup(parallelism=3, batch=2, seed=5), Setup(parallelism=4, batch=1, seed=9)]
)
def test_hours_are_those_of_a_batch_for_each_arrival_within_the_bound(
    setup: Setup, crash_after: int
) -> None:
    for seed in range(2):
        sales = arrivals(seed)
        assert run(*sales, setup=setup, crash_after=crash_after) == (hours_of(*sales), [])


@pytest.mark.parametrize("crash_after", [0, 14])
@pytest.mark.parametrize("setup", [Setup(), Setup(parallelism=3, seed=5)])
def test_each_sale_beyond_the_bound_is_in_its_hour_or_in_the_late_sales(
    setup: Setup, crash_after: int
) -> None:
    sales = arrivals(seed=1, delay_ms=4 * HOUR)
    rows, late = run(*sales, setup=setup, crash_after=crash_after)
    assert late
    assert {row.firing for row in rows} == {"on_time", "late"}
    final = {(row.shop, row.start_ms): row for row in rows}
    counted = {hour: row.number + 1 for hour, row in final.items()}
    assert Counter((row.shop, row.start_ms) for row in rows) == counted
    kept = Counter(sales) - Counter(late)
    assert kept.total() == len(sales) - len(late)
    assert {hour: (row.cents, row.sales) for hour, row in final.items()} == {
        (row.shop, row.start_ms): (row.cents, row.sales) for row in hours_of(*kept.elements())
    }


def test_pipeline_test_counts_late_records_by_uid_and_refuses_an_unknown_one() -> None:
    with PipelineTest(HourlyRevenue) as test:
        sales = test.source(HourlyRevenue.sales)
        sales.push(Sale("a", 5, 0), LATER)
        assert test.late("hourly-revenue") == 0
        sales.push(Sale("a", 3, 0), Sale("b", 3, 0))
        assert test.late("hourly-revenue") == 2
        with pytest.raises(PipelineError, match=r"no step with windows has this uid; .* has hour"):
            test.late("hourly")
