"""JSON of types that are or hold a pydantic model.

pydantic reads each JSON number with a fraction as a float, before it makes a Decimal of it. So
12345678901234567.89 becomes 12345678901234568, and 10.00 becomes 10. If a type holds a Decimal,
msgspec parses the JSON, and pydantic validates the Python values. A number with a fraction is a
Decimal then, which every validator of pydantic takes like a float. If code of the user or a field
of Any sees the number first, the number is a float that knows its text.

A strict model takes a text for a datetime from JSON, and not from Python. So the JSON of strict
models is validated twice: first as JSON, which decides, and then with the lax rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from decimal import Decimal
from typing import Any, Final, Self

import msgspec

from tidegate.api.records.finite import FiniteCheck, check_finite, suspicious
from tidegate.api.records.record_fields import is_model

DIGITS_MAX: Final = 10_000
"""The largest exponent of a number with a fraction or an exponent."""
_OWN_CODE: Final = {"function-before", "function-wrap", "function-plain"}
"""Nodes of pydantic's core schema that run code of the user before the value has its type."""
_NO_SCHEMA: Final = {"cls", "default", "metadata", "serialization"}
"""Keys of nodes that lead to no other node."""


class ModelJson:
    """The codec of one type."""

    def __init__(self, of: Any) -> None:
        from pydantic import TypeAdapter  # 100 ms, and the user has imported it already

        self._adapter: Any = TypeAdapter(of)
        nodes = list(_nodes(self._adapter.core_schema))
        kinds = {node.get("type") for node in nodes}
        extra = any(node.get("extra_fields_behavior") == "allow" for node in nodes)
        self._strict = any(node.get("strict") for node in nodes)
        self._encodes_bytes = any(node.get("val_json_bytes", "utf8") != "utf8" for node in nodes)
        self._keeps_input = extra or "any" in kinds or not _OWN_CODE.isdisjoint(kinds)
        self._decimals = "decimal" in kinds
        self._shaped = any(node.get("computed_fields") or _is_shaped(node) for node in nodes)
        """Whether code of the user makes a part of the JSON."""
        self._numbers = extra or self._shaped or not kinds.isdisjoint({"float", "decimal", "any"})
        self._check = FiniteCheck(of)

    def decoder(self) -> Callable[[bytes], Any]:
        """Return a function from JSON bytes to a value; it checks every field."""
        validate = self._exact() if self._decimals else self._adapter.validate_json
        if not self._numbers:
            return validate

        is_finite = self._check.is_finite

        def decode(data: bytes) -> Any:
            value = validate(data)
            if not is_finite(value):
                msgspec.json.decode(data)  # refuses NaN, and 1e400, which would become infinity
            return value

        return decode

    def encoder(self) -> Callable[[Any], bytes]:
        """Return a function from a value to JSON bytes; ValueError for NaN and infinity."""
        dump, dump_python = self._adapter.dump_json, self._adapter.dump_python

        def encode(value: Any) -> bytes:
            # pydantic checks the fields that it writes, and by default it would only warn.
            data: bytes = dump(value, by_alias=True, warnings="error")
            return data

        def encode_shaped(value: Any) -> bytes:
            data = encode(value)
            if suspicious(data):
                check_finite(dump_python(value, by_alias=True))
            return data

        if self._shaped:
            return encode_shaped
        return self._check.guarded(encode) if self._numbers else encode

    def _exact(self) -> Callable[[bytes], Any]:
        """Return the decoder of a type with a Decimal: no digit of its numbers is lost."""
        as_json, as_python = self._adapter.validate_json, self._adapter.validate_python
        strict, keeps_input = self._strict, self._keeps_input
        hook = _same_float if self._encodes_bytes else JsonFloat if keeps_input else _decimal
        parse = msgspec.json.Decoder(float_hook=hook).decode

        def decode(data: bytes) -> Any:
            if strict:
                as_json(data)
            value = as_python(parse(data), strict=False if strict else None)
            return _with_plain_floats(value) if keeps_input else value

        def decode_with_bytes(data: bytes) -> Any:
            parse(data)
            return as_json(data)  # only this decodes the texts of bytes

        return decode_with_bytes if self._encodes_bytes else decode


class JsonFloat(float):
    """A number of JSON. pydantic makes a Decimal of a float by `str`, which gives all digits."""

    __slots__ = ("_text",)
    _text: str

    def __new__(cls, text: str) -> Self:
        """Return the number of a text of JSON."""
        number = super().__new__(cls, text)
        number._text = text
        return number

    def __str__(self) -> str:
        return self._text


def _decimal(text: str) -> Decimal:
    """Return a number of JSON; ValueError for one whose digits an int field would compute.

    An int of `1e100000000` takes hours and much memory.
    """
    number = Decimal(text)
    if number and abs(number.adjusted()) > DIGITS_MAX:
        raise ValueError(f"{text} is beyond 1e{DIGITS_MAX} or 1e-{DIGITS_MAX}")
    return number


def _same_float(text: str) -> float:
    """Return a number of JSON as a float; ValueError if the float is another number."""
    number = float(text)
    if Decimal(repr(number)) != Decimal(text):
        raise ValueError(f"a float cannot hold {text}; write a Decimal as text")
    return number


def _with_plain_floats(value: Any) -> Any:
    """Return a new value with a float in the place of each JsonFloat that pydantic has kept."""
    kind = type(value)
    if kind is JsonFloat:
        return float(value)
    if kind is dict:
        return {key: _with_plain_floats(part) for key, part in value.items()}
    if kind in (list, tuple, set, frozenset):
        return kind(map(_with_plain_floats, value))
    if is_model(kind) or is_dataclass(kind):
        names = kind.model_fields if is_model(kind) else [field.name for field in fields(kind)]
        for name in names:  # past the __setattr__ of a frozen class: the value is new
            object.__setattr__(value, name, _with_plain_floats(getattr(value, name)))
        extra = getattr(value, "__pydantic_extra__", None) or {}
        extra.update(_with_plain_floats(extra))
    return value


def _nodes(part: Any) -> Iterator[dict[str, Any]]:
    """Yield the nodes and configurations of pydantic's core schema."""
    if isinstance(part, dict):
        yield part
        for key, inside in part.items():
            if key not in _NO_SCHEMA:
                yield from _nodes(inside)
    elif isinstance(part, list | tuple):
        for inside in part:
            yield from _nodes(inside)


def _is_shaped(node: dict[str, Any]) -> bool:
    return str(node.get("serialization", {}).get("type", "")).startswith("function")
