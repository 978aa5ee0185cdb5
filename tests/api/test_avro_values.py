"""Avro writes a value exactly or refuses it with its field; every default of a file works.

Method: values at and beyond the limits of each type of a file, read back by fastavro itself.
"""

from __future__ import annotations

import io
import json
import math
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import fastavro
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate import Avro, KafkaSink, KafkaSource, Pipeline, PipelineError, Utf8
from tidegate.api.records.avro_values import decimal_bytes
from tidegate.testing import PipelineTest


class FloatFirst(msgspec.Struct):
    value: float | int


class IntFirst(msgspec.Struct):
    value: int | float | None


class Plain(msgspec.Struct):
    value: str | bytes | bool | int | None


class NoInt(msgspec.Struct):
    value: str | float


@dataclass
class Cat:
    lives: int


@dataclass
class Dog:
    lives: int


class Pets(msgspec.Struct):
    value: list[Dog | Cat | None]


@pytest.mark.parametrize(
    ("of", "values"),
    [
        (FloatFirst, [5, 2**53 + 1, -(2**62) - 1, 1.5, 5.0, -0.0, math.inf, 2**63 - 1, -(2**63)]),
        (IntFirst, [5, 2**53 + 1, 1.5, 5.0, None, 0, 0.0]),
        (Plain, ["a", b"a", True, 1, 0, False, None, ""]),
        (NoInt, ["a", 1.5]),
        (Pets, [[Cat(1), Dog(1), None]]),
    ],
)
def test_value_of_a_union_keeps_its_type(of: Any, values: list[Any]) -> None:
    form = Avro(of)
    encode, decode = form.encoder(), form.decoder()
    for value in values:
        back = decode(encode(of(value))).value
        assert (type(back), repr(back)) == (type(value), repr(value))


@pytest.mark.parametrize(
    ("of", "value", "said"),
    [
        (FloatFirst, True, "value: True is a bool, not float | int"),
        (FloatFirst, "5", "value: '5' is a str, not float | int"),
        (FloatFirst, 2**63, "value: .*too large"),
        (NoInt, 2**53 + 1, "value: 9007199254740993 is an int that an Avro float cannot hold"),
        (Pets, [Cat(1), Dog(2**63)], r"value\[1\].lives: .*too large"),
    ],
)
def test_value_that_no_branch_of_a_union_holds_is_refused(of: Any, value: Any, said: str) -> None:
    with pytest.raises((ValueError, TypeError), match=said.replace("|", r"\|")):
        Avro(of).encoder()(of(value))


def test_int_is_a_float_in_a_union_without_int() -> None:
    assert repr(Avro(NoInt).decoder()(Avro(NoInt).encoder()(NoInt(5))).value) == "5.0"


@dataclass
class Item:
    price: Decimal


@dataclass
class Event:
    small: int = 0
    big: int = 0
    half: float = 0.0
    double: float = 0.0
    at: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    at_us: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    day: date = date(2026, 1, 1)
    code: bytes = b"ab"
    amount: Decimal = Decimal(0)
    fixed: Decimal = Decimal(0)
    maybe: int | None = None
    items: list[Item] = field(default_factory=list)
    by_name: dict[str, float] = field(default_factory=dict)


DECIMAL = {"logicalType": "decimal", "precision": 5, "scale": 2}
TYPES: dict[str, Any] = {
    "small": "int",
    "big": "long",
    "half": "float",
    "double": "double",
    "at": {"type": "long", "logicalType": "timestamp-millis"},
    "at_us": {"type": "long", "logicalType": "timestamp-micros"},
    "day": {"type": "int", "logicalType": "date"},
    "code": {"type": "fixed", "name": "Code", "size": 2},
    "amount": {"type": "bytes", **DECIMAL},
    "fixed": {"type": "fixed", "name": "Amount", "size": 3, **DECIMAL},
    "maybe": ["null", "int"],
    "items": {
        "type": "array",
        "items": {
            "type": "record",
            "name": "Item",
            "fields": [{"name": "price", "type": {"type": "bytes", **DECIMAL}}],
        },
    },
    "by_name": {"type": "map", "values": "float"},
}


def file_of(folder: Path, fields: list[dict[str, Any]]) -> str:
    file = folder / "event.avsc"
    file.write_text(json.dumps({"type": "record", "name": "Event", "fields": fields}))
    return str(file)


@pytest.fixture(scope="module")
def form(tmp_path_factory: pytest.TempPathFactory) -> Avro[Event]:
    fields = [{"name": name, "type": of} for name, of in TYPES.items()]
    return Avro(Event, schema=file_of(tmp_path_factory.mktemp("avro"), fields))


