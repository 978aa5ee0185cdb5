"""Which subtask owns a key, at any parallelism; and who takes over what when it changes.

Goal: nothing is lost, nothing is doubled, and the choice never changes. Method: golden groups, the
hash against its definition written out, and properties over all parallelisms.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import InternalError
from tidegate.graph.key_groups import key_group, key_group_range, subtask_of
from tidegate.ids import KeyGroup, SubtaskIndex

WORD = 0xFFFFFFFF


def murmur3_x86_32(data: bytes, seed: int = 0) -> int:
    """The hash as its author defines it, slowly."""

    def rotated(word: int, by: int) -> int:
        return (word << by | word >> (32 - by)) & WORD

    def mixed(block: int) -> int:
        return rotated(block * 0xCC9E2D51 & WORD, 15) * 0x1B873593 & WORD

    state, whole = seed, len(data) // 4 * 4
    for start in range(0, whole, 4):
        state ^= mixed(int.from_bytes(data[start : start + 4], "little"))
        state = (rotated(state, 13) * 5 + 0xE6546B64) & WORD
    state ^= mixed(int.from_bytes(data[whole:], "little")) ^ len(data)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        state = (state ^ state >> shift) * factor & WORD
    return state ^ state >> 16


GOLDEN = {b"": 0, b"ann": 118, b"bob": 114, b"customer-1": 36}


@pytest.mark.parametrize("key", GOLDEN)
def test_key_groups_equal_the_golden_values(key: bytes) -> None:
    assert key_group(key, 128) == GOLDEN[key] == murmur3_x86_32(key) % 128


@given(st.binary(max_size=40), st.integers(1, 32_768))
def test_key_group_is_the_murmur3_hash_of_the_key_bytes(key: bytes, max_parallelism: int) -> None:
    assert key_group(key, max_parallelism) == murmur3_x86_32(key) % max_parallelism


@st.composite
def layouts(draw: st.DrawFn) -> tuple[int, int, int]:
    """Parallelism, another parallelism, and a maximum for both."""
    max_parallelism = draw(st.integers(1, 300))
    one = draw(st.integers(1, max_parallelism))
    return one, draw(st.integers(1, max_parallelism)), max_parallelism


@given(layouts())
def test_key_group_ranges_are_contiguous_and_cover_every_key_group_once(
    layout: tuple[int, int, int],
) -> None:
    parallelism, _, max_parallelism = layout
    ranges = [
        key_group_range(SubtaskIndex(i), parallelism, max_parallelism) for i in range(parallelism)
    ]
    assert [group for owned in ranges for group in owned] == list(range(max_parallelism))
    for index, owned in enumerate(ranges):
        assert owned
        owners = {subtask_of(KeyGroup(group), parallelism, max_parallelism) for group in owned}
        assert owners == {index}


def test_key_group_range_refuses_a_subtask_beyond_the_parallelism() -> None:
    with pytest.raises(InternalError):
        key_group_range(SubtaskIndex(4), 4, 128)
