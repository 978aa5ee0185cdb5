"""Key groups: which subtask owns a key, at any parallelism.

A key's group depends only on its canonical bytes (`api/state/keys.py`, docs/guides/formats.md) and
on the maximum parallelism. Both are fixed for the life of the state. A subtask owns a contiguous
range of groups, so a restore at another parallelism moves ranges and reads no keys. The functions
are pure arithmetic. The exchange calls them for each record, and a restore calls them once.

The formulas are Flink's. The hash is MurmurHash3 (x86, 32 bit, seed 0), never Python's `hash()`,
which differs between processes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import repeat
from operator import mod
from typing import Final

import mmh3

from tidegate.errors import check
from tidegate.ids import KeyGroup, SubtaskIndex
from tidegate.message_text import counted

DEFAULT_MAX_PARALLELISM: Final = 128
"""Default number of key groups: one byte before a state key, and up to 128 subtasks."""

MAX_PARALLELISM_LIMIT: Final = 32_768
"""Flink's limit: a key group fits in two bytes, and a range of groups in a signed short."""


def key_group(key_bytes: bytes, max_parallelism: int) -> KeyGroup:
    """Return the group of a key from its canonical bytes; 0 <= group < max_parallelism."""
    return mmh3.hash(key_bytes, 0, signed=False) % max_parallelism  # type: ignore[return-value]


def key_groups(keys_bytes: Iterable[bytes], max_parallelism: int) -> Iterator[KeyGroup]:
    """Yield the groups of many keys, for less than half of the cost of a call for each."""
    # All of it runs in C. A call of KeyGroup(...) would cost as much as the hash.
    hashes = map(mmh3.hash, keys_bytes, repeat(0), repeat(False))
    return map(mod, hashes, repeat(max_parallelism))


def subtask_of(group: KeyGroup, parallelism: int, max_parallelism: int) -> SubtaskIndex:
    """Return the subtask that owns a key group."""
    return SubtaskIndex(group * parallelism // max_parallelism)


def owners(parallelism: int, max_parallelism: int) -> list[SubtaskIndex]:
    """Return the owner of each key group."""
    groups = map(KeyGroup, range(max_parallelism))
    return [subtask_of(group, parallelism, max_parallelism) for group in groups]


def key_group_range(subtask: SubtaskIndex, parallelism: int, max_parallelism: int) -> range:
    """Return the key groups of a subtask: a contiguous half-open range, never empty."""
    check(
        0 <= subtask < parallelism <= max_parallelism,
        f"subtask {subtask} of {parallelism} with {counted(max_parallelism, 'key group')}",
    )
    first = -(-subtask * max_parallelism // parallelism)
    last = ((subtask + 1) * max_parallelism - 1) // parallelism
    return range(first, last + 1)
