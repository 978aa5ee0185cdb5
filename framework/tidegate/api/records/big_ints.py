"""The stored form of an int beyond 64 bits, for which msgpack has no number.

`api/state/wire.py` uses these converters only where the ordinary encoder or decoder has refused a
value. So values with smaller numbers cost nothing and are stored as before. An int beyond 64 bits
is a msgpack extension of type 1: two's complement, big-endian, without padding. A dict that has
such a key, or another extension as a key, is an array of pairs, because msgpack has no such keys. A
version that does not know the extension refuses the value (`Expected int, got ext`) and never reads
another number.

Such ints are kept where `int`, `float` or `Any` is declared (`free_values.py` has those of `Any`).
This module is not used for keys: the canonical bytes of an int key have 64 bits
(`api/state/keys.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from tidegate.api.records.converters import Converter, generic

BIG_INT: Final = 1
"""The type of the msgpack extension."""

_LEAST: Final = -(2**63)
_END: Final = 2**64
"""Range of the numbers that msgpack has: from `_LEAST` up to, not including, `_END`."""


def pack_int(value: Any) -> Any:
    """Return an int in a form that msgpack can encode.

    Other values are returned unchanged, and the encoder refuses them.
    """
    if not isinstance(value, int) or _LEAST <= value < _END:
        return value
    return msgspec.msgpack.Ext(
        BIG_INT, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)
    )


def unpack_int(plain: Any) -> Any:
    """Undo `pack_int`; ValueError for an extension of another type."""
    if not isinstance(plain, msgspec.msgpack.Ext):
        return plain
    if plain.code != BIG_INT:
        raise ValueError(f"an extension of type {plain.code} is no int")
    return int.from_bytes(plain.data, "big", signed=True)


def int_converter(pack: str, unpack: str, variable: str) -> Converter:
    """Return the converter of an int.

    `pack` and `unpack` are the names of the two functions in the generated source.
    """
    ext = msgspec.msgpack.Ext
    usual = f"({variable} := {{}}).__class__ is int"
    return Converter(
        int | ext,
        lambda x: f"{pack}({x})",
        lambda x: f"({variable} if {usual.format(x)} else {unpack}({variable}))",
    )


def pairs_converter(
    key: Converter, value: Converter, plain_key: Any, names: tuple[str, str, str, str]
) -> Converter:
    """Return the converter of a dict whose keys may be extensions.

    `plain_key` is the msgpack type of all other keys. `names` are the names of
    `dict_or_pairs` and `entries_of` in the generated source, and of two variables.
    """
    pack, unpack, k, v = names
    pairs = generic(list, generic(tuple, key.wire, value.wire))
    return Converter(
        generic(dict, plain_key, value.wire) | pairs,
        lambda x: f"{pack}([({key.packed(k)}, {value.packed(v)}) for {k}, {v} in {x}.items()])",
        lambda x: f"{{{key.unpacked(k)}: {value.unpacked(v)} for {k}, {v} in {unpack}({x})}}",
    )


def dict_or_pairs(pairs: list[tuple[Any, Any]]) -> Any:
    """Return the pairs as a dict, or unchanged if a key is an extension."""
    if any(isinstance(key, msgspec.msgpack.Ext) for key, _ in pairs):
        return pairs
    return dict(pairs)


def entries_of(plain: Any) -> Iterable[Any]:
    """Return the entries of a value that `dict_or_pairs` has made, as pairs."""
    return plain.items() if isinstance(plain, dict) else plain
