"""State of which no image can be taken, in a keyed step with a policy.

Method: a value whose `__deepcopy__` raises stands in one key's state, and a record of another key
yields, sends to a side output and then raises. Both records are refused, and nothing else is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

import msgspec
import pytest

from tidegate import (
    Context,
    Json,
    KafkaSink,
    KafkaSource,
    KeyedProcess,
    Pipeline,
    SideOutput,
    ValueState,
)
from tidegate.testing import PipelineTest


class Order(msgspec.Struct, frozen=True):
    customer: str
    amount: int


@dataclass
class Basket:
    sealed: str = ""
    amount: int = 0

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        if self.sealed == "error":
            raise ValueError("sealed")
        if self.sealed == "stop":
            raise StopIteration
        return type(self)(self.sealed, self.amount)


class Fills(KeyedProcess[str, Order, int]):
    basket = ValueState(Basket, factory=Basket)
    seen = SideOutput(int)

    def process(self, order: Order, ctx: Context[str]) -> Iterable[int]:
        self.basket.value.amount += order.amount
        if order.customer in {"error", "stop"}:
            self.basket.value.sealed = order.customer
        yield self.basket.value.amount
        ctx.output(self.seen, order.amount)
        if order.amount < 0:
            raise ValueError("negative")


class Filled(Pipeline, name="filled"):
    orders = KafkaSource("orders", value=Json(Order))
    out = KafkaSink("out", value=Json(int))
    seen = KafkaSink("seen", value=Json(int))

    def define(self) -> None:
        keyed = self.orders.key_by(lambda order: order.customer)
        filled = keyed.process(
            Fills(), uid="fills", on_error="dead_letter", dead_letter_topic="dead"
        )
        filled.to(self.out)
        filled.side_output(Fills.seen).to(self.seen)


@pytest.mark.parametrize("sealed", ["error", "stop"])
def test_results_of_a_failing_record_are_dropped_when_another_keys_state_cannot_be_copied(
    sealed: str,
) -> None:
    orders = [
        Order("ann", 1),
        Order(sealed, 2),
        Order(sealed, 3),
        Order("ann", -4),
        Order("ann", 5),
        Order(sealed, 6),
    ]
    with PipelineTest(Filled) as test:
        test.source(Filled.orders).push(*orders)
        assert test.sink(Filled.out).read() == [1, 2, 6]
        assert test.sink(Filled.seen).read() == [1, 2, 5]
        found = [dict(letter.headers) for letter in test.dead_letters("dead")]
    assert [letter["tidegate.source.offset"] for letter in found] == [b"2", b"3", b"5"]
    said = b"sealed" if sealed == "error" else b"StopIteration"
    assert [said in (letter["tidegate.error"] or b"") for letter in found] == [True, False, True]
