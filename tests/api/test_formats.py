"""Formats: what bytes they write, why they refuse some, and a type against its schema file.

Method: literal bytes where other programs read them; each disagreement between a type and an .avsc
file; pydantic, Decimals and keys as users have them.
"""

from __future__ import annotations

import enum
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import fastavro
import msgspec
import pytest
from pydantic import BaseModel, Field

from pipelines.payments_enriched import Account, Payment, Tier
from tidegate import Avro, Json, PipelineError, Raw, Utf8

NAIVE = datetime(2026, 1, 1, tzinfo=UTC).replace(tzinfo=None)


class Order(msgspec.Struct, frozen=True):
    order_id: str
    amount: Decimal


class Aliased(BaseModel):
    user_id: str = Field(alias="userId")
    amount: Decimal


def test_json_writes_decimals_as_text_and_reads_text_and_numbers() -> None:
    form = Json(Order)
    assert form.encoder()(Order("a", Decimal("1.50"))) == b'{"order_id":"a","amount":"1.50"}'
    assert form.decoder()(b'{"order_id":"a","amount":"1.50"}') == Order("a", Decimal("1.50"))
    exact = b'{"order_id":"a","amount":0.1000000000000000000000000000000001}'
    assert str(form.decoder()(exact).amount) == "0.1000000000000000000000000000000001"


def test_json_of_a_pydantic_model_keeps_its_aliases() -> None:
    form = Json(Aliased)
    data = form.encoder()(Aliased(userId="ann", amount=Decimal("1.50")))
    assert data == b'{"userId":"ann","amount":"1.50"}'
    assert form.decoder()(data).user_id == "ann"


@pytest.mark.parametrize(
    ("form", "data", "reason"),
    [
        (Json(Order), b'{"order_id":"a"}', "Object missing required field `amount`"),
        (Json(Order), b"{", "Input data was truncated"),
        (Json(Aliased), b'{"userId":5}', "Input should be a valid string"),
        (Utf8(), b"\xff", "invalid start byte"),
        (Avro(Order), b"", "the bytes end within the value"),
        (Avro(Order), Avro(Order).encoder()(Order("a", Decimal(1))) + b"x", "1 bytes are left"),
        (Avro(Order), b"\x02a\x04no", "'no' is not a decimal"),
    ],
)
def test_decoder_error_of_each_format_gives_the_reason(form: Any, data: bytes, reason: str) -> None:
    with pytest.raises(Exception) as caught:
        form.decoder()(data)
    assert reason in str(caught.value)


def test_utf8_and_raw_formats_read_back_what_they_write() -> None:
    assert Utf8().decoder()(Utf8().encoder()("ü")) == "ü"
    assert Raw().decoder()(Raw().encoder()(b"\xff")) == b"\xff"


def test_avro_with_a_schema_file_is_readable_by_fastavro() -> None:
    file = "schemas/payment.avsc"
    data = Avro(Payment, schema=file).encoder()(Payment("p", "a", Decimal("12.50"), 1_000))
    schema = fastavro.parse_schema(json.loads(Path(file).read_text(encoding="utf-8")))
    assert fastavro.schemaless_reader(io.BytesIO(data), schema, None) == {
        "payment_id": "p",
        "account_id": "a",
        "amount": Decimal("12.50"),
        "paid_at_ms": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC),
    }


def test_avro_with_a_schema_file_writes_and_reads_an_enum_and_a_null() -> None:
    form = Avro(Account, schema="schemas/account.avsc")
    account = Account("a", "Ann", None, Tier.GOLD)
    assert form.encoder()(account) == b"\x02a\x06Ann\x00\x02"
    assert form.decoder()(b"\x02a\x06Ann\x00\x02") == account


def test_avro_refuses_a_decimal_beyond_the_scale_of_its_schema_file() -> None:
    encode = Avro(Payment, schema="schemas/payment.avsc").encoder()
    with pytest.raises(ValueError, match=r"[Ss]cale"):
        encode(Payment("p", "a", Decimal("12.345"), 1_000))


def test_avro_refuses_a_datetime_without_a_time_zone() -> None:
    with pytest.raises(ValueError, match="no time zone"):
        Avro(datetime).encoder()(NAIVE)


def test_avro_refuses_two_different_types_of_one_name() -> None:
    with pytest.raises(PipelineError, match="two different types are named Order"):
        Avro(Both).encoder()


Other = msgspec.defstruct("Order", [("other", int)])


@dataclass
class Both:
    one: Order
    two: Other  # type: ignore[valid-type]  # made at run time, to have the other's name


class Size(enum.Enum):
    SMALL = 1
    LARGE = 2


@dataclass
class Item:
    name: str
    size: Size


@dataclass
class Whole:
    ident: UUID
    price: Decimal
    count: int
    ratio: float
    data: bytes
    flag: bool
    at: datetime
    day: date
    note: str | None
    items: list[Item]
    tags: Mapping[str, int]
    pair: tuple[int, str]


