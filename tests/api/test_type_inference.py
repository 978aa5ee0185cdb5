"""What a user's function returns is known or UNKNOWN, never guessed.

Method: functions that only read fields, that compute, that branch, and that are annotated.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest

from tidegate import ConsumerRecord, PipelineError
from tidegate.api.records.type_inference import item_type, result_type
from tidegate.graph.stream_graph import UNKNOWN

T = TypeVar("T")


@dataclass(frozen=True)
class Address:
    city: str
    zip: int | None


@dataclass(frozen=True)
class Person:
    name: str
    home: Address
    tags: list[str]


def annotated(person: Person) -> Address:
    return person.home


def anything(person: Person) -> Any:
    return person


def same(value: T) -> T:
    return value


def several(person: Person) -> Iterable[Address]:
    yield person.home


def some(person: Person) -> Iterator[T]:
    yield from ()


def untyped(person):  # type: ignore[no-untyped-def]
    return person.home


KNOWN: list[tuple[Any, object]] = [
    (lambda p: p.name, str),
    (lambda p: p.home.city, str),
    (lambda p: p.home.zip, int | None),
    (lambda p: p.tags, list[str]),
    (lambda p: (p.name, p.home), tuple[str, Address]),
    (lambda p: p, Person),
    (operator.attrgetter("home"), Address),
    (annotated, Address),
    (untyped, Address),
    (Address, Address),
    (anything, Person),
    (same, Person),
]
NOT_KNOWN: list[Any] = [
    lambda p: p.name.lower(),
    lambda p: p.name + "x",
    lambda p: f"{p.name}",
    lambda p: str(p.name),
    lambda p: p.tags[0],
    lambda p: p.name if p.home.zip is None else p.home.city,
    lambda p: p.name or p.home,
    lambda p: p.name == "x",
    lambda p: {p.name: 1},
    lambda p: "constant",
    lambda p: (),
    lambda p: next(filter(None, (p.name, p.home))),
    lambda p: {True: p.name, False: p.home}[p.name == "x"],
    lambda p: {"x": p.name}.get(str(p.name), p.home),
    lambda p: {"x": p.name}.get(repr(p.name), p.home),
    lambda p: {"x": p.name}.get(f"{p.name}", p.home),
]


@pytest.mark.parametrize(("function", "of"), KNOWN)
def test_result_type_of_a_function_is_found(function: Any, of: object) -> None:
    assert result_type(function, Person) == of


@pytest.mark.parametrize("function", NOT_KNOWN)
def test_result_type_is_unknown_if_it_cannot_be_derived(function: Any) -> None:
    assert result_type(function, Person) is UNKNOWN


def test_stated_result_type_is_used_and_an_unknown_input_type_gives_unknown() -> None:
    assert result_type(lambda p: p.name.lower(), Person, str) is str
    assert result_type(lambda p: p.name, UNKNOWN) is UNKNOWN


def test_result_type_fills_in_the_type_arguments_of_a_generic_record() -> None:
    assert result_type(lambda record: record.value.name, ConsumerRecord[str, Person]) is str


def test_item_type_comes_only_from_an_annotation_or_a_stated_type() -> None:
    assert item_type(several) is Address
    assert item_type(some) is UNKNOWN
    assert item_type(lambda p: [p]) is UNKNOWN
    assert item_type(lambda p: [p], Person) is Person


def test_annotation_defined_only_for_type_checkers_is_refused_with_the_remedy() -> None:
    def broken(person: Person) -> OnlyForCheckers:  # type: ignore[name-defined] # noqa: F821
        return person

    with pytest.raises(PipelineError, match="outside TYPE_CHECKING or give returns="):
        result_type(broken, Person)
