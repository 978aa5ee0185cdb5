"""What is written to state or sent between slots comes back equal, and older state still reads.

Method: every kind of type through every codec; golden bytes for the layout of a stored value, which
old checkpoints keep; records that grow and shrink between writing and reading.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Generic, Literal, TypedDict, TypeVar
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from tidegate import Avro, ConsumerRecord, Json, PipelineError, ProducerRecord
from tidegate.api.records.types import type_info
from tidegate.api.state.evolution import check_evolution
from tidegate.api.state.resolving import resolver
from tidegate.api.state.stored import stored_schema
from tidegate.api.state.wire import column_codec, shape_of_stored, state_codec, value_codec
from tidegate.errors import CorruptCheckpointError

V = TypeVar("V")


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Order(msgspec.Struct, frozen=True):
    order_id: str
    amount: Decimal
    placed_at_ms: int


class Keyed(msgspec.Struct, kw_only=True):
    a: int
    b: bytes = b""


class Empty(msgspec.Struct, frozen=True):
    pass


class Pair(msgspec.Struct, Generic[V], frozen=True):
    left: V
    right: V | None


@dataclasses.dataclass
class Basket:
    number: int
    orders: list[Order]
    best: Order | None
    colours: dict[str, Colour]
    where: tuple[int, str]
    seen: set[int]
    colour: Colour = Colour.RED
    more: tuple[Order, ...] = ()
    by_number: dict[int, Order] = dataclasses.field(default_factory=dict)
    computed: int = dataclasses.field(init=False, default=0)


@dataclasses.dataclass
class Inner:
    a: int
    pair: tuple[int, str]


class Click(BaseModel):
    user: str
    inner: Inner
    kind: Literal["view", "buy"] = "view"
    at: datetime | None = None
    day: date | None = None
    ident: UUID | None = None


class Session(TypedDict):
    user: str
    pages: list[str]


ORDER = Order("o-1", Decimal("1.50"), 5)
BASKET = Basket(
    number=1,
    orders=[ORDER, ORDER],
    best=ORDER,
    colours={"x": Colour.BLUE},
    where=(1, "z"),
    seen={1, 2},
    more=(ORDER,),
    by_number={3: ORDER},
)
CLICK = Click(
    user="ann",
    inner=Inner(1, (2, "x")),
    at=datetime(2026, 1, 1, tzinfo=UTC),
    day=date(2026, 1, 2),
    ident=UUID(int=7),
)
VALUES: list[tuple[Any, Any]] = [
    (int, 5),
    (int, -(2**63)),
    (float, 1.5),
    (bool, True),
    (str, "ü"),
    (bytes, b"\x00"),
    (Decimal, Decimal("1.00")),
    (datetime, datetime(2026, 1, 1, 1, 2, 3, 4, tzinfo=UTC)),
    (date, date(2026, 1, 1)),
    (UUID, UUID(int=5)),
    (Colour, Colour.BLUE),
    (Literal["a", "b"], "b"),
    (int | None, None),
    (Order | None, ORDER),
    (Order, ORDER),
    (Keyed, Keyed(a=1, b=b"x")),
    (Empty, Empty()),
    (Pair[Order], Pair(ORDER, None)),
    (Basket, BASKET),
    (Click, CLICK),
    (Session, {"user": "ann", "pages": ["/"]}),
    (tuple[Order, int], (ORDER, 3)),
    (tuple[int, ...] | None, (1, 2)),
    (list[Order], [ORDER]),
    (Sequence[Colour], [Colour.RED]),
    (frozenset[Colour], frozenset([Colour.RED])),
    (Mapping[str, Order], {"a": ORDER}),
    (dict[Colour, Order], {Colour.RED: ORDER}),
    (int | str, "5"),
    (
        ConsumerRecord[str, Order],
        ConsumerRecord("k", ORDER, "t", 1, 2, 3, (("h", b"1"), ("n", None))),
    ),
    (ProducerRecord[str, Order], ProducerRecord("k", None)),
]
UNIONS: list[tuple[Any, Any]] = [
    (Order | Keyed, ORDER),
    (Order | Keyed | None, Keyed(a=1)),
    (Order | Keyed | None, None),
    (list[Order | Keyed], [ORDER, Keyed(a=2)]),
]


@pytest.mark.parametrize(("of", "value"), VALUES + UNIONS + [(Any, {"a": [1, None, "x"]})])
def test_values_columns_and_states_are_read_back_equal(of: Any, value: Any) -> None:
    one, many, stored = value_codec(of), column_codec(of), state_codec(of, 1, {})
    assert one.decode(one.encode(value)) == value
    assert many.decode(many.encode([value, value])) == [value, value]
    assert many.decode(many.encode([])) == []
    assert stored.decode(stored.encode(value)) == value


IN_FRAMES: list[tuple[Any, Any]] = [
    (Any, {"a": [1, None, "x", b"y"], "b": b"z" * 300}),
    (Order | str | bytes, b"b" * 300),
    (dict[str, bytes], {"k": b"v" * 300}),
    (Pair[list[Order | Keyed]], Pair([ORDER, Keyed(a=2, b=b"b" * 300)], None)),
    (Pair[Pair[int | str] | Order], Pair(Pair("long" * 100, 5), ORDER)),
]


@pytest.mark.parametrize(("of", "value"), VALUES + UNIONS + IN_FRAMES)
def test_column_read_from_a_frame_keeps_no_reference_to_the_frame(of: Any, value: Any) -> None:
    codec = column_codec(of)
    column = codec.encode([value, value])
    frame = bytearray(b"\xc1head" + column + b"tail\xc1")
    view = memoryview(frame)
    read = codec.decode(view[5 : 5 + len(column)])
    view.release()
    frame[:] = bytes(len(frame))
    frame.clear()  # BufferError while anything looks into it
    assert read == [value, value] == codec.decode(column)
    assert repr(read) == repr(codec.decode(column))  # True is equal to 1


@pytest.mark.parametrize(("of", "value"), VALUES)
@pytest.mark.parametrize("form", [Json, Avro])
def test_json_and_avro_formats_read_back_equal_values(form: Any, of: Any, value: Any) -> None:
    made = form(of)
    assert made.decoder()(made.encoder()(value)) == value


@pytest.mark.parametrize(("of", "value"), UNIONS)
def test_avro_distinguishes_the_records_of_a_union(of: Any, value: Any) -> None:
    made = Avro(of)
    assert made.decoder()(made.encoder()(value)) == value


@given(st.decimals(allow_nan=False, allow_infinity=False), st.integers(-(2**63), 2**63 - 1))
def test_decimals_keep_every_digit_and_their_zeros(amount: Decimal, number: int) -> None:
    codec = value_codec(Order)
    read = codec.decode(codec.encode(Order("a", amount, number)))
    assert (str(read.amount), read.placed_at_ms) == (str(amount), number)


def test_stored_values_have_the_golden_bytes() -> None:
    assert state_codec(int, 0, {}).encode(5).hex() == "0005"
    assert state_codec(Decimal, 1, {}).encode(Decimal("1.5")).hex() == "01a3312e35"
    assert state_codec(int, 300, {}).encode(5).hex() == "ac0205"
    assert state_codec(Order, 2, {}).encode(ORDER).hex() == "0293a36f2d31a4312e353005"
    assert state_codec(Colour, 2, {}).encode(Colour.RED).hex() == "02a3524544"
    assert state_codec(Order | Keyed, 2, {}).encode(Keyed(a=1)).hex() == "0292019201c400"
    assert column_codec(Order).encode([ORDER]).hex() == "9391a36f2d3191a4312e35309105"


def test_stored_value_is_decoded_under_the_schema_number_of_its_write() -> None:
    written = {number: stored_schema(str) for number in (0, 1, 127, 128, 172, 300, 16_384)}
    for current in written:
        codec = state_codec(bytes, current, {**written, current: stored_schema(bytes)})
        for number in written:
            if number != current:
                assert codec.decode(state_codec(str, number, {}).encode("7")) == b"7"
    with pytest.raises(CorruptCheckpointError, match="does not list"):
        state_codec(int, 1, {}).decode(b"\x05\x05")


def test_value_codec_shows_its_generated_source() -> None:
    assert "(value.order_id, value.amount, value.placed_at_ms,)" in value_codec(Order).source


def test_union_of_types_that_cannot_be_distinguished_is_refused() -> None:
    class Other(TypedDict):
        a: int

    with pytest.raises(PipelineError, match="cannot be distinguished"):
        value_codec(Session | Other)


def test_codec_refuses_a_value_of_no_branch_of_a_union() -> None:
    codec = value_codec(Session | Empty)
    assert codec.decode(codec.encode(Empty())) == Empty()
    with pytest.raises(TypeError, match="Order is not one of Session, Empty"):
        codec.encode(ORDER)


# --- evolution ----------------------------------------------------------------------------------


class Version1(msgspec.Struct):
    a: int
    gone: str
    colour: Colour = Colour.RED


@dataclasses.dataclass
class Version2:
    added: list[str] = dataclasses.field(default_factory=lambda: ["made"])
    colour: Colour = Colour.RED
    a: int | None = 0
    maybe: int | None = 3


class Once(msgspec.Struct, frozen=True):
    x: int


class Twice(msgspec.Struct, frozen=True):
    x: int


class Renamed(msgspec.Struct, frozen=True):
    x: int


class Version2Model(BaseModel):
    a: int
    maybe: int | None = None


def upgraded(value: Any, written: Any, of: Any) -> Any:
    old = state_codec(written, 0, {})
    new = state_codec(of, 1, {0: stored_schema(written)})
    return new.decode(old.encode(value))


def test_stored_record_is_read_after_fields_were_added_removed_and_widened() -> None:
    old = Version1(5, "x", Colour.BLUE)
    assert upgraded(old, Version1, Version2) == Version2(["made"], Colour.BLUE, 5, 3)
    assert upgraded(old, Version1, Version2Model) == Version2Model(a=5)
    assert upgraded([old], list[Version1], list[Version2Model]) == [Version2Model(a=5)]
    assert upgraded({1: old}, dict[int, Version1], dict[int, Version2Model]) == {
        1: Version2Model(a=5)
    }


@pytest.mark.parametrize(
    ("written", "of", "value", "expected"),
    [
        (int, int | None, 5, 5),
        (int | None, int | str | None, None, None),
        (int | None, int | str | None, 5, 5),
        (str, bytes, "a", b"a"),
        (Decimal, str, Decimal("1.0"), "1.0"),
        (Order, Order | Keyed, ORDER, ORDER),
        (Order | Keyed, Keyed | Order, Keyed(a=4), Keyed(a=4)),
        (tuple[int, str, int], tuple[int | None, str], (1, "a", 2), (1, "a")),
        (frozenset[Colour], frozenset[Colour], frozenset([Colour.RED]), frozenset([Colour.RED])),
        (dict[str, int], dict[str, int | None], {"a": 1}, {"a": 1}),
        (Literal["a"], Literal["a", "b"], "a", "a"),
        (Literal["a", "b"], str, "b", "b"),
        (Literal[Colour.RED], Colour, Colour.RED, Colour.RED),
        (set[int], list[int], {1}, [1]),
        (list[int], tuple[int, ...], [1, 1], (1, 1)),
        (UUID, str, UUID(int=5), str(UUID(int=5))),
        (Twice | Once, Once | Renamed, Twice(1), Renamed(1)),
        (Twice | Once, Once | Renamed, Once(1), Once(1)),
        (datetime, datetime, datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC)),
        (Basket, Basket, BASKET, BASKET),
        (Click, Click, CLICK, CLICK),
        (Session, Session, {"user": "a", "pages": []}, {"user": "a", "pages": []}),
        (ProducerRecord[str, int], ProducerRecord[str, int | None], ProducerRecord("k", 1), None),
    ],
)
def test_value_stored_under_an_older_type_is_read_as_the_declared_type(
    written: Any, of: Any, value: Any, expected: Any
) -> None:
    resolve = resolver(stored_schema(written), of, shape_of_stored)
    read = resolve(value_codec(written).encode(value))
    assert read == (ProducerRecord("k", 1) if expected is None and value is not None else expected)
    assert type(read) is type(expected) or expected is None


class Needs(msgspec.Struct):
    a: int
    added: str


class Recoloured(enum.Enum):
    RED = 1


class WithRecoloured(msgspec.Struct):
    colour: Recoloured


class WithColour(msgspec.Struct):
    colour: Colour


class Deep(msgspec.Struct):
    many: list[Needs]


class DeepBefore(msgspec.Struct):
    many: list[Version1]


@pytest.mark.parametrize(
    ("written", "of", "words"),
    [
        (Version1, Needs, "field 'added' was added to Needs without a default"),
        (DeepBefore, Deep, "field 'many[].added' was added to Needs"),
        (WithColour, WithRecoloured, "field 'colour': the enum Recoloured has no BLUE any more"),
        (int | None, int, "null was written, long is declared"),
        (str, int, "string was written, long is declared"),
        (str, Decimal, "string was written, decimal-string is declared"),
        (int, datetime, "long was written, timestamp-micros is declared"),
        (datetime, int, "timestamp-micros was written, long is declared"),
        (float, int, "double was written, long is declared"),
        (int, float, "long was written, double is declared"),
        (bytes, str, "bytes was written, string is declared"),
        (Any, str, "json was written, string is declared"),
        (Any, bytes, "json was written, bytes is declared"),
        (UUID, bytes, "uuid was written, bytes is declared"),
        (str, Literal["a"], "string was written, only Literal['a'] is declared"),
        (Literal["a", "b"], Literal["a"], "'b' may have been written, only Literal['a'] is"),
        (Literal[1, 2], Literal[1] | None, "2 may have been written, only Literal[1] is"),
        (Colour, Literal[Colour.RED], "'BLUE' may have been written, only Literal['RED'] is"),
        (list[int], set[int], "a list was written, a set is declared, which would lose the order"),
        (list[int], dict[int, int], "a list was written and a dict is declared"),
        (int | str, int | None, "string was written and is not one of long, null"),
        (Once | None, Twice | Renamed | None, "record Once was written and fits several of"),
    ],
)
def test_incompatible_type_change_is_refused_and_the_error_names_the_field(
    written: Any, of: Any, words: str
) -> None:
    with pytest.raises(PipelineError) as caught:
        check_evolution(stored_schema(written), of, "state 'total' of step 'sum'")
    assert words in str(caught.value)
    assert str(caught.value).startswith("state 'total' of step 'sum' cannot be read")
    with pytest.raises(PipelineError):
        resolver(stored_schema(written), of, shape_of_stored)


@pytest.mark.parametrize("of", [of for of, _ in VALUES + UNIONS] + [Any, set[int], Literal[1, 2]])
def test_a_schema_of_an_earlier_version_without_marks_is_read(of: Any) -> None:
    """The same code runs after an update, so a schema that an earlier version wrote is never
    refused.
    """
    resolver(type_info(of).avro, of, shape_of_stored)


def test_a_value_that_an_earlier_version_stored_is_checked_against_the_literal() -> None:
    """A schema of an earlier version does not say whether `str` or a Literal was declared."""
    resolve = resolver(type_info(str).avro, Literal["a", "b"], shape_of_stored)
    assert resolve(value_codec(str).encode("a")) == "a"
    with pytest.raises(ValueError, match="'c' is no value of Literal"):
        resolve(value_codec(str).encode("c"))
