"""`KeyedState`: the state of one keyed step in one subtask, a write-back cache in front of its
store.

The operator's loop asks for the cells of a key with each record (`entry`: one look-up in a dict, in
C) and once a batch for what is missing of its keys (`prefetch`: one read of the store). Nothing is
written before a flush, which comes with each checkpoint: then the cells of every key touched since
the last one are asked what changed, and all of it goes into the store as one write.

There are two generations. `live` holds the keys touched since the last flush: being in it is what
marks a cell as touched, so that no record pays for marking. `idle` holds others, all of them saved;
they can be dropped at any time, and move to `live` when they are touched again.

Limits: after a flush at most `cache_entries` keys stay; between flushes at most twice as many keys
and map entries, and one batch, are held: then what changed is flushed and the rest dropped.

Not here: when to flush (the barrier, by `step.py`), what files become of it (`snapshots.py`).
Called by the mailbox thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

from tidegate.api.keys import key_encoder
from tidegate.api.state import Cell, State
from tidegate.dataplane.state.cells import Pairs
from tidegate.dataplane.state.columns import Column, column_of, key_schema, same_key_type
from tidegate.dataplane.state.layout import group_part, key_part, name_part
from tidegate.errors import (
    CorruptCheckpointError,
    PipelineError,
    TidegateError,
    UserCodeError,
    check,
)
from tidegate.graph.key_groups import key_group
from tidegate.ids import Uid
from tidegate.ports.kv import KeyValueStore

KEY_TYPE: Final = ""
"""The name under which `schemas` hold the schema of the step's keys; no attribute has this name."""

OVERFLOW: Final = 2
"""How many times `cache_entries` the cache may grow to between two flushes: an extra flush in the
middle of an interval costs as much as the barrier's, so it should be rare."""

Cells = tuple[Cell, ...]


