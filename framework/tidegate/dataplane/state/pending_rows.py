"""`PendingRows`: the rows that a snapshot of keyed state must still save while batches continue.

The rows that were given out before the barrier are saved piece by piece. A row that is given out
again meanwhile is saved just before, because user code may then change it. This is copy on write,
as in Flink's heap state; here the copy is the encoded value itself. So every row is saved once,
with its content at the barrier. The barrier itself only takes the lists of rows.

This module does not decide when rows are saved. It also does not keep rows from being dropped
meanwhile (`backend.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import filterfalse, islice
from typing import Any, Final

Row = Any
"""The cells of one key: the cell itself if one state is declared, else a tuple of cells in the
order of the declarations. With many keys, each object on the way to a value costs a cache miss, so
the common case has no tuple.
"""

ROWS: Final = 2_000
"""Number of rows that are checked between two batches: 2 or 3 ms if all have changed."""


class PendingRows:
    """The rows of one snapshot."""

    def __init__(self, rows: Iterator[Row]) -> None:
        self.exhausted = False
        """Whether all rows were taken."""
        self._rows = rows
        self._taken: set[Row] = set()

    def some(self) -> Collection[Row]:
        """Return the next rows that must be saved. The result may be empty."""
        rows = list(islice(self._rows, ROWS))
        self.exhausted = len(rows) < ROWS
        return self.take(rows)

    def take(self, rows: Iterable[Row]) -> Collection[Row]:
        """Return those of some rows that the snapshot has not saved yet. They count as saved from
        now on.

        The result may contain a row that did not change before the barrier. Saving it writes
        nothing.
        """
        taken = dict.fromkeys(filterfalse(self._taken.__contains__, rows))  # in their order
        self._taken.update(taken)
        return taken
