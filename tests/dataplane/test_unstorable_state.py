"""A record whose call puts a value into state that no checkpoint can store, under each policy."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from tidegate import (
    Context,
    Json,
    KafkaSink,
    KafkaSource,
    KeyedProcess,
    ListState,
    MapState,
    Pipeline,
    SideOutput,
    ValueState,
)
from tidegate.errors import StateValueError, is_recoverable
from tidegate.testing import FunctionHarness, PipelineTest


class Order(msgspec.Struct, frozen=True):
    customer: str
    amount: int
    how: str = "well"


class Sums(KeyedProcess[str, Order, int]):
    """Does something else to state for each `how`."""

    total = ValueState(int, default=0)
    names = ListState(str)
    by_amount = MapState(int, str)
    seen = SideOutput(int)

    def process(self, order: Order, ctx: Context[str]) -> Iterable[int]:
        untyped: Any = order.amount
        self.total.value += order.amount
        ctx.output(self.seen, order.amount)
        yield self.total.value
        if order.how == "text":
            untyped = f"{order.amount}"
            self.total.value = untyped
        elif order.how == "name":
            self.names.append(untyped)
        elif order.how == "entry":
            self.by_amount[order.amount] = untyped
        elif order.how == "key":
            self.by_amount[2**70] = "big"


class Summed(Pipeline, name="summed"):
    orders = KafkaSource("orders", value=Json(Order))
    out = KafkaSink("out", value=Json(int))
    seen = KafkaSink("seen", value=Json(int))

    def define(self) -> None:
        keyed = self.orders.key_by(lambda order: order.customer)
        sums = keyed.process(Sums(), uid="sums", on_error="dead_letter", dead_letter_topic="dead")
        sums.to(self.out)
        sums.side_output(Sums.seen).to(self.seen)


HOWS = ["text", "name", "entry", "key"]


@pytest.mark.parametrize("how", HOWS)
def test_record_with_an_unstorable_state_value_is_refused_and_state_is_rolled_back(
    how: str,
) -> None:
    orders = [Order("a", 1), Order("a", 2, how), Order("b", 3), Order("a", 4)]
    with PipelineTest(Summed) as test:
        test.source(Summed.orders).push(*orders)
        (letter,) = test.dead_letters("dead")
        assert msgspec.json.decode(letter.value or b"", type=Order) == orders[1]
        reason = dict(letter.headers)["tidegate.error"]
        assert reason is not None
        assert reason.startswith(b"StateValueError: state '")
        assert test.sink(Summed.out).read() == [1, 3, 5]
        assert test.sink(Summed.seen).read() == [1, 3, 4]


@pytest.mark.parametrize("how", HOWS)
def test_function_harness_names_the_state_of_an_unstorable_value_without_a_policy(how: str) -> None:
    with FunctionHarness(Sums()) as harness:
        harness.push("a", Order("a", 1))
        with pytest.raises(StateValueError, match=r"State '.*' of Sums .* for key 'a'") as caught:
            harness.push("a", Order("a", 2, how))
    assert not is_recoverable(caught.value)


def test_policy_does_not_refuse_a_sum_beyond_64_bits() -> None:
    with PipelineTest(Summed) as test:
        test.source(Summed.orders).push(Order("a", 2**64 - 1), Order("a", 1), Order("a", 2**70))
        assert test.dead_letters("dead") == []
        assert test.sink(Summed.out).read() == [2**64 - 1, 2**64, 2**64 + 2**70]
