"""Which values count as values of a declared type.

Goal: what the full check accepts is written and read back as the declared type, and what the class
check accepts is at least of a class that could be. Method: pairs of a type and a value, right and
wrong, then a property over drawn pairs.
"""

from __future__ import annotations

import abc
import collections
import dataclasses
import enum
import numbers
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, NamedTuple, NewType, Protocol, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tidegate import Json, ProducerRecord
from tidegate.api.records.values import ClassCheck, KeyCheck, class_check, counts_as, fault
from tidegate.api.state.keys import key_encoder
from tidegate.api.state.wire import column_codec
from tidegate.graph.stream_graph import UNKNOWN


class Click(msgspec.Struct):
    user: str
    ms: int
    cost: float = 0.0
    tags: list[str] = []


class ClickWithFee(Click):
    fee: int = 0


class RenamedClick(Click):
    """The same fields."""


class TaggedClick(Click, tag=True):
    """The same fields, but encoded with a tag."""


@dataclasses.dataclass
class Plain:
    user: str
    inner: Click | None = None


class Model(pydantic.BaseModel):
    user: str
    ms: int


class Dict(TypedDict):
    user: str
    ms: int


class Colour(enum.Enum):
    RED = "red"


class Text(enum.StrEnum):
    A = "a"


class Number(enum.IntEnum):
    ONE = 1


class Pair(NamedTuple):
    text: str
    number: int


class Letters(str):
    __slots__ = ()


