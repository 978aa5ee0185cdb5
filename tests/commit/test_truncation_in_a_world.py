"""Trimming among zombies and late creates; and what breaks without a rule.

The world of `test_protocol_in_a_world.py`, with a snapshot after every second or third entry, so
that a journal is trimmed many times in a run. The world itself refuses what is deleted out of
order, or while the newest two publications need it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from tests.commit.masters import simulate
from tests.commit.mutants import Patch, caught
from tests.commit.world import World
from tidegate.commit.effects import MonotonicTime, Procedure
from tidegate.commit.journal.entries import entry_number
from tidegate.commit.journal.reading import JournalListing, list_journal
from tidegate.commit.journal.state import JournalState
from tidegate.commit.retention import log_start
from tidegate.ids import JobName

trimming = partial(simulate, snapshot_interval=2)


def entries_left(world: World) -> int:
    return sum(entry_number(path) is not None for path in world.store.objects)


def test_output_is_exactly_once_while_the_journal_is_truncated() -> None:
    gone = 0
    for seed in range(100):
        world = simulate(seed, snapshot_interval=2 + seed % 2, timeouts=seed % 3)
        gone += len(world.entries()) > entries_left(world)
    assert gone > 60, "most runs must trim"


# --- mutants ------------------------------------------------------------------------------------


def test_mutant_tail_of_the_journal_is_truncated(patch: Patch) -> None:
    def all_of_it(state: JournalState, snapshots: Sequence[int]) -> int:
        return state.number + 1 if log_start(state, snapshots) > 1 else 1

    patch("truncation.log_start", all_of_it)
    assert "is trimmed, but publications are" in str(caught(trimming))


def test_mutant_entries_that_the_newest_two_publications_need_are_truncated(patch: Patch) -> None:
    def only_the_newest(state: JournalState, snapshots: Sequence[int]) -> int:
        return state.recent_checkpoints[-1].number if log_start(state, snapshots) > 1 else 1

    patch("truncation.log_start", only_the_newest)
    assert "is trimmed, but publications are" in str(caught(trimming))


def test_mutant_newest_entries_are_truncated_first(patch: Patch) -> None:
    def reversed_(job: JobName) -> Procedure[JournalListing]:
        listing = yield from list_journal(job)
        return replace(listing, entries=listing.entries[::-1])

    patch("truncation.list_journal", reversed_)
    assert "is trimmed before" in str(caught(trimming))


def test_mutant_create_at_a_truncated_number_counts(patch: Patch) -> None:
    """Also where the entry before it has vanished: published by a zombie, in the past."""

    def never(job: JobName, number: int) -> Procedure[bool]:
        del job, number
        yield MonotonicTime()
        return False

    patch("journal.claimed._is_superseded", never)
    caught(trimming)
