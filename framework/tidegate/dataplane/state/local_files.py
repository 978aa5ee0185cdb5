"""`LocalStateFiles`: the files that earlier attempts of a job left on this host.

A restore need not download these files (the idea of FLIP-1, task-local recovery).

A slot that was killed, or whose attempt failed, leaves its folder. The stores in it keep the files
of their newest checkpoint. Tables are never changed in place, so a restore links them, even if
another process still uses them. Files that a library might rewrite are small (rocksdict rewrites
its own settings), and small files are copied. Name, size and SHA-256 identify a file. Nothing else
is trusted, neither the path of a file nor the process that left it. A file may be gone, unreadable
or on another file system. The restore then downloads it from the checkpoint storage.

Reading 1 GB for its checksum takes seconds, and each wave of a backfill restores. A wave therefore
leaves a note next to its stores (`VerifiedNote`), with the checksum of each file. The next wave
does not read a file again if its device, inode, size and time of the last change equal those in the
note. After a start of the host, no note is used, because a file may have lost its content. After a
failed wave, no note of an older wave is used either, because an unreadable file may be the cause.
Silent changes on a disk are left to the checksums in RocksDB's tables. Slots of a live job read
every file.

This module does not decide when the folders are removed (`local_state_dir.py`).
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
from tidegate.protocol.subtask_snapshot import StateFile

LINKED_BYTES_MIN: Final = 64 << 10
"""Minimum size in bytes of a file that is linked. Smaller files are copied."""
NOTE: Final = "verified-files"
"""Name of a note. No store has a file of that name."""
BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")

_log = logging.getLogger(__name__)


class FileIdentity(NamedTuple):
    """The identity of a file: equal for hard links of one unchanged file, different for other
    files.
    """

    device: int
    inode: int
    size: int
    modified_ns: int


class VerifiedNote(msgspec.Struct, frozen=True):
    """Files whose checksum a process of this host has computed since the host was started."""

    boot: str
    files: list[tuple[FileIdentity, str]]


class LocalStateFiles:
    """Files by name, read only. By default there are no files."""

    def __init__(
        self,
        by_name: Mapping[str, Sequence[Path]] | None = None,
        verified: Mapping[FileIdentity, str] | None = None,
    ) -> None:
        """Create the collection. `verified` has the checksums that are known."""
        self._by_name = by_name or {}
        self._verified = verified or {}

    @classmethod
    def find_in(cls, folders: Sequence[Path], noted: Collection[Path] = ()) -> LocalStateFiles:
        """Return all files in and below `folders`.

        A folder may vanish meanwhile; the files seen before then are returned. Only notes in the
        folders of `noted` are used.
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
        """Return the names of all files."""
        return self._by_name.keys()

    def link(self, file: StateFile, target: Path) -> FileIdentity | None:
        """Make `target` a link or copy of the local file that equals `file`, and return its
        identity.

        Return None if no local file equals `file`. There is no `target` then.
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
                pass  # it vanished, or has a bad sector: like a file with other content
            target.unlink(missing_ok=True)
        return None


def note_verified(folder: Path, files: Iterable[tuple[FileIdentity, str]]) -> None:
    """Write a note of files and their checksums into `folder`, in place of an earlier note.

    If the host does not report when it was started, there is no note, and files are read again.
    Small files are left out, because they are copied and quickly read.

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
    """Return the present identity of a file. Raise StorageError if the file cannot be read."""
    try:
        found = path.stat()
    except OSError as error:
        raise StorageError(f"State file {path} cannot be read: {error}") from error
    return FileIdentity(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


def _read_note(path: Path) -> dict[FileIdentity, str]:
    """Return the files of a note; empty if other code wrote it, or if it is older than the boot."""
    try:
        note = msgspec.msgpack.decode(path.read_bytes(), type=VerifiedNote)
    except (OSError, msgspec.DecodeError):
        return {}
    return dict(note.files) if note.boot == _boot_id() else {}


@functools.cache
def _boot_id() -> str:
    """Return an id that differs between starts of this host; empty if the system does not report
    it.
    """
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""


def sha256_of(path: Path) -> str:
    """Return the checksum of a file in hexadecimal. Raise StorageError if it cannot be read."""
    try:
        with path.open("rb") as source:
            return hashlib.file_digest(source, "sha256").hexdigest()
    except OSError as error:
        raise StorageError(f"State file {path} cannot be read: {error}") from error
