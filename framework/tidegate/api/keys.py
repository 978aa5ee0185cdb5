"""Canonical bytes of keys: equal keys of one type give equal bytes, unequal ones unequal bytes, on
every machine and in every run, which Python's `hash()` does not.

They decide a key's group, and with it where its state lies, so they can never change:
docs/formats.md specifies them, and tests/api/test_key_bytes.py holds golden vectors. A step has one
key type, so the bytes say nothing of types (a str and its UTF-8 bytes are never keys of one step).
Where a user's function gives a key of another type than it declared, an encoder refuses it rather
than make another key's bytes of it: that costs nothing where a key's bytes are remembered.
`check_key` says so in the words of the step, for tests.

The exchange and the state backends ask for an encoder once and call it for every record.

Keys are also compared by Python: caches and map cells find them by `==`. So `==` and the bytes must
agree. They do not for datetimes of a zone in the hour that a clock change repeats: Python ignores
`fold` there, and two instants are equal. `key_normaliser` therefore gives such keys in UTC, before
they are compared, encoded or shown to user code. Types of which `==` and bytes can differ in other
ways are refused when the graph is built (`api/types.py`).
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

from tidegate.api.converters import Converter, ConverterGenerator, read
from tidegate.api.record_fields import RecordField, changer_of, fields_of, record_class, type_name
from tidegate.api.types import literal_type, type_info
from tidegate.api.values import KeyCheck
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
"""A context in which normalising never rounds; the ambient one keeps 28 digits."""

_pack_int = struct.Struct(">q").pack
_pack_length = struct.Struct(">I").pack


def key_encoder(of: object) -> KeyEncoder:
    """The function from keys of a type to their canonical bytes.

    PipelineError if the type may not be a key. The function raises PipelineError for a key that has
    no canonical bytes (a datetime without a zone, an int beyond 64 bits, NaN), and that or what
    Python raises for one of another type.
    """
    why_not = type_info(of).why_not_key
    if why_not:
        raise PipelineError(why_not)
    return _encoder(of)


def key_normaliser(of: object) -> Callable[[Any], Any] | None:
    """The function that gives a key as it is compared and shown to user code: datetimes in UTC, at
    any depth. None for a type without datetimes, whose keys stay as they are.
    """
    if of is datetime:
        return _in_utc
    if get_origin(of) is tuple:
        return _normaliser_of_tuple(get_args(of))
    fields = fields_of(of)
    return None if fields is None else _normaliser_of_record(of, fields)


def normalised_key(key: Callable[[Any], Any], of: object) -> Callable[[Any], Any]:
    """A key function whose keys are normalised; the function itself where nothing is to be done."""
    normalise = key_normaliser(of)
    if normalise is None:
        return key

    @functools.wraps(key)
    def normalised(record: Any) -> Any:
        return normalise(key(record))

    return normalised


def check_key(key: object, of: object, where: str) -> None:
    """Refuse a key that is not of the declared type: PipelineError naming `where`, the step."""
    if KeyCheck(of).first_wrong([key]) is not None:
        raise PipelineError(
            f"{where}: key_by gave {key!r}, a {type(key).__name__}, and declares keys of "
            f"{type_name(of)}; "
            "correct the function, or its returns="
        )


def _encoder(of: object) -> KeyEncoder:
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
        f"{type_name(of)}; correct the function that gives it, or the declared type"
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
            f"{key!r} is not an int of 64 bits; use str or Decimal for such keys"
        ) from None


def _decimal(key: Decimal) -> bytes:
    if not key.is_finite():
        raise PipelineError(f"{key!r} is not a key: it is no number")
    return str(key.normalize(_EXACT)).encode() if key else b"0"


def _datetime(key: datetime) -> bytes:
    if key.tzinfo is None:
        raise PipelineError(f"{key!r} is not a key: it has no time zone; which instant is it?")
    return _pack_int((key - _EPOCH) // _MICROSECOND)


def _date(key: date) -> bytes:
    if isinstance(key, datetime):  # of one instant in two zones, the text would differ
        _refuse(key, date)
    return key.isoformat().encode()


def _in_utc(key: Any) -> Any:
    """A datetime with a zone in UTC; anything else as it is, for the encoder to refuse."""
    if not isinstance(key, datetime) or key.tzinfo is None:
        return key
    if key.tzinfo is UTC and type(key) is datetime:
        return key
    try:
        utc = key.astimezone(UTC)
    except OverflowError:  # within a day of the calendar's ends, where no clock was ever changed
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
        if field.in_key and (convert := key_normaliser(field.of)) is not None
    }
    if not converts:
        return None
    known, change = record_class(of), changer_of(of)

    def normalise(key: Any) -> Any:
        if type(key) is not known:
            return key
        return change(
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
    shapes = _KeyShapes()
    parts = [(f"key[{i}]", argument) for i, argument in enumerate(arguments)]
    refused = f"{shapes.name(_refuse)}(key, {shapes.name(of)})"
    fits = f"isinstance(key, tuple) and len(key) == {len(parts)}"
    return shapes.joined(parts, f"{{}} if {fits} else {refused}")


def _record(of: object, fields: tuple[RecordField, ...]) -> KeyEncoder:
    shapes = _KeyShapes()
    parts = [(read(of, "key", field), field.of) for field in fields if field.in_key]
    # A subclass has the same fields, and is equal to no object of this class.
    refused = f"{shapes.name(_refuse)}(key, {shapes.name(of)})"
    return shapes.joined(
        parts, f"{{}} if type(key) is {shapes.name(record_class(of))} else {refused}"
    )


class _KeyShapes(ConverterGenerator):
    """Generates `length(a) + a + length(b) + b` with the parts' encoders in place."""

    def joined(self, parts: list[tuple[str, object]], guard: str = "{}") -> KeyEncoder:
        """The encoder of a key of parts: source of the part, and its type; `guard` goes around."""
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
