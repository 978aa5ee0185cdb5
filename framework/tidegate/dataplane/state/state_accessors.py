"""State accessors: one declared state of a step over all its keys, between cells and stored bytes.

An accessor, also called a column, makes cells from the data that the store returned. At a flush, it
collects from the cells of the touched keys what must be written. It knows the numbers of the
state's schemas. A value carries the number of the schema under which it was written. Values of
older numbers are read by Avro's rules, and new values are written under the present schema. A
number is a position in the list that checkpoints keep under the state's name. The list only grows.

Each saved value is checked: a value that could not be read as the declared type is never written
(`storable.py`).

The backend calls this module. There is one class for each kind of state.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import repeat
from typing import Any, Protocol

from tidegate.api.records.types import AvroSchema
from tidegate.api.state.evolution import state_conflict
from tidegate.api.state.keys import key_encoder
from tidegate.api.state.state import (
    Cell,
    ListState,
    MapState,
    State,
    ValueState,
    with_normalised_keys,
)
from tidegate.api.state.stored import same_for_earlier_version, schema_text, state_schema
from tidegate.api.state.wire import state_codec
from tidegate.api.time.timers import TimerDeclaration, Timers
from tidegate.dataplane.state.cells import (
    CLEARED,
    Pairs,
    StoredList,
    StoredMap,
    StoredMutableList,
    StoredTimer,
    StoredTimers,
    StoredValue,
)
from tidegate.dataplane.state.storable import Storable
from tidegate.dataplane.time.timer_index import TimerIndex
from tidegate.errors import PipelineError
from tidegate.ids import Uid
from tidegate.ports.kv import KeyValueStore


class StateAccessor(Protocol):
    """The accessor of one declared state."""

    name: str
    loads: bool
    """Whether a key's value is read together with the key. Map entries are read when they are
    requested.
    """
    cached_count: int
    """Number of entries in memory in addition to the one cell of each key."""
    schemas: list[str]
    mutable: bool
    """Whether values can change in place."""

    def cell(self, key: Any, store_key: bytes, data: bytes | None) -> Cell:
        """Return the cell of a key, from the data that the store has under `store_key`."""
        ...

    def save(self, cells: Iterable[Any], puts: Pairs, deletes: list[bytes]) -> None:
        """Add the changes in these cells to a batch. The cells count as saved from then on.

        Raise WrongValueError, or the encoder's exception, for a value that cannot be stored.
        """
        ...

    def values(self, cell: Any) -> Iterable[Any]:
        """Return the values that a cell has in memory, in the form of the state's `stored_type`."""
        ...

    def why_not(self, value: Any) -> str:
        """Return why a value in that form cannot be stored; empty if it can."""
        ...


def make_state_accessor(
    uid: Uid, state: State, stored: Sequence[str], store: KeyValueStore
) -> StateAccessor:
    """Return the accessor of a declared state.

    `stored` are the schemas under which the restored state was written. Raise PipelineError, which
    names uid, state and field, if one of them cannot be read as the state is declared now.
    """
    where = f"state {state.name!r} of step {uid!r}"
    match state:
        case ValueState():
            return _ValueAccessor(where, state, stored)
        case ListState():
            return _ListAccessor(where, state, stored)
        case MapState():
            return _MapAccessor(where, state, stored, store)
        case TimerDeclaration():
            return TimerAccessor(where, state, stored)
        case _:
            raise PipelineError(
                f"{where} is a {type(state).__name__}, which keyed steps do not have."
            )


class Stored:
    """The encoding of the values of one state."""

    def __init__(self, where: str, state: State, stored: Sequence[str]) -> None:
        now = state_schema(state)
        self.schemas = [_without_earlier_form(schema, now) for schema in stored]
        for schema in self.schemas:
            why_not = state_conflict(schema, schema_text(now))
            if why_not is not None:
                raise PipelineError(
                    f"{where} cannot be read from the checkpoint: {why_not}. Restore its "
                    "declaration, or give the state another name."
                )
        written = [json.loads(schema) for schema in self.schemas]
        if now not in written:
            self.schemas.append(schema_text(now))
            written.append(now)
        number = written.index(now)
        self.codec = state_codec(state.stored_type, number, dict(enumerate(written)))
        self.storable = Storable(state, self.codec)


