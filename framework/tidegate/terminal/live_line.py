"""The progress of a download or a start: on a terminal each text replaces the one before, and
elsewhere only some are printed.

`tidegate kafka up`, `tidegate dev` and the demo show how a broker is downloaded and started.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from typing import Final, TextIO

PAUSE_S: Final = 5.0
"""The least time in seconds between two lines where no line replaces another."""
ERASE: Final = "\r\x1b[K"


def seldom(show: Callable[[str], None]) -> Callable[[str], None]:
    """Return a function that shows the first text, and then one text in `PAUSE_S` at most."""
    shown_s: float | None = None

    def show_some(text: str) -> None:
        nonlocal shown_s
        now_s = time.monotonic()
        if shown_s is None or now_s - shown_s >= PAUSE_S:
            shown_s = now_s
            show(text)

    return show_some


class LiveLine:
    """The line, on a stream. One thread uses it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_terminal = stream.isatty()
        self.show: Callable[[str], None] = self._replace if self._is_terminal else seldom(self._add)
        """Shows a text in place of the one before."""

    def end(self) -> None:
        """Remove the line from the terminal, so that other text can follow."""
        if self._is_terminal:
            self._write(ERASE)

    def _replace(self, text: str) -> None:
        # A line that wraps could not be replaced.
        width = max(1, shutil.get_terminal_size().columns - 1)
        self._write(f"{ERASE}{text[:width]}")

    def _add(self, text: str) -> None:
        self._write(f"{text}\n")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
