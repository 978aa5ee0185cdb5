"""Cells that know where they are stored: user code holds them in `self.total` while a job runs.

They behave like the cells of `api/state/state.py`, which are their base classes. In addition, they
store what the write-back cache (`state_accessors.py`, `backend.py`) must know at a flush. They know
whether the store has a value, whether the value was changed, and whether it was cleared. A value
cell is compared by identity. A list notes its own changes. A map reads entries when they are
requested, and keeps what was read or written until the next flush. A timer compares its time.

Invariant: between two flushes a cell shows the result of the last write to it, whatever the store
holds. A cleared entry does not come back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, Protocol

from tidegate.api.records.copying import copy_value
from tidegate.api.state.state import CLEARED_MEANWHILE, ListCell, MapCell, ValueCell
from tidegate.api.time.timers import TimerCell, Timers, TimersCell
from tidegate.dataplane.state.layout import entries_span
from tidegate.dataplane.time.timer_index import TimerIndex
from tidegate.errors import PipelineError, StateValueError
from tidegate.ports.kv import KeyValueStore

CLEARED: Final[Any] = object()
"""`saved` of a value cell that was cleared. It equals no value, so the flush checks the cell."""

_ABSENT: Final[Any] = object()
"""Marker in a map cell for an entry that is known to be absent."""

_UNKNOWN: Final[Any] = object()
"""The answer of a map cell's memory for an entry that it has not read."""

Pairs = list[tuple[bytes, bytes]]


class StoredValue(ValueCell[Any]):
    """A value. `stored` says whether the store has a value under `store_key`."""

    __slots__ = ("store_key", "stored")

    def __init__(
        self, new: Callable[[], Any], value: Any, saved: Any, store_key: bytes, *, stored: bool
    ) -> None:  # does not call super, which would make a default for nothing
        self._new = new
        self.value = value
        self.saved = saved
        self.store_key = store_key
        self.stored = stored

    def clear(self) -> None:
        self.value = self._new()
        self.saved = CLEARED


class StoredList(ListCell[Any]):
    """A list of immutable items, stored as a whole."""

    __slots__ = ("store_key", "stored")

    def __init__(self, items: list[Any], store_key: bytes, *, stored: bool) -> None:
        self._items = items
        self.changed = False
        self.store_key = store_key
        self.stored = stored

    def content(self) -> list[Any]:
        """Return the items for the flush, which does not change them."""
        return self._items


class StoredMutableList(StoredList):
    """A list of items that can change in place. Code that has read an item may have changed it."""

    __slots__ = ()

    def __iter__(self) -> Iterator[Any]:
        self.changed = True
        return iter(self._items)


class StoredTimer(TimerCell):
    """A timer. `saved` is its form in the store."""

    __slots__ = ("saved", "store_key")

    def __init__(self, index: TimerIndex, key: Any, store_key: bytes, stored: Any) -> None:
        super().__init__(index, key, stored)
        self.saved, self.store_key = stored, store_key


class StoredTimers(TimersCell[Any]):
    """The timers of a key by name. `saved` is their form in the store."""

    __slots__ = ("saved", "store_key")

    def __init__(
        self, timers: Timers[Any], index: TimerIndex, key: Any, store_key: bytes, stored: Any
    ) -> None:
        super().__init__(timers, index, key, stored or ())
        self.saved, self.store_key = stored, store_key


class MapAccess(Protocol):
    """The common part of all cells of one map state."""

    name: str
    store: KeyValueStore
    mutable: bool
    """Whether values can change in place."""
    cached_count: int
    """Number of entries in the memory of all cells. The cache counts them against its limit."""
    key_bytes: Callable[[Any], bytes]
    encode: Callable[[tuple[Any, Any]], bytes]
    """Function that encodes a map key and its value. The key is stored with the value, because
    canonical bytes cannot be decoded.
    """
    decode: Callable[[bytes], tuple[Any, Any]]


class _Image(NamedTuple):
    """The memory of a map cell at one time. `StoredMap` describes the attributes."""

    entries: dict[Any, Any]
    changed: set[Any]
    read: dict[Any, bytes]
    is_cleared: bool


