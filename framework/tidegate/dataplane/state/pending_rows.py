"""`PendingRows`: what a snapshot of keyed state has yet to save while batches go on behind its
barrier.

The rows that were handed out before the barrier are saved piece by piece. A row that is handed out
again meanwhile is saved just before, for user code is about to change it (copy on write, as Flink's
heap state does; here the copy is the encoded value itself). So every row is saved once, as it was
at the barrier, and the barrier itself costs nothing but taking the lists.

Not here: who saves, and what keeps rows from being dropped meanwhile (`backend.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import filterfalse, islice
from typing import Any, Final

Row = Any
"""The cells of one key: the cell itself where one state is declared, else a tuple of cells in the
order of the declarations. With many keys each object on the way to a value is a line of memory that
no cache holds, so the common case goes without the tuple."""

ROWS: Final = 2_000
"""How many are looked at between two batches: two or three milliseconds if all have changed."""


class PendingRows:
    """The rows of one snapshot."""

    def __init__(self, rows: Iterator[Row]) -> None:
        self.exhausted = False
        """Whether all are taken."""
        self._rows = rows
        self._taken: set[Row] = set()

    def some(self) -> Collection[Row]:
        """The next ones that are to be saved, if any are."""
        rows = list(islice(self._rows, ROWS))
        self.exhausted = len(rows) < ROWS
        return self.take(rows)

    def take(self, rows: Iterable[Row]) -> Collection[Row]:
        """Those of some rows that the snapshot has not saved yet; they count as saved from now on.

        A row that did not change before the barrier may be among them: it has nothing to say.
        """
        taken = dict.fromkeys(filterfalse(self._taken.__contains__, rows))  # in their order
        self._taken.update(taken)
        return taken
