"""The values of Avro: which ones a schema can hold exactly, and the defaults of a schema file.

fastavro writes some values as other ones without an error: an `int` of 40 bits, a `float` of 1e300
as infinity, a datetime without its microseconds. The functions of this module refuse such a value.
`api/records/avro.py` puts them into the generated conversions.
"""

from __future__ import annotations

import decimal
import math
import struct
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from typing import Any, Final

from tidegate.api.records.types import AvroSchema
from tidegate.api.records.values import article, counts_as

INT_MAX: Final = 2**31 - 1
"""The largest `int` of Avro. The least one is -2**31."""
LONG_MAX: Final = 2**63 - 1
FLOAT_MAX: Final = 3.4028235e38
"""A number just below the largest `float` of Avro: numbers up to it need no closer look."""

_EXACT: Final = decimal.Context(
    prec=decimal.MAX_PREC, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN, traps=[]
)


def checked(value: Any, of: type) -> Any:
    """Return a value whose class is not exactly `of`; TypeError if it does not count as `of`.

    ValueError for an int that a float cannot hold exactly.
    """
    if not counts_as(type(value), of):
        raise TypeError(f"{value!r} is {article(type(value).__name__)}, not {article(of.__name__)}")
    return _as_float(value, "d") if of is float else value


def checked_int(value: Any) -> int:
    """Return the value of an `int`; ValueError if it has more than 32 bits."""
    if type(value) is not int:
        value = checked(value, int)
    if not -INT_MAX - 1 <= value <= INT_MAX:
        raise ValueError(f"{value} is beyond the 32 bits of an Avro int; make it a long")
    return int(value)


def checked_float(value: Any) -> float:
    """Return the value of a `float`; ValueError if its 32 bits cannot hold it.

    A number with a fraction is rounded, as it is the purpose of the type.
    """
    if type(value) is not float:
        checked(value, float)
        return _as_float(value, "f")
    try:
        struct.pack("<f", value)
    except OverflowError:
        raise ValueError(
            f"{value} is beyond the range of an Avro float; make it a double"
        ) from None
    return value


def _as_float(value: Any, form: str) -> float:
    """Return an int as a float of 64 (`d`) or 32 (`f`) bits; ValueError if it changes."""
    if not isinstance(value, int):
        return float(value)
    try:
        (same,) = struct.unpack(f"<{form}", struct.pack(f"<{form}", float(value)))
    except OverflowError:
        same = math.inf
    if same != value:
        raise ValueError(f"{value} is an int that an Avro float cannot hold exactly")
    return float(value)


def aware(moment: Any) -> datetime:
    """Return a datetime; ValueError if it has no time zone."""
    if not isinstance(moment, datetime):
        raise TypeError(f"{moment!r} is {article(type(moment).__name__)}, not a datetime")
    if moment.tzinfo is None:
        raise ValueError(f"{moment!r} has no time zone; give it one")
    return moment


def aware_ms(moment: Any) -> datetime:
    """Return a datetime; ValueError if it has no time zone, or parts of a millisecond."""
    aware(moment)
    if moment.microsecond % 1000:
        raise ValueError(
            f"{moment} has microseconds, and timestamp-millis has none; round it, or make the "
            "field timestamp-micros"
        )
    return moment  # type: ignore[no-any-return]  # `aware` has checked its class


def decimal_bytes(schema: AvroSchema) -> tuple[Callable[[Any], bytes], Callable[[bytes], Decimal]]:
    """Return the functions from a Decimal to its bytes and back, without rounding.

    fastavro has its own, but writes numbers beyond the precision, and rounds them when it reads.
    """
    precision, scale, size = schema["precision"], schema.get("scale", 0), schema.get("size")
    scaleb, to_number = _EXACT.scaleb, int.from_bytes

    def pack(value: Any) -> bytes:
        if not isinstance(value, Decimal):
            raise TypeError(f"{value!r} is {article(type(value).__name__)}, not a Decimal")
        if not value.is_finite():
            raise ValueError(f"{value} is not a number of Avro")
        if value.adjusted() + scale >= precision and value:
            raise ValueError(f"{value} has more digits than decimal({precision}, {scale}) allows")
        number = int(scaled := scaleb(value, scale))
        if number != scaled:
            raise ValueError(f"{value} has more decimals than the scale {scale} of the schema")
        length = (number.bit_length() + 8) // 8 if size is None else size
        return number.to_bytes(length, "big", signed=True)

    def unpack(data: bytes) -> Decimal:
        return scaleb(Decimal(to_number(data, "big", signed=True)), -scale)

    return pack, unpack


def default_of(schema: AvroSchema, default: Any) -> Any:
    """Return the default of a field, which is JSON in the schema, as fastavro takes values.

    ValueError if the JSON is not a value of the field's type.
    """
    if isinstance(schema, list):
        for branch in schema:  # the first one, in files of older versions of Avro
            try:
                return default_of(branch, default)
            except ValueError:
                continue
        raise _wrong(schema, default)
    kind = schema["type"] if isinstance(schema, dict) else schema
    if isinstance(kind, (dict, list)):
        return default_of(kind, default)
    if kind in _MADE and isinstance(default, _MADE[kind][0]) and type(default) is not bool:
        value = _MADE[kind][1](schema, default)
    elif kind == "boolean" and isinstance(default, bool):
        value = default
    elif kind == "null" and default is None:
        return None
    else:
        raise _wrong(schema, default)
    return value


def _wrong(schema: AvroSchema, default: Any) -> ValueError:
    kind = schema["type"] if isinstance(schema, dict) else schema
    return ValueError(f"its default {default!r} is no value of {kind}")


def _bytes_of(schema: AvroSchema, default: str) -> bytes:
    try:
        data = default.encode("latin-1")
    except UnicodeEncodeError:
        raise _wrong(schema, default) from None
    if isinstance(schema, dict) and schema.get("size", len(data)) != len(data):
        raise _wrong(schema, default)
    return data


def _integer_of(schema: AvroSchema, default: int) -> int:
    kind = schema["type"] if isinstance(schema, dict) else schema
    end = INT_MAX if kind == "int" else LONG_MAX
    if not -end - 1 <= default <= end:
        raise _wrong(schema, default)
    return default


def _symbol_of(schema: AvroSchema, default: str) -> str:
    if default not in schema["symbols"]:
        raise _wrong(schema, default)
    return default


def _record_of(schema: AvroSchema, default: dict[str, Any]) -> dict[str, Any]:
    value = {}
    for field in schema["fields"]:
        if field["name"] not in default and "default" not in field:
            raise _wrong(schema, default)
        value[field["name"]] = default_of(
            field["type"], default.get(field["name"], field.get("default"))
        )
    return value


_MADE: Final[dict[str, tuple[Any, Callable[[Any, Any], Any]]]] = {
    "string": (str, lambda _, default: default),
    "bytes": (str, _bytes_of),
    "fixed": (str, _bytes_of),
    "enum": (str, _symbol_of),
    "int": (int, _integer_of),
    "long": (int, _integer_of),
    "float": ((int, float), lambda _, default: float(default)),
    "double": ((int, float), lambda _, default: float(default)),
    "array": (list, lambda of, default: [default_of(of["items"], each) for each in default]),
    "map": (dict, lambda of, d: {key: default_of(of["values"], each) for key, each in d.items()}),
    "record": (dict, _record_of),
}
"""The Python type of the JSON, and the function that makes the value, by the kind of the schema."""
