"""Cells that know where they are stored: what user code holds in `self.total` while a job runs.

They behave as the cells of `api/state.py`, which they are, and remember in addition what the
write-back cache (`columns.py`, `backend.py`) must know at a flush: whether the store has a value,
whether it was changed, whether it was cleared. A value cell is compared by identity; a list says so
itself; a map reads entries when they are asked for and holds what was read or written until the
next flush.

Invariant: between two flushes a cell shows what the last write to it said, whatever the store
holds; a cleared entry does not come back.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

from tidegate.api.state import CLEARED_MEANWHILE, ListCell, MapCell, ValueCell
from tidegate.dataplane.state.layout import entries_span
from tidegate.errors import PipelineError, StateValueError
from tidegate.ports.kv import KeyValueStore

CLEARED: Final[Any] = object()
"""`saved` of a value cell that was cleared: equal to no value, so the flush looks at it."""

_GONE: Final[Any] = object()
"""Stands in a map cell for an entry that is known not to be there."""

_UNKNOWN: Final[Any] = object()
"""The answer of a map cell's memory about an entry that it has not read."""

Pairs = list[tuple[bytes, bytes]]


class StoredValue(ValueCell[Any]):
    """A value; `stored` says whether the store has one under `store_key`."""

    __slots__ = ("store_key", "stored")

    def __init__(
        self, new: Callable[[], Any], value: Any, saved: Any, store_key: bytes, *, stored: bool
    ) -> None:  # without super's, which makes a default that is then thrown away
        self._new = new
        self.value = value
        self.saved = saved
        self.store_key = store_key
        self.stored = stored

    def clear(self) -> None:
        self.value = self._new()
        self.saved = CLEARED


class StoredList(ListCell[Any]):
    """A list of immutable items, stored whole."""

    __slots__ = ("store_key", "stored")

    def __init__(self, items: list[Any], store_key: bytes, *, stored: bool) -> None:
        self._items = items
        self.changed = False
        self.store_key = store_key
        self.stored = stored

    def content(self) -> list[Any]:
        """The items, for the flush, which changes none."""
        return self._items


class StoredMutableList(StoredList):
    """A list of items that can change in place: whoever read it may have changed one."""

    __slots__ = ()

    def __iter__(self) -> Iterator[Any]:
        self.changed = True
        return iter(self._items)


class MapAccess(Protocol):
    """What all cells of one map state share."""

    name: str
    store: KeyValueStore
    mutable: bool
    """Whether values can change in place."""
    held: int
    """Entries in the memory of all cells; the cache counts them against its limit."""
    key_bytes: Callable[[Any], bytes]
    encode: Callable[[tuple[Any, Any]], bytes]
    """From map key and value; the key is stored with the value, for canonical bytes lead one
    way.
    """
    decode: Callable[[bytes], tuple[Any, Any]]