EXACT: list[dict[str, Any]] = [
    {"small": 2**31 - 1},
    {"small": -(2**31)},
    {"big": 2**63 - 1},
    {"big": -(2**63)},
    {"half": 3.4028234663852886e38},
    {"half": -0.5},
    {"half": math.inf},
    {"half": 2**24},
    {"double": 1e300},
    {"double": 2**53},
    {"at": datetime(1969, 12, 31, 23, 59, 59, 999_000, UTC)},
    {"at": datetime(9999, 12, 31, 23, 59, 59, 999_000, UTC)},
    {"at_us": datetime(1, 1, 1, 0, 0, 0, 1, UTC)},
    {"day": date(1, 1, 1)},
    {"amount": Decimal("999.99")},
    {"amount": Decimal("-999.99")},
    {"amount": Decimal("1E+2")},
    {"amount": Decimal("12.3")},
    {"amount": Decimal("-1.28")},
    {"fixed": Decimal("-999.99")},
    {"maybe": -(2**31)},
    {"items": [Item(Decimal("0.01"))]},
    {"by_name": {"a": 1.5}},
]
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"small": 2**31}, "small: 2147483648 is beyond the 32 bits"),
    ({"small": -(2**31) - 1}, "small: -2147483649 is beyond"),
    ({"small": True}, "small: True is a bool, not an int"),
    ({"small": 5.0}, "small: 5.0 is a float"),
    ({"big": 2**63}, "big: .*too large"),
    ({"maybe": 2**40}, "maybe: 1099511627776 is beyond"),
    ({"half": 1e300}, "half: 1e[+]300 is beyond the range"),
    ({"half": -3.5e38}, "half: -3.5e[+]38 is beyond"),
    ({"half": 2**24 + 1}, "half: 16777217 is an int"),
    ({"double": 2**53 + 1}, "double: 9007199254740993 is an int"),
    ({"double": 10**400}, "double: 1000.* is an int"),
    ({"at": datetime(2026, 1, 1, 0, 0, 0, 1, UTC)}, "at: .* has microseconds"),
    ({"at": datetime(2026, 1, 1)}, "at: .* has no time zone"),  # noqa: DTZ001
    ({"at": date(2026, 1, 1)}, "at: .* is a date, not a datetime"),
    ({"at_us": "2026"}, "at_us: '2026' is a str"),
    ({"day": datetime(2026, 1, 1, 5, tzinfo=UTC)}, "day: .* is a datetime, not a date"),
    ({"code": b"abc"}, "code: data of length 3"),
    ({"code": "ab"}, "code: "),
    ({"amount": Decimal(1000)}, r"amount: 1000 has more digits than decimal\(5, 2\)"),
    ({"amount": Decimal("1E+3")}, "amount: 1E[+]3 has more digits"),
    ({"amount": Decimal("0.001")}, "amount: 0.001 has more decimals than the scale 2"),
    ({"amount": Decimal("NaN")}, "amount: NaN is not a number"),
    ({"amount": 5}, "amount: 5 is an int, not a Decimal"),
    ({"fixed": Decimal(1000)}, "fixed: 1000 has more digits"),
    ({"items": [Item(Decimal(1)), Item(Decimal("0.123"))]}, r"items\[1\].price: 0.123 has more"),
    ({"by_name": {"a": 1.0, "b": 1e39}}, r"by_name\['b'\]: 1e[+]39 is beyond"),
]


def read_by_fastavro(form: Avro[Any], data: bytes) -> Any:
    schema = fastavro.parse_schema(json.loads(Path(str(form.file)).read_text()))
    return fastavro.schemaless_reader(io.BytesIO(data), schema, None)


@pytest.mark.parametrize("changed", EXACT)
def test_value_that_its_schema_holds_is_written_exactly(
    form: Avro[Event], changed: dict[str, Any]
) -> None:
    event = Event(**changed)
    data = form.encoder()(event)
    assert form.decoder()(data) == event
    read = read_by_fastavro(form, data)
    for name in changed.keys() - {"items"}:
        assert read[name] == changed[name]


@pytest.mark.parametrize(("changed", "said"), WRONG)
def test_value_that_its_schema_cannot_hold_is_refused_with_its_field(
    form: Avro[Event], changed: dict[str, Any], said: str
) -> None:
    with pytest.raises((ValueError, TypeError), match=f"^{said}"):
        form.encoder()(Event(**changed))


def test_float_of_32_bits_rounds_a_fraction(form: Avro[Event]) -> None:
    assert form.decoder()(form.encoder()(Event(half=0.1))).half == pytest.approx(0.1, rel=1e-7)


@given(st.integers(-99_999, 99_999))
def test_bytes_of_a_decimal_are_those_of_fastavro(number: int) -> None:
    schema = fastavro.parse_schema({"type": "bytes", **DECIMAL})
    value = Decimal(number).scaleb(-2)
    pack, unpack = decimal_bytes({"type": "bytes", **DECIMAL})
    theirs = io.BytesIO()
    fastavro.schemaless_writer(theirs, schema, value)
    data = fastavro.schemaless_reader(io.BytesIO(theirs.getvalue()), "bytes", None)
    assert (pack(value), unpack(cast("bytes", data))) == (data, value)


