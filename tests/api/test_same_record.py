"""A record comes back from every codec and every copy exactly as it was.

Goal: what user code sees of a record does not depend on whether it went to another slot, through
state or through a copy. Method: objects of every kind of record class, with everything that they
can hold, through each codec; `facts` compares what `==` does not see.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.api.drawn_records import drawn_types
from tests.api.record_kinds import (
    BERLIN,
    OBJECTS,
    REPEATED,
    Doubled,
    Line,
    Open,
    Plain,
    Rule,
    Session,
    Swapped,
    Word,
    facts,
)
from tidegate.api.records.copying import copy_value
from tidegate.api.state.field_check import FieldCheck, UncertainParts
from tidegate.api.state.stored import stored_schema
from tidegate.api.state.wire import column_codec, state_codec, value_codec


def name_of(pair: Any) -> str:
    of, value = pair
    return f"{getattr(of, '__name__', of)}-{value!r:.60}"


@pytest.mark.parametrize("pair", OBJECTS, ids=name_of)
def test_a_value_is_the_same_after_a_hop_after_state_and_in_a_copy(pair: tuple[Any, Any]) -> None:
    assert_same(*pair)


def assert_same(of: Any, value: Any) -> None:
    before = facts(value)
    one, many, stored = value_codec(of), column_codec(of), state_codec(of, 1, {})
    listed = state_codec(list[of], 0, {})
    upgraded = state_codec(of, 2, {1: stored_schema(of)})
    for read in (
        one.decode(one.encode(value)),
        *many.decode(many.encode([value, value])),
        *many.decode(memoryview(many.encode([value]))),
        stored.decode(stored.encode(value)),
        *listed.decode(listed.encode([value, value])),
        upgraded.decode(stored.encode(value)),
        copy_value(value),
    ):
        assert facts(read) == before
    assert facts(value) == before
    assert FieldCheck(of, exact=True).first_wrong([value]) is None
    uncertain = UncertainParts().first_wrong(of)
    assert uncertain is None or uncertain([value]) is None


class Before(msgspec.Struct):
    """A record whose class changes between two versions of a job."""

    number: int
    at: datetime


@dataclasses.dataclass
class After:
    number: int
    at: datetime
    added: str = "new"
    total: list[int] = dataclasses.field(init=False, default_factory=lambda: [5])

    def __post_init__(self) -> None:
        self.number *= 100


class Model(pydantic.BaseModel):
    number: int
    at: datetime
    added: str = "new"


MOMENT = REPEATED.replace(tzinfo=BERLIN, fold=1)


def test_record_with_a_zone_is_read_by_a_later_class_without_its_initialiser() -> None:
    written = state_codec(After, 0, {}).encode(After(1, MOMENT))
    later = state_codec(Model, 1, {0: stored_schema(After)}).decode(written)
    assert facts(later) == facts(Model(number=100, at=MOMENT, added="new"))
    for number, of in enumerate((Before, Model), 1):
        old = state_codec(of, 0, {}).encode(of(number=1, at=MOMENT))
        read = state_codec(After, number, {0: stored_schema(of)}).decode(old)
        assert facts(read.at) == facts(MOMENT)
        assert (read.added, read.total) == ("new", [5])


class Tagged(pydantic.BaseModel):
    """A later version, with a default that can change in place."""

    number: int
    at: datetime
    tags: list[str] = []


def test_default_of_a_new_field_of_a_model_belongs_to_one_record() -> None:
    written = state_codec(Before, 0, {}).encode(Before(7, MOMENT))
    codec = state_codec(Tagged, 1, {0: stored_schema(Before)})
    codec.decode(written).tags.append("one")
    assert codec.decode(written).tags == []
    assert Tagged(number=1, at=MOMENT).tags == []


@pytest.mark.skipif(
    not hasattr(pydantic.fields.FieldInfo, "default_factory_takes_validated_data"),
    reason="a factory takes other fields from pydantic 2.10 on",
)
def test_default_of_a_new_field_of_a_model_may_depend_on_other_fields() -> None:
    class Derived(pydantic.BaseModel):
        number: int
        numbers: list[int] = pydantic.Field(default_factory=lambda data: [data["number"]])

    written = state_codec(Before, 0, {}).encode(Before(7, MOMENT))
    codec = state_codec(Derived, 1, {0: stored_schema(Before)})
    assert codec.decode(written).numbers == [7]


@dataclasses.dataclass(frozen=True)
class Checked:
    number: int

    def __post_init__(self) -> None:
        assert self.number


@dataclasses.dataclass(frozen=True)
class Unchecked:
    number: int


def test_record_is_read_after_its_class_has_lost_or_got_an_initialiser() -> None:
    """The schema is the same, so the restore does not know of the change."""
    checked, unchecked = state_codec(Checked, 0, {}), state_codec(Unchecked, 0, {})
    assert unchecked.decode(checked.encode(Checked(5))) == Unchecked(5)
    assert checked.decode(unchecked.encode(Unchecked(5))) == Checked(5)


def test_records_of_earlier_versions_are_read_as_those_versions_read_them() -> None:
    line = state_codec(Line, 0, {}).decode(b"\x00" + msgspec.msgpack.encode([1, "1.50"]))
    assert (line.quantity, line.total) == (2, Decimal("3.00"))  # the constructor computes it
    opened = state_codec(Open, 0, {}).decode(b"\x00" + msgspec.msgpack.encode(["ann", None]))
    assert (opened.user, opened._seen, opened._lines) == ("ann", 100, [])
    doubled = state_codec(Doubled, 0, {}).decode(b"\x00" + msgspec.msgpack.encode([100, REPEATED]))
    assert doubled.amount == 100
    swapped = state_codec(Swapped, 0, {}).decode(b"\x00\x92\x03\x04")
    assert (swapped.left, swapped.right) == (3, 4)
    ratio = state_codec(float, 0, {}).decode(b"\x00\x05")
    assert repr(ratio) == "5"


def test_stored_forms_have_the_golden_bytes() -> None:
    moments = state_codec(datetime, 0, {})
    assert moments.encode(datetime(2026, 1, 1, tzinfo=UTC)).hex() == "00d6ff6955b900"
    plus_two = datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=2)))
    assert moments.encode(plus_two) == b"\x00\xb9" + plus_two.isoformat().encode()
    assert moments.encode(MOMENT) == (
        b"\x00\xc7\x26\x02\x94\xb3"
        + REPEATED.isoformat().encode()
        + b"\x01\x02\x91\xadEurope/Berlin"
    )
    assert state_codec(Open, 0, {}).encode(Open(user="a")).hex() == (
        "0093a26121c09491a475736572c082a55f7365656e64a65f6c696e657390c0"
    )


class Named(NamedTuple):
    number: int


class Derived(Plain):
    pass


REFUSED: list[tuple[Any, Any, str]] = [
    (datetime, REPEATED.replace(tzinfo=Rule()), "zoneinfo.ZoneInfo"),
    (dict[str, int], Counter("a"), "it is a Counter, and only a dict[str, int] itself is kept"),
    (dict[str, int], defaultdict(int), "it is a defaultdict"),
    (tuple[int], Named(1), "it is a Named"),
    (str, Word.A, "it is a Word, and only a str itself is kept"),
    (list[Plain], [Derived(1)], "[0] is a Derived, and only a Plain itself is kept"),
    (Any, [Word.A], "declare its type"),
    (Any, {"a": Plain(1)}, "declare its type"),
    (Session, {"user": "a", "pages": [], "x": Word.A}, "Session.x: "),
    (Open, Open(user="a", x=Word.A), "Open.x: "),  # type: ignore[call-arg]
]


@pytest.mark.parametrize(("of", "value", "why"), REFUSED)
def test_a_value_that_would_not_come_back_as_it_is_is_refused(
    of: Any, value: Any, why: str
) -> None:
    check = FieldCheck(of, exact=True)
    assert check.first_wrong([value]) == 0
    assert why in check.fault(value)
    assert FieldCheck(of).first_wrong([value]) is None


@given(st.data())
def test_a_drawn_record_is_the_same_after_a_hop_after_state_and_in_a_copy(
    data: st.DataObject,
) -> None:
    of, values = data.draw(drawn_types())
    assert_same(of, data.draw(values))
