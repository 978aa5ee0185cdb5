"""Numbers in JSON: no digit is lost, and NaN and infinity are refused where they are.

Method: each kind of type with a number, encoded and decoded; NaN at each place of a value.
"""

from __future__ import annotations

import dataclasses
import math
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any, Generic, Optional, TypeVar, cast

import msgspec
import pytest
from pydantic import BaseModel, ConfigDict, Field, computed_field, field_serializer, field_validator
from pydantic.dataclasses import dataclass as pydantic_dataclass
from typing_extensions import TypedDict

from tidegate import Json, KafkaSink, KafkaSource, Pipeline
from tidegate.dataplane.refusals import _as_bytes
from tidegate.errors import UserCodeError
from tidegate.testing import PipelineTest

T = TypeVar("T")
EXACT = "12345678901234567.8900"


class Struct(msgspec.Struct):
    x: Decimal


@dataclasses.dataclass
class Data:
    x: Decimal


class Typed(TypedDict):
    x: Decimal


class Plain(BaseModel):
    x: Decimal


class Nullable(BaseModel):
    x: Decimal | None


class Old(BaseModel):
    x: Optional[Decimal]  # noqa: UP045  # as users write it


class WithInt(BaseModel):
    x: int | Decimal


class WithText(BaseModel):
    x: Decimal | str


class Limited(BaseModel):
    x: Annotated[Decimal, Field(gt=0, max_digits=30, decimal_places=4)]


class Box(BaseModel, Generic[T]):
    x: T


class Strict(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True)
    x: Decimal
    at: datetime = datetime(2026, 1, 1, tzinfo=UTC)


class Checked(BaseModel):
    x: Decimal

    @field_validator("x", mode="before")
    @classmethod
    def _number(cls, given: Any) -> Any:
        assert isinstance(given, float)  # as pydantic itself gives it
        return given


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    x: Decimal
    more: Any = None


class Aliased(BaseModel):
    x: Decimal = Field(alias="theAmount")


class Nested(BaseModel):
    x: Plain


class Many(BaseModel):
    x: list[Decimal]


class Mapped(BaseModel):
    x: dict[str, Decimal]


class HasTyped(BaseModel):
    x: Typed


@pydantic_dataclass
class Validated:
    x: Decimal


@dataclasses.dataclass
class Holder:
    x: Plain


@pytest.mark.parametrize(
    "of", [Struct, Data, Plain, Nullable, Old, WithInt, WithText, Limited, Box[Decimal], Strict]
)
@pytest.mark.parametrize("text", [EXACT, "10.00"])
def test_decimal_of_a_json_number_keeps_its_digits_and_its_exponent(of: Any, text: str) -> None:
    form = Json(of)
    value = form.decoder()(b'{"x": %s}' % text.encode())
    assert (type(value.x), str(value.x)) == (Decimal, text)
    if of is not WithText:  # a Decimal is written as text, which is read as a str there
        assert form.decoder()(form.encoder()(value)) == value


@pytest.mark.parametrize(
    ("of", "data"),
    [
        (Checked, b'{"x": 12345678901234567.8900}'),
        (Open, b'{"x": 12345678901234567.8900, "more": [10.00], "extra": {"a": 1.50}}'),
        (Aliased, b'{"theAmount": 12345678901234567.8900}'),
        (Nested, b'{"x": {"x": 12345678901234567.8900}}'),
        (Many, b'{"x": [12345678901234567.8900]}'),
        (Mapped, b'{"x": {"x": 12345678901234567.8900}}'),
        (HasTyped, b'{"x": {"x": 12345678901234567.8900}}'),
        (Validated | Plain, b'{"x": 12345678901234567.8900}'),
        (Holder, b'{"x": {"x": 12345678901234567.8900}}'),
        (list[Plain], b'[{"x": 12345678901234567.8900}]'),
    ],
)
def test_decimal_keeps_its_digits_at_any_depth(of: Any, data: bytes) -> None:
    value = Json(of).decoder()(data)
    assert EXACT in repr(value)
    if of is not Checked:
        assert Json(of).decoder()(Json(of).encoder()(value)) == value
    if of is Open:
        assert type(value.more[0]) is type(value.__pydantic_extra__["extra"]["a"]) is float


def test_strict_model_takes_texts_of_json_and_refuses_what_is_strictly_wrong() -> None:
    decode = Json(Strict).decoder()
    assert decode(b'{"x": 1.50, "at": "2026-06-01T00:00:00Z"}').at.month == 6
    with pytest.raises(ValueError, match="valid datetime"):
        decode(b'{"x": 1.50, "at": 5}')


