"""Keyed state on its way to the checkpoint storage and back: upload of new files, and restore.

An upload takes the files of a store's checkpoint, in an I/O thread. A file that an earlier
checkpoint of this attempt uploaded, or that came with the restored checkpoint, is referenced and
not sent again. This does not depend on the outcome of the earlier checkpoint. Every other file gets
a path that was never used before: `files/<attempt>/<vertex>/<subtask>/<uid>/<name>`. A store never
gives one name to two contents. If an attempt may run a subtask several times, `<run>/` stands
before the name. Nothing in the storage is ever overwritten. A later checkpoint may therefore
reference files of an aborted one. `commit/retention.py` relies on one rule. Once a checkpoint is
acknowledged, later ones reference only its files and files that were uploaded since.

A restore takes a file from an earlier attempt on this host (`local_files.py`), else from the
storage. It checks every file against the size and the SHA-256 in the manifest before anything opens
the file. It also checks that each key group has exactly one owner. With the same range of key
groups and the same kind of store, the files are placed in a folder and opened. Otherwise the pairs
in range are copied.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final

from tidegate.dataplane.counters import Counters
from tidegate.dataplane.state.layout import groups_span
from tidegate.dataplane.state.local_files import (
    FileIdentity,
    LocalStateFiles,
    identity_of,
    note_verified,
    sha256_of,
)
from tidegate.errors import CorruptCheckpointError, StorageError, check
from tidegate.ids import Attempt, JobName, SubtaskId, Uid
from tidegate.ports.blobs import BlobStore
from tidegate.ports.kv import KeyValueStore, StoreCheckpoint
from tidegate.private_files import make_private_folder
from tidegate.protocol.subtask_snapshot import KeyedSnapshot, StateFile

OpenStore = Callable[[str, Path], KeyValueStore]
"""Function that opens the store of a kind (`rocksdb`, `memory`) in a folder: `Drivers.kv_store`."""

Schemas = Mapping[str, Sequence[str]]

COPY_PAIRS: Final = 10_000
"""Number of pairs that a restore at another parallelism holds at a time: a few MB at 100 to 500
bytes each.
"""


@dataclass(frozen=True, slots=True)
class SharedFile:
    """A file that is in the checkpoint storage already, and the local file of the same content."""

    file: StateFile
    source: Path
    identity: FileIdentity


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredStore:
    """A store with a subtask's state in it. `shared` has its files that are in the storage, by
    name.
    """

    store: KeyValueStore
    schemas: Schemas = field(default_factory=dict)
    stored_names: Mapping[str, str] = field(default_factory=dict)
    shared: Mapping[str, SharedFile] = field(default_factory=dict)


class SnapshotUploader:
    """The uploader of the checkpoints of one step in one subtask. It uploads them in order."""

    def __init__(
        self,
        *,
        blobs: BlobStore,
        job: JobName,
        attempt: Attempt,
        subtask: SubtaskId,
        uid: Uid,
        backend: str,
        key_groups: range,
        shared: Mapping[str, SharedFile],
        run: str = "",
        counters: Counters | None = None,
        notes: Path | None = None,
    ) -> None:
        """Create the uploader.

        `run` is the same as in `SubtaskContext`. `counters` counts the files that are stored.
        `notes` is the folder for a note of the verified files. If it is None, no note is written.
        """
        self._counters = counters or Counters()
        self._blobs, self._job = blobs, job
        folder = f"files/{attempt}/{subtask.vertex}/{subtask.index}/{uid}"
        self._folder = f"{folder}/{run}" if run else folder
        self._uid, self._backend, self._key_groups = uid, backend, key_groups
        self._shared = dict(shared)
        self._notes = notes

    def upload(
        self, frozen: StoreCheckpoint, schemas: Schemas, stored_names: Mapping[str, str]
    ) -> KeyedSnapshot:
        """Store the files of a frozen store.

        Raise StorageError if a file cannot be read or stored. Files that were uploaded before the
        error need not be uploaded again.
        """
        stored = tuple(map(self._store, frozen.files()))
        # A store never uses a dropped table again, so other files need not be remembered.
        names = {file.name for file in stored}
        self._shared = {name: known for name, known in self._shared.items() if name in names}
        if self._notes is not None:
            verified = [(known.identity, known.file.sha256) for known in self._shared.values()]
            note_verified(self._notes, verified)
        return KeyedSnapshot(
            uid=self._uid,
            backend=self._backend,
            first_key_group=self._key_groups[0],
            last_key_group=self._key_groups[-1],
            files=stored,
            schemas={name: list(versions) for name, versions in schemas.items()},
            stored_names=dict(stored_names),
        )

    def _store(self, source: Path) -> StateFile:
        known = self._shared.get(source.name)
        if known is not None and known.source == source:
            return known.file  # the usual case, without access to the file
        identity = identity_of(source)
        if known is None:
            file = self._put(source, identity.size)
        else:
            # A link to the uploaded file, or a copy: a store may copy if it cannot link.
            same = known.identity == identity or (
                known.file.size == identity.size and known.file.sha256 == sha256_of(source)
            )
            check(same, f"state store of {self._uid!r} used the name {source.name} again")
            file = known.file
        self._shared[source.name] = SharedFile(file, source, identity)
        return file

    def _put(self, source: Path, size: int) -> StateFile:
        sha256 = sha256_of(source)
        path = f"{self._folder}/{source.name}"
        self._blobs.put_file(f"{self._job}/{path}", source)
        self._counters.files_stored += 1
        return StateFile(name=source.name, path=path, size=size, sha256=sha256)


def restore(
    snapshots: Sequence[KeyedSnapshot],
    *,
    uid: Uid,
    key_groups: range,
    backend: str,
    job: JobName,
    blobs: BlobStore,
    local: LocalStateFiles,
    directory: Path,
    open_store: OpenStore,
    counters: Counters | None = None,
) -> RestoredStore:
    """Open a store in `directory` that holds exactly the state of `key_groups`. The store is empty
    if there are no snapshots.

    `snapshots` are the snapshots of one step, from any subtasks. Raise CorruptCheckpointError for a
    file that is missing or altered, and for key groups without an owner or with two owners.
    """
    if not snapshots:
        return RestoredStore(store=open_store(backend, directory / "store"))
    mine = [one for one in snapshots if len(_shared_groups(one, key_groups)) > 0]
    _check_owners(uid, mine, key_groups)
    schemas, names = mine[0].schemas, mine[0].stored_names
    if any(one.schemas != schemas or one.stored_names != names for one in mine):
        raise CorruptCheckpointError(
            f"The subtasks of {uid!r} state different schemas in one checkpoint; restore an "
            "earlier one."
        )
    download = _Download(job=job, blobs=blobs, local=local, counters=counters or Counters())
    if len(mine) == 1 and _groups(mine[0]) == key_groups and mine[0].backend == backend:
        laid_out = download.place_files(mine[0], directory / "store")
        store = open_store(backend, directory / "store")
        return RestoredStore(store=store, schemas=schemas, stored_names=names, shared=laid_out)
    store = open_store(backend, directory / "store")
    for number, one in enumerate(mine):
        scratch = directory / f"restore-{number}"
        download.place_files(one, scratch)
        old = open_store(one.backend, scratch)
        _copy(old, store, _shared_groups(one, key_groups))
        old.close()
        shutil.rmtree(scratch, ignore_errors=True)
    return RestoredStore(store=store, schemas=schemas, stored_names=names)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Download:
    """The download of a job's files, from an earlier attempt on this host or from the checkpoint
    storage.
    """

    job: JobName
    blobs: BlobStore
    local: LocalStateFiles
    counters: Counters
    """Counters that show the present storage call, so that a call that hangs is found."""

    def place_files(self, snapshot: KeyedSnapshot, target: Path) -> dict[str, SharedFile]:
        """Place a snapshot's files in the new folder `target`, each as the manifest states it."""
        try:
            make_private_folder(target, exist_ok=False)
        except OSError as error:
            raise StorageError(f"Cannot restore state into {target}: {error}") from error
        return {
            file.name: self._fetch(snapshot, file, target / file.name) for file in snapshot.files
        }

    def _fetch(self, snapshot: KeyedSnapshot, file: StateFile, target: Path) -> SharedFile:
        path = f"{self.job}/{file.path}"
        check("/" not in file.name, f"state file name {file.name!r} leaves its folder")
        taken = self.local.link(file, target)
        if taken is not None:
            return SharedFile(file, target, taken)
        what = f"State of {snapshot.uid!r}: {path} in the checkpoint storage"
        remedy = (
            "Bring it back from a backup, or restore an older checkpoint by hand (`--restore ID`; "
            "`tidegate checkpoints JOB` lists them): the records after it are then written again."
        )
        if not self._get(path, target):
            raise CorruptCheckpointError(f"{what} is missing. {remedy}")
        identity = identity_of(target)
        if identity.size != file.size:
            sizes = f"{identity.size} bytes instead of {file.size}"
            raise CorruptCheckpointError(f"{what} has {sizes}. {remedy}")
        if sha256_of(target) != file.sha256:
            raise CorruptCheckpointError(f"{what} fails its checksum. {remedy}")
        return SharedFile(file, target, identity)

    def _get(self, path: str, target: Path) -> bool:
        counters = self.counters
        counters.restoring, counters.restoring_to = path, target
        try:
            found = self.blobs.get_file(path, target)
        finally:
            done = counters.restored()
            counters.restoring_to, counters.restoring = None, ""
        counters.restored_bytes = done
        return found


def _check_owners(uid: Uid, snapshots: Sequence[KeyedSnapshot], key_groups: range) -> None:
    """Check that each key group is in one snapshot. Without one, state is lost; two would double
    it.
    """
    owners = [group for one in snapshots for group in _shared_groups(one, key_groups)]
    if sorted(owners) != list(key_groups):
        wrong = sorted({group for group in key_groups if owners.count(group) != 1})
        raise CorruptCheckpointError(
            f"The checkpoint does not hold the state of {uid!r} exactly once for each key group: "
            f"groups {wrong} have none or several; restore another checkpoint."
        )


def _copy(old: KeyValueStore, new: KeyValueStore, key_groups: range) -> None:
    """Copy the pairs of a range of key groups."""
    pairs = old.scan(*groups_span(key_groups))
    while batch := list(islice(pairs, COPY_PAIRS)):
        new.write(batch, ())


def _groups(snapshot: KeyedSnapshot) -> range:
    return range(snapshot.first_key_group, snapshot.last_key_group + 1)


def _shared_groups(snapshot: KeyedSnapshot, key_groups: range) -> range:
    theirs = _groups(snapshot)
    return range(max(theirs.start, key_groups.start), min(theirs.stop, key_groups.stop))
