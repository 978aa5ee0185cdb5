"""Declarations that rename or drop states: what is refused when the function class is made."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from tidegate import Context, KeyedProcess, ListState, MapState, PipelineError, ValueState
from tidegate.testing import FunctionHarness


def function(**members: Any) -> type[KeyedProcess[Any, Any, Any]]:
    return type("Counts", (KeyedProcess,), members)


def number(renamed_from: str = "") -> ValueState[int]:
    return ValueState(int, default=0, renamed_from=renamed_from)


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"dropped_states": "total"}, "must be a tuple of names"),
        ({"dropped_states": (1,)}, "must be a tuple of names"),
        ({"total": number(), "dropped_states": ("total",)}, "'total' is in dropped_states"),
        ({"count": number("total"), "dropped_states": ("total",)}, "'total' is in dropped_states"),
        ({"count": number("total"), "total": number()}, "A name can have only one successor"),
        ({"count": number("total"), "sum": number("total")}, "A name can have only one successor"),
        ({"count": number("count")}, "A name can have only one successor"),
    ],
)
def test_wrong_or_contradictory_renamed_and_dropped_states_are_refused(
    members: dict[str, Any], words: str
) -> None:
    with pytest.raises(PipelineError, match=words):
        function(**members)


@pytest.mark.parametrize("former", ["a total", "total-1", 5])
def test_renamed_from_that_is_no_attribute_name_is_refused(former: Any) -> None:
    for make in (
        lambda: ValueState(int, default=0, renamed_from=former),
        lambda: ListState(int, renamed_from=former),
        lambda: MapState(str, int, renamed_from=former),
    ):
        with pytest.raises(PipelineError, match="is not the name of an attribute"):
            make()


class Counts(KeyedProcess[str, int, int]):
    count = ValueState(int, default=0, renamed_from="total")
    dropped_states = ("seen",)

    def process(self, record: int, ctx: Context[str]) -> Iterable[int]:
        self.count.value += record
        yield self.count.value


def test_a_harness_takes_a_function_with_renamed_and_dropped_states() -> None:
    with FunctionHarness(Counts()) as harness:
        assert harness.push("ann", 1) == [1]
        assert harness.push("ann", 2) == [3]
        assert harness.value(Counts.count, "ann") == 3


def test_renamed_and_dropped_states_are_inherited_by_a_subclass() -> None:
    class More(Counts):
        other = ListState(int)

    assert More.dropped_states == ("seen",)
    assert More.declared_states["count"].renamed_from == "total"