class StoredMap(MapCell[Any, Any]):
    """A map whose entries are stored one by one under `prefix`. Iteration is in the order of their
    bytes.

    After an image was taken, new entries go into separate dicts above those of the image. To take
    or drop an image therefore costs as much as has changed since, independent of the size of the
    map. A lookup that finds nothing above checks the image before the store.
    """

    __slots__ = ("_access", "_changed", "_image", "_prefix", "_read", "_whole")

    def __init__(self, access: MapAccess, prefix: bytes) -> None:
        self._access = access
        self._prefix = prefix
        self._entries = {}
        self._changed: set[Any] = set()
        self._read: dict[Any, bytes] = {}
        """Stored bytes of entries of a mutable type that were returned to user code."""
        self._whole = False
        """Whether the store has no valid entries, because the cell was cleared since the last
        flush.
        """
        self._image: _Image | None = None
        """The memory when the last image was taken. None after it was merged."""

    def __getitem__(self, key: Any) -> Any:
        value = self._look_up(key)
        if value is _ABSENT:
            raise KeyError(key)
        return value

    def __setitem__(self, key: Any, value: Any) -> None:
        if key not in self._entries:
            self._access.cached_count += 1
        self._entries[key] = value
        self._changed.add(key)

    def __delitem__(self, key: Any) -> None:
        if self._look_up(key) is _ABSENT:
            raise KeyError(key)
        self[key] = _ABSENT

    def __contains__(self, key: Any) -> bool:
        return self._look_up(key) is not _ABSENT

    def get(self, key: Any, default: Any = None) -> Any:
        value = self._look_up(key)
        return default if value is _ABSENT else value

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Yield the entries in the order of their keys' canonical bytes.

        Entries may be assigned and deleted meanwhile. A new entry may be missed. Raise RuntimeError
        if the map is cleared meanwhile.
        """
        self._detach_image()
        entries = self._entries
        for key, value in self._merged():
            if self._entries is not entries:
                raise RuntimeError(CLEARED_MEANWHILE)
            current = entries.get(key, value)
            if current is not _ABSENT:
                yield key, current

    def clear(self) -> None:
        self._access.cached_count -= self._count_cached()
        self._entries, self._changed, self._read = {}, set(), {}
        self._whole, self._image = True, None

    def image(self, *, mutable: bool) -> object:
        del mutable  # `MapAccess.mutable` says the same
        # The image holds the memory for the next flush, not the map, which may be larger than
        # memory. Values that can change in place are copied when they are returned.
        self._merge_image()
        self._image = _Image(self._entries, self._changed, self._read, self._whole)
        self._entries, self._changed, self._read = {}, set(), {}
        return self._image

    def restore(self, image: Any) -> None:
        cached_count = self._count_cached()
        self._entries, self._changed, self._read, self._whole = image
        self._image = None
        self._access.cached_count += len(self._entries) - cached_count

    def changed_since(self, image: Any, *, mutable: bool) -> list[Any]:
        before = image[0]
        keys = self._entries if mutable else self._changed
        pairs = [(key, self._entries[key]) for key in keys]
        return [
            (key, value)
            for key, value in pairs
            if value is not _ABSENT and (mutable or before.get(key, _ABSENT) is not value)
        ]

    def held_entries(self) -> list[tuple[Any, Any]]:
        """Return the entries in memory."""
        below = {} if self._image is None else self._image.entries
        entries = {**below, **self._entries}
        return [(key, value) for key, value in entries.items() if value is not _ABSENT]

    def save(self, puts: Pairs, deletes: list[bytes], saved: list[Any]) -> None:
        """Add the necessary writes to a batch, and clear the memory, because the store then has
        everything.

        The pairs of map key and value that are written are added to `saved`.
        """
        self._merge_image()
        access, entries = self._access, self._entries
        key_bytes, prefix = access.key_bytes, self._prefix
        changed = self._changed
        if self._whole:
            changed = {key for key in changed if entries[key] is not _ABSENT}
            deletes.extend(store_key for store_key, _ in access.store.scan(*entries_span(prefix)))
        for key in changed:
            value, store_key = entries[key], prefix + key_bytes(key)
            if value is _ABSENT:
                deletes.append(store_key)
            else:
                saved.append((key, value))
                puts.append((store_key, access.encode((key, value))))
        for key, stored in self._read.items():
            if key not in changed and (data := access.encode((key, entries[key]))) != stored:
                saved.append((key, entries[key]))
                puts.append((prefix + key_bytes(key), data))
        if entries:
            access.cached_count -= len(entries)
            self._entries, self._changed, self._read = {}, set(), {}
        self._whole = False

    def _look_up(self, key: Any) -> Any:
        """Return the entry's value or `_ABSENT`, from memory or else from the store."""
        value = self._entries.get(key, _UNKNOWN)
        if value is _UNKNOWN:
            if self._image is not None:
                value = self._look_up_in_image(self._image.entries, key)
                if value is not _UNKNOWN:
                    return value
            if self._whole:
                return _ABSENT
            access = self._access
            try:
                store_key = self._prefix + access.key_bytes(key)
            except PipelineError as error:
                raise StateValueError(
                    f"State {access.name!r} cannot have the entry {key!r:.200}: {error}"
                ) from error
            (data,) = access.store.get_many([store_key])
            value = (
                _ABSENT if data is None else self._cache_entry(key, data, access.decode(data)[1])
            )
            if data is None:
                self._entries[key] = _ABSENT
                access.cached_count += 1
        return value

    def _look_up_in_image(self, below: dict[Any, Any], key: Any) -> Any:
        """Return the entry of the image.

        A value that can change in place is returned itself, because other code may hold it. The
        image keeps a copy.
        """
        value = below.get(key, _UNKNOWN)
        if self._access.mutable and value is not _UNKNOWN and value is not _ABSENT:
            below[key] = copy_value(value)
            self._entries[key] = value
            self._access.cached_count += 1
        return value

    def _merge_image(self) -> None:
        """Merge the changes since the image into it. They cannot be undone any more."""
        image = self._image
        if image is None:
            return
        cached_count = self._count_cached()
        image.entries.update(self._entries)
        image.changed.update(self._changed)
        image.read.update(self._read)
        self._entries, self._changed, self._read, self._image = *image[:3], None
        self._access.cached_count += len(self._entries) - cached_count

    def _detach_image(self) -> None:
        """Put all of memory into one dict for an iteration, and leave the image unchanged."""
        image = self._image
        if image is None:
            return
        cached_count = self._count_cached()
        entries = {**image.entries, **self._entries}
        if self._access.mutable:
            for key, value in image.entries.items():
                if key not in self._entries and value is not _ABSENT:
                    image.entries[key] = copy_value(value)
        self._entries, self._image = entries, None
        self._changed = image.changed | self._changed
        self._read = {**image.read, **self._read}
        self._access.cached_count += len(self._entries) - cached_count

    def _count_cached(self) -> int:
        """Return the number of entries in memory, as `MapAccess.cached_count` counts them."""
        return len(self._entries) + (0 if self._image is None else len(self._image.entries))

    def _cache_entry(self, key: Any, data: bytes, value: Any) -> Any:
        self._entries[key] = value
        self._access.cached_count += 1
        if self._access.mutable:
            self._read[key] = data
        return value

    def _merged(self) -> Iterator[tuple[Any, Any]]:
        """Yield the entries of the store and of memory, in order. The caller looks up the value in
        memory.

        Values of a mutable type are put into memory when they are yielded, because user code may
        change them.
        """
        access, entries, prefix = self._access, self._entries, self._prefix
        pending = sorted(((access.key_bytes(key), key) for key in entries), reverse=True)
        stored = iter(()) if self._whole else access.store.scan(*entries_span(prefix))
        for store_key, data in stored:
            suffix = store_key[len(prefix) :]
            while pending and pending[-1][0] < suffix:
                yield pending.pop()[1], _ABSENT
            if pending and pending[-1][0] == suffix:
                yield pending.pop()[1], _ABSENT
                continue
            key, value = access.decode(data)
            if access.mutable and key not in entries:
                self._cache_entry(key, data, value)
            yield key, value
        while pending:
            yield pending.pop()[1], _ABSENT
