"""Where a value of keyed state lies in its store: the bytes of store keys.

    key group      2 bytes, big-endian
    state name     1 byte length, then UTF-8
    key            length as unsigned LEB128, then the canonical bytes (`api/keys.py`)
    map key        canonical bytes to the end; entries of a map state only

The key group comes first so that a range of groups is a range of the store, which is what restoring
at another parallelism copies. The name stands in full and not as a number: a number would have to
be agreed between subtasks and kept through every change of the declarations, and the store keeps
the common beginning of neighbouring keys once anyway. The key's length keeps one key's map entries
apart from those of a key that continues it. Old checkpoints are read by this layout: a golden test
binds it.

Pure; called by the backend for every key that it loads, and by restore for ranges.
"""

from __future__ import annotations

from typing import Final

from tidegate.errors import check

_MORE: Final = 0x80
"""The bit of a LEB128 byte that says that another one follows."""

_ONE_BYTE: Final = [bytes((length,)) for length in range(_MORE)]

MAX_NAME_BYTES: Final = 255
"""The length of a state's name is one byte. Names are attribute names, so nobody comes near."""


def name_part(name: str) -> bytes:
    """A state's name as it stands in store keys."""
    encoded = name.encode()
    check(0 < len(encoded) <= MAX_NAME_BYTES, f"state name {name!r} does not fit into a store key")
    return bytes([len(encoded)]) + encoded


def key_part(key_bytes: bytes) -> bytes:
    """A key as it stands in store keys, from its canonical bytes."""
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
    """A key group as it stands at the beginning of store keys."""
    return key_group.to_bytes(2, "big")


def groups_span(key_groups: range) -> tuple[bytes, bytes]:
    """First store key and end (exclusive) of all that belongs to a range of key groups."""
    return group_part(key_groups.start), group_part(key_groups.stop)


def entries_span(map_prefix: bytes) -> tuple[bytes, bytes]:
    """First store key and end (exclusive) of a key's map entries, from the store key without map
    key.

    The end is the first byte string that does not begin with the prefix. It is always there: the
    first byte of a key group is less than 0xFF.
    """
    kept = map_prefix.rstrip(b"\xff")
    return map_prefix, kept[:-1] + bytes([kept[-1] + 1])