def _without_earlier_form(stored: str, now: AvroSchema) -> str:
    """Return the schema of this version for a schema that an earlier version wrote for the same
    type.

    The number of the schema stays. The layout of the values is the same in both versions, so old
    values are read like new ones.
    """
    return schema_text(now) if same_for_earlier_version(json.loads(stored), now) else stored


class _ValueAccessor:
    """Values, compared by identity if they cannot change in place, else by their bytes."""

    loads = True
    cached_count = 0

    def __init__(self, where: str, state: ValueState[Any], stored: Sequence[str]) -> None:
        self.name = state.name
        form = Stored(where, state, stored)
        self.schemas = form.schemas
        self._encode, self._decode = form.codec.encode, form.codec.decode
        self._mutable = self.mutable = not state.types[0].immutable
        self._storable, self.why_not = form.storable, form.storable.why_not
        default = state.new_value()
        if wrong := self.why_not(default):
            raise PipelineError(f"{where} has a default that cannot be stored: {wrong}")
        self._default_bytes = self._encode(default)
        self._new: Callable[[], Any] = state.new_value if self._mutable else lambda: default

    def cell(self, key: Any, store_key: bytes, data: bytes | None) -> Cell:
        del key
        if data is None:
            value = self._new()
            saved = self._default_bytes if self._mutable else value
            return StoredValue(self._new, value, saved, store_key, stored=False)
        value = self._decode(data)
        saved = data if self._mutable else value
        return StoredValue(self._new, value, saved, store_key, stored=True)

    def save(self, cells: Iterable[StoredValue], puts: Pairs, deletes: list[bytes]) -> None:
        encode, put = self._encode, puts.append
        if self._mutable:
            # The check of all values comes first. Then the encoder finds them in the processor's
            # cache, which is cheaper than to list the changed values after it.
            cells = list(cells)
            values = [cell.value for cell in cells]
            self._storable.check(values, cells)
            default = self._default_bytes
            for cell, data in zip(cells, map(encode, values), strict=True):
                if data == cell.saved:
                    continue
                if data == default and cell.saved is CLEARED:
                    self._delete(cell, deletes)
                else:
                    put((cell.store_key, data))
                    cell.stored = True
                cell.saved = data
            return
        changed: list[StoredValue] = []
        for cell in cells:
            value = cell.value
            if value is not cell.saved:
                changed.append(cell)
                data = encode(value)
                if cell.saved is CLEARED and data == self._default_bytes:
                    self._delete(cell, deletes)
                else:
                    put((cell.store_key, data))
                    cell.stored = True
                cell.saved = value
        self._storable.check([cell.value for cell in changed], changed)

    def values(self, cell: StoredValue) -> Iterable[Any]:
        return (cell.value,)

    def _delete(self, cell: StoredValue, deletes: list[bytes]) -> None:
        """Delete the stored value of a cell that was cleared and not set since."""
        if cell.stored:
            deletes.append(cell.store_key)
            cell.stored = False


