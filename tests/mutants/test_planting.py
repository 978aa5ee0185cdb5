"""Mutants are planted where they say, are gone afterwards, and are not found by accident."""

from __future__ import annotations

import pytest

from tests.mutants import __main__ as table
from tests.mutants.planting import Edit, Mutant, found_in, planted
from tidegate.graph.key_groups import subtask_of
from tidegate.ids import KeyGroup


def mutant(old: str, new: str) -> Mutant:
    return Mutant("example", (Edit(subtask_of, old, new),), detect, 3, 3)


def detect(_seed: int) -> None:
    assert subtask_of(KeyGroup(4), 2, 8) == 1


def test_code_of_a_function_is_changed_only_while_its_mutant_is_planted() -> None:
    with planted(mutant("parallelism // max_parallelism", "parallelism // max_parallelism + 7")):
        assert subtask_of(KeyGroup(4), 2, 8) == 8
    assert subtask_of(KeyGroup(4), 2, 8) == 1
    assert subtask_of.__dict__ == {}


def test_planted_mutant_is_found_if_the_assertion_of_its_detector_fails() -> None:
    assert found_in(mutant("group *", "0 *")) == 3
    assert found_in(mutant("group *", "1 * group *")) == 0


def test_edit_fails_if_its_text_is_not_in_the_function() -> None:
    with pytest.raises(AssertionError, match="stands 0 times in subtask_of"):
        found_in(mutant("group + 1", "group"))
    detect(0)


def test_name_error_in_a_mutant_is_raised_and_not_counted_as_found() -> None:
    with pytest.raises(NameError):
        found_in(mutant("group *", "nobody *"))
    detect(0)


def test_the_table_has_a_row_for_each_mutant_of_the_protocols_world(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One run of each, which is not meant to find it: the command that measures must not rot."""
    monkeypatch.setattr(table, "WORLD_SEEDS", 1)
    monkeypatch.setattr(table, "MUTANT_SEEDS", 1)
    rows = list(table.world_mutants())
    assert len({row.name for row in rows}) == len(rows) > 20
    assert all(row.seeds == 1 for row in rows)
