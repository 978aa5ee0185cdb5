"""Key groups: which subtask owns a key, at any parallelism.

A key's group depends on its canonical bytes (`api/keys.py`, docs/formats.md) and on the maximum
parallelism only, both fixed for the life of the state; a subtask owns a contiguous range of groups,
so that restoring at another parallelism moves ranges and never looks at keys. Pure arithmetic,
called by the exchange for every record and by restore once.

The formulas are Flink's; the hash is MurmurHash3 (x86, 32 bit, seed 0), never Python's `hash()`,
which differs from process to process.
"""

from __future__ import annotations

from typing import Final

import mmh3

from tidegate.errors import check
from tidegate.ids import KeyGroup, SubtaskIndex

DEFAULT_MAX_PARALLELISM: Final = 128
"""Key groups of a job that states none: one byte in front of a state key, up to 128 subtasks."""

MAX_PARALLELISM_LIMIT: Final = 32_768
"""Flink's bound: a key group fits in two bytes, and a range of them in a signed short."""


def key_group(key_bytes: bytes, max_parallelism: int) -> KeyGroup:
    """The group of a key, from its canonical bytes; 0 <= group < max_parallelism."""
    # Not KeyGroup(...), whose call would cost as much as the hash: the exchange asks per record.
    return mmh3.hash(key_bytes, 0, signed=False) % max_parallelism  # type: ignore[return-value]


def subtask_of(group: KeyGroup, parallelism: int, max_parallelism: int) -> SubtaskIndex:
    """The subtask that owns a key group."""
    return SubtaskIndex(group * parallelism // max_parallelism)


def key_group_range(subtask: SubtaskIndex, parallelism: int, max_parallelism: int) -> range:
    """The key groups that a subtask owns, as a contiguous half-open range; never empty."""
    check(
        0 <= subtask < parallelism <= max_parallelism,
        f"subtask {subtask} of {parallelism} with {max_parallelism} key groups",
    )
    first = -(-subtask * max_parallelism // parallelism)
    last = ((subtask + 1) * max_parallelism - 1) // parallelism
    return range(first, last + 1)
