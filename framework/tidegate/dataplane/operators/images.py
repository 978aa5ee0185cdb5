"""Images that undo what a call of a keyed function did to the state of its key before it raised.

Images are taken before each call, and only if the step has a policy (`on_error`) that lets the job
continue. The image of a value that cannot change in place is a reference. The image of another
value is a copy. A map keeps the changes of its calls separately, and copies entries when it returns
them. The image of a map therefore costs as much as one call changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Self

from tidegate.api.state.state import Cell


class Images:
    """The rows of a batch, one after the other, with an image of the row that was given last.

    `mutable` says for each declared state whether its values can change in place.
    """

    def __init__(self, rows: Iterable[Any], mutable: Sequence[bool]) -> None:
        self._rows, self._mutable = iter(rows), mutable
        self.row: Any = None
        """The row that was given last."""
        self._cells: Sequence[Cell] = ()
        self.images: list[object] = []
        """The images of the cells of that row."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        """Return the next row in the form that the loop takes: one cell, or a tuple of cells."""
        self._cells, self.images = (), []  # nothing to undo if an image cannot be taken
        row = self.row = next(self._rows)
        cells = row if isinstance(row, tuple) else (row,)
        pairs = zip(cells, self._mutable, strict=True)
        try:
            self.images = [cell.image(mutable=mutable) for cell, mutable in pairs]
        except StopIteration as error:  # raised by a value's `__deepcopy__`; it would end the batch
            raise RuntimeError("a copy raised StopIteration") from error
        self._cells = cells
        return row

    def undo(self) -> None:
        """Restore the cells of the last row to their state before its call."""
        for cell, image in zip(self._cells, self.images, strict=True):
            cell.restore(image)
