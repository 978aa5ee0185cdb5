"""`TableState`: the declaration of state that lies in tables, one for each span of time.

A step with windows declares it (`api/windows/window_step.py`), and
`dataplane/state/window_tables.py` keeps it. No function of a user has such state. A checkpoint
stores a table as lists of its rows, so its schema is that of a list.
"""

from __future__ import annotations

from collections.abc import Callable
from types import GenericAlias
from typing import Any

from tidegate.api.state.state import ValueState


class TableState(ValueState[list[Any]]):
    """Rows by key in tables. A row is an object of `row_class`, which has `key_type` as key.

    `tombstone(key)` returns a row that no key has in a table. A checkpoint stores it for a key
    whose row was removed. None if the rows of a table are only removed together.
    """

    def __init__(
        self,
        name: str,
        row_class: type,
        key_type: object,
        tombstone: Callable[[Any], Any] | None = None,
    ) -> None:
        of: Any = GenericAlias(list, (row_class,))
        super().__init__(of, factory=list)
        self.name, self.row_class, self.key_type = name, row_class, key_type
        self.tombstone = tombstone

    def row_state(self) -> ValueState[Any]:
        """Return the declaration of one row, for the check of its fields."""
        row: Any = self.row_class | None
        declared: ValueState[Any] = ValueState(row, default=None)
        declared.name = self.name
        return declared
