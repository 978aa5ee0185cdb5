"""A keyed step with all of its subtasks, without a runtime: for the tests of this room.

It routes keys as the exchange does, takes snapshots of all subtasks, and restores them at any
parallelism, into folders below `folder`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.dataplane.state.blobs import MemoryBlobs
from tidegate.api.state.keys import key_encoder
from tidegate.api.state.state import Cell, State
from tidegate.dataplane.state.backend import KeyedStateBackend
from tidegate.dataplane.state.local_files import LocalStateFiles
from tidegate.dataplane.state.snapshots import SnapshotUploader, restore
from tidegate.drivers.memory.store import MemoryStore
from tidegate.drivers.rocksdb import RocksDBStore
from tidegate.graph.key_groups import key_group, key_group_range, subtask_of
from tidegate.ids import Attempt, JobName, SubtaskId, SubtaskIndex, Uid, VertexId
from tidegate.ports.kv import KeyValueStore, StoreCheckpoint
from tidegate.protocol.subtask_snapshot import KeyedSnapshot

UID = Uid("running-total")
JOB = JobName("orders")
MAX_PARALLELISM = 8


def open_store(backend: str, directory: Path) -> KeyValueStore:
    return RocksDBStore(directory) if backend == "rocksdb" else MemoryStore(directory)


def declare(**states: State) -> dict[str, State]:
    """States named as a class statement names them."""
    for name, state in states.items():
        state.__set_name__(object, name)
    return states


def taken(state: KeyedStateBackend) -> StoreCheckpoint:
    """A snapshot, without a batch meanwhile."""
    state.begin_snapshot()
    while (frozen := state.save_next()) is None:
        pass
    return frozen


class Step:
    """One attempt after the other of a keyed step."""

    def __init__(
        self,
        folder: Path,
        states: Mapping[str, State],
        *,
        backend: str = "memory",
        cache_entries: int = 2,
        key_type: object = str,
        group_bytes: Callable[[Any], bytes] | None = None,
    ) -> None:
        self.blobs = MemoryBlobs()
        self.states, self.backend, self.key_type = states, backend, key_type
        self._folder, self._cache_entries = folder, cache_entries
        self._group_bytes = group_bytes
        self._key_bytes = key_encoder(key_type) if group_bytes is None else group_bytes
        self._attempts = itertools.count(1)
        self.dropped: tuple[str, ...] = ()
        self.subtasks: list[KeyedStateBackend] = []
        self.uploaders: list[SnapshotUploader] = []

    def start(
        self,
        parallelism: int,
        snapshots: Sequence[KeyedSnapshot] = (),
        *,
        same_host: bool = False,
        notes_count: bool = False,
    ) -> None:
        """Begin a new attempt; what was running is dropped as by a kill. `same_host`: where the
        earlier ones' files are. `notes_count`: as in a wave behind one that did not fail.
        """
        self.stop()
        noted = [self._folder] if notes_count else []
        local = LocalStateFiles.find_in([self._folder], noted) if same_host else LocalStateFiles()
        self.attempt = Attempt(next(self._attempts))
        for index in range(parallelism):
            groups = key_group_range(SubtaskIndex(index), parallelism, MAX_PARALLELISM)
            restored = restore(
                snapshots,
                uid=UID,
                key_groups=groups,
                backend=self.backend,
                job=JOB,
                blobs=self.blobs,
                local=local,
                directory=self._folder / f"{self.attempt}-{index}",
                open_store=open_store,
            )
            state = KeyedStateBackend(
                UID,
                self.states,
                self.key_type,
                MAX_PARALLELISM,
                groups,
                restored.store,
                self._cache_entries,
                restored.schemas,
                restored.stored_names,
                self.dropped,
                self._group_bytes,
            )
            self.subtasks.append(state)
            self.uploaders.append(
                SnapshotUploader(
                    blobs=self.blobs,
                    job=JOB,
                    attempt=self.attempt,
                    subtask=SubtaskId(VertexId("v"), SubtaskIndex(index)),
                    uid=UID,
                    backend=self.backend,
                    key_groups=groups,
                    shared=restored.shared,
                    notes=self._folder / f"{self.attempt}-{index}",
                )
            )

    def stop(self) -> None:
        for state in self.subtasks:
            state.close()
        self.subtasks, self.uploaders = [], []

    def cells(self, key: Any) -> tuple[Cell, ...]:
        """The key's cells, from the subtask that owns it."""
        group = key_group(self._key_bytes(key), MAX_PARALLELISM)
        owner = self.subtasks[subtask_of(group, len(self.subtasks), MAX_PARALLELISM)]
        row: Any = owner.rows([key])[0]
        return row if isinstance(row, tuple) else (row,)

    def snapshot(self) -> list[KeyedSnapshot]:
        """A checkpoint of all subtasks."""
        return [
            uploader.upload(taken(state), state.schemas, state.stored_names)
            for state, uploader in zip(self.subtasks, self.uploaders, strict=True)
        ]
