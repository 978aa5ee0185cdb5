"""How state holds an int beyond 64 bits, for which msgpack has no number.

`api/wire.py` asks for these shapes only where the ordinary encoder or decoder has refused a value,
so values with smaller numbers cost nothing and are stored as before. An int beyond 64 bits is a
msgpack extension of type 1: two's complement, big-endian, without padding. A dict that has such a
key is an array of pairs, because an extension cannot be a key. A version that does not know the
extension refuses the value (`Expected int, got ext`) and never reads another number.

Only where `int` is declared: what `Any` holds has no type that could give the number back. Keys
are not values: their canonical bytes have 64 bits (`api/keys.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from tidegate.api.converters import Converter, generic

BIG_INT: Final = 1
"""The type of the msgpack extension."""

_LEAST: Final = -(2**63)
_END: Final = 2**64
"""What msgpack has numbers for, the end not included."""


def pack_int(value: Any) -> Any:
    """An int as msgpack can have it; any other value as it is, for the encoder to refuse."""
    if not isinstance(value, int) or _LEAST <= value < _END:
        return value
    return msgspec.msgpack.Ext(
        BIG_INT, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)
    )


def unpack_int(plain: Any) -> Any:
    """The inverse of `pack_int`; ValueError for an extension of another type."""
    if not isinstance(plain, msgspec.msgpack.Ext):
        return plain
    if plain.code != BIG_INT:
        raise ValueError(f"an extension of type {plain.code} is no int")
    return int.from_bytes(plain.data, "big", signed=True)


def int_shape(pack: str, unpack: str) -> Converter:
    """The shape of an int, where the generated source knows the two functions by these names."""
    return Converter(
        int | msgspec.msgpack.Ext, lambda x: f"{pack}({x})", lambda x: f"{unpack}({x})"
    )


def pairs_shape(key: Converter, value: Converter, names: tuple[str, str, str, str]) -> Converter:
    """The shape of a dict with int keys. `names` are those of `dict_or_pairs` and `entries_of` in
    the generated source, and two variables.
    """
    pack, unpack, k, v = names
    pairs = generic(list, generic(tuple, key.wire, value.wire))
    return Converter(
        generic(dict, int, value.wire) | pairs,
        lambda x: f"{pack}([({key.packed(k)}, {value.packed(v)}) for {k}, {v} in {x}.items()])",
        lambda x: f"{{{key.unpacked(k)}: {value.unpacked(v)} for {k}, {v} in {unpack}({x})}}",
    )


def dict_or_pairs(pairs: list[tuple[Any, Any]]) -> Any:
    """A dict as it is always stored, if each of its keys can be one."""
    if any(isinstance(key, msgspec.msgpack.Ext) for key, _ in pairs):
        return pairs
    return dict(pairs)


def entries_of(plain: Any) -> Iterable[Any]:
    """The entries of a dict that `dict_or_pairs` has made, as pairs."""
    return plain.items() if isinstance(plain, dict) else plain
