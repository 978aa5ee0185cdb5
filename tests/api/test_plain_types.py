"""A NewType, a constrained type and a subclass of a generic class work as the types they stand for.

Method: one pipeline for each kind of record class, at parallelism 3, with state and a crash.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Annotated, Any, Generic, NewType, TypeVar

import msgspec
import pydantic
import pytest
from typing_extensions import TypeAliasType

from tidegate import (
    Avro,
    Context,
    Json,
    KafkaSink,
    KafkaSource,
    KeyedProcess,
    MapState,
    Pipeline,
    PipelineError,
    ValueState,
)
from tidegate.api.records.record_fields import plain_type
from tidegate.api.records.types import type_info
from tidegate.testing import PipelineTest, Setup

T = TypeVar("T")
U = TypeVar("U")
UserId = NewType("UserId", str)
Amount = NewType("Amount", Decimal)


@dataclasses.dataclass(frozen=True)
class Box(Generic[T]):
    user: UserId
    x: T


@dataclasses.dataclass(frozen=True)
class IntBox(Box[int]):
    more: list[UserId] = dataclasses.field(default_factory=list)


class StructBox(msgspec.Struct, Generic[T], frozen=True):
    user: UserId
    x: T


class ListBox(StructBox[list[U]], Generic[U], frozen=True):
    pass


class IntListBox(ListBox[int], frozen=True):
    y: int = 0


class Model(pydantic.BaseModel, Generic[T]):
    user: UserId
    x: T


class IntModel(Model[int]):
    pass


class Limited(pydantic.BaseModel):
    user: UserId
    a: pydantic.PositiveInt | None
    b: pydantic.AwareDatetime
    c: list[pydantic.PositiveInt] = []
    d: Annotated[Decimal, pydantic.Field(gt=0)] | None = None
    e: dict[UserId, Amount] = {}
    f: pydantic.AwareDatetime | None = None


LIMITED = {"user": "u", "a": 1, "b": "2026-01-01T00:00:00Z", "c": [1], "d": 1.50, "e": {"k": 2.0}}


@pytest.mark.parametrize(
    ("of", "given"),
    [
        (IntBox, {"user": "u", "x": 1, "more": ["a"]}),
        (Box[UserId], {"user": "u", "x": "v"}),
        (IntListBox, {"user": "u", "x": [1]}),
        (IntModel, {"user": "u", "x": 1}),
        (Limited, LIMITED),
    ],
)
def test_record_passes_state_slots_json_and_avro(of: Any, given: dict[str, Any]) -> None:
    class Count(KeyedProcess[UserId, of, of]):
        last = ValueState(of | None, default=None)
        seen = MapState(UserId, int)

        def process(self, record: Any, ctx: Context[UserId]) -> Iterator[Any]:
            yield record if self.last.value is None else self.last.value
            self.last.value = record
            self.seen[record.user] = self.seen.get(record.user, 0) + 1

    class Plain(Pipeline, name="plain"):
        source = KafkaSource("in", value=Json(of))
        as_json = KafkaSink("a", value=Json(of), key=Json(UserId), record_key=lambda r: r.user)
        as_avro = KafkaSink("b", value=Avro(of))

        def define(self) -> None:
            counted = self.source.key_by(lambda r: UserId(r.user)).process(Count(), uid="count")
            counted.to(self.as_json)
            counted.to(self.as_avro)

    data = json.dumps(given).encode()
    value = Json(of).decoder()(data)
    with PipelineTest(Plain, Setup(parallelism=3)) as test:
        test.source(Plain.source).push_bytes(data)
        test.checkpoint()
        test.crash()
        test.source(Plain.source).push_bytes(data)
        assert test.sink(Plain.as_json).read() == [value, value]
        assert test.sink(Plain.as_avro).read() == [value, value]


def test_constraints_are_checked_when_a_record_is_decoded() -> None:
    decode = Json(Limited).decoder()
    for wrong in ({"a": -1}, {"b": "2026-01-01T00:00:00"}, {"c": [0]}, {"d": -1}):
        with pytest.raises(ValueError, match="validation error"):
            decode(json.dumps({**LIMITED, **wrong}).encode())
    with pytest.raises(msgspec.ValidationError):
        Json(Annotated[int, msgspec.Meta(gt=0)] | None).decoder()(b"-1")


@pytest.mark.parametrize("of", [pydantic.SecretStr, pydantic.NaiveDatetime])
def test_other_types_of_pydantic_are_refused_with_a_remedy(of: Any) -> None:
    model: Any = pydantic.create_model("Made", x=(of, ...))
    with pytest.raises(PipelineError, match=r"Made\.x: .* declare a plain type"):
        Json(model)


def test_plain_type_of_types_at_any_depth() -> None:
    assert plain_type(dict[UserId, list[Amount | None]]) == dict[str, list[Decimal | None]]
    assert plain_type(tuple[UserId, ...]) == tuple[str, ...]
    assert plain_type(list[int]) == list[int]


def test_type_that_contains_itself_by_its_name_is_refused() -> None:
    tree = TypeAliasType("tree", int)  # `type tree = list[tree]`, from Python 3.12 on

    class Endless:
        __name__ = "Tree"
        __class__: Any = TypeAliasType

        @property
        def __value__(self) -> object:
            return list[self]  # type: ignore[valid-type]

    assert type_info(tree).avro == "long"
    with pytest.raises(PipelineError, match="Tree contains itself"):
        type_info(Endless())