class _ListAccessor:
    """Lists, each stored as one value. An empty list is not stored."""

    loads = True
    cached_count = 0

    def __init__(self, where: str, state: ListState[Any], stored: Sequence[str]) -> None:
        self.name = state.name
        form = Stored(where, state, stored)
        self.schemas = form.schemas
        self._encode, self._decode = form.codec.encode, form.codec.decode
        self.mutable = not state.types[0].immutable
        self._storable, self.why_not = form.storable, form.storable.why_not
        self._cell = StoredMutableList if self.mutable else StoredList

    def cell(self, key: Any, store_key: bytes, data: bytes | None) -> Cell:
        del key
        if data is None:
            return self._cell([], store_key, stored=False)
        return self._cell(self._decode(data), store_key, stored=True)

    def save(self, cells: Iterable[StoredList], puts: Pairs, deletes: list[bytes]) -> None:
        changed: list[StoredList] = []
        for cell in cells:
            if not cell.changed:
                continue
            items = cell.content()
            if items:
                changed.append(cell)
                puts.append((cell.store_key, self._encode(items)))
            elif cell.stored:
                deletes.append(cell.store_key)
            cell.stored = bool(items)
            cell.changed = False
        self._storable.check([cell.content() for cell in changed], changed)

    def values(self, cell: StoredList) -> Iterable[Any]:
        return (cell.content(),)


class TimerAccessor:
    """Timers, each stored with its key. A timer that is not set is not stored."""

    loads = True
    cached_count = 0

    def __init__(self, where: str, state: TimerDeclaration, stored: Sequence[str]) -> None:
        self.name = state.name
        form = Stored(where, state, stored)
        self.schemas = form.schemas
        self._encode, self._decode = form.codec.encode, form.codec.decode
        self._storable, self.why_not = form.storable, form.storable.why_not
        self._has_names = isinstance(state, Timers)
        self.mutable = False
        self.index = TimerIndex()
        """The keys of the timers that are set, by time."""
        self._make: Callable[..., Cell] = (
            partial(StoredTimers, state, self.index)
            if isinstance(state, Timers)
            else partial(StoredTimer, self.index)
        )

    def cell(self, key: Any, store_key: bytes, data: bytes | None) -> Cell:
        return self._make(key, store_key, None if data is None else self._decode(data)[1])

    def restore(self, data: bytes) -> None:
        """Note the key of a stored timer."""
        key, stored = self._decode(data)
        first_ms = min(at_ms for _, at_ms in stored) if self._has_names else stored
        self.index.add(first_ms, key)

    def save(self, cells: Iterable[Any], puts: Pairs, deletes: list[bytes]) -> None:
        changed: list[Any] = []
        for cell in cells:
            stored = cell.stored()
            if stored == cell.saved:
                continue
            if stored is None:
                deletes.append(cell.store_key)
            else:
                puts.append((cell.store_key, self._encode((cell.key, stored))))
                changed.append(cell)
            cell.saved = stored
        if self._has_names:
            self._storable.check([(cell.key, cell.saved) for cell in changed], changed)

    def values(self, cell: Any) -> Iterable[Any]:
        return () if cell.stored() is None else ((cell.key, cell.stored()),)


class _MapAccessor:
    """Maps, stored entry by entry. An entry's value is the pair of its map key and its value."""

    loads = False

    def __init__(
        self, where: str, state: MapState[Any, Any], stored: Sequence[str], store: KeyValueStore
    ) -> None:
        key, value = state.types
        self.name = state.name
        form = Stored(where, state, stored)
        self.schemas = form.schemas
        self.encode, self.decode = form.codec.encode, form.codec.decode
        self.key_bytes: Callable[[Any], bytes] = key_encoder(key.python)
        self._storable, self.why_not = form.storable, form.storable.why_not
        self._cells = with_normalised_keys(StoredMap, key.python)
        self.mutable = not value.immutable
        self.store = store
        self.cached_count = 0

    def cell(self, key: Any, store_key: bytes, data: bytes | None) -> Cell:
        del key, data  # nothing is loaded with the key
        return self._cells(self, store_key)

    def save(self, cells: Iterable[StoredMap], puts: Pairs, deletes: list[bytes]) -> None:
        saved: list[Any] = []
        owners: list[StoredMap] = []
        for cell in cells:
            cell.save(puts, deletes, saved)
            owners += repeat(cell, len(saved) - len(owners))
        self._storable.check(saved, owners)

    def values(self, cell: StoredMap) -> Iterable[Any]:
        return cell.held_entries()
