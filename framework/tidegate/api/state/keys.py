"""Canonical bytes of keys. Two keys of one type have the same bytes if and only if they are equal.

This holds on every machine and in every run, which is not true of Python's `hash()`. The bytes
decide a key's group, and with it the place of its state, so they can never change. The page
docs/guides/formats.md specifies them, and tests/api/test_key_bytes.py holds golden vectors. A step
has one key type, so the bytes do not include the type (a str and its UTF-8 bytes are never keys of
one step).

If a user's function returns a key of another type than declared, the encoder refuses it, because it
could get the bytes of another key. The check costs nothing where a key's bytes are cached.
`check_key` reports the same error with the name of the step, for tests.

The exchange and the state backends get an encoder once and call it for every record.

Python compares keys too: caches and map cells find them by `==`. So `==` and the bytes must agree.
They would not agree for datetimes with a time zone in the hour that a clock change repeats: Python
ignores `fold` there, and two different instants are equal. `key_normaliser` therefore converts such
keys to UTC before they are compared, encoded or shown to user code. Types whose `==` and bytes can
differ in other ways are refused when the graph is built (`api/records/types.py`).
"""

from __future__ import annotations

import decimal
import enum
import functools
import struct
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal, NoReturn, get_args, get_origin
from uuid import UUID

from tidegate.api.records.converters import Converter, ConverterGenerator, read
from tidegate.api.records.record_fields import (
    RecordField,
    fields_of,
    plain_type,
    record_class,
    type_name,
)
from tidegate.api.records.record_objects import changed
from tidegate.api.records.types import literal_type, type_info
from tidegate.api.records.values import KeyCheck
from tidegate.errors import PipelineError

KeyEncoder = Callable[[Any], bytes]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_EXACT = decimal.Context(
    prec=decimal.MAX_PREC,
    Emax=decimal.MAX_EMAX,
    Emin=decimal.MIN_EMIN,
    traps=[decimal.InvalidOperation],
)
"""A decimal context in which normalising never rounds. Python's default one keeps 28 digits."""

_pack_int = struct.Struct(">q").pack
_pack_length = struct.Struct(">I").pack


def key_encoder(of: object) -> KeyEncoder:
    """Return the function from keys of a type to their canonical bytes.

    PipelineError if the type may not be a key. The function raises PipelineError for a key that has
    no canonical bytes: a datetime without a time zone, an int beyond 64 bits, NaN. For a key of
    another type, it raises PipelineError or the exception that Python raises.
    """
    why_not = type_info(of).why_not_key
    if why_not:
        raise PipelineError(why_not)
    return _encoder(of)


def key_normaliser(of: object) -> Callable[[Any], Any] | None:
    """Return the function that converts the datetimes in a key to UTC, at any depth.

    Keys are compared and shown to user code in this form. None for a type without datetimes, whose
    keys stay as they are.
    """
    of = plain_type(of)
    if of is datetime:
        return _in_utc
    if get_origin(of) is tuple:
        return _normaliser_of_tuple(get_args(of))
    fields = fields_of(of)
    return None if fields is None else _normaliser_of_record(of, fields)


def normalised_key(key: Callable[[Any], Any], of: object) -> Callable[[Any], Any]:
    """Return a key function whose keys are normalised; `key` itself if the type needs no change."""
    normalise = key_normaliser(of)
    if normalise is None:
        return key

    @functools.wraps(key)
    def normalised(record: Any) -> Any:
        return normalise(key(record))

    return normalised


def check_key(key: object, of: object, where: str) -> None:
    """Refuse a key that is not of the declared type; the PipelineError names `where`, the step."""
    if KeyCheck(of).first_wrong([key]) is not None:
        raise PipelineError(
            f"{where}: key_by gave {key!r}, a {type(key).__name__}, and declares keys of "
            f"{type_name(of)}; correct the function, or what its returns= says."
        )


def _encoder(of: object) -> KeyEncoder:
    of = plain_type(of)
    if get_origin(of) is Literal:
        return _encoder(literal_type(of))
    if isinstance(of, type) and issubclass(of, enum.Enum):
        return {member: member.name.encode() for member in of}.__getitem__
    if get_origin(of) is tuple:
        return _tuple(of, get_args(of))
    fields = fields_of(of)
    if fields is not None:
        return _record(of, fields)
    return _SCALARS[of]


def _refuse(key: object, of: object) -> NoReturn:
    size = f" of {len(key)}" if isinstance(key, tuple) else ""
    raise PipelineError(
        f"{key!r} is {_article(type(key).__name__)}{size}, and the declared keys are "
        f"{type_name(of)}; correct the function that gives it, or the declared type."
    )


def _article(name: str) -> str:
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def _bytes(key: object) -> bytes:
    return key if isinstance(key, bytes) else _refuse(key, bytes)


def _int(key: int) -> bytes:
    try:
        return _pack_int(key)
    except struct.error:
        raise PipelineError(
            f"{key!r} is not an int of 64 bits; use str or Decimal for such keys."
        ) from None


