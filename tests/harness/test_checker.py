"""The checker that judges the demo finds every kind of mistake, and reports none in correct output.

Its comparison is a function of records, so each control is a short list, and each control that must
fail does.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal

import pytest

from integration.demo.checker import Record, Verdict, joined, judge, vanished_records

ORDERS = [("ann", "1.50"), ("bob", "2"), ("ann", "0"), ("ann", "3.25"), ("bob", "0.01")]
TOTALS = [("ann", "1.50"), ("bob", "2"), ("ann", "4.75"), ("bob", "2.01")]

Rows = list[tuple[str, str]]


def records(rows: Rows, field: str, *, partition: int = 0) -> list[Record]:
    return [
        Record(
            partition,
            offset,
            customer.encode(),
            json.dumps({"customer_id": customer, field: text}).encode(),
        )
        for offset, (customer, text) in enumerate(rows)
    ]


def verdict_on(totals: Rows, minimum: str = "0") -> Verdict:
    return judge(records(ORDERS, "amount"), records(totals, "total"), Decimal(minimum))


def test_exact_output_is_called_exact() -> None:
    assert verdict_on(TOTALS) == Verdict(records_in=5, records_expected=4, records_out=4)


def test_customers_may_be_interleaved_in_any_way() -> None:
    assert verdict_on([TOTALS[1], TOTALS[0], TOTALS[3], TOTALS[2]]).exact


def test_the_minimum_filters_and_is_exclusive() -> None:
    assert verdict_on([("ann", "1.50"), ("bob", "2"), ("ann", "4.75")], minimum="0.01").exact


@pytest.mark.parametrize(
    ("spoil", "count"),
    [
        pytest.param(lambda rows: rows[:-1], "missing", id="the last is missing"),
        pytest.param(lambda rows: rows[1:], "missing", id="the first is missing"),
        pytest.param(lambda rows: [*rows, rows[2]], "doubled", id="one stands twice at the end"),
        pytest.param(lambda rows: [rows[0], *rows], "doubled", id="one stands twice in place"),
        pytest.param(
            lambda rows: [rows[2], rows[1], rows[0], rows[3]], "wrong_order", id="two are swapped"
        ),
        pytest.param(lambda rows: [*rows[:3], ("bob", "2.02")], "never_due", id="a value is wrong"),
        pytest.param(lambda rows: [*rows, ("eve", "1")], "never_due", id="a customer is made up"),
        pytest.param(lambda rows: [*rows, ("ann", "x")], "never_due", id="it is no number"),
    ],
)
def test_output_mistake_is_found_and_counted(spoil: Callable[[Rows], Rows], count: str) -> None:
    verdict = verdict_on(spoil(TOTALS))
    assert not verdict.exact
    assert getattr(verdict, count) > 0
    assert verdict.first_problems


def test_empty_output_is_counted_as_missing() -> None:
    verdict = verdict_on([])
    assert (verdict.exact, verdict.missing) == (False, 4)


def test_total_under_the_wrong_key_is_found() -> None:
    totals = records(TOTALS, "total")
    totals[1] = totals[1]._replace(key=b"ann")
    assert not judge(records(ORDERS, "amount"), totals, Decimal(0)).exact


def test_customer_in_two_partitions_is_refused() -> None:
    totals = records(TOTALS, "total")
    totals[2] = totals[2]._replace(partition=1)
    assert not judge(records(ORDERS, "amount"), totals, Decimal(0)).exact
    orders = [*records(ORDERS, "amount"), *records([("ann", "1")], "amount", partition=1)]
    with pytest.raises(ValueError, match="not defined"):
        judge(orders, records(TOTALS, "total"), Decimal(0))


def test_customer_in_two_input_topics_is_refused() -> None:
    both = [records(ORDERS, "amount"), records([("cleo", "1")], "amount")]
    totals = records([*TOTALS, ("cleo", "1")], "total")
    assert judge(joined(both), totals, Decimal(0)).exact
    with pytest.raises(ValueError, match="not defined"):
        judge(joined([*both, records([("ann", "1")], "amount")]), totals, Decimal(0))


def test_record_that_vanished_or_changed_after_it_was_read_is_counted() -> None:
    seen = [Record(0, 0, b"a", b"1"), Record(0, 2, b"a", b"2"), Record(1, 0, b"b", b"3")]
    more = [*seen, Record(0, 4, b"a", b"4")]
    assert vanished_records(seen, more) == 0
    assert vanished_records(more, seen) == 1, "gone"
    assert vanished_records(seen, [*more[1:], Record(0, 0, b"a", b"5")]) == 1, "another value"
    assert vanished_records(seen, [*more[1:], Record(1, 1, b"a", b"1")]) == 1, "at another offset"


# --- of an output that is still being written ---------------------------------------------------


def so_far(totals: Rows) -> Verdict:
    rows = records(ORDERS, "amount"), records(totals, "total")
    return judge(*rows, Decimal(0), complete=False)


def test_unfinished_output_is_exact_although_records_are_still_to_come() -> None:
    assert so_far([]).exact
    assert so_far(TOTALS[:3]).exact


@pytest.mark.parametrize(
    "totals",
    [
        pytest.param(TOTALS[1:], id="one was left out"),
        pytest.param([TOTALS[0], TOTALS[0]], id="one stands twice"),
        pytest.param([*TOTALS, TOTALS[3]], id="one stands twice at the end"),
    ],
)
def test_output_mistake_is_found_in_unfinished_output(totals: Rows) -> None:
    assert not so_far(totals).exact


# --- ids of the orders themselves ---------------------------------------------------------------

NAMED = [("ann", "a"), ("bob", "b"), ("ann", "c")]


def judge_ids(ids: Rows, minimum: str = "0") -> Verdict:
    orders = [
        record._replace(
            value=json.dumps({**json.loads(record.value or b""), "amount": "5"}).encode()
        )
        for record in records(NAMED, "order_id")
    ]
    return judge(orders, records(ids, "order_id"), Decimal(minimum), field="order_id")


def test_order_ids_are_judged_by_the_same_rules_as_totals() -> None:
    assert judge_ids(NAMED).exact
    assert judge_ids([], minimum="5").exact
    assert judge_ids(NAMED[:2]).missing == 1
    assert judge_ids([*NAMED, NAMED[1]]).doubled == 1
    assert judge_ids([NAMED[2], NAMED[1], NAMED[0]]).wrong_order == 2
