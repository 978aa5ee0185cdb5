"""When a create counts in a trimmed journal, over every interleaving of a small one."""

from __future__ import annotations

import pytest

from tests.commit.truncation_model import WronglyCountedError, search


def test_a_create_beyond_which_there_is_no_snapshot_counts() -> None:
    assert search("snapshot", writers=2, entries=5) > 1_000
    assert search("snapshot", writers=3, entries=4) > 1_000


def test_without_a_look_a_create_at_a_trimmed_number_is_taken_for_counted() -> None:
    with pytest.raises(WronglyCountedError, match=r"is trimmed.*lands.*wrongly"):
        search("nothing")


def test_the_entry_before_it_may_have_landed_a_second_time() -> None:
    with pytest.raises(WronglyCountedError, match=r"is trimmed.*lands.*lands.*wrongly"):
        search("predecessor")