class Shouted(str):
    """Compares otherwise than a str."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and self.upper() == other.upper()

    def __hash__(self) -> int:
        return hash(self.upper())


class Base:
    """A class without a schema, as are all of these."""

    def __repr__(self) -> str:
        return type(self).__name__


class Derived(Base):
    pass


class Shape(Base, abc.ABC):
    @abc.abstractmethod
    def area(self) -> float: ...


class Square(Shape):
    def area(self) -> float:
        return 1.0


class HasArea(Protocol):
    def area(self) -> float: ...


@dataclasses.dataclass
class Stored:
    """A record class without a schema, because of one field."""

    location: Path


class StoredTwice(Stored):
    copy: Path | None = None


class Nameless(enum.Enum):
    """Without members, so that others can be derived from it."""


class Named(Nameless):
    A = "a"


UserId = NewType("UserId", str)

MOMENT = datetime(2024, 5, 1, tzinfo=UTC)
CLICK = Click("ann", 1)
click: Any = Click
"""Takes fields of any type."""

RIGHT: list[tuple[Any, Any]] = [
    (str, "a"),
    (str, Text.A),
    (int, 1),
    (int, Number.ONE),
    (float, 1.5),
    (float, 1),
    (bool, True),
    (bytes, b"a"),
    (None, None),
    (Decimal, Decimal(1)),
    (date, date(2024, 5, 1)),
    (datetime, MOMENT),
    (UUID, UUID(int=1)),
    (Colour, Colour.RED),
    (Literal["a", "b"], "a"),
    (int | None, None),
    (int | str, "a"),
    (Click, CLICK),
    (Click, RenamedClick("ann", 1)),
    (Plain, Plain("ann", CLICK)),
    (Model, Model(user="ann", ms=1)),
    (Dict, {"user": "ann", "ms": 1}),
    (list[int], [1, 2]),
    (Sequence[int], (1, 2)),
    (tuple[str, int], ("a", 1)),
    (tuple[str, int], Pair("a", 1)),
    (tuple[int, ...], ()),
    (set[int], {1}),
    (frozenset[str], frozenset("a")),
    (dict[str, int], collections.Counter("a")),
    (Mapping[str, list[int]], {"a": [1]}),
    (ProducerRecord[str, Click], ProducerRecord("ann", CLICK)),
    (Any, [1, "a"]),
    (UNKNOWN, [1, "a"]),
    (object, CLICK),
    (object, None),
    (Path, Path("a")),
    (Base, Derived()),
    (Shape, Square()),
    (HasArea, Square()),
    (numbers.Number, 1),
    (numbers.Number, Decimal(1)),
    (Click | Exception, ValueError("a")),
    (Click | object, 5),
    (Stored, StoredTwice(Path("a"))),
    (Nameless, Named.A),
    (Iterable[int], [1]),
    (collections.deque[int], collections.deque([1])),
    (dict, collections.OrderedDict()),
    (UserId, "a"),
]


@pytest.mark.parametrize(("of", "value"), RIGHT, ids=str)
def test_values_of_the_type_are_accepted(of: Any, value: object) -> None:
    assert fault(value, of) == ""
    check = class_check(of)
    assert check is None or check.first_wrong([value, value]) is None


WRONG_CLASS: list[tuple[Any, Any, str]] = [
    (str, 1, "it is an int, not a str"),
    (str, None, "it is a NoneType, not a str"),
    (str, Letters("a"), "it is a Letters, not a str"),
    (int, True, "it is a bool, not an int"),
    (float, True, "it is a bool, not a float"),
    (bool, 1, "it is an int, not a bool"),
    (int, 1.0, "it is a float, not an int"),
    (bytes, "a", "it is a str, not a bytes"),
    (date, MOMENT, "it is a datetime, not a date"),
    (Colour, "RED", "it is a str, not a Colour"),
    (Literal["a"], 1, "it is an int, not a Literal['a']"),
    (int | None, "a", "it is a str, not an int | None"),
    (Click, {"user": "ann", "ms": 1}, "it is a dict, not a Click"),
    (Click, ClickWithFee("ann", 1), "it is a ClickWithFee, not a Click"),
    (Click, TaggedClick("ann", 1), "it is a TaggedClick, not a Click"),
    (ClickWithFee, CLICK, "it is a Click, not a ClickWithFee"),
    (Dict, CLICK, "it is a Click, not a Dict"),
    (list[int], (1,), "it is a tuple, not a list[int]"),
    (tuple[int, ...], [1], "it is a list, not a tuple[int, ...]"),
    (Path, "a", "it is a str, not a Path"),
    (Derived, Base(), "it is a Base, not a Derived"),
    (Shape, 5, "it is an int, not a Shape"),
    (numbers.Number, "1", "it is a str, not a Number"),
    (Click | Exception, {}, "it is a dict, not a Click | Exception"),
]


@pytest.mark.parametrize(("of", "value", "said"), WRONG_CLASS, ids=str)
def test_values_of_another_class_are_found_by_the_full_check_and_the_class_check(
    of: Any, value: Any, said: str
) -> None:
    assert fault(value, of) == said
    assert ClassCheck(of).first_wrong([value]) == 0


KEYS: list[tuple[Any, Any, bool]] = [
    (int, 1, True),
    (int, True, True),
    (int, Number.ONE, True),
    (Literal[1, 2], True, True),
    (str, Letters("a"), True),
    (str, Text.A, True),
    (str, Shouted("a"), False),
    (int, 1.0, False),
    (int, "1", False),
    (bool, 1, False),
    (bool, True, True),
    (bytes, bytearray(b"a"), False),
    (date, MOMENT, False),
    (tuple[str, int], ("a", True), True),
    (tuple[str, int], ["a", 1], False),
]


@pytest.mark.parametrize(("of", "key", "right"), KEYS, ids=str)
def test_accepted_key_has_the_hash_and_the_bytes_of_an_equal_plain_key(
    of: Any, key: Any, right: bool
) -> None:
    assert (KeyCheck(of).first_wrong([key]) is None) is right
    if right:
        plain: Any = int(key) if isinstance(key, bool) and of is int else key
        plain = "".join(key) if isinstance(key, str) else plain
        assert key == plain
        assert hash(key) == hash(plain)
        assert key_encoder(of)(key) == key_encoder(of)(plain)


WRONG_INSIDE: list[tuple[Any, Any, str]] = [
    (Click, click("ann", "1"), ".ms is a str, not an int"),
    (Click, click("ann", 1, 0.0, ["a", 2]), ".tags[1] is an int, not a str"),
    (Plain, Plain("ann", click(1, 1)), ".inner.user is an int, not a str"),
    (Model, Model.model_construct(user="ann", ms="x"), ".ms is a str, not an int"),
    (Model, Model.model_construct(user="ann"), "it has no 'ms'"),
    (Dict, {"user": "ann"}, "it has no 'ms'"),
    (Literal["a", "b"], "c", "it is 'c', not Literal['a', 'b']"),
    (list[int], [1, None], "[1] is a NoneType, not an int"),
    (tuple[str, int], ("a",), "it has 1 part, not 2"),
    (tuple[str, int], ("a", "b"), "[1] is a str, not an int"),
    (dict[str, int], {"a": "b"}, "['a'] is a str, not an int"),
    (dict[str, int], {1: 1}, " key 1 is an int, not a str"),
    (ProducerRecord[str, Click], ProducerRecord("a", {}), ".value is a dict, not a Click | None"),
    (Click | None, click("ann", None), ".ms is a NoneType, not an int"),
]


@pytest.mark.parametrize(("of", "value", "said"), WRONG_INSIDE, ids=str)
def test_a_wrong_field_is_found_by_the_full_check_alone(of: Any, value: Any, said: str) -> None:
    assert fault(value, of) == said
    assert ClassCheck(of).first_wrong([value]) is None


def test_class_check_finds_the_first_wrong_value_of_a_batch() -> None:
    check = ClassCheck(Click)
    assert check.first_wrong([CLICK, RenamedClick("ann", 1), CLICK]) is None
    assert check.first_wrong([CLICK, {}, None, {}]) == 1
    assert check.first_wrong([None, CLICK, {}]) == 0
    assert check.first_wrong([]) is None


TYPES: list[Any] = [
    str,
    int,
    float,
    bool,
    int | None,
    Click,
    Dict,
    Model,
    list[int],
    tuple[str, int],
    dict[str, float],
]
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.text(), st.floats(-1e9, 1e9)
)
VALUES = st.one_of(
    scalars,
    st.lists(scalars, max_size=2),
    st.tuples(scalars, scalars),
    st.dictionaries(st.text(), scalars, max_size=2),
    st.builds(Click, user=scalars, ms=scalars, cost=scalars, tags=st.lists(scalars, max_size=2)),
    st.fixed_dictionaries({"user": scalars, "ms": scalars}),
    st.builds(Model.model_construct, user=scalars, ms=scalars),
)


@pytest.mark.parametrize("number", [2**53 + 1, -(2**53) - 1, 10**400])
def test_an_int_that_a_float_cannot_hold_is_refused(number: int) -> None:
    assert fault({"ms": number}, dict[str, float]).endswith(
        "an int that a float cannot hold exactly"
    )
    assert fault(number, float | None)
    assert not fault(number, int | float)
    assert not fault(2**53, float)


@example(of=dict[str, float], value={"ms": 2**53 + 1})
@given(of=st.sampled_from(TYPES), value=VALUES)
def test_value_that_the_full_check_accepts_is_read_back_equal(of: Any, value: Any) -> None:
    if fault(value, of):
        return
    assert counts_as(type(value), of)
    codec, column = Json(of), column_codec(of)
    assert codec.decoder()(codec.encoder()(value)) == value
    assert column.decode(column.encode([value])) == [value]
