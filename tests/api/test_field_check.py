"""The check of fields agrees with `fault`, which walks one value."""

from __future__ import annotations

import dataclasses
import enum
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, TypedDict, TypeVar

import msgspec
import pytest

from tidegate.api.records.values import fault
from tidegate.api.state.field_check import CALL_COST, CONTAINER_COST, FieldCheck

T = TypeVar("T")


class Kind(enum.Enum):
    A = 1


class Text(enum.StrEnum):
    X = "x"


class Inner(msgspec.Struct, frozen=True):
    a: int
    b: tuple[int, str]


class Sub(Inner, frozen=True):
    """Has the same fields."""


@dataclasses.dataclass
class Pair(Generic[T]):
    left: T
    right: T | None


class Words(TypedDict):
    first: str
    rest: list[str]


class Point(NamedTuple):
    x: int
    y: int


INNER = Inner(1, (2, "x"))
GOOD: list[tuple[Any, list[Any]]] = [
    (int, [1, 2**70]),
    (float, [1.5, 1]),
    (str, ["a", Text.X]),
    (int | None, [None, 1]),
    (Literal["a", "b"], ["a", "b"]),
    (Kind, [Kind.A]),
    (Inner, [INNER, Sub(1, (2, "x"))]),
    (Pair[int], [Pair(1, None), Pair(1, 2)]),
    (Pair[Inner] | int | None, [Pair(INNER, None), 5, None]),
    (Words, [Words(first="a", rest=["b"])]),
    (list[Inner], [[], [INNER, INNER]]),
    (list[int] | list[str], [[1], ["a"], []]),
    (Sequence[int], [[1], (1, 2)]),
    (tuple[int, ...], [(), (1, 2)]),
    (tuple[int, int], [(1, 2), Point(1, 2)]),
    (set[str], [{"a"}, set()]),
    (dict[str, list[int]], [{}, {"a": [1]}]),
    (Mapping[str, int], [Counter("aa")]),
    (Any, [1, "a", None]),
    (list[Any], [[1, "a"]]),
    (date, [date(2026, 1, 1)]),
    (Path, [Path("a")]),
]
BAD: list[tuple[Any, Any]] = [
    (int, True),
    (int, 1.0),
    (date, datetime(2026, 1, 1, tzinfo=UTC)),
    (int | None, "1"),
    (Literal["a", "b"], "c"),
    (Literal[1], True),
    (Inner, Inner("1", (2, "x"))),  # type: ignore[arg-type]
    (Inner, Inner(1, (2, 3))),  # type: ignore[arg-type]
    (Inner, Inner(1, (2, "x", 3))),  # type: ignore[arg-type]
    (Inner, Inner(1, (2,))),  # type: ignore[arg-type]
    (Inner, Inner(1, None)),  # type: ignore[arg-type]
    (Pair[int], Pair(1, "2")),
    (Pair[Inner] | int | None, Pair(INNER, INNER.a)),
    (Words, {"first": "a", "rest": [1]}),
    (Words, {"first": "a"}),
    (list[Inner], [INNER, Inner(1, ("a", "x"))]),  # type: ignore[arg-type]
    (list[int] | list[str], [1, "a"]),
    (Sequence[int], ("a",)),
    (tuple[int, ...], (1, "a")),
    (set[str], {1}),
    (dict[str, list[int]], {"a": ["b"]}),
    (dict[str, list[int]], {1: [1]}),
    (Mapping[str, int], {"a": Decimal(1)}),
]


@pytest.mark.parametrize(("of", "values"), GOOD)
def test_field_check_accepts_correct_values_without_a_call_of_fault(
    of: Any, values: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [fault(value, of) for value in values] == [""] * len(values)
    check = FieldCheck(of)
    # To walk a value costs microseconds, so it must not be needed where all are right.
    monkeypatch.setattr("tidegate.api.state.field_check.fault", _never)
    assert check.first_wrong(values * 3) is None
    assert check.first_wrong([]) is None


def _never(*_: object) -> str:
    raise AssertionError("walked")


@pytest.mark.parametrize(("of", "bad"), BAD)
def test_the_first_value_with_a_wrong_field_is_found(of: Any, bad: Any) -> None:
    assert fault(bad, of)
    good = next((values for known, values in GOOD if known == of), [])
    assert FieldCheck(of).first_wrong([*good, bad, *good, bad]) == len(good)


def test_a_field_that_was_never_set_is_wrong() -> None:
    @dataclasses.dataclass(slots=True)
    class Slotted:
        a: int

    value = Slotted(1)
    del value.a
    assert FieldCheck(Slotted).first_wrong([Slotted(1), value]) == 1


def test_a_class_that_contains_itself_is_checked_by_its_class_alone() -> None:
    check = FieldCheck(Node)
    assert check.first_wrong([Node([Node([])])]) is None


@dataclasses.dataclass
class Node:
    children: list[Node]


def test_cost_of_a_field_check_counts_values_items_and_containers() -> None:
    check = FieldCheck(list[int])
    check.first_wrong([[1, 2, 3], [4, 5]])
    assert check.cost == 2 + 5 + 3 * CONTAINER_COST + CALL_COST


def test_field_check_shows_its_generated_source_and_size() -> None:
    assert "type(x.a) is " in FieldCheck(Inner).source
    assert FieldCheck(Inner).size == 5
    assert FieldCheck(list[int]).size is None
    assert FieldCheck(Node).size is None


def test_field_check_allows_fields_named_like_its_generated_variables() -> None:
    made = msgspec.defstruct("Made", [("cost", int), ("k1", Inner | None), ("v1", list[str])])
    right, wrong = made(1, INNER, ["a"]), made(1, INNER, [1])
    assert FieldCheck(made).first_wrong([right, wrong, right]) == 1
