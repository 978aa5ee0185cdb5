"""Tests of the words for the end of a process."""

from __future__ import annotations

import pytest

from tidegate.exit_status import exit_text, was_killed


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (-9, "was killed by SIGKILL"),
        (-11, "was killed by SIGSEGV"),
        (0, "ended with status 0"),
        (3, "ended with status 3"),
        (None, "ended with an unknown status"),
        (-250, "ended with status -250"),
    ],
)
def test_signal_is_named_and_a_status_is_a_number(status: int | None, words: str) -> None:
    assert exit_text(status) == words


@pytest.mark.parametrize(
    ("status", "killed"),
    [(-9, True), (-15, True), (-1, True), (-11, False), (-6, False), (0, False), (75, False)],
)
def test_signal_of_a_crash_is_no_kill(status: int, *, killed: bool) -> None:
    assert was_killed(status) == killed
