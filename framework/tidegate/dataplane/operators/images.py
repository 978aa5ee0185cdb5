"""Undoing what a call of a keyed function did to the state of its key before it raised.

Taken before each call, and only where the step has a policy (`on_error`) that lets the job go on.
An image of a value that cannot change in place is a reference; of other values it is a copy. A map
keeps what its calls change apart, and copies entries when they are handed out, so that an image
costs as much as one call changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Self

from tidegate.api.state import Cell


class Images:
    """The rows of a batch, one after the other, with an image of the one that was given last.

    `mutable` says for each declared state whether its values can change in place.
    """

    def __init__(self, rows: Iterable[Any], mutable: Sequence[bool]) -> None:
        self._rows, self._mutable = iter(rows), mutable
        self.row: Any = None
        """The row that was given last."""
        self._cells: Sequence[Cell] = ()
        self.images: list[object] = []
        """Those of its cells."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        """The next row, as the loop gets it: one cell, or a tuple of cells."""
        self._cells, self.images = (), []  # nothing to undo, should an image not be possible
        row = self.row = next(self._rows)
        cells = row if isinstance(row, tuple) else (row,)
        pairs = zip(cells, self._mutable, strict=True)
        try:
            self.images = [cell.image(mutable=mutable) for cell, mutable in pairs]
        except StopIteration as error:  # of a value's own `__deepcopy__`; it would end the batch
            raise RuntimeError("a copy raised StopIteration") from error
        self._cells = cells
        return row

    def undo(self) -> None:
        """Make the cells of the last row what they were before its call."""
        for cell, image in zip(self._cells, self.images, strict=True):
            cell.restore(image)
