"""`WindowTables`: windows by key in memory, one table for each span, stored in chunks.

A table is a dict from key to window, and the operator's loop uses the dict itself. So a window
costs no row of the cache, no entry of the store and no read. What has ended is dropped as a whole.

A chunk is the list of windows of one table and one key group that have changed since the checkpoint
before. Its store key has the key group, the span and a number. If a window is in two chunks, the
one with the higher number counts. When the chunks of a table hold more than twice its windows, the
next checkpoint stores all of its windows again, and deletes the older chunks.

A window that is removed alone leaves the dict at once (`remove`). In the next chunk, a tombstone
stands for it, which a restore drops. A table that is stored as a whole again has no tombstones.

A barrier only takes the lists of keys that have changed. `save_some` stores them between batches:
it sorts the keys by key group, and then stores one chunk after the other. The operator calls
`touch` before it changes windows, and `keep` before it gives away what is in them. Those that are
not stored yet are copied then, so a chunk has their content at the barrier. A table that is dropped
meanwhile is stored as it was at the barrier, and its chunks are deleted with the next checkpoint.

All windows of a table are in memory. The operator moves a table to rows of the backend when there
are more windows than the cache may hold (`too_many`).

This module knows no triggers and no watermarks. Only the mailbox thread calls it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, Final

from msgspec.structs import astuple

from tidegate.api.records.copying import copy_value
from tidegate.api.state.keys import key_encoder
from tidegate.api.state.tables import TableState
from tidegate.api.state.wire import state_codec
from tidegate.dataplane.state.cells import Pairs
from tidegate.dataplane.state.layout import entries_span, key_part
from tidegate.dataplane.state.state_accessors import Stored
from tidegate.dataplane.state.storable import Storable, WrongValueError, is_about_value
from tidegate.errors import CorruptCheckpointError, InternalError, PipelineError
from tidegate.graph.key_groups import key_groups
from tidegate.ports.kv import KeyValueStore
from tidegate.user_exceptions import text_of

Span = tuple[int, int]
"""Begin and end of the windows of a table, in milliseconds."""

_CHUNK: Final = struct.Struct(">qqQ")
"""Begin, end and number of a chunk."""


class Table:
    """The windows of one span, by key."""

    __slots__ = (
        "all_changed",
        "burst",
        "changed",
        "changed_count",
        "chunks",
        "dropped",
        "fired_count",
        "span",
        "stored_count",
        "windows",
    )

    def __init__(self, span: Span) -> None:
        self.span = span
        self.windows: dict[Any, Any] = {}
        self.burst: Iterator[tuple[Any, Any]] | None = None
        """The windows that have not fired yet, while the table fires in pieces."""
        self.fired_count = 0
        """Number of windows at the front that have fired for the last time. They are not stored any
        more.
        """
        self.dropped = False
        self.changed: list[Iterable[Any]] = []
        """The keys that were touched since the last barrier, in lists. Empty if `all_changed`."""
        self.changed_count = 0
        self.all_changed = True
        """Whether all windows count as changed: at first, and when the lists become too long."""
        self.chunks: list[bytes] = []
        """The store keys of its chunks."""
        self.stored_count = 0
        """Number of windows in these chunks."""

    def live_windows(self) -> list[Any]:
        """Return the windows that have not fired for the last time."""
        return list(islice(self.windows.values(), self.fired_count, None))


class _Unsaved:
    """The windows of one table that the snapshot still has to store."""

    def __init__(self) -> None:
        self.windows: Iterator[Any] | None = None
        """The windows that are not sorted by key group yet; None if all are."""
        self.groups: dict[int, list[Any]] = {}
        """Windows by key group."""
        self.copies: dict[Any, Any] = {}
        """Windows by key as they were at the barrier, if they were touched since. None for a key
        that had no window then.
        """

    def at_barrier(
        self, table: Table, keys: Iterable[Any], tombstone: Callable[[Any], Any]
    ) -> Iterator[Any]:
        """Yield the window that each key had at the barrier, or a tombstone. The caller may touch
        windows meanwhile.
        """
        copies, windows = self.copies, table.windows
        for key in keys:
            window = copies[key] if key in copies else windows.get(key)
            yield tombstone(key) if window is None else window


class WindowTables:
    """The tables of one step in one subtask.

    `places` has the beginning of store keys by key group. `schemas` are those under which restored
    chunks were written. PipelineError if the present declaration cannot read them. `limit` is the
    number of windows that may be in memory.
    """

    piece: int = 2_000
    """Number of windows that are sorted or stored between two batches, or a few more: 1 or 2 ms."""

    def __init__(
        self,
        where: str,
        state: TableState,
        schemas: Sequence[str],
        store: KeyValueStore,
        places: Mapping[int, bytes],
        max_parallelism: int,
        limit: int,
    ) -> None:
        form = Stored(where, state, schemas)
        self.name, self.schemas = state.name, form.schemas
        self._encode, self._decode = form.codec.encode, form.codec.decode
        of_row = state.row_state()
        self._storable = Storable(of_row, state_codec(of_row.stored_type, 0, {}))
        self._tombstone = state.tombstone
        self._key_bytes: Callable[[Any], bytes] = key_encoder(state.key_type)
        self._where, self._store, self._places = where, store, places
        self._max_parallelism, self._limit = max_parallelism, limit
        self.tables: dict[Span, Table] = {}
        self.window_count = 0
        """Number of windows in all tables. The operator keeps it."""
        self._changed: dict[Table, None] = {}
        """The tables that have changed since the last barrier."""
        self._dropped: list[bytes] = []
        """The chunks of tables that were dropped since the last barrier."""
        self._deletes: list[bytes] = []
        """The chunks that the present snapshot must still delete."""
        self._number = 0
        """The number of the chunks of the present snapshot."""
        self._unsaved: dict[Table, _Unsaved] = {}
        """The tables that the present snapshot must still store."""

    @property
    def too_many(self) -> bool:
        """Whether there are more windows than the cache of the step may hold."""
        return self.window_count > self._limit

    @property
    def saved(self) -> bool:
        """Whether all of the last snapshot is in the store."""
        return not self._unsaved and not self._deletes

    def restore(self) -> None:
        """Read the tables from the store. Call it once, before the first record."""
        for prefix in self._places.values():
            for store_key, data in self._store.scan(*entries_span(prefix)):
                start_ms, end_ms, number = _CHUNK.unpack(store_key[-_CHUNK.size :])
                try:
                    windows: list[Any] = self._decode(data)
                except Exception as error:  # a decoder may raise anything
                    raise CorruptCheckpointError(
                        f"{self._where}: stored windows cannot be read: {text_of(error)}"
                    ) from error
                table = self.tables.get((start_ms, end_ms)) or self.new((start_ms, end_ms))
                self._put(table.windows, windows)
                table.chunks.append(store_key)
                table.stored_count += len(windows)
                table.all_changed = False
                self._number = max(self._number, number)
        self.window_count = sum(len(table.windows) for table in self.tables.values())
        for table in [one for one in self.tables.values() if not one.windows]:
            self.drop(table)  # tombstones only: the other key groups are in another subtask

    def _put(self, windows: dict[Any, Any], chunk: Iterable[Any]) -> None:
        """Put the windows of a chunk into those of the older ones."""
        tombstone = self._tombstone
        for window in chunk:
            if tombstone is not None and astuple(window) == astuple(tombstone(window.key)):
                windows.pop(window.key, None)
            else:
                windows[window.key] = window

    def new(self, span: Span) -> Table:
        """Add an empty table."""
        table = self.tables[span] = Table(span)
        return table

    def drop(self, table: Table) -> None:
        """Remove a table with all of its windows, here and from the next checkpoint."""
        del self.tables[table.span]
        self._changed.pop(table, None)
        self._dropped += table.chunks
        self.window_count -= len(table.windows)
        table.dropped, table.chunks, table.burst = True, [], None

    def take(self, table: Table) -> list[Any]:
        """Remove a table and return its windows, which the caller may change."""
        windows = list(table.windows.values())
        if table in self._unsaved:
            windows = list(map(copy_value, windows))
        self.drop(table)
        return windows

    def touch(self, table: Table, keys: Sequence[Any]) -> None:
        """Note that the windows of these keys change or begin now."""
        self.keep(table, keys)
        self._note(table, keys)

    def remove(self, table: Table, keys: Sequence[Any]) -> None:
        """Remove the windows of these keys, which the caller does not change any more."""
        self.keep(table, keys)
        for key in keys:
            del table.windows[key]
        self.window_count -= len(keys)
        self._note(table, keys)

    def _note(self, table: Table, keys: Sequence[Any]) -> None:
        self._changed[table] = None
        if table.all_changed:
            return
        table.changed_count += len(keys)
        if table.changed_count <= len(table.windows):
            table.changed.append(keys)
        else:
            self._all_changed(table)

    def keep(self, table: Table, keys: Iterable[Any]) -> None:
        """Copy the windows of these keys that are not stored yet, because a step may change what is
        in them.
        """
        unsaved = self._unsaved.get(table)
        if unsaved is not None:
            copies, windows = unsaved.copies, table.windows
            for key in keys:
                if key not in copies:
                    copies[key] = copy_value(windows.get(key))

    def fired(self, table: Table, count: int) -> None:
        """Record that the next `count` windows at the front have fired for the last time."""
        table.fired_count += count
        self._changed[table] = None
        self._all_changed(table)

    def begin_snapshot(self) -> None:
        """Begin a snapshot of the present content. The one before is finished."""
        self._deletes, self._dropped = self._dropped, []
        changed, self._changed = self._changed, {}
        for table in changed:
            unsaved = self._unsaved[table] = _Unsaved()
            live_count = len(table.windows) - table.fired_count
            if table.all_changed or table.stored_count + table.changed_count > 2 * live_count:
                unsaved.windows = iter(table.live_windows())
                self._deletes += table.chunks
                table.chunks, table.stored_count = [], 0
            else:
                keys = _each_once(chain.from_iterable(table.changed))
                unsaved.windows = unsaved.at_barrier(table, keys, self._tombstone_of)
            table.changed, table.changed_count, table.all_changed = [], 0, False
        self._number += 1

    def finish(self) -> None:
        """Store the rest of the snapshot."""
        while not self.saved:
            self.save_some()

    def save_some(self) -> None:
        """Store some more of the snapshot, for some milliseconds at most.

        Raise WrongValueError for a window that cannot be stored.
        """
        puts: Pairs = []
        deletes, self._deletes = self._deletes, []
        count = 0
        while self._unsaved and count < self.piece:
            table, unsaved = next(iter(self._unsaved.items()))
            if unsaved.windows is not None:
                count += self._sort(unsaved, unsaved.windows)
            elif unsaved.groups:
                group, windows = unsaved.groups.popitem()
                count += len(windows)
                puts.append(self._chunk(table, group, unsaved.copies, windows))
            else:
                del self._unsaved[table]
        if puts or deletes:
            self._store.write(puts, deletes)

    def _tombstone_of(self, key: Any) -> Any:
        if self._tombstone is None:
            raise InternalError(f"{self._where}: a changed window is gone without its table")
        return self._tombstone(key)

    def _all_changed(self, table: Table) -> None:
        table.changed, table.changed_count, table.all_changed = [], 0, True

    def _sort(self, unsaved: _Unsaved, windows: Iterator[Any]) -> int:
        """Sort some more windows by key group, and return how many."""
        taken = list(islice(windows, self.piece))
        if len(taken) < self.piece:
            unsaved.windows = None
        encoded = map(self._key_bytes, [window.key for window in taken])
        found = unsaved.groups
        for group, window in zip(key_groups(encoded, self._max_parallelism), taken, strict=True):
            if group in found:
                found[group].append(window)
            else:
                found[group] = [window]
        return len(taken)

    def _chunk(
        self, table: Table, group: int, copies: Mapping[Any, Any], windows: list[Any]
    ) -> tuple[bytes, bytes]:
        """Return the pair of a chunk for the store."""
        if group not in self._places:
            raise InternalError(
                f"{self._where}: a record of key group {group} came to the subtask of "
                f"{min(self._places)} to {max(self._places)}"
            )
        if copies:
            # A tombstone stays one: a window that its key got since has None as copy.
            windows = [copies.get(window.key) or window for window in windows]
        store_key = self._places[group] + key_part(_CHUNK.pack(*table.span, self._number))
        if table.dropped:  # since the barrier
            self._dropped.append(store_key)
        else:
            table.chunks.append(store_key)
            table.stored_count += len(windows)
        return store_key, self._encoded(windows)

    def _encoded(self, windows: list[Any]) -> bytes:
        try:
            self._storable.check(windows, windows)
            return self._encode(windows)
        except BaseException as error:  # an encoder may raise anything for a value of another type
            if isinstance(error, WrongValueError) or not (
                isinstance(error, PipelineError) or is_about_value(error)
            ):
                raise
            for window in windows:
                if reason := self._storable.why_not(window):
                    raise WrongValueError(window, reason) from error
            raise


def _each_once(keys: Iterable[Any]) -> Iterator[Any]:
    seen: set[Any] = set()
    for key in keys:
        if key not in seen:
            seen.add(key)
            yield key
