"""When a create counts in a trimmed journal, over every interleaving of a small one."""

from __future__ import annotations

import pytest

from tests.commit.truncation_model import WronglyCountedError, search


def test_model_is_right_if_a_create_counts_only_without_a_later_snapshot() -> None:
    assert search("snapshot", writers=2, entries=5) > 1_000
    assert search("snapshot", writers=3, entries=4) > 1_000


def test_model_without_a_check_counts_a_create_at_a_truncated_number() -> None:
    with pytest.raises(WronglyCountedError, match=r"is trimmed.*lands.*wrongly"):
        search("nothing")


def test_model_that_checks_the_predecessor_fails_if_the_predecessor_lands_again() -> None:
    with pytest.raises(WronglyCountedError, match=r"is trimmed.*lands.*lands.*wrongly"):
        search("predecessor")
