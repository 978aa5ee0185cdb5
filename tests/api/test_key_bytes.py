"""Canonical key bytes: golden vectors, which can never change, and the law that they keep.

Goal: equal keys of one type have equal bytes and unequal ones unequal bytes, for ever. Method:
literal bytes, written down once (docs/guides/formats.md has the rules they follow); properties over
types.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.api.state.keys import check_key, key_encoder
from tidegate.errors import PipelineError


class Colour(enum.Enum):
    RED = 1
    BLUE = "b"
    CRIMSON = 1  # noqa: PIE796 - an alias: the same member, and so the same key


@dataclass(frozen=True)
class Card:
    issuer: str
    number: int
    note: str = field(default="", compare=False)


class Place(msgspec.Struct, frozen=True):
    card: Card
    colour: Colour


EAST = timezone(timedelta(hours=2))
VECTORS: list[tuple[Any, Any, str]] = [
    (str, "", ""),
    (str, "ann", "616e6e"),
    (str, "Zürich", "5ac3bc72696368"),
    (Literal["a", "b"], "b", "62"),
    (bytes, b"\x00\xff", "00ff"),
    (bool, False, "00"),
    (bool, True, "01"),
    (int, 0, "0000000000000000"),
    (int, 1, "0000000000000001"),
    (int, -1, "ffffffffffffffff"),
    (int, 2**63 - 1, "7fffffffffffffff"),
    (int, -(2**63), "8000000000000000"),
    (Decimal, Decimal("0.00"), "30"),
    (Decimal, Decimal("-0"), "30"),
    (Decimal, Decimal("1.50"), "312e35"),
    (Decimal, Decimal(1000), "31452b33"),
    (Decimal, Decimal("-0.0000001"), "2d31452d37"),
    (date, date(2026, 11, 21), "323032362d31312d3231"),
    (datetime, datetime(1970, 1, 1, tzinfo=UTC), "0000000000000000"),
    (datetime, datetime(2026, 11, 21, 10, 0, 0, 1, tzinfo=UTC), "000660c66c7a2801"),
    (datetime, datetime(2026, 11, 21, 12, 0, 0, 1, tzinfo=EAST), "000660c66c7a2801"),
    (datetime, datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), "ffffffffffffffff"),
    (UUID, UUID("12345678-1234-5678-1234-567812345678"), "12345678123456781234567812345678"),
    (Colour, Colour.RED, "524544"),
    (Colour, Colour.CRIMSON, "524544"),
    (Colour, Colour.BLUE, "424c5545"),
    (tuple[str, int], ("ann", 1), "00000003616e6e000000080000000000000001"),
    (tuple[str, ...], ("a", ""), "000000016100000000"),
    (tuple[str, ...], (), ""),
    (tuple[tuple[str, str], bool], (("a", "b"), True), "0000000a000000016100000001620000000101"),
    (Card, Card("visa", 7), "0000000476697361000000080000000000000007"),
    (Card, Card("visa", 7, "not compared"), "0000000476697361000000080000000000000007"),
    (
        Place,
        Place(Card("v", 7), Colour.RED),
        "00000011000000017600000008000000000000000700000003524544",
    ),
]


@pytest.mark.parametrize(("of", "key", "expected"), VECTORS)
def test_key_bytes_equal_the_golden_vector(of: Any, key: Any, expected: str) -> None:
    assert key_encoder(of)(key).hex() == expected


decimals = st.decimals(allow_nan=False, allow_infinity=False) | st.builds(
    lambda number, places: Decimal(number).scaleb(-places), st.integers(), st.integers(-5, 5)
)
FIRST = datetime(1, 1, 3, tzinfo=UTC).replace(tzinfo=None)  # in UTC still within the calendar
LAST = datetime(9999, 12, 29, tzinfo=UTC).replace(tzinfo=None)
zones = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
moments = st.datetimes(timezones=zones, min_value=FIRST, max_value=LAST) | st.builds(
    lambda zone: datetime(2026, 1, 1, tzinfo=UTC).astimezone(zone), zones
)
small = st.integers(-300, 300)
cards = st.builds(Card, st.text(max_size=3), small, st.text(max_size=1))
TYPES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (str, st.text(max_size=3)),
    (bytes, st.binary(max_size=3)),
    (bool, st.booleans()),
    (int, small | st.integers(-(2**63), 2**63 - 1)),
    (Decimal, decimals | small.map(Decimal) | small.map(lambda n: Decimal(n) / 10)),
    (date, st.dates()),
    (datetime, moments),
    (UUID, st.uuids()),
    (Colour, st.sampled_from(Colour)),
    (tuple[str, str], st.tuples(st.text("ab", max_size=3), st.text("ab", max_size=3))),
    (tuple[bytes, ...], st.lists(st.binary(max_size=2), max_size=3).map(tuple)),
    (Card, cards),
    (tuple[Card, Decimal], st.tuples(cards, small.map(Decimal))),
]


@pytest.mark.parametrize(("of", "keys"), TYPES, ids=[str(of) for of, _ in TYPES])
def test_keys_have_equal_bytes_exactly_if_they_are_equal(
    of: Any, keys: st.SearchStrategy[Any]
) -> None:
    encode = key_encoder(of)

    @given(keys, keys)
    def law(one: Any, other: Any) -> None:
        assert (encode(one) == encode(other)) == (one == other)

    law()


@given(st.integers(), st.integers(0, 60))
def test_decimal_key_is_never_rounded(number: int, zeros: int) -> None:
    encode = key_encoder(Decimal)
    padded = Decimal(f"{number}.{'0' * zeros}") if zeros else Decimal(number)
    assert encode(padded) == encode(Decimal(number))
    longer = Decimal(f"{number}.{'0' * zeros}1")
    assert encode(longer) != encode(Decimal(number))


@pytest.mark.parametrize(
    ("of", "key", "words"),
    [
        (datetime, datetime(2026, 1, 1, tzinfo=UTC).replace(tzinfo=None), "no time zone"),
        (int, 2**63, "not an int of 64 bits"),
        (Decimal, Decimal("NaN"), "it is not a finite number"),
        (Decimal, Decimal("Infinity"), "it is not a finite number"),
    ],
)
def test_a_key_without_canonical_bytes_is_refused(of: Any, key: Any, words: str) -> None:
    with pytest.raises(PipelineError, match=words):
        key_encoder(of)(key)


@pytest.mark.parametrize(
    ("of", "words"),
    [
        (float, "float is not a key: it has no canonical bytes"),
        (list[int], "a list is not a key; use a tuple"),
        (dict[str, int], "a dict is not a key; use a frozen dataclass"),
        (int | None, "a union is not a key; give the key one type"),
        (int | str, "a union is not a key; give the key one type"),
        (Any, "the type is not known"),
    ],
)
def test_a_type_that_may_not_be_a_key_is_refused(of: Any, words: str) -> None:
    with pytest.raises(PipelineError, match=words):
        key_encoder(of)


@pytest.mark.parametrize(
    ("of", "key"),
    [
        (bytes, 5),  # bytes(5) would be five zeros
        (bytes, "a"),
        (bytes, [1, 2]),
        (str, b"a"),
        (int, "5"),
        (tuple[str, str], ("a", "b", "c")),  # would be one key with ("a", "b")
        (tuple[str, str], ("a",)),
        (tuple[str, str], "ab"),
        (tuple[str, ...], "ab"),
        (tuple[bytes, int], (5, 5)),
    ],
)
def test_key_encoder_refuses_a_key_of_another_type(of: Any, key: Any) -> None:
    """They would be another key's: records would meet in its state."""
    with pytest.raises((PipelineError, TypeError)):
        key_encoder(of)(key)


def test_error_names_the_type_of_the_key_and_the_declared_key_type() -> None:
    with pytest.raises(PipelineError, match="5 is an int, and the declared keys are bytes"):
        key_encoder(bytes)(5)
    with pytest.raises(PipelineError, match=r"a tuple of 1, and the declared .* tuple\[str, str\]"):
        key_encoder(tuple[str, str])(("a",))


def test_check_key_refuses_a_key_of_another_type_than_declared() -> None:
    check_key(5, int, "step 'a'")
    check_key(True, int, "step 'a'")
    check_key(("a", 5), tuple[str, int], "step 'a'")
    for key, of in (("5", int), (1.0, int), (5, str), (["a"], tuple[str, ...])):
        with pytest.raises(PipelineError, match="step 'a': key_by gave"):
            check_key(key, of, "step 'a'")