@pytest.mark.parametrize("text", ["1e10001", "-1.5e3000000", "1e-3000000"])
def test_number_whose_digits_would_take_long_is_refused_by_a_model(text: str) -> None:
    decode = Json(WithInt).decoder()
    with pytest.raises(ValueError, match="is beyond 1e10000 or 1e-10000"):
        decode(f'{{"x": {text}}}'.encode())


class Coded(BaseModel):
    model_config = ConfigDict(val_json_bytes="base64")
    x: Decimal
    data: bytes = b""


def test_number_is_refused_where_only_the_parser_that_rounds_can_read_the_model() -> None:
    decode = Json(Coded).decoder()
    assert decode(b'{"x": 1.5, "data": "aGk="}') == Coded(x=Decimal("1.5"), data=b"hi")
    with pytest.raises(ValueError, match="write a Decimal as text"):
        decode(b'{"x": 12345678901234567.89}')


@pytest.mark.parametrize("text", ["1" * 30, "-9007199254740993", "0"])
def test_int_keeps_its_digits(text: str) -> None:
    class Count(BaseModel):
        x: int

    assert str(Json(Count).decoder()(b'{"x": %s}' % text.encode()).x) == text
    assert str(Json(Box[Decimal]).decoder()(b'{"x": %s}' % text.encode()).x) == text


def test_float_of_seventeen_digits_is_read_back() -> None:
    for value in (0.1 + 0.2, 5e-324, 1.7976931348623157e308, -0.0, 3):
        data = Json(Box[float]).encoder()(Box[float](x=value))
        assert repr(Json(Box[float]).decoder()(data).x) == repr(float(value))


class Ratio(msgspec.Struct):
    x: float | None
    parts: list[float] = []
    by_name: dict[str, float] = {}
    pair: tuple[int, float] = (0, 0.0)
    other: Any = None
    note: str | None = None


class Loose(BaseModel):
    model_config = ConfigDict(extra="allow")
    x: float | None = None
    other: Any = None
    inner: list[Box[float]] = []


class Computed(BaseModel):
    x: float

    @computed_field  # type: ignore[prop-decorator]  # as pydantic's documentation says
    @property
    def half(self) -> float:
        return self.x / 2 if self.x < 5 else math.nan


NOT_FINITE: list[tuple[Any, Any, str]] = [
    (Ratio, Ratio(math.nan), "x is nan"),
    (Ratio, Ratio(-math.inf), "x is -inf"),
    (Ratio, Ratio(1.0, parts=[1.0, math.inf]), r"parts\[1\] is inf"),
    (Ratio, Ratio(1.0, by_name={"a": math.nan}), r"by_name\['a'\] is nan"),
    (Ratio, Ratio(1.0, pair=(1, math.nan)), r"pair\[1\] is nan"),
    (Ratio, Ratio(1.0, other={"a": [Decimal("NaN")]}), r"other\['a'\]\[0\] is NaN"),
    (Ratio, Ratio(1.0, other=Loose(x=math.nan)), "Encoding objects of type Loose is unsupported"),
    (float, math.nan, "it is nan"),
    (Decimal, Decimal("-Infinity"), "it is -Infinity"),
    (Decimal, Decimal("sNaN"), "it is sNaN"),
    (float | str, math.inf, "it is inf"),
    (Struct, Struct(Decimal("NaN")), "x is NaN"),
    (Loose, Loose(x=math.nan), "x is nan"),
    (Loose, Loose(other=[math.nan]), r"other\[0\] is nan"),
    (Loose, Loose.model_validate({"y": math.nan}), "y is nan"),
    (Loose, Loose(inner=[Box[float](x=math.inf)]), r"inner\[0\].x is inf"),
    (Computed, Computed(x=6), r"\['half'\] is nan"),
    (Holder, Holder(Plain.model_construct(x=Decimal("NaN"))), "x.x is NaN"),
    (list[Loose], [Loose(x=1.0), Loose(x=math.nan)], r"\[1\].x is nan"),
]


@pytest.mark.parametrize(("of", "value", "said"), NOT_FINITE)
def test_number_that_json_cannot_write_is_refused_with_its_place(
    of: Any, value: Any, said: str
) -> None:
    with pytest.raises((ValueError, TypeError), match=said):
        Json(of).encoder()(value)


@pytest.mark.parametrize(
    ("of", "value"),
    [
        (Ratio, Ratio(None, note="NaN null Infinity", other=[None, 1.5])),
        (Loose, Loose(other={"a": None, "b": "NaN"})),
        (Computed, Computed(x=1)),
        (str, "null"),
    ],
)
def test_null_and_texts_are_no_numbers(of: Any, value: Any) -> None:
    assert Json(of).decoder()(Json(of).encoder()(value)) == value


