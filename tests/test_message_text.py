"""A count agrees with its noun, and the text of one error fits into the sentence of another."""

from __future__ import annotations

import re

import pytest

from tidegate.message_text import clause, counted, utc_text


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


@pytest.mark.parametrize(
    ("epoch_ms", "text"),
    [
        (0, "1970-01-01 00:00:00.000 UTC"),
        (1_764_266_773_322, "2025-11-27 18:06:13.322 UTC"),
        (253_402_300_799_999, "9999-12-31 23:59:59.999 UTC"),
        (253_402_300_800_000, "253402300800000 ms"),
        (1_764_448_000_000_000, "1764448000000000 ms"),
        (2**63 - 1, "9223372036854775807 ms"),
        (-(2**63), "-9223372036854775808 ms"),
    ],
)
def test_every_timestamp_of_kafka_has_a_text(epoch_ms: int, text: str) -> None:
    assert utc_text(epoch_ms, with_ms=True) == text
    assert utc_text(epoch_ms) == re.sub(r"\.\d+", "", text)
