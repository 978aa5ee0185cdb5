"""Every change of a stored type that the check accepts can read every stored value.

Method: the test draws a type of any kind that state supports, and values of it. The second type is
drawn too, or made from the first as a user changes a class. Such a change adds, removes or renames
fields, gives them another type, or makes unions and Literals grow or shrink.

If the check accepts the change, each value that was stored under the old type is read as a value of
the new one. The test compares each part of the value, so a string cannot pass as an int. The value
that was read can be stored and read again.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Literal, Union, get_args, get_origin, is_typeddict
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ConfigDict, create_model

from tidegate import PipelineError
from tidegate.api.records.converters import branch_of, generic
from tidegate.api.records.record_fields import RecordField, fields_of, record_class
from tidegate.api.records.types import is_union, type_info
from tidegate.api.state.evolution import mismatch, state_conflict
from tidegate.api.state.state import ListState, MapState, State, ValueState
from tidegate.api.state.stored import schema_text, state_text, stored_schema, without_marks
from tidegate.api.state.wire import state_codec, value_codec

_numbers = itertools.count()


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Recoloured(enum.Enum):
    BLUE = "b"
    RED = "r"
    GREEN = "g"


class OnlyRed(enum.Enum):
    RED = 1


SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(-(2**63), 2**63 - 1),
    float: st.floats(allow_nan=False),
    str: st.text(max_size=3),
    bytes: st.binary(max_size=3),
    bool: st.booleans(),
    Decimal: st.decimals(allow_nan=False, allow_infinity=False),
    datetime: st.datetimes(timezones=st.just(UTC)),
    date: st.dates(),
    UUID: st.uuids(),
    Colour: st.sampled_from(Colour),
    Recoloured: st.sampled_from(Recoloured),
    OnlyRed: st.sampled_from(OnlyRed),
    Literal["a"]: st.just("a"),
    Literal["b", "a"]: st.sampled_from(["a", "b"]),
    Literal["a", "c"]: st.sampled_from(["a", "c"]),
    Literal[1, 2]: st.sampled_from([1, 2]),
    Literal[2]: st.just(2),
    Literal[True]: st.just(True),
    Literal[b"x"]: st.just(b"x"),
    Literal[Colour.RED]: st.just(Colour.RED),
}
ANYTHING: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=2) | st.binary(max_size=2),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=3,
)
scalars: st.SearchStrategy[Any] = st.sampled_from(list(SCALARS))


def union(branches: list[Any]) -> Any:
    return Union[tuple(branches)]  # noqa: UP007 - of a list that is made at run time


def known(of: Any) -> bool:
    """Whether tidegate can store the type: the branches of a union must be of different classes."""
    try:
        value_codec(of)
    except PipelineError:
        return False
    return True


FIELDS = ["a", "b", "c"]
KINDS = ["struct", "dataclass", "pydantic"]
Field = tuple[Any, Any]
"""A field's type, and its default (or MISSING)."""
MISSING = object()


def record(kind: str, fields: dict[str, Field], name: str) -> Any:
    ordered = sorted(fields.items(), key=lambda item: item[1][1] is not MISSING)
    if kind == "pydantic":
        config = ConfigDict(arbitrary_types_allowed=True)
        model: dict[str, Any] = {
            n: (of, ... if default is MISSING else default) for n, (of, default) in ordered
        }
        return create_model(name, __config__=config, **model)
    parts = [(n, of) if d is MISSING else (n, of, d) for n, (of, d) in ordered]
    make: Any = msgspec.defstruct if kind == "struct" else dataclasses.make_dataclass
    return make(name, parts, frozen=True)


def field_of(of: Any) -> st.SearchStrategy[Field]:
    simple = of in SCALARS
    default = SCALARS[of] if simple else st.nothing()
    return st.tuples(st.just(of), st.just(MISSING) | default)


