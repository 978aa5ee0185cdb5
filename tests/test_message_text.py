"""A count agrees with its noun, and the text of one error fits into the sentence of another."""

from __future__ import annotations

import pytest

from tidegate.message_text import clause, counted


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 records"),
        (1, "1 record"),
        (2, "2 records"),
        (-1, "-1 records"),
        (1200, "1,200 records"),
    ],
)
def test_noun_is_singular_for_one_only(number: int, text: str) -> None:
    assert counted(number, "record") == text


def test_irregular_plural_is_given() -> None:
    assert (counted(1, "entry", "entries"), counted(3, "entry", "entries")) == (
        "1 entry",
        "3 entries",
    )


def test_words_before_the_noun_stay() -> None:
    assert counted(1, "more partition") == "1 more partition"


@pytest.mark.parametrize("said", ["The disk is full.", "The disk is full", "The disk is full.\n"])
def test_clause_has_no_full_stop(said: str) -> None:
    assert f"It failed: {clause(OSError(said))}." == "It failed: The disk is full."
