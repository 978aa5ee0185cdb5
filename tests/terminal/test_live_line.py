"""The line of progress: on a terminal it is replaced, elsewhere some of its texts are printed."""

from __future__ import annotations

import io

import pytest

from tidegate.terminal import live_line
from tidegate.terminal.live_line import ERASE, LiveLine


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_one_line_that_fits_and_is_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "12")
    out = Terminal()
    line = LiveLine(out)
    line.show("1 of 2 jars")
    line.show("2 of 2 jars are here")
    line.end()
    assert out.getvalue() == f"{ERASE}1 of 2 jars{ERASE}2 of 2 jars{ERASE}"


def test_without_a_terminal_the_first_text_is_printed_and_later_ones_seldom(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = 100.0
    monkeypatch.setattr("tidegate.terminal.live_line.time.monotonic", lambda: now_s)
    out = io.StringIO()
    line = LiveLine(out)
    for number in range(4):
        line.show(f"{number} of 46")
        now_s += live_line.PAUSE_S / 2
    line.end()
    assert out.getvalue() == "0 of 46\n2 of 46\n"
