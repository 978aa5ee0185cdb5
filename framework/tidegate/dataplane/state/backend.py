"""`KeyedStateBackend`: the state of one keyed step in one subtask, a write-back cache in front of
its store.

The operator's loop requests the rows of all keys of a batch at once (`rows`). This costs one lookup
per record, in C, and one read of the store for rows that are not cached. Nothing is written before
a flush, which comes with each checkpoint. The flush checks the cells that were given out since the
last flush, and writes their changes into the store.

A snapshot does this piece by piece, between batches. A barrier therefore delays the records behind
it only by milliseconds, however much has changed (`pending_rows.py`). Values and lists can be saved
later in this way. The entries of maps cannot, because they are read from the store and must then be
there. A step that declares a map saves everything at the barrier.

Rows are not marked when they change. Instead, the lists of rows given to the operator are kept, and
a flush scans them. When the lists become longer than the cache, they are dropped, and the flush
scans the cache. A flush therefore checks at most one cell per record, and at most all cached cells.
A second check of one cell finds no changes.

Limits: after a flush, at most `cache_entries` keys stay, the newest ones. After a snapshot, the
keys since its barrier stay in addition. Between flushes, the cache holds at most twice as many keys
and map entries, and one batch. Beyond this limit, the changes are flushed before a row is dropped.

This module does not decide when a snapshot is taken and continues (`step.py`), or which files it
becomes (`snapshots.py`). Only the mailbox thread calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, compress, islice, repeat
from operator import itemgetter
from typing import Any, Final

from tidegate.api.state.evolution import same_key_type
from tidegate.api.state.keys import key_encoder
from tidegate.api.state.state import State
from tidegate.api.state.stored import key_text
from tidegate.api.state.tables import TableState
from tidegate.api.time.timers import for_keys
from tidegate.dataplane.state.cells import Pairs
from tidegate.dataplane.state.layout import entries_span, group_part, key_part, name_part
from tidegate.dataplane.state.pending_rows import PendingRows, Row
from tidegate.dataplane.state.restored_names import delete_rows, restored_names
from tidegate.dataplane.state.state_accessors import (
    StateAccessor,
    TimerAccessor,
    make_state_accessor,
)
from tidegate.dataplane.state.storable import WrongValueError, is_about_value
from tidegate.dataplane.state.window_tables import WindowTables
from tidegate.dataplane.time.timer_index import TimerIndex
from tidegate.errors import (
    CorruptCheckpointError,
    InternalError,
    PipelineError,
    StateValueError,
    TidegateError,
    UserCodeError,
    check,
    passes_through,
)
from tidegate.graph.key_groups import key_group
from tidegate.ids import Uid
from tidegate.message_text import clause
from tidegate.ports.kv import KeyValueStore, StoreCheckpoint
from tidegate.protocol.subtask_snapshot import KEY_TYPE
from tidegate.user_exceptions import repr_of, text_of

OVERFLOW: Final = 2
"""Factor of `cache_entries` to which the cache may grow between two flushes. An extra flush within
an interval costs as much as the flush at the barrier, so it should be rare.
"""


class _Cache(dict[Any, Row]):
    """Rows by key. The lookup of a missing key returns None and notes the key. A batch with new
    keys is recognised by this alone, and no Python code runs for the other keys.
    """

    __slots__ = ("missed",)

    def __init__(self) -> None:
        self.missed: list[Any] = []

    def __missing__(self, key: Any) -> None:
        self.missed.append(key)


class KeyedStateBackend:
    """Rows by key for the declared `states`.

    `schemas` and `stored_names` come from the restored snapshots. The content of `store` was
    written under them. Rows of states in the function's `dropped_states` are deleted.

    The constructor raises PipelineError, which names uid, state and field, if the content cannot be
    read as declared. It also raises StorageError.
    """

    def __init__(
        self,
        uid: Uid,
        states: Mapping[str, State],
        key_type: object,
        max_parallelism: int,
        key_groups: range,
        store: KeyValueStore,
        cache_entries: int,
        schemas: Mapping[str, Sequence[str]] | None = None,
        stored_names: Mapping[str, str] | None = None,
        dropped_states: Collection[str] = (),
        group_bytes: Callable[[Any], bytes] | None = None,
    ) -> None:
        """Open the state. `group_bytes` returns the bytes from which the group of a key follows, if
        they are not those of the whole key.
        """
        stored = {} if schemas is None else dict(schemas)
        states = for_keys(states, key_type)
        names = restored_names(uid, states, dropped_states, stored, stored_names or {})
        self.schemas: dict[str, list[str]] = {
            KEY_TYPE: _checked_key_type(uid, key_type, stored.get(KEY_TYPE, ()))
        }
        """Schemas by state name, as the next snapshot states them."""
        self.stored_names = {name: part for name, part in names.stored.items() if part != name}
        """Names in store keys by state name, as the next snapshot states them."""
        self._accessors: list[StateAccessor] = []
        self.timers: dict[str, TimerIndex] = {}
        """The keys of the timers that are set, by name of their declaration."""
        tables = {name for name, state in states.items() if isinstance(state, TableState)}
        parts = [name_part(part) for name, part in names.stored.items() if name not in tables]
        self._key_prefixes: dict[int, list[bytes]] = {
            group: [group_part(group) + part for part in parts] for group in key_groups
        }
        """Prefixes of store keys, by key group and then by column."""
        self.tables: WindowTables | None = None
        """The state that lies in tables, if the step declares some."""
        self._uid, self._key_groups = uid, key_groups
        self._max_parallelism = max_parallelism
        self._store, self._limit = store, cache_entries
        for name, state in states.items():
            former = names.in_checkpoint.get(name)
            written = () if former is None else stored[former]
            if isinstance(state, TableState):
                self._add_tables(state, written, name_part(names.stored[name]))
            else:
                self._add_column(state, written)
        self._loads = tuple(accessor.loads for accessor in self._accessors)
        self._key_bytes: Callable[[Any], bytes] = key_encoder(key_type)
        self._group_bytes = group_bytes
        self._cache = _Cache()
        self._rows_given_out: list[list[Row]] = []
        """The rows of the batches since the last flush. Empty if they are more than are cached."""
        self._changed_count = 0
        """Number of these rows. It also counts rows whose lists were dropped."""
        self._pending_rows: PendingRows | None = None
        """The pending rows of the snapshot that is being taken. None between snapshots."""
        self._store_checkpoint: StoreCheckpoint | None = None
        """The snapshot that was taken, until `save_next` returns it."""
        self._inconsistent = self._closed = False
        self._all_cached = not stored
        """Whether everything in the store is also in the cache. New keys then need no lookup in the
        store. This is true if the store began empty and no row was dropped. Every snapshot states
        at least the schema of its keys.
        """
        delete_rows(store, key_groups, names.deleted)
        if not self._all_cached:
            self._restore_timers()

    def _add_column(self, state: State, written: Sequence[str]) -> None:
        accessor = make_state_accessor(self._uid, state, written, self._store)
        if isinstance(accessor, TimerAccessor):
            self.timers[state.name] = accessor.index
        self.schemas[state.name] = accessor.schemas
        self._accessors.append(accessor)

    def _add_tables(self, state: TableState, written: Sequence[str], part: bytes) -> None:
        self.tables = WindowTables(
            f"state {state.name!r} of step {self._uid!r}",
            state,
            written,
            self._store,
            {group: group_part(group) + part for group in self._key_groups},
            self._max_parallelism,
            self._limit,
        )
        self.schemas[state.name] = self.tables.schemas

    def scan(self, name: str) -> Iterator[Any]:
        """Return all stored values of a state that is a value, in no particular order. Call it
        before the first record. CorruptCheckpointError if a value cannot be read.
        """
        index = [accessor.name for accessor in self._accessors].index(name)
        accessor = self._accessors[index]
        return chain.from_iterable(
            accessor.values(accessor.cell(None, b"", data)) for data in self._scan(index)
        )

    def _scan(self, index: int) -> Iterator[bytes]:
        """Return the stored bytes of a column."""
        check(self._changed_count == 0, "a scan sees only what is in the store")
        for prefixes in self._key_prefixes.values():
            for _, data in self._store.scan(*entries_span(prefixes[index])):
                yield data

    def _restore_timers(self) -> None:
        for index, accessor in enumerate(self._accessors):
            if isinstance(accessor, TimerAccessor):
                for data in self._scan(index):
                    try:
                        accessor.restore(data)
                    except Exception as error:  # a decoder may raise anything
                        raise self._unreadable(accessor.name, error) from error

    def _unreadable(self, name: str, error: Exception) -> CorruptCheckpointError:
        return CorruptCheckpointError(
            f"A stored value of state {name!r} of step {self._uid!r} cannot be read: "
            f"{clause(error)}. "
            "An earlier version of the pipeline may have stored a value of another type."
        )

    def rows(self, keys: Sequence[Any]) -> list[Row]:
        """Return the row of each of a batch's keys. Rows that are not cached are read from the
        store together.

        The rows are valid until the next call, which may drop other rows to make room.
        """
        cache = self._cache
        if self._cached_count() > OVERFLOW * self._limit:
            self._flush_rows()
        # Keys are not grouped first. Grouping runs in Python's own loop. It took twice (distinct
        # keys) to six times (ten hot keys) as long as a lookup of each key here, in C.
        rows = list(map(cache.__getitem__, keys))
        if cache.missed:
            missed, cache.missed = cache.missed, []
            self._load(dict.fromkeys(missed))
            holes = [location for location, row in enumerate(rows) if row is None]
            for location, key in zip(holes, missed, strict=True):
                rows[location] = cache[key]
        if self._pending_rows is not None:
            self._save(self._pending_rows.take(rows))  # before user code changes them
        self._changed_count += len(rows)
        if self._changed_count <= len(cache):
            self._rows_given_out.append(rows)
        else:
            self._rows_given_out.clear()
        return rows

    def why_not(self, row: Row, images: Sequence[object]) -> str:
        """Return why a checkpoint could not store the changes in a row since the images of its
        cells were taken; empty if it could.
        """
        cells = row if len(self._accessors) > 1 else (row,)
        for accessor, cell, image in zip(self._accessors, cells, images, strict=True):
            for value in cell.changed_since(image, mutable=accessor.mutable):
                if reason := accessor.why_not(value):
                    return f"state {accessor.name!r} cannot be stored: {reason}"
        return ""

    def flush(self) -> None:
        """Write the changes since the last flush to the store, as one batch.

        Raise StorageError if the store fails, and StateValueError for a value that cannot be
        stored.
        """
        self._flush_rows()
        if self.tables is not None:
            self.tables.begin_snapshot()
            self._finish()

    def _flush_rows(self) -> None:
        self._finish()
        self._save(self._touched_rows())
        self._clear_rows_given_out()
        self._make_room()

    def begin_snapshot(self) -> None:
        """Begin a snapshot at a barrier. It contains all changes until now, and no others.

        The previous snapshot must be finished. Raise StorageError if the store fails.
        """
        self._check_consistent()
        check(
            self._pending_rows is None and self._store_checkpoint is None, "one snapshot at a time"
        )
        if self.tables is not None:
            self.tables.begin_snapshot()
        if all(self._loads):
            self._pending_rows = PendingRows(self._touched_in_order())
            self._clear_rows_given_out()
        else:
            self._flush_rows()
            self._store_checkpoint = self._store.checkpoint()

    def save_next(self) -> StoreCheckpoint | None:
        """Continue the snapshot, for some milliseconds at most. Return its content if all is saved,
        else None. Raise StorageError if the store fails.
        """
        if self._pending_rows is not None:
            self._save_some(self._pending_rows)
        store_checkpoint, self._store_checkpoint = self._store_checkpoint, None
        return store_checkpoint

    def close(self) -> None:
        """Release the store. Changes that were not flushed are lost, and no row can be read any
        more.
        """
        self._closed = True
        self._cache.clear()
        self._rows_given_out.clear()
        self._pending_rows = None
        self._store.close()

    def _check_consistent(self) -> None:
        check(
            not self._inconsistent,
            f"a flush of {self._uid!r} failed; the state is not whole any more",
        )

    def _save_some(self, unsaved: PendingRows) -> None:
        self._check_consistent()
        if self.tables is not None and not self.tables.saved:
            self._save_tables(self.tables)
            return
        if rows := unsaved.some():
            self._save(rows)
        if unsaved.exhausted:
            self._pending_rows = None
            self._store_checkpoint = self._store.checkpoint()
            self._make_room()

    def _save_tables(self, tables: WindowTables) -> None:
        self._inconsistent = True
        try:
            tables.save_some()
        except WrongValueError as error:
            key = f" for key {repr_of(error.cell.key)}"
            raise self._cannot_store(tables.name, key, str(error)) from error
        self._inconsistent = False

    def _finish(self) -> None:
        """Finish the snapshot that is being taken."""
        while self.tables is not None and not self.tables.saved:
            self._save_tables(self.tables)
        while self._pending_rows is not None:
            self._save_some(self._pending_rows)

    def _save(self, rows: Collection[Row]) -> None:
        """Write the changes in rows to the store, as one batch."""
        self._check_consistent()
        puts: Pairs = []
        deletes: list[bytes] = []
        self._inconsistent = True
        for index, accessor in enumerate(self._accessors):
            cells = rows if len(self._accessors) == 1 else map(itemgetter(index), rows)
            try:
                accessor.save(cells, puts, deletes)
            except BaseException as error:  # an encoder may raise anything for a wrong value
                if not isinstance(error, PipelineError) and not is_about_value(error):
                    raise
                raise self._state_value_error(index, rows, error) from error
        if puts or deletes:
            self._store.write(puts, deletes)
        self._inconsistent = False

    def _state_value_error(
        self, index: int, rows: Collection[Row], error: BaseException
    ) -> StateValueError:
        """Return the error for the first value of a column that could not be saved."""
        accessor, many = self._accessors[index], len(self._accessors) > 1
        wrong, reason = None, text_of(error)
        if isinstance(error, WrongValueError):
            wrong = error.cell
        else:
            for row in rows:
                cell = row[index] if many else row
                if found := next(filter(None, map(accessor.why_not, accessor.values(cell))), ""):
                    wrong, reason = cell, found
                    break
        cells = ((key, row[index] if many else row) for key, row in self._cache.items())
        found_key = next((f" for key {repr_of(key)}" for key, cell in cells if cell is wrong), "")
        return self._cannot_store(accessor.name, found_key, reason)

    def _cannot_store(self, name: str, for_key: str, reason: str) -> StateValueError:
        return StateValueError(
            f"State {name!r} of step {self._uid!r} cannot be stored{for_key}: {clause(reason)}. "
            "Correct the code that makes this value, or declare its type. The job fails, because "
            "it would make the same value again after a restart."
        )

    def _touched_rows(self) -> Collection[Row]:
        """Return the rows that were given out since the last flush, and perhaps others. All are
        saved.
        """
        if self._changed_count > len(self._cache):
            return self._cache.values()
        # Each row once, in their order, all of it in C: a cell equals only itself.
        return dict.fromkeys(chain.from_iterable(self._rows_given_out))

    def _touched_in_order(self) -> Iterator[Row]:
        """Return the same rows, to be read while batches continue. A row may come twice."""
        if self._changed_count > len(self._cache):
            return iter(list(self._cache.values()))
        return chain.from_iterable(self._rows_given_out)

    def _cached_count(self) -> int:
        """Return how many keys, map entries and windows of tables are in memory."""
        in_tables = 0 if self.tables is None else self.tables.window_count
        entries = sum(accessor.cached_count for accessor in self._accessors)
        return len(self._cache) + entries + in_tables

    def _clear_rows_given_out(self) -> None:
        self._rows_given_out = []
        self._changed_count = 0

    def _make_room(self) -> None:
        """Drop the oldest keys beyond the limit.

        Rows that were given out since the barrier are not saved yet, and stay.
        """
        in_tables = 0 if self.tables is None else self.tables.window_count
        too_many = len(self._cache) - max(0, self._limit - in_tables)
        if too_many <= 0 or self._changed_count > len(self._cache):
            return
        kept = set(chain.from_iterable(self._rows_given_out))
        keys = (key for key, row in self._cache.items() if row not in kept)
        for key in list(islice(keys, too_many)):
            self._all_cached = False
            del self._cache[key]

    def _load(self, keys: Iterable[Any]) -> None:
        check(not self._closed, f"the state of {self._uid!r} is closed; a new key's would be empty")
        places = self._store_keys(keys)
        loads = self._loads
        if loads == (True,):
            asked = list(chain.from_iterable(places.values()))
        else:
            asked = [one for store_keys in places.values() for one in compress(store_keys, loads)]
        found: Iterator[bytes | None] = iter(())
        if asked:
            found = (
                repeat(None, len(asked)) if self._all_cached else iter(self._store.get_many(asked))
            )
        accessors = self._accessors
        accessor = accessors[0] if accessors else None
        try:
            if accessor is not None and loads == (True,):
                self._cache.update(
                    zip(places, map(accessor.cell, places, asked, found), strict=True)
                )
            elif accessor is not None and len(accessors) == 1:
                for key, (store_key,) in places.items():
                    self._cache[key] = accessor.cell(key, store_key, None)
            else:
                for key, store_keys in places.items():
                    cells = []
                    for accessor, store_key in zip(accessors, store_keys, strict=True):
                        cells.append(
                            accessor.cell(key, store_key, next(found) if accessor.loads else None)
                        )
                    self._cache[key] = tuple(cells)
        except TidegateError:
            raise
        except Exception as error:  # a decoder may raise anything for bytes of another type
            name = "" if accessor is None else accessor.name
            raise self._unreadable(name, error) from error

    def _store_keys(self, keys: Iterable[Any]) -> dict[Any, list[bytes]]:
        """Return the store key of each key's states, by column. For a map, it is the prefix of its
        entries.
        """
        keys = list(keys)
        try:
            encoded = list(map(self._key_bytes, keys))
        except passes_through():
            raise
        except BaseException as error:  # an encoder may raise anything for a key of another type
            raise UserCodeError(
                f"Step {self._uid!r} was given a key that is not of the type declared by key_by: "
                f"{clause(error)}."
            ) from error
        heads, max_parallelism = self._key_prefixes, self._max_parallelism
        places: dict[Any, list[bytes]] = {}
        of_group = encoded if self._group_bytes is None else map(self._group_bytes, keys)
        for key, key_bytes, group_bytes in zip(keys, encoded, of_group, strict=True):
            group = key_group(group_bytes, max_parallelism)
            if group not in heads:
                raise InternalError(
                    f"a record of key group {group} came to {self._uid!r}, which has "
                    f"{self._key_groups}"
                )
            part = key_part(key_bytes)
            places[key] = [head + part for head in heads[group]]
        return places


def _checked_key_type(uid: Uid, key_type: object, stored: Sequence[str]) -> list[str]:
    now = key_text(key_type)
    if stored and not same_key_type(stored[0], now):
        raise PipelineError(
            f"Step {uid!r} had keys of type {stored[0]} in the checkpoint and has keys of type "
            f"{now} now; the type of a key can never change: restore it, or start without this "
            "state under a new uid."
        )
    return [now]
