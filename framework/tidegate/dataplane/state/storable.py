"""The check that a checkpoint can store a value and read it back as the declared type.

Python does not check annotations, and msgpack encodes a text where an int is declared. Such a value
could be stored but never be read again, so each restart would fail. A Counter in place of a dict
would be read back as a dict, so the results would depend on the time of a failure. The fields of
all saved values are therefore checked, in columns (`api/state/field_check.py`).

`state_accessors.py` calls this module for saved values, and `backend.py` for a record under a
policy. The drivers of tests call it too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tidegate.api.state.field_check import FieldCheck
from tidegate.api.state.keys import key_encoder
from tidegate.api.state.state import MapState, State
from tidegate.api.state.wire import StateCodec
from tidegate.errors import InternalError, PipelineError, from_foreign
from tidegate.user_exceptions import described, process_ends, repr_of


class WrongValueError(Exception):
    """A value of a cell cannot be stored. `backend.py` adds the step and the key."""

    def __init__(self, cell: Any, reason: str) -> None:
        super().__init__(reason)
        self.cell = cell


class Storable:
    """The check of the values of one state, each in the form of its `stored_type`."""

    def __init__(self, state: State, codec: StateCodec) -> None:
        self._of, self._codec = state.stored_type, codec
        self._check = FieldCheck(self._of, exact=True)
        self._map_key: Callable[[Any], bytes] | None = None
        if isinstance(state, MapState):
            self._map_key = key_encoder(state.types[0].python)

    def check(self, values: list[Any], cells: Sequence[Any]) -> None:
        """Raise WrongValueError for the first value that cannot be stored. `cells` are the values'
        cells.
        """
        index = self._check.first_wrong(values)
        if index is None:
            return
        for value, cell in zip(values[index:], cells[index:], strict=True):
            if why_not := self.why_not(value):
                raise WrongValueError(cell, why_not)

    def why_not(self, value: Any) -> str:
        """Return why a value cannot be stored; empty if it can."""
        entry = f"entry {repr_of(value[0])}: " if self._map_key is not None else ""
        wrong = self._check.fault(value)
        try:
            if self._map_key is not None:
                self._map_key(value[0])
            self._codec.encode(value)
        except BaseException as error:
            if not isinstance(error, PipelineError) and not is_about_value(error):
                raise
            wrong = wrong or f"{described(error)}"
        return entry + wrong if wrong else ""


def is_about_value(error: BaseException) -> bool:
    """Return whether an encoder's exception comes from its value, and not, for example, from
    memory.
    """
    if isinstance(error, process_ends()):
        return False
    return isinstance(from_foreign(error), InternalError)
