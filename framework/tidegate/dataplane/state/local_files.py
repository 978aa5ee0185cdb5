"""`LocalStateFiles`: what earlier attempts of a job left on this host, so that a restore need not
fetch it (the idea of FLIP-1, task-local recovery).

A slot that was killed, or whose attempt failed, leaves its folder. Its stores keep the files of
their newest checkpoint there. Tables are never changed in place, so a restore links them, whoever
may still use them. What a library might rewrite (rocksdict does that to its own settings) is small,
and small files are copied. Which file is which, its name, size and SHA-256 say; nothing else is
trusted, neither where a file lies nor who left it. A file that is gone, cannot be read, or lies on
another file system is fetched from the checkpoint storage as if there had been none.

To read 1 GB for its checksum takes seconds, and each wave of a backfill restores. So a wave leaves
a note beside its stores (`VerifiedNote`): which file had which checksum. The next wave does not
read a file again whose device, inode, size and time of the last change are those of the note. After
a start of the host no note counts, because a file may have lost what it held. After a wave that
failed none counts either, because a file that cannot be read any more may be why. What a disk
changes silently is left to the checksums that RocksDB has in its tables. Slots of a live job read
every file.

Not here: when the folders are removed (`local_state_dir.py`).
"""

from __future__ import annotations

import functools
import hashlib
import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from tidegate.errors import StorageError
from tidegate.private_files import copy_private, write_private
from tidegate.protocol.snapshots import StateFile

LINKED_BYTES_MIN: Final = 64 << 10
"""Smaller files are copied."""
NOTE: Final = "verified-files"
"""The name of a note; no store has a file of that name."""
BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")

_log = logging.getLogger(__name__)


class FileIdentity(NamedTuple):
    """Equal for hard links of one unchanged file, different for anything else."""

    device: int
    inode: int
    size: int
    modified_ns: int


class VerifiedNote(msgspec.Struct, frozen=True):
    """Files whose checksum a process of this host has computed, since the host was started."""

    boot: str
    files: list[tuple[FileIdentity, str]]


class LocalStateFiles:
    """Files by name; read only. The default is none."""

    def __init__(
        self,
        by_name: Mapping[str, Sequence[Path]] | None = None,
        verified: Mapping[FileIdentity, str] | None = None,
    ) -> None:
        """`verified` has the checksums that are known."""
        self._by_name = by_name or {}
        self._verified = verified or {}

    @classmethod
    def under(cls, folders: Sequence[Path], noted: Collection[Path] = ()) -> LocalStateFiles:
        """All files in and below `folders`, which may vanish meanwhile: then what was seen of
        them. Notes count in those of the folders that are `noted`.
        """
        by_name: dict[str, list[Path]] = defaultdict(list)
        verified: dict[FileIdentity, str] = {}
        for folder in folders:
            try:
                for path in folder.rglob("*"):
                    if path.name == NOTE:
                        verified |= _read_note(path) if folder in noted else {}
                    elif path.is_file():
                        by_name[path.name].append(path)
            except OSError:
                continue
        return cls(by_name, verified)

    def names(self) -> Iterable[str]:
        """The names of all files."""
        return self._by_name.keys()

    def link(self, file: StateFile, target: Path) -> FileIdentity | None:
        """Make `target` what `file` states; its identity. None where nothing here is that, and then
        there is no `target`.
        """
        for path in self._by_name.get(file.name, ()):
            try:
                if path.stat().st_size != file.size:
                    continue
                if file.size < LINKED_BYTES_MIN:
                    copy_private(path, target)
                else:
                    target.hardlink_to(path)
                identity = identity_of(target)
                if (self._verified.get(identity) or sha256_of(target)) == file.sha256:
                    return identity
            except (OSError, StorageError):
                pass  # gone meanwhile, or a bad sector: one more that is not what it should be
            target.unlink(missing_ok=True)
        return None


def note_verified(folder: Path, files: Iterable[tuple[FileIdentity, str]]) -> None:
    """Leave a note in `folder` of files and their checksums, in place of an earlier one. Where the
    host does not say when it was started, there is none, and files are read again. Small files are
    left out, because they are copied and soon read.

    An identity must have been taken before its file was read.
    """
    boot = _boot_id()
    if not boot:
        return
    large = [(identity, sum_) for identity, sum_ in files if identity.size >= LINKED_BYTES_MIN]
    aside = folder / f"{NOTE}.new"
    try:
        write_private(aside, msgspec.msgpack.encode(VerifiedNote(boot, large)))
        aside.replace(folder / NOTE)
    except OSError as error:
        _log.warning("files will be read again to verify them", extra={"error": str(error)})


def identity_of(path: Path) -> FileIdentity:
    """Of the file now; StorageError where it cannot be looked at."""
    try:
        found = path.stat()
    except OSError as error:
        raise StorageError(f"state file {path} cannot be read: {error}") from error
    return FileIdentity(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


def _read_note(path: Path) -> dict[FileIdentity, str]:
    """Nothing of a note that was written before the host was started, or by other code."""
    try:
        note = msgspec.msgpack.decode(path.read_bytes(), type=VerifiedNote)
    except (OSError, msgspec.DecodeError):
        return {}
    return dict(note.files) if note.boot == _boot_id() else {}


@functools.cache
def _boot_id() -> str:
    """Differs from start to start of this host; empty where the system does not say."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""


def sha256_of(path: Path) -> str:
    """In hexadecimal; StorageError where it cannot be read."""
    try:
        with path.open("rb") as source:
            return hashlib.file_digest(source, "sha256").hexdigest()
    except OSError as error:
        raise StorageError(f"state file {path} cannot be read: {error}") from error
