"""Restoring at another parallelism: who takes over whose state.

Pure functions, called by restore. Keyed state moves by ranges of key groups: a new subtask opens
the files of every old subtask whose range overlaps its own and keeps its part of them. List state
(a source's splits, say) is dealt out anew in contiguous pieces, Flink's rule. Nothing is lost and
nothing is doubled; the property tests of this module say so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from tidegate.errors import check
from tidegate.graph.key_groups import key_group_range, subtask_of
from tidegate.ids import KeyGroup, SubtaskIndex

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedShare:
    """The key groups that a new subtask takes from one old subtask."""

    old_subtask: SubtaskIndex
    key_groups: range


def keyed_shares(
    subtask: SubtaskIndex, *, parallelism: int, old_parallelism: int, max_parallelism: int
) -> tuple[KeyedShare, ...]:
    """What a subtask of the new parallelism takes over, by old subtask; the shares are its whole
    range.
    """
    mine = key_group_range(subtask, parallelism, max_parallelism)
    first = subtask_of(KeyGroup(mine[0]), old_parallelism, max_parallelism)
    last = subtask_of(KeyGroup(mine[-1]), old_parallelism, max_parallelism)
    shares = []
    for index in range(first, last + 1):
        theirs = key_group_range(SubtaskIndex(index), old_parallelism, max_parallelism)
        both = range(max(mine.start, theirs.start), min(mine.stop, theirs.stop))
        shares.append(KeyedShare(old_subtask=SubtaskIndex(index), key_groups=both))
    return tuple(shares)


def redistribute_list(
    old: Sequence[Sequence[T]], parallelism: int, *, first: int = 0
) -> tuple[tuple[T, ...], ...]:
    """Deal out the items of a list state, given by old subtask, to `parallelism` new subtasks.

    Unchanged parallelism leaves every item where it was. Otherwise the items, in old order, are cut
    into contiguous pieces that differ by one at most; the longer ones go to the subtasks from
    `first` on, which rotates between differently named states so that the extras spread.
    """
    check(parallelism >= 1, f"list state for {parallelism} subtasks")
    if len(old) == parallelism:
        return tuple(tuple(items) for items in old)
    items = [item for part in old for item in part]
    size, extras = divmod(len(items), parallelism)
    pieces: list[tuple[T, ...]] = [()] * parallelism
    taken = 0
    for number in range(parallelism):
        length = size + (number < extras)
        pieces[(first + number) % parallelism] = tuple(items[taken : taken + length])
        taken += length
    return tuple(pieces)
