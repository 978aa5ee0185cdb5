"""Drawn record classes with objects of them, for properties of codecs and copies."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from types import GenericAlias
from typing import Any, Final, Generic, TypeVar
from uuid import UUID

import msgspec
import pydantic
from hypothesis import strategies as st

from tests.api.record_kinds import FREE, ZONES

V = TypeVar("V")

Drawn = tuple[Any, st.SearchStrategy[Any]]
"""A type, and a strategy for its values."""

_made: Final = itertools.count()
"""Numbers of the calls of initialisers: a second call for an object would show."""


class Held(msgspec.Struct, Generic[V]):
    """A generic class."""

    value: V
    number: int = 0

    def __post_init__(self) -> None:
        self.number = next(_made)


@dataclasses.dataclass(frozen=True)
class Pair(Generic[V]):
    """A generic dataclass."""

    left: V
    right: V | None = None


MOMENTS: Final = st.builds(
    lambda moment, zone, fold: moment.replace(tzinfo=zone, fold=fold),
    st.datetimes(),
    st.sampled_from(ZONES),
    st.integers(0, 1),
)
SCALARS: Final[list[Drawn]] = [
    (int, st.integers()),
    (float, st.floats() | st.integers(-(2**53), 2**53)),
    (str, st.text(max_size=5)),
    (bytes, st.binary(max_size=5)),
    (bool, st.booleans()),
    (Decimal, st.decimals()),
    (datetime, MOMENTS),
    (UUID, st.uuids()),
    (Any, st.sampled_from(FREE)),
]
KEYS: Final = [SCALARS[0], (float, st.floats() | st.integers()), SCALARS[2], SCALARS[6]]
"""Types of the keys of a dict."""
BRANCHES: Final[list[Drawn]] = [SCALARS[0], SCALARS[2], SCALARS[6]]
"""Types that a union can tell apart."""


def drawn_types(depth: int = 2) -> st.SearchStrategy[Drawn]:
    """Return a strategy for types with their values."""
    if depth == 0:
        return st.sampled_from(SCALARS)
    inner = drawn_types(depth - 1)
    fields = st.lists(inner, min_size=1, max_size=3)
    return st.one_of(
        inner,
        inner.map(_list),
        inner.map(_sequence),
        st.builds(_dict, st.sampled_from(KEYS), inner),
        inner.map(_optional),
        fields.map(_tuple),
        inner.map(lambda one: _generic(Held, one)),
        inner.map(lambda one: _generic(Pair, one)),
        st.builds(_dataclass, fields, st.booleans(), st.booleans(), st.booleans()),
        st.builds(_struct, fields, st.booleans(), st.booleans(), st.booleans()),
        st.builds(_model, fields),
    )


def _list(one: Drawn) -> Drawn:
    return GenericAlias(list, (one[0],)), st.lists(one[1], max_size=3)


def _sequence(one: Drawn) -> Drawn:
    many = st.lists(one[1], max_size=3)
    of: Any = Sequence
    return of[one[0]], many | many.map(tuple)


def _dict(key: Drawn, one: Drawn) -> Drawn:
    values = st.dictionaries(key[1], one[1], max_size=3)
    return GenericAlias(dict, (key[0], one[0])), values


def _optional(one: Drawn) -> Drawn:
    if one[0] is Any:
        return one
    others = [branch for branch in BRANCHES if _is_class(one[0]) and branch[0] is not one[0]]
    union, values = one[0] | None, one[1] | st.none()
    for of, more in others[:2]:
        if one[0] not in (int, float, bool):
            union, values = union | of, values | more
    return union, values


def _is_class(of: object) -> bool:
    return isinstance(of, type) and not hasattr(of, "__origin__")


def _tuple(many: list[Drawn]) -> Drawn:
    of: Any = GenericAlias(tuple, tuple(part for part, _ in many))
    return of, st.tuples(*(values for _, values in many))


def _generic(kind: Any, one: Drawn) -> Drawn:
    return kind[one[0]], one[1].map(kind)


def _dataclass(many: list[Drawn], frozen: bool, by_name: bool, initialised: bool) -> Drawn:
    def initialise(self: Any) -> None:
        object.__setattr__(self, "note", (next(_made), "noted"))

    kind: Any = dataclasses.make_dataclass(
        "Drawn",
        [(f"f{i}", of) for i, (of, _) in enumerate(many)],
        frozen=frozen,
        kw_only=by_name,
        namespace={"__post_init__": initialise} if initialised else {},
    )
    return kind, _records(kind, many)


def _struct(many: list[Drawn], frozen: bool, by_name: bool, array_like: bool) -> Drawn:
    kind: Any = msgspec.defstruct(
        "Drawn",
        [(f"f{i}", of) for i, (of, _) in enumerate(many)],
        frozen=frozen,
        kw_only=by_name,
        array_like=array_like,
        rename="upper",
    )
    return kind, _records(kind, many)


def _records(kind: Any, many: list[Drawn]) -> st.SearchStrategy[Any]:
    return st.builds(kind, **{f"f{i}": values for i, (_, values) in enumerate(many)})


def _model(many: list[Drawn]) -> Drawn:
    """Return a model whose aliases are the names of other fields, with fields that were not set."""
    names = [f"f{i}" for i in range(len(many))]
    aliases = [*names[1:], names[0]]
    fields: Any = {
        name: (of, pydantic.Field(alias=alias, default=None))
        for name, alias, (of, _) in zip(names, aliases, many, strict=True)
    }
    config = pydantic.ConfigDict(extra="allow", arbitrary_types_allowed=True)
    kind: Any = pydantic.create_model("Drawn", __config__=config, **fields)

    def made(parts: Any, given: int, extra: Any) -> Any:
        model = kind.model_construct()
        for name, part in zip(names, parts, strict=True):
            model.__dict__[name] = part
        model.__pydantic_fields_set__.update(names[:given])
        model.__pydantic_extra__.update(extra)
        return model

    extras = st.dictionaries(st.sampled_from(["x", "y"]), st.sampled_from(FREE))
    values = st.tuples(*(values for _, values in many))
    return kind, st.builds(made, values, st.integers(0, len(many)), extras)
