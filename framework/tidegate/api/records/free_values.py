"""The form of values that no type describes, between slots and in state.

These are values of `Any`, the undeclared fields of a pydantic model, private attributes, and other
attributes that a record has in addition to its fields. They are read back as they were, or they are
refused. What JSON has (text, numbers, lists, dicts with such keys) is msgpack's own form, as in
earlier versions. Other values are msgpack extensions: ints beyond 64 bits (`big_ints.py`),
datetimes (`moments.py`), and those of type 3, an array of a name and what makes the value.

An object of any other class is refused: its class would have to be named in the data.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import msgspec

from tidegate.api.records.big_ints import BIG_INT, pack_int, unpack_int
from tidegate.api.records.moments import MOMENT, pack_moment, read_zone, stored_zone, unpack_moment
from tidegate.user_exceptions import repr_of

OTHER: Final = 3
"""The type of the msgpack extension."""
TUPLE: Final = 4
"""The type of the extension for a tuple where a Sequence is declared (`api/state/wire.py`)."""
TYPED: Final = 5
"""The type of the extension for a value whose declared type is needed to read it."""

_PLAIN: Final = frozenset({str, float, bool, bytes, type(None)})
_KEYS: Final = frozenset({str})


def is_plain(value: Any) -> bool:
    """Check whether msgpack itself keeps a value of any type.

    False for every int beyond 64 bits and every value that has another form.
    """
    kind = type(value)
    if kind in _PLAIN:
        return True
    if kind is int:
        return bool(-(2**63) <= value < 2**64)
    if kind is dict:
        return _KEYS.issuperset(map(type, value)) and all(map(is_plain, value.values()))
    if kind is list:
        return all(map(is_plain, value))
    return bool(kind is datetime and value.tzinfo is UTC and not value.fold)


def pack_free(value: Any) -> Any:
    """Return a value in a form that msgpack can encode; TypeError if it cannot be read back."""
    return value if is_plain(value) else _packed(value)


def unpack_free(data: bytes | memoryview) -> Any:
    """Return the value that `pack_free` has packed, from its msgpack bytes."""
    return _decode(data)


def encode_free(value: Any) -> bytes:
    """Return the msgpack bytes of a value; TypeError if it cannot be read back."""
    return _encode(pack_free(value))


def is_carried(value: Any) -> bool:
    """Check whether a value of any type is read back as it is."""
    if is_plain(value):
        return True
    try:
        _packed(value)
    except Exception:  # noqa: BLE001  # a class of the user may raise anything
        return False
    return True


def read_extension(code: int, data: memoryview) -> Any:
    """Return the value of an extension, where no type says what it is."""
    if code == BIG_INT:
        return unpack_int(msgspec.msgpack.Ext(code, bytes(data)))
    if code == MOMENT:
        return unpack_moment(data)
    if code == TYPED:
        return msgspec.msgpack.Ext(code, bytes(data))
    if code != OTHER:
        raise ValueError(f"an extension of type {code} is no value")
    name, content = _decode(data)
    return _READ[name](content)


def _packed(value: Any) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is int:
        return pack_int(value)
    if kind is list:
        return list(map(_packed, value))
    if kind is dict:
        if _KEYS.issuperset(map(type, value)):
            return {key: _packed(inner) for key, inner in value.items()}
        return _other("dict", [[_packed(key), _packed(inner)] for key, inner in value.items()])
    if kind is datetime:
        return pack_moment(value) if value.tzinfo is UTC else _moment(value)
    if kind in _NAMES:
        name, content = _NAMES[kind]
        return _other(name, content(value))
    raise TypeError(
        f"{repr_of(value)} is of the class {kind.__module__}.{kind.__qualname__}, which is not "
        "kept where no type is declared; declare its type"
    )


def _moment(value: datetime) -> Any:
    """Return a datetime in a form that is not text, because no type says that it is a datetime."""
    zone, arguments = stored_zone(value.tzinfo)
    wall = value.replace(tzinfo=None, fold=0)
    return msgspec.msgpack.Ext(MOMENT, _encode((wall, value.fold, zone, arguments)))


def _other(name: str, content: Any) -> msgspec.msgpack.Ext:
    return msgspec.msgpack.Ext(OTHER, _encode((name, content)))


def _items(values: Any) -> list[Any]:
    return list(map(_packed, values))


def _time(value: time) -> list[Any]:
    return [value.replace(tzinfo=None, fold=0).isoformat(), value.fold, *stored_zone(value.tzinfo)]


def _read_time(content: list[Any]) -> time:
    text, fold, kind, arguments = content
    return time.fromisoformat(text).replace(tzinfo=read_zone(kind, arguments), fold=fold)


_NAMES: Final[dict[type, tuple[str, Callable[[Any], Any]]]] = {
    tuple: ("tuple", _items),
    set: ("set", _items),
    frozenset: ("frozenset", _items),
    bytearray: ("bytearray", bytes),
    Decimal: ("decimal", str),
    date: ("date", date.isoformat),
    time: ("time", _time),
    timedelta: ("timedelta", lambda value: [value.days, value.seconds, value.microseconds]),
    UUID: ("uuid", lambda value: value.bytes),
}
_READ: Final[dict[str, Callable[[Any], Any]]] = {
    "dict": dict,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "bytearray": bytearray,
    "decimal": Decimal,
    "date": date.fromisoformat,
    "time": _read_time,
    "timedelta": lambda content: timedelta(*content),
    "uuid": lambda content: UUID(bytes=content),
}
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(ext_hook=read_extension).decode