def records(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.builds(
        record,
        st.sampled_from(KINDS),
        st.dictionaries(st.sampled_from(FIELDS), inner.flatmap(field_of), max_size=3),
        st.sampled_from(["Order", "Total"]),
    )


def grown(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    keys = st.sampled_from([str, int, bytes, Decimal, UUID, date, Colour, OnlyRed, bool])
    return st.one_of(
        inner.map(lambda of: generic(list, of)),
        scalars.map(lambda of: generic(set, of)),
        scalars.map(lambda of: generic(frozenset, of)),
        inner.map(lambda of: generic(tuple, of, ...)),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: generic(tuple, *parts)),
        st.tuples(keys, inner).map(lambda pair: generic(dict, *pair)),
        inner.map(lambda of: union([of, None])),
        st.lists(inner | st.none(), min_size=2, max_size=3).map(union),
        records(inner),
    )


types: st.SearchStrategy[Any] = st.recursive(scalars | st.just(Any), grown, max_leaves=4).filter(
    known
)


def values(of: Any) -> st.SearchStrategy[Any]:
    """Values of a type."""
    if of in (None, type(None)):
        return st.none()
    if of is Any:
        return ANYTHING
    if of in SCALARS:
        return SCALARS[of]
    origin, arguments = get_origin(of), get_args(of)
    if is_union(of):
        return st.one_of([values(argument) for argument in arguments])
    if origin is tuple and ... not in arguments:
        return st.tuples(*map(values, arguments))
    if origin in (list, set, frozenset, tuple):
        return st.lists(values(arguments[0]), max_size=3).map(origin)
    if origin is dict:
        return st.dictionaries(values(arguments[0]), values(arguments[1]), max_size=2)
    fields = {field.name: values(field.type) for field in fields_of(of) or ()}
    return st.fixed_dictionaries(fields).map(lambda parts: of(**parts))


def is_of(value: Any, of: Any) -> bool:
    """Whether a value is of a type, part by part: True is no int, and a list no tuple."""
    if of in (None, type(None)):
        return value is None
    if of is Any:
        return True
    origin, arguments = get_origin(of), get_args(of)
    if origin is Literal:
        return any(type(value) is type(one) and value == one for one in arguments)
    if is_union(of):
        return any(is_of(value, argument) for argument in arguments)
    if origin is tuple and ... not in arguments:
        if type(value) is not tuple or len(value) != len(arguments):
            return False
        return all(is_of(part, inner) for part, inner in zip(value, arguments, strict=True))
    if origin in (list, set, frozenset, tuple):
        return type(value) is origin and all(is_of(item, arguments[0]) for item in value)
    if origin is dict:
        return type(value) is dict and all(
            is_of(k, arguments[0]) and is_of(v, arguments[1]) for k, v in value.items()
        )
    fields: tuple[RecordField, ...] | None = fields_of(of)
    if fields is None or is_typeddict(of):
        return type(value) is record_class(of)
    return type(value) is record_class(of) and all(
        is_of(getattr(value, field.name), field.type) for field in fields
    )


@st.composite
def changed(draw: st.DrawFn, of: Any) -> Any:
    """The type after an edit of its declaration, or the same."""
    origin, arguments = get_origin(of), get_args(of)
    if draw(st.integers(0, 5)) == 0:
        return draw(types)
    if is_union(of):
        branches = [draw(changed(argument)) for argument in arguments]
        branches = draw(st.permutations(branches))[draw(st.integers(0, 1)) :]
        return union(branches + draw(st.lists(scalars | st.none(), max_size=1)) or [None])
    if draw(st.integers(0, 4)) == 0:
        return union([of, draw(scalars | st.none())])
    if origin is tuple and ... not in arguments:
        parts = [draw(changed(argument)) for argument in arguments]
        return generic(tuple, *parts[: draw(st.integers(1, len(parts)))])
    if origin in (list, set, frozenset, tuple):
        inner = arguments[0] if origin in (set, frozenset) else draw(changed(arguments[0]))
        made = draw(st.sampled_from([list, origin] if inner not in SCALARS else CONTAINERS))
        return generic(tuple, inner, ...) if made is tuple else generic(made, inner)
    if origin is dict:
        return generic(dict, arguments[0], draw(changed(arguments[1])))
    if fields_of(of) is not None:
        return draw(changed_records(of))
    return draw(st.just(of) | scalars)


CONTAINERS: list[Any] = [list, set, frozenset, tuple]


@st.composite
def changed_records(draw: st.DrawFn, of: Any) -> Any:
    fields: dict[str, Field] = {}
    for field in fields_of(of) or ():
        what = draw(st.sampled_from(["keep", "keep", "keep", "retype", "remove", "rename"]))
        if what == "remove":
            continue
        inner = draw(changed(field.type)) if what == "retype" else field.type
        name = draw(st.sampled_from(FIELDS)) if what == "rename" else field.name
        fields[name] = draw(field_of(inner))
    if draw(st.booleans()):
        fields[draw(st.sampled_from(FIELDS))] = draw(scalars.flatmap(field_of))
    names = st.sampled_from([of.__name__, of.__name__, f"Renamed{next(_numbers)}"])
    return record(draw(st.sampled_from(KINDS)), fields, draw(names))


@st.composite
def changes(draw: st.DrawFn) -> tuple[Any, Any, list[Any]]:
    """Old type, new type, and values of the old one."""
    old = draw(types)
    new = draw(changed(old).filter(known))
    return old, new, draw(st.lists(values(old), min_size=1, max_size=4))


def read_back(value: Any, old: Any, new: Any) -> Any:
    stored = state_codec(old, 0, {}).encode(value)
    return state_codec(new, 1, {0: stored_schema(old)}).decode(stored)


@settings(max_examples=400, deadline=None)
@given(changes())
def test_accepted_type_change_reads_every_stored_value_as_the_new_type(
    change: tuple[Any, Any, list[Any]],
) -> None:
    old, new, old_values = change
    if mismatch(stored_schema(old), stored_schema(new)) is not None:
        return
    again = state_codec(new, 1, {0: stored_schema(old)})
    for value in old_values:
        read = read_back(value, old, new)
        assert is_of(read, new), (value, read)
        stored_again = again.decode(again.encode(read))
        assert stored_again == read
        assert is_of(stored_again, new), (stored_again, read)


EXTREMES: dict[Any, list[Any]] = {
    int: [0, 1, True + 1, 2**53 + 1, 2**63 - 1, -(2**63)],
    float: [0.0, -0.0, 1.5, 1e300, float("inf")],
    str: ["", "a", "b", "c", "x", "1", "RED", "é", "2026-01-01"],
    bytes: [b"", b"a", b"x", b"\xff"],
    bool: [True, False],
    Decimal: [Decimal("1.00"), Decimal(2**70)],
    datetime: [datetime(2026, 1, 1, tzinfo=UTC), datetime(1, 1, 1, tzinfo=UTC)],
    date: [date(2026, 1, 1), date.max],
    UUID: [UUID(int=0), UUID(int=2**128 - 1)],
    Any: [None, True, 1, 1.5, "a", b"a", [1], {"a": 1}],
}


def extremes(of: Any) -> list[Any]:
    if get_origin(of) is Literal:
        return list(get_args(of))
    return EXTREMES[of] if of in EXTREMES else list(of)


SCALAR_PAIRS = [(old, new) for old in [*SCALARS, Any] for new in [*SCALARS, Any]]


def keeps_its_meaning(value: Any, read: Any) -> bool:
    if isinstance(value, enum.Enum) and isinstance(read, enum.Enum):
        return value.name == read.name
    if isinstance(value, str) and isinstance(read, bytes):
        return value.encode() == read
    return bool(value == read or str(value) == read)


@pytest.mark.parametrize("around", ["bare", "optional", "list", "field"])
def test_accepted_change_between_scalar_types_keeps_the_meaning_of_values(around: str) -> None:
    """All pairs, with the values for which a conversion fails or loses something."""
    accepted = set()
    for old, new in SCALAR_PAIRS:
        shapes: dict[str, Any] = {
            "bare": lambda of: of,
            "optional": lambda of: union([of, None]),
            "list": lambda of: generic(list, of),
            "field": lambda of: record("struct", {"a": (of, MISSING)}, "Order"),
        }
        before, after = shapes[around](old), shapes[around](new)
        if mismatch(stored_schema(before), stored_schema(after)) is not None:
            continue
        accepted.add((old, new))
        for value in extremes(old):
            stored = value
            if around in ("list", "field"):
                stored = [value] if around == "list" else before(value)
            read = read_back(stored, before, after)
            assert is_of(read, after), (old, new, value, read)
            inner = read[0] if around == "list" else read.a if around == "field" else read
            assert keeps_its_meaning(value, inner), (old, new, value, inner)
    assert {(of, of) for of in [*SCALARS, Any]} <= accepted
    assert {(str, bytes), (Decimal, str), (UUID, str), (Literal["a"], str)} <= accepted
    assert {(Literal["a"], Literal["b", "a"]), (Colour, Recoloured), (OnlyRed, Colour)} <= accepted


@settings(max_examples=100, deadline=None)
@given(types.flatmap(lambda of: st.tuples(st.just(of), st.lists(values(of), max_size=3))))
def test_unchanged_type_is_accepted_and_its_stored_values_are_readable(
    case: tuple[Any, list[Any]],
) -> None:
    of, some = case
    schema = stored_schema(of)
    assert mismatch(schema, schema) is None
    text = schema_text(schema)
    assert state_conflict(text, text) is None
    # What an earlier version wrote for the type, which knew no marks.
    earlier = schema_text(type_info(of).avro)
    assert schema_text(without_marks(schema)) == earlier
    assert state_conflict(earlier, text) is None
    for value in some:
        assert is_of(read_back(value, of, of), of)


@settings(max_examples=100, deadline=None)
@given(changes())
def test_schema_check_accepts_a_type_that_becomes_optional(
    change: tuple[Any, Any, list[Any]],
) -> None:
    """The other side of the first law, which a check that refuses everything would keep as well: a
    type with `None` added is accepted.
    """
    old, _, _ = change
    wider = union([old, None])
    if known(wider):
        assert mismatch(stored_schema(old), stored_schema(wider)) is None


STATES: list[tuple[State, State, str | None]] = [
    (ListState(int), ListState(int), None),
    (ListState(int), ListState(union([int, str])), None),
    (ListState(int), ListState(float), "double"),
    (ListState(int), ValueState(list[int], factory=list), "was a list state"),
    (MapState(str, int), MapState(str, int), None),
    (MapState(str, int), MapState(int, int), "map keys of another type"),
    (MapState(str, Literal["a", "b"]), MapState(str, Literal["a"]), "'b' may have been written"),
    (MapState(Literal["a", "b"], int), MapState(str, int), None),
    (MapState(Colour, int), MapState(Recoloured, int), None),
    (MapState(Recoloured, int), MapState(Colour, int), "map keys of another type"),
]


@pytest.mark.parametrize(("old", "new", "words"), STATES)
def test_state_conflict_compares_the_kind_the_map_keys_and_the_values_of_states(
    old: State, new: State, words: str | None
) -> None:
    why_not = state_conflict(state_text(old), state_text(new))
    assert (why_not is None) if words is None else (why_not is not None and words in why_not)


def test_value_of_a_union_is_read_as_its_own_class_after_a_branch_is_added() -> None:
    """Both classes have the same field, and a user adds a branch in front of them."""
    first = record("struct", {"a": (int, MISSING)}, "First")
    second = record("dataclass", {"a": (int, MISSING)}, "Second")
    third = record("struct", {"a": (int, MISSING)}, "Third")
    old, new = union([first, second]), union([third, second, first])
    assert branch_of([first, second])(second(1)) == 1
    assert read_back(second(1), old, new) == second(1)
    assert read_back(first(1), old, new) == first(1)
    assert read_back((1,), union([list[int], tuple[int, ...]]), union([tuple[int, ...], list[int]]))
