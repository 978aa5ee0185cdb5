"""Ints beyond 64 bits in stored values: exact, by an extension that no older version reads."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.api.records.big_ints import pack_int, unpack_int
from tidegate.api.state.stored import stored_schema
from tidegate.api.state.wire import column_codec, state_codec

BIG = 2**64


class Sums(msgspec.Struct, frozen=True):
    """Every place in which an int may be."""

    total: int
    parts: list[int]
    by_number: dict[int, int]
    one_of: int | str | None
    seen: set[int]
    by_name: Mapping[str, int]
    location: tuple[int, str]
    kind: Literal[1, 2] = 1


@dataclasses.dataclass
class Later:
    """The same after a change of the class."""

    by_number: dict[int, int]
    one_of: int | str | bytes | None
    seen: list[int]
    location: tuple[int, str]
    total: int | None
    added: int = 5


SMALL = Sums(1, [1, 2], {3: 4}, "x", {5}, {"a": 6}, (7, "b"))
FULL = Sums(BIG, [1, -BIG], {BIG: 1, 2: BIG}, BIG, {BIG, 1}, {"a": BIG, "b": 1}, (-BIG, "b"))


@given(st.integers() | st.integers(-(2**200), 2**200))
def test_stored_int_of_any_size_is_read_back_equal(value: int) -> None:
    codec = state_codec(int, 0, {})
    assert codec.decode(codec.encode(value)) == value


@pytest.mark.parametrize("edge", [2**63 - 1, 2**63, BIG - 1, -(2**63)])
def test_int_that_fits_64_bits_is_stored_as_a_plain_msgpack_int(edge: int) -> None:
    assert state_codec(int, 3, {}).encode(edge) == b"\x03" + msgspec.msgpack.encode(edge)
    assert isinstance(pack_int(edge), int)


def test_big_int_is_stored_as_the_golden_bytes() -> None:
    assert state_codec(int, 0, {}).encode(BIG).hex() == "00c70901010000000000000000"
    assert state_codec(int, 0, {}).encode(-BIG).hex() == "00c70901ff0000000000000000"
    assert state_codec(dict[int, int], 0, {}).encode({BIG: 1}).hex() == (
        "009192c7090101000000000000000001"
    )


@pytest.mark.parametrize("value", [FULL, SMALL, msgspec.structs.replace(SMALL, by_number={1: BIG})])
def test_record_with_big_ints_in_any_field_is_read_back_equal(value: Sums) -> None:
    codec = state_codec(Sums, 0, {})
    assert codec.decode(codec.encode(value)) == value


@pytest.mark.parametrize(
    ("of", "value"),
    [
        (list[Sums], [SMALL, FULL]),
        (tuple[str, Sums | int], ("a", FULL)),
        (tuple[str, Sums | int], ("a", BIG)),
        (dict[str, dict[int, Sums]] | None, {"a": {BIG: FULL}}),
        (frozenset[int], frozenset([BIG, 1])),
        (tuple[int, ...], (BIG, 1)),
    ],
)
def test_container_with_big_ints_is_read_back_with_its_value_and_type(of: Any, value: Any) -> None:
    codec = state_codec(of, 0, {})
    read = codec.decode(codec.encode(value))
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize("value", [SMALL, FULL])
def test_a_big_int_is_read_under_an_older_schema(value: Sums) -> None:
    now = state_codec(Later, 1, {0: stored_schema(Sums)})
    read = now.decode(state_codec(Sums, 0, {}).encode(value))
    expected = Later(value.by_number, value.one_of, sorted(value.seen), value.location, value.total)
    read.seen.sort()
    assert read == expected


def test_decoder_without_the_big_int_extension_refuses_the_bytes() -> None:
    stored = state_codec(Sums, 0, {}).encode(FULL)[1:]
    with pytest.raises(msgspec.ValidationError, match="got `ext`"):
        msgspec.msgpack.decode(stored, type=tuple[int, Any, Any, Any, Any, Any, Any, Any])
    keyed = state_codec(dict[int, int], 0, {}).encode({BIG: 1})[1:]
    with pytest.raises(msgspec.ValidationError, match="got `array`"):
        msgspec.msgpack.decode(keyed, type=dict[int, int])


def test_int_decoder_refuses_an_unknown_msgpack_extension() -> None:
    other = msgspec.msgpack.encode(msgspec.msgpack.Ext(2, b"\x01"))
    with pytest.raises(msgspec.ValidationError, match="Expected `int`"):
        state_codec(int, 0, {}).decode(b"\x00" + other)
    with pytest.raises(ValueError, match="type 2"):
        unpack_int(msgspec.msgpack.Ext(2, b"\x01"))


def test_int_decoder_refuses_the_bytes_of_a_str() -> None:
    with pytest.raises(msgspec.ValidationError, match=r"^Expected `int`, got `str`$"):
        state_codec(int, 0, {}).decode(b"\x00\xa1x")


def test_big_ints_are_kept_in_any_and_between_slots() -> None:
    stored, column = state_codec(Any, 0, {}), column_codec(Sums)
    assert stored.decode(stored.encode([BIG])) == [BIG]
    assert column.decode(column.encode([FULL, FULL])) == [FULL, FULL]