ITEM = {
    "type": "record",
    "name": "Item",
    "fields": [
        {"name": "name", "type": "string"},
        {"name": "size", "type": {"type": "enum", "name": "Size", "symbols": ["SMALL", "LARGE"]}},
    ],
}
PAIR = {
    "type": "record",
    "name": "Pair",
    "fields": [{"name": "f0", "type": "int"}, {"name": "f1", "type": "string"}],
}
FIELDS: dict[str, Any] = {
    "data": {"type": "fixed", "name": "Data", "size": 2},
    "ident": "string",
    "price": "string",
    "count": {"type": "long", "logicalType": "timestamp-millis"},
    "ratio": "float",
    "flag": "boolean",
    "at": {"type": "long", "logicalType": "timestamp-millis"},
    "day": {"type": "int", "logicalType": "date"},
    "note": ["string", "null"],
    "items": {"type": "array", "items": ITEM},
    "tags": {"type": "map", "values": "long"},
    "pair": PAIR,
    "unknown": {"type": "string", "default": "x"},
}
WHOLE = Whole(
    ident=UUID(int=5),
    price=Decimal("1.50"),
    count=7,
    ratio=0.5,
    data=b"ab",
    flag=True,
    at=datetime(2026, 1, 1, tzinfo=UTC),
    day=date(2026, 1, 1),
    note=None,
    items=[Item("a", Size.LARGE)],
    tags={"x": 1},
    pair=(1, "z"),
)


def file_with(folder: Path, **changed: Any) -> str:
    fields = []
    for name, schema in {**FIELDS, **changed}.items():
        if schema is None:
            continue
        field = {"name": name, "type": schema}
        if isinstance(schema, dict) and "default" in schema:
            field = {"name": name, "type": schema["type"], "default": schema["default"]}
        fields.append(field)
    file = folder / "whole.avsc"
    schema = {"type": "record", "name": "Whole", "namespace": "a.b", "fields": fields}
    file.write_text(json.dumps(schema), encoding="utf-8")
    return str(file)


def test_avro_with_a_schema_file_reads_back_every_kind_of_field(tmp_path: Path) -> None:
    form = Avro(Whole, schema=file_with(tmp_path))
    assert form.decoder()(form.encoder()(WHOLE)) == WHOLE


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"count": "string"}, "Whole.count is int in the type and string in the file"),
    ({"price": "double"}, "Whole.price is Decimal in the type and double in the file"),
    ({"at": "long"}, "Whole.at is datetime in the type and long in the file"),
    ({"note": "string"}, "Whole.note may not be null in the file and may be None in the type"),
    ({"count": ["null", "long"]}, "Whole.count may be null in the file and not in the type"),
    ({"note": ["null", "string", "long"]}, "Whole.note: only T | None against a union with null"),
    ({"ratio": None}, "Whole.ratio is not in the file"),
    ({"unknown": "string"}, "Whole.unknown is in the file, without a default, and not in the type"),
    ({"items": "string"}, "Whole.items is list[Item] in the type and string in the file"),
    ({"tags": {"type": "map", "values": "string"}}, "Whole.tags{} is int in the type and string"),
    (
        {"items": {"type": "array", "items": {**ITEM, "fields": ITEM["fields"][:1]}}},
        "Whole.items[].size is not in the file",
    ),
    (
        {
            "items": {
                "type": "array",
                "items": {
                    **ITEM,
                    "fields": [
                        ITEM["fields"][0],
                        {
                            "name": "size",
                            "type": {"type": "enum", "name": "Size", "symbols": ["SMALL"]},
                        },
                    ],
                },
            }
        },
        "Whole.items[].size: enum Size and the file differ in LARGE",
    ),
    ({"count": "Nothing"}, "is no schema"),
]


@pytest.mark.parametrize(("changed", "words"), WRONG)
def test_avro_refuses_a_type_that_does_not_fit_its_schema_file(
    tmp_path: Path, changed: dict[str, Any], words: str
) -> None:
    file = file_with(tmp_path, **changed)
    with pytest.raises(PipelineError) as caught:
        Avro(Whole, schema=file).describe()
    assert words in str(caught.value)
    assert str(caught.value).startswith(f"Avro schema file {file} ")


def test_avro_schema_file_may_begin_with_a_bom(tmp_path: Path) -> None:
    file = file_with(tmp_path)
    Path(file).write_text(Path(file).read_text(encoding="utf-8"), encoding="utf-8-sig")
    assert Avro(Whole, schema=file).describe() == Avro(Whole, schema=file_with(tmp_path)).describe()


def test_avro_refuses_a_schema_file_that_is_not_json(tmp_path: Path) -> None:
    file = tmp_path / "broken.avsc"
    file.write_text("{", encoding="utf-8")
    with pytest.raises(PipelineError, match="is not JSON"):
        Avro(Whole, schema=str(file)).describe()


def test_avro_schema_file_is_found_in_a_folder_on_sys_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file_with(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    form = Avro(Whole, schema="whole.avsc")
    assert form.decoder()(form.encoder()(WHOLE)) == WHOLE


def test_avro_schema_file_on_sys_path_wins_over_one_in_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first folder holds the code of the submit; the user may edit the working folder."""
    work, code = tmp_path / "work", tmp_path / "code"
    for folder in (work, code):
        folder.mkdir()
    file_with(code)
    (work / "whole.avsc").write_text("edited", encoding="utf-8")
    monkeypatch.chdir(work)
    monkeypatch.syspath_prepend(str(code))
    form = Avro(Whole, schema="whole.avsc")
    assert form.decoder()(form.encoder()(WHOLE)) == WHOLE


def test_avro_description_for_the_fingerprint_changes_with_the_schema_file(tmp_path: Path) -> None:
    before = Avro(Whole, schema=file_with(tmp_path)).describe()
    after = Avro(Whole, schema=file_with(tmp_path, ratio="double")).describe()
    assert before != after
    json.dumps(after)