def _decimal(key: Decimal) -> bytes:
    if not key.is_finite():
        raise PipelineError(f"{key!r} is not a key: it is not a finite number.")
    return str(key.normalize(_EXACT)).encode() if key else b"0"


def _datetime(key: datetime) -> bytes:
    if key.tzinfo is None:
        raise PipelineError(f"{key!r} is not a key: it has no time zone. Give it one.")
    return _pack_int((key - _EPOCH) // _MICROSECOND)


def _date(key: date) -> bytes:
    if isinstance(key, datetime):  # one instant would have different texts in two time zones
        _refuse(key, date)
    return key.isoformat().encode()


def _in_utc(key: Any) -> Any:
    """Return a datetime with a time zone in UTC.

    Other values are returned unchanged, and the encoder refuses them.
    """
    if not isinstance(key, datetime) or key.tzinfo is None:
        return key
    if key.tzinfo is UTC and type(key) is datetime:
        return key
    try:
        utc = key.astimezone(UTC)
    except OverflowError:  # within a day of the calendar's ends, where no clock changes happen
        return key
    return datetime.combine(utc.date(), utc.time(), UTC)  # also of a subclass, such as a Timestamp


def _normaliser_of_tuple(arguments: tuple[object, ...]) -> Callable[[Any], Any] | None:
    if ... in arguments:
        item = key_normaliser(arguments[0])
        if item is None:
            return None
        return lambda key: tuple(map(item, key)) if isinstance(key, tuple) else key
    parts = [key_normaliser(argument) for argument in arguments]
    if not any(parts):
        return None

    def normalise(key: Any) -> Any:
        if not isinstance(key, tuple) or len(key) != len(parts):
            return key
        pairs = zip(parts, key, strict=True)
        return tuple(part if convert is None else convert(part) for convert, part in pairs)

    return normalise


def _normaliser_of_record(
    of: object, fields: tuple[RecordField, ...]
) -> Callable[[Any], Any] | None:
    converts = {
        field.name: convert
        for field in fields
        if field.in_key and (convert := key_normaliser(field.type)) is not None
    }
    if not converts:
        return None
    known = record_class(of)

    def normalise(key: Any) -> Any:
        if type(key) is not known:
            return key
        return changed(
            key, {name: convert(getattr(key, name)) for name, convert in converts.items()}
        )

    return normalise


def _tuple(of: object, arguments: tuple[object, ...]) -> KeyEncoder:
    if ... in arguments:
        item = _encoder(arguments[0])

        def encode(key: tuple[Any, ...]) -> bytes:
            if not isinstance(key, tuple):
                _refuse(key, of)
            parts = [item(part) for part in key]
            return b"".join([_pack_length(len(part)) + part for part in parts])

        return encode
    generator = _KeyEncoderGenerator()
    parts = [(f"key[{i}]", argument) for i, argument in enumerate(arguments)]
    refused = f"{generator.name(_refuse)}(key, {generator.name(of)})"
    fits = f"isinstance(key, tuple) and len(key) == {len(parts)}"
    return generator.joined(parts, f"{{}} if {fits} else {refused}")


def _record(of: object, fields: tuple[RecordField, ...]) -> KeyEncoder:
    generator = _KeyEncoderGenerator()
    parts = [(read(of, "key", field), field.type) for field in fields if field.in_key]
    # An object of a subclass has the same fields, but never equals an object of this class.
    refused = f"{generator.name(_refuse)}(key, {generator.name(of)})"
    return generator.joined(
        parts, f"{{}} if type(key) is {generator.name(record_class(of))} else {refused}"
    )


class _KeyEncoderGenerator(ConverterGenerator):
    """The generator of `length(a) + a + length(b) + b`, with the parts' encoders called inline."""

    def joined(self, parts: list[tuple[str, object]], guard: str = "{}") -> KeyEncoder:
        """Return the encoder of a key that consists of parts.

        Each part is given by its source and its type. `guard` is a format that encloses the result.
        """
        length = self.name(_pack_length)
        names = [(f"p{i}", source, self.name(_encoder(of))) for i, (source, of) in enumerate(parts)]
        terms = [f"{length}(len({p} := {encode}({source}))) + {p}" for p, source, encode in names]
        source = guard.format(" + ".join(terms) or "b''")
        function: KeyEncoder = self.define("encode_key", "key", source)[0]
        return function

    def record(self, of: object, fields: tuple[RecordField, ...]) -> Converter:
        raise NotImplementedError

    def branches(self, branches: list[object]) -> Converter:
        raise NotImplementedError


_SCALARS: dict[object, KeyEncoder] = {
    str: str.encode,
    bytes: _bytes,
    bool: {False: b"\x00", True: b"\x01"}.__getitem__,
    int: _int,
    Decimal: _decimal,
    date: _date,
    datetime: _datetime,
    UUID: lambda key: key.bytes,
}