class StoredMap(MapCell[Any, Any]):
    """A map whose entries lie one by one under `prefix`; iteration is in the order of their
    bytes.
    """

    __slots__ = ("_access", "_changed", "_prefix", "_read", "_whole")

    def __init__(self, access: MapAccess, prefix: bytes) -> None:
        self._access = access
        self._prefix = prefix
        self._entries = {}
        self._changed: set[Any] = set()
        self._read: dict[Any, bytes] = {}
        """Stored bytes of entries of a mutable type that were handed out."""
        self._whole = False
        """Whether the store has nothing that counts: the cell was cleared since the last flush."""

    def __getitem__(self, key: Any) -> Any:
        value = self._look_up(key)
        if value is _GONE:
            raise KeyError(key)
        return value

    def __setitem__(self, key: Any, value: Any) -> None:
        if key not in self._entries:
            self._access.held += 1
        self._entries[key] = value
        self._changed.add(key)

    def __delitem__(self, key: Any) -> None:
        if self._look_up(key) is _GONE:
            raise KeyError(key)
        self._entries[key] = _GONE
        self._changed.add(key)

    def __contains__(self, key: Any) -> bool:
        return self._look_up(key) is not _GONE

    def get(self, key: Any, default: Any = None) -> Any:
        value = self._look_up(key)
        return default if value is _GONE else value

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Entries in the order of their keys' canonical bytes.

        Entries may be assigned and deleted meanwhile; one that is new may be missed. Raises
        RuntimeError where the map was cleared meanwhile.
        """
        entries = self._entries
        for key, value in self._merged():
            if self._entries is not entries:
                raise RuntimeError(CLEARED_MEANWHILE)
            current = entries.get(key, value)
            if current is not _GONE:
                yield key, current

    def clear(self) -> None:
        self._access.held -= len(self._entries)
        self._entries, self._changed, self._read = {}, set(), {}
        self._whole = True

    def image(self, *, mutable: bool) -> object:
        # What is held for a flush, and not the map: that may be larger than memory.
        entries = dict(self._entries)
        if mutable:
            entries = {
                key: value if value is _GONE else copy.deepcopy(value)
                for key, value in entries.items()
            }
        return entries, set(self._changed), dict(self._read), self._whole

    def restore(self, image: Any) -> None:
        held = len(self._entries)
        self._entries, self._changed, self._read, self._whole = image
        self._access.held += len(self._entries) - held

    def changed_since(self, image: Any, *, mutable: bool) -> list[Any]:
        before = image[0]
        keys = self._entries if mutable else self._changed
        pairs = [(key, self._entries[key]) for key in keys]
        return [
            (key, value)
            for key, value in pairs
            if value is not _GONE and (mutable or before.get(key, _GONE) is not value)
        ]

    def held_entries(self) -> list[tuple[Any, Any]]:
        """The entries in memory."""
        return [(key, value) for key, value in self._entries.items() if value is not _GONE]

    def save(self, puts: Pairs, deletes: list[bytes], saved: list[Any]) -> None:
        """Add what must be written to a batch, and forget everything: the store has it then. The
        pairs of map key and value that are written are added to `saved`.
        """
        access, entries = self._access, self._entries
        key_bytes, prefix = access.key_bytes, self._prefix
        changed = self._changed
        if self._whole:
            changed = {key for key in changed if entries[key] is not _GONE}
            deletes.extend(store_key for store_key, _ in access.store.scan(*entries_span(prefix)))
        for key in changed:
            value, store_key = entries[key], prefix + key_bytes(key)
            if value is _GONE:
                deletes.append(store_key)
            else:
                saved.append((key, value))
                puts.append((store_key, access.encode((key, value))))
        for key, stored in self._read.items():
            if key not in changed and (data := access.encode((key, entries[key]))) != stored:
                saved.append((key, entries[key]))
                puts.append((prefix + key_bytes(key), data))
        if entries:
            access.held -= len(entries)
            self._entries, self._changed, self._read = {}, set(), {}
        self._whole = False

    def _look_up(self, key: Any) -> Any:
        """The entry's value or `_GONE`, from memory or else from the store."""
        value = self._entries.get(key, _UNKNOWN)
        if value is _UNKNOWN:
            if self._whole:
                return _GONE
            access = self._access
            try:
                store_key = self._prefix + access.key_bytes(key)
            except PipelineError as error:
                raise StateValueError(
                    f"state {access.name!r} cannot have the entry {key!r:.200}: {error}"
                ) from error
            (data,) = access.store.get_many([store_key])
            value = _GONE if data is None else self._hold(key, data, access.decode(data)[1])
            if data is None:
                self._entries[key] = _GONE
                access.held += 1
        return value

    def _hold(self, key: Any, data: bytes, value: Any) -> Any:
        self._entries[key] = value
        self._access.held += 1
        if self._access.mutable:
            self._read[key] = data
        return value

    def _merged(self) -> Iterator[tuple[Any, Any]]:
        """What the store has and what memory has, in order; memory's word is asked by the caller.

        Values of a mutable type are held as they are met, for whoever meets them may change them.
        """
        access, entries, prefix = self._access, self._entries, self._prefix
        pending = sorted(((access.key_bytes(key), key) for key in entries), reverse=True)
        stored = iter(()) if self._whole else access.store.scan(*entries_span(prefix))
        for store_key, data in stored:
            suffix = store_key[len(prefix) :]
            while pending and pending[-1][0] < suffix:
                yield pending.pop()[1], _GONE
            if pending and pending[-1][0] == suffix:
                yield pending.pop()[1], _GONE
                continue
            key, value = access.decode(data)
            if access.mutable and key not in entries:
                self._hold(key, data, value)
            yield key, value
        while pending:
            yield pending.pop()[1], _GONE