def test_decimal_beyond_the_precision_is_read_without_rounding() -> None:
    _, unpack = decimal_bytes({"type": "bytes", **DECIMAL})
    assert unpack((123_456_789).to_bytes(4, "big")) == Decimal("1234567.89")


def test_any_with_nan_is_no_json_in_avro() -> None:
    with pytest.raises(ValueError, match="is nan, and JSON has no such number"):
        Avro(Any).encoder()({"a": [math.nan]})


class Id(msgspec.Struct):
    id: int


INNER = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int", "default": 7}]}
DEFAULTS: list[tuple[Any, Any, Any]] = [
    ("bytes", "ÿ\u0001", b"\xff\x01"),
    ({"type": "fixed", "name": "F", "size": 2}, "\u0000\u0001", b"\x00\x01"),
    ({"type": "bytes", **DECIMAL}, "\u0001\u0000", Decimal("2.56")),
    ({"type": "fixed", "name": "F", "size": 3, **DECIMAL}, "\0\0\u0001", Decimal("0.01")),
    (["bytes", "null"], "\u0001", b"\x01"),
    (["null", "bytes"], None, None),
    (["long", "double"], 5, 5),
    (["double", "long"], 5, 5.0),
    ("string", "x", "x"),
    ("double", 1, 1.0),
    ("float", 1, 1.0),
    ("boolean", True, True),
    ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", "B"),
    ({"type": "int", "logicalType": "date"}, 1, date(1970, 1, 2)),
    ({"type": "long", "logicalType": "timestamp-millis"}, 5, datetime(1970, 1, 1, tzinfo=UTC)),
    ({"type": "array", "items": "bytes"}, ["\u0001"], [b"\x01"]),
    ({"type": "array", "items": {"type": "bytes", **DECIMAL}}, ["\u0001"], [Decimal("0.01")]),
    ({"type": "map", "values": ["null", "bytes"]}, {"k": "\u0002"}, {"k": b"\x02"}),
    (INNER, {}, {"a": 7}),
    (INNER, {"a": 1}, {"a": 1}),
    (["null", INNER], None, None),
    ([INNER, "null"], {}, {"a": 7}),
    (
        {
            "type": "record",
            "name": "Deep",
            "fields": [
                {"name": "b", "type": "bytes", "default": "\u0003"},
                {"name": "c", "type": INNER},
            ],
        },
        {"c": {}},
        {"b": b"\x03", "c": {"a": 7}},
    ),
]


def file_with_default(folder: Path, of: Any, default: Any) -> str:
    only = {"name": "x", "type": of, "default": default}
    return file_of(folder, [{"name": "id", "type": "long"}, only])


@pytest.mark.parametrize(("of", "default", "value"), DEFAULTS)
def test_default_of_a_field_that_only_the_file_has_is_written(
    tmp_path: Path, of: Any, default: Any, value: Any
) -> None:
    form = Avro(Id, schema=file_with_default(tmp_path, of, default))
    form.describe()
    data = form.encoder()(Id(1))
    if isinstance(value, datetime):
        value += timedelta(milliseconds=5)
    assert read_by_fastavro(form, data) == {"id": 1, "x": value}
    assert form.decoder()(data) == Id(1)


@pytest.mark.parametrize(
    ("of", "default"),
    [
        ("bytes", "€"),
        ("bytes", 5),
        ({"type": "fixed", "name": "F", "size": 2}, "abc"),
        ("int", 2**31),
        ("int", "5"),
        ("int", True),
        ("string", None),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "C"),
        ({"type": "array", "items": "int"}, ["x"]),
        (["null", "int"], "x"),
        ({"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}, {}),
        ({"type": "record", "name": "R", "fields": [{"name": "a", "type": ["null", "int"]}]}, {}),
    ],
)
def test_default_that_is_no_value_of_its_type_is_refused_at_the_build(
    tmp_path: Path, of: Any, default: Any
) -> None:
    file = file_with_default(tmp_path, of, default)
    with pytest.raises(PipelineError, match=r"x is in the file only, and its default|is no schema"):
        Avro(Id, schema=file).describe()


class Measures(Pipeline, name="measures"):
    lines = KafkaSource("lines", value=Utf8())
    out = KafkaSink("out", value=Avro(FloatFirst), on_error="dead_letter", dead_letter_topic="dead")

    def define(self) -> None:
        self.lines.map(_measure).to(self.out)


def _measure(line: str) -> FloatFirst:
    return FloatFirst(int(line))


def test_sink_refuses_what_its_schema_cannot_hold_by_its_policy() -> None:
    with PipelineTest(Measures) as test:
        test.source(Measures.lines).push("9007199254740993", str(2**63), "5")
        read = [each.value for each in test.sink(Measures.out).read()]
        assert [(type(each), each) for each in read] == [(int, 2**53 + 1), (int, 5)]
        assert "value: " in str(test.dead_letters("dead")[0].headers)