class KeyedState:
    """Cells by key for the declared `states`, in their order. `schemas` are those that the content
    of `store` was written under, from the restored snapshots.

    Raises PipelineError, naming uid, state and field, if the content cannot be read as declared.
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
    ) -> None:
        stored = {} if schemas is None else dict(schemas)
        self.schemas: dict[str, list[str]] = {name: list(all_) for name, all_ in stored.items()}
        """By state name, as the next snapshot states them; states that are gone keep theirs."""
        self.schemas[KEY_TYPE] = _checked_key_type(uid, key_type, stored.get(KEY_TYPE, ()))
        self._names = tuple(states)
        self._columns: list[Column] = []
        self._heads: list[list[bytes]] = []
        for name, state in states.items():
            column = column_of(uid, state, stored.get(name, ()), store)
            self.schemas[name] = column.schemas
            self._columns.append(column)
            self._heads.append([group_part(group) + name_part(name) for group in key_groups])
        self._uid, self._key_groups = uid, key_groups
        self._key_bytes: Callable[[Any], bytes] = key_encoder(key_type)
        self._max_parallelism = max_parallelism
        self._store, self._limit = store, cache_entries
        self._live = _Live(self._admit)
        self._idle: dict[Any, Cells] = {}
        self._torn = False
        self.entry: Callable[[Any], Cells] = self._live.__getitem__
        """The cells of a key, loaded where they are not cached. Valid until the next `prefetch`."""

    def prefetch(self, keys: Iterable[Any]) -> None:
        """Load what is missing of a batch's keys, together; make room first where that is needed.

        Cells that were handed out before are not valid any more.
        """
        if self._held() > OVERFLOW * self._limit:
            self.flush()
        live = self._live
        missing = [key for key in keys if key not in live]
        if missing:
            self._admit(missing)

    def flush(self) -> None:
        """Write what changed since the last flush to the store, as one batch. Raises
        StorageError.
        """
        check(not self._torn, f"a flush of {self._uid!r} failed; the state is not whole any more")
        puts: Pairs = []
        deletes: list[bytes] = []
        self._torn = True
        for index, column in enumerate(self._columns):
            try:
                column.save(map(itemgetter(index), self._live.values()), puts, deletes)
            except TidegateError:
                raise
            except Exception as error:  # whatever an encoder says of a value that is not its type's
                raise UserCodeError(
                    f"state {self._names[index]!r} of step {self._uid!r} holds a value that is not "
                    f"of its declared type: {error}"
                ) from error
        if puts or deletes:
            self._store.write(puts, deletes)
        self._torn = False
        self._age()

    def snapshot_sync(self, directory: Path) -> list[Path]:
        """Flush, and freeze the store as files in the new folder `directory`. Raises
        StorageError.
        """
        self.flush()
        return self._store.checkpoint(directory)

    def close(self) -> None:
        """Release the store. What was not flushed is gone."""
        self._live.clear()
        self._idle.clear()
        self._store.close()

    def _held(self) -> int:
        entries = sum(column.held for column in self._columns)
        return len(self._live) + len(self._idle) + entries

    def _age(self) -> None:
        """After a flush everything is saved; keep what was touched last, within the limit."""
        live, idle = self._live, self._idle
        if len(live) + len(idle) <= self._limit:
            idle.update(live)
        elif len(live) <= self._limit:
            self._idle = dict(live)
        else:
            self._idle = dict(islice(live.items(), len(live) - self._limit, None))
        live.clear()

    def _admit(self, keys: Iterable[Any]) -> None:
        """Bring keys that are not in `live` into it; keys may be there several times."""
        live, idle = self._live, self._idle
        absent: dict[Any, None] = {}
        for key in keys:
            cells = idle.pop(key, None)
            if cells is not None:
                live[key] = cells
            elif key not in live:
                absent[key] = None
        if absent:
            self._load(absent)

    def _load(self, keys: Iterable[Any]) -> None:
        places = [(key, self._store_keys(key)) for key in keys]
        columns = self._columns
        asked = [
            store_key
            for _, store_keys in places
            for column, store_key in zip(columns, store_keys, strict=True)
            if column.loads
        ]
        found = iter(self._store.get_many(asked)) if asked else iter(())
        reading = ""
        try:
            for key, store_keys in places:
                cells = []
                for name, column, store_key in zip(self._names, columns, store_keys, strict=True):
                    reading = name
                    data = next(found) if column.loads else None
                    cells.append(column.cell(store_key, data))
                self._live[key] = tuple(cells)
        except TidegateError:
            raise
        except Exception as error:  # whatever a decoder says of bytes that are not its type's
            raise CorruptCheckpointError(
                f"a stored value of state {reading!r} of step {self._uid!r} cannot be read: "
                f"{error}; was a value of another type assigned to it before?"
            ) from error

    def _store_keys(self, key: Any) -> list[bytes]:
        """Where the key's states lie, by column (for a map, what its entries' keys begin with)."""
        key_bytes = self._key_bytes(key)
        group = key_group(key_bytes, self._max_parallelism)
        mine = self._key_groups
        check(
            group in mine, f"a record of key group {group} came to {self._uid!r}, which has {mine}"
        )
        part = key_part(key_bytes)
        return [heads[group - mine.start] + part for heads in self._heads]


class _Live(dict[Any, Cells]):
    """The keys touched since the last flush; asks for a key that is missing."""

    __slots__ = ("_admit",)

    def __init__(self, admit: Callable[[Iterable[Any]], None]) -> None:
        super().__init__()
        self._admit = admit

    def __missing__(self, key: Any) -> Cells:
        self._admit((key,))
        return self[key]


def _checked_key_type(uid: Uid, key_type: object, stored: Sequence[str]) -> list[str]:
    now = key_schema(key_type)
    if stored and not same_key_type(stored[0], now):
        raise PipelineError(
            f"step {uid!r} had keys of type {stored[0]} in the checkpoint and has keys of type "
            f"{now} now; the type of a key can never change: restore it, or start without this "
            "state under a new uid"
        )
    return [stored[0]] if stored else [now]
