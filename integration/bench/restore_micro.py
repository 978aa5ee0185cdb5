"""Measures how long a wave restores local state that has not changed since the previous wave.

A store of 1 GB is filled and uploaded once. Then several attempts follow. Each attempt restores the
store from the files that the previous attempt left on this host, and takes a snapshot. The restore
of a slot is measured too. A slot reads every file to verify the checksum.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from integration.bench.page import Table
from integration.bench.spark_cost import judged
from tidegate.dataplane.state.local_files import LocalStateFiles
from tidegate.dataplane.state.local_state_dir import LocalStateDir
from tidegate.dataplane.state.snapshots import RestoredStore, SnapshotUploader, restore
from tidegate.drivers.rocksdb import RocksDBStore
from tidegate.drivers.storage import open_store
from tidegate.ids import Attempt, JobName, SubtaskId, SubtaskIndex, Uid, VertexId
from tidegate.ports.kv import KeyValueStore
from tidegate.protocol.subtask_snapshot import KeyedSnapshot

UID: Final = Uid("state")
JOB: Final = JobName("bench-restore")
GROUPS: Final = range(128)
VALUE_BYTES: Final = 1_000
BATCH: Final = 1_000
GOAL_S: Final = 0.2
WAVES: Final = 3


class Waves:
    """The attempts of one subtask with one state, in a folder."""

    def __init__(self, folder: Path) -> None:
        self._root = folder / "state"
        self._blobs = open_store(str(folder / "checkpoints"))
        self._attempt = 0

    def run(
        self,
        snapshots: Sequence[KeyedSnapshot],
        *,
        notes_count: bool,
        fill: Callable[[KeyValueStore], None] = lambda _: None,
    ) -> tuple[float, float, KeyedSnapshot]:
        """Restore, let `fill` write, and take a snapshot.

        Return the seconds of the restore, the seconds of the snapshot, and the snapshot.
        """
        self._attempt += 1
        local = LocalStateDir(self._root, self._attempt, f"0-{self._attempt}")
        local.make()
        began_s = time.monotonic()
        files = local.files_of_earlier_waves("0-*") if notes_count else local.previous_files()
        restored = self._restore(snapshots, files, local.path / UID)
        restored_s = time.monotonic()
        fill(restored.store)
        filled_s = time.monotonic()
        snapshot = self._uploader(restored, local.path / UID).upload(
            restored.store.checkpoint(), {}, {}
        )
        taken_s = time.monotonic() - filled_s
        restored.store.close()
        local.remove_earlier(keep=2)
        return restored_s - began_s, taken_s, snapshot

    def _restore(
        self, snapshots: Sequence[KeyedSnapshot], files: LocalStateFiles, directory: Path
    ) -> RestoredStore:
        return restore(
            snapshots,
            uid=UID,
            key_groups=GROUPS,
            backend="rocksdb",
            job=JOB,
            blobs=self._blobs,
            local=files,
            directory=directory,
            open_store=lambda _, folder: RocksDBStore(folder),
        )

    def _uploader(self, restored: RestoredStore, directory: Path) -> SnapshotUploader:
        return SnapshotUploader(
            blobs=self._blobs,
            job=JOB,
            attempt=Attempt(self._attempt),
            subtask=SubtaskId(VertexId("v"), SubtaskIndex(0)),
            uid=UID,
            backend="rocksdb",
            key_groups=GROUPS,
            shared=restored.shared,
            run=str(self._attempt),
            notes=directory,
        )


def measure_restore(folder: Path, size: int, tell: Callable[[str], None]) -> Table:
    """Measure restores of a state of `size` bytes. `folder` is deleted afterwards."""
    folder.mkdir()
    waves = Waves(folder)
    tell(f"Writing a state of {size / 2**30:.2f} GiB.")
    _, _, snapshot = waves.run((), notes_count=True, fill=lambda store: _fill(store, size))
    held = sum(file.size for file in snapshot.files)
    rows = []
    worst_s = 0.0
    for name, notes_count in (("a wave", True), ("reading every file", False)):
        for _ in range(WAVES):
            restore_s, snapshot_s, snapshot = waves.run([snapshot], notes_count=notes_count)
            worst_s = max(worst_s, restore_s) if notes_count else worst_s
            tell(f"restore, {name}: {restore_s:.3f} s")
            rows.append([name, f"{restore_s:.3f}", f"{snapshot_s:.3f}"])
    shutil.rmtree(folder)
    note = (
        f"The state has {held / 2**30:.2f} GiB in {len(snapshot.files)} files. "
        f"The slowest wave: {worst_s:.2f} s, {judged(worst_s < GOAL_S, 'below 0.2 s')}. Each row "
        "restores the state that the row above it left. The snapshot after it uploads only small "
        "files."
    )
    return Table("Waves: restore of unchanged state", ("", "restore s", "snapshot s"), rows, note)


def _fill(store: KeyValueStore, size: int) -> None:
    for first in range(0, size // VALUE_BYTES, BATCH):
        numbers = range(first, first + BATCH)
        store.write(
            [(number.to_bytes(8, "big"), os.urandom(VALUE_BYTES)) for number in numbers], ()
        )