class AsText(BaseModel):
    model_config = ConfigDict(ser_json_inf_nan="strings")
    x: float
    note: str | None = None


class AsNull(BaseModel):
    x: float

    @field_serializer("x")
    def _shown(self, x: float) -> float | None:
        return x if math.isfinite(x) else None


def test_model_that_says_how_nan_is_written_decides_it() -> None:
    assert Json(AsText).encoder()(AsText(x=math.nan)) == b'{"x":"NaN","note":null}'
    assert math.isnan(Json(AsText).decoder()(b'{"x":"NaN"}').x)
    assert Json(AsNull).encoder()(AsNull(x=math.nan)) == b'{"x":null}'


@pytest.mark.parametrize("of", [Box[float], Loose, Ratio, Open])
@pytest.mark.parametrize("text", [b"NaN", b"-Infinity", b"1e400"])
def test_source_refuses_tokens_that_are_no_json_and_numbers_that_no_float_holds(
    of: Any, text: bytes
) -> None:
    with pytest.raises(ValueError, match=r"malformed|out of range"):
        Json(of).decoder()(b'{"x": 1, "other": %s, "more": %s, "x": %s}' % (text, text, text))


class Input(msgspec.Struct):
    x: float


class Ratios(Pipeline, name="ratios"):
    inputs = KafkaSource("inputs", value=Json(Input))
    kept = KafkaSink("kept", value=Json(Ratio), on_error="dead_letter", dead_letter_topic="dead")
    keyed = KafkaSink("keyed", value=Json(Input), key=Json(float), record_key=lambda i: 1e308 * i.x)

    def define(self) -> None:
        self.inputs.filter(lambda i: i.x < 5).map(_ratio).to(self.kept)
        self.inputs.filter(lambda i: i.x >= 5).to(self.keyed)


def _ratio(given: Input) -> Ratio:
    return Ratio(given.x or math.nan)


def test_pipeline_test_refuses_nan_as_the_sink_does_and_a_dead_letter_says_nan() -> None:
    with PipelineTest(Ratios) as test:
        test.source(Ratios.inputs).push(Input(1.0), Input(0.0))
        assert test.sink(Ratios.kept).read() == [Ratio(1.0)]
        letter = test.dead_letters("dead")[0]
        assert b'"x":"NaN"' in cast("bytes", letter.value)
        assert "ValueError: x is nan" in str(letter.headers)
        with pytest.raises(UserCodeError, match=r"could not encode the key.*it is inf"):
            test.source(Ratios.inputs).push(Input(5.0))


class Rounded(Json[T]):
    """A format that changes what it writes."""

    def encoder(self) -> Any:
        return lambda value: b'{"x": 10.5}'


class Written(Pipeline, name="written"):
    inputs = KafkaSource("inputs", value=Json(Input))
    out = KafkaSink("out", value=Rounded(Input))
    unreadable = KafkaSink("other", value=Rounded(Aliased))

    def define(self) -> None:
        self.inputs.filter(lambda i: i.x > 0).to(self.out)
        self.inputs.filter(lambda i: i.x < 0).map(_aliased).to(self.unreadable)


def _aliased(given: Input) -> Aliased:
    return Aliased(theAmount=Decimal(given.x))


def test_pipeline_test_shows_what_a_reader_of_the_topic_decodes() -> None:
    with PipelineTest(Written) as test:
        test.source(Written.inputs).push(Input(1.0))
        assert test.sink(Written.out).read() == [Input(10.5)]
        with pytest.raises(UserCodeError, match=r"(?s)its own format cannot read: .*theAmount"):
            test.source(Written.inputs).push(Input(-1.0))


@pytest.mark.parametrize(
    ("value", "letter"),
    [
        (Aliased(theAmount=Decimal("1.50")), b'{"theAmount":"1.50"}'),
        ([Plain(x=Decimal(1))], b'[{"x":"1"}]'),
        (Holder(Plain(x=Decimal(1))), b'{"x":{"x":"1"}}'),
        (
            Loose.model_validate({"x": math.nan, "y": -math.inf}),
            b'{"x":"NaN","other":null,"inner":[],"y":"-Infinity"}',
        ),
        (Input(math.inf), b'{"x":"Infinity"}'),
        ({"a": None, "b": math.nan}, b'{"a":null,"b":"NaN"}'),
    ],
)
def test_dead_letter_of_any_record_is_json_and_never_has_null_for_nan(
    value: Any, letter: bytes
) -> None:
    assert _as_bytes(value) == letter
