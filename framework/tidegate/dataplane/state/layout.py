"""The layout of store keys: the position of a value of keyed state in its store.

        key group      2 bytes, big-endian
        state name     1 byte length, then UTF-8
        key            length as unsigned LEB128, then the canonical bytes (`api/state/keys.py`)
        map key        canonical bytes to the end; entries of a map state only

The key group comes first, so that a range of groups is a range of the store. A restore at another
parallelism copies such ranges. The name is written in full and not as a number. All subtasks would
have to agree on the number, and keep it through every change of the declarations. The store keeps
the common beginning of neighbouring keys only once anyway. The key's length separates the map
entries of one key from those of a longer key with the same beginning. Old checkpoints are read with
this layout, and a golden test checks it.

This module is pure. The backend calls it for every key that it loads, and restore for ranges.
"""

from __future__ import annotations

from typing import Final

from tidegate.errors import check

_MORE: Final = 0x80
"""The bit of a LEB128 byte that says that another byte follows."""

_ONE_BYTE: Final = [bytes((length,)) for length in range(_MORE)]

MAX_NAME_BYTES: Final = 255
"""Limit of a state's name, because its length is one byte. Names are attribute names, and far
shorter.
"""


def name_part(name: str) -> bytes:
    """Return a state's name in the form of store keys."""
    encoded = name.encode()
    check(0 < len(encoded) <= MAX_NAME_BYTES, f"state name {name!r} does not fit into a store key")
    return bytes([len(encoded)]) + encoded


def key_part(key_bytes: bytes) -> bytes:
    """Return a key in the form of store keys, from its canonical bytes."""
    length = len(key_bytes)
    if length < _MORE:
        return _ONE_BYTE[length] + key_bytes
    head = bytearray()
    while length >= _MORE:
        head.append(length & (_MORE - 1) | _MORE)
        length >>= 7
    head.append(length)
    return bytes(head) + key_bytes


def group_part(key_group: int) -> bytes:
    """Return a key group in the form in which store keys begin."""
    return key_group.to_bytes(2, "big")


def groups_span(key_groups: range) -> tuple[bytes, bytes]:
    """Return the first store key and the end (exclusive) of a range of key groups."""
    return group_part(key_groups.start), group_part(key_groups.stop)


def entries_span(map_prefix: bytes) -> tuple[bytes, bytes]:
    """Return the first store key and the end (exclusive) of a key's map entries.

    `map_prefix` is the store key without the map key. The end is the first byte string that does
    not begin with the prefix. It always exists, because the first byte of a key group is less than
    0xFF.
    """
    kept = map_prefix.rstrip(b"\xff")
    return map_prefix, kept[:-1] + bytes([kept[-1] + 1])
