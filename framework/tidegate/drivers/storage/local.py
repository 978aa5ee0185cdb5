"""Checkpoint storage in a folder of a file system, which survives kill -9 and loss of power.

Every object is written to a temporary file and synced. Only then does it get its name: by `link`,
which fails if the name exists, or by `replace`. Then the folder is synced, because a name that is
not on disk is lost in a crash. A new folder is synced into its parent. So a reader sees a complete
object or no object, at whatever point a process is killed. Several threads and several processes
may use the storage.

The storage needs a file system with hard links and an atomic `link`. All local file systems of
Linux and macOS have them. The probe refuses others, and NFS, SMB and FUSE (`file_systems.py`).
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from tidegate.drivers.process.user_forks import end_if_forked
from tidegate.drivers.storage.file_systems import refuse_unsafe
from tidegate.drivers.storage.identity import IDENTITY, compare, read_or_create, storage_gone_error
from tidegate.drivers.storage.probe import check_create_if_absent
from tidegate.errors import StorageError, check
from tidegate.ports.blobs import CreateResult
from tidegate.private_files import FOLDER_MODE, close_to_others, private_opener

_TEMPORARY: Final = ".temporary"
"""The folder of the temporary files, next to the objects. `list` omits it."""

_ABANDONED_AFTER_S: Final = 86_400
"""The age in seconds from which a temporary file is deleted. No upload takes a day, so the process
that wrote the file was killed.
"""

_FOLDER_TRIES: Final = 10
"""The number of times that a missing folder is made again. A `delete` that empties a new folder may
remove it, but not ten times in a row. After ten tries, the missing thing is not the folder.
"""

_CERTAIN: Final = frozenset(
    {
        errno.EACCES,
        errno.EPERM,
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EROFS,
        errno.EMLINK,
        errno.ENOTSUP,
        errno.ENAMETOOLONG,
        errno.ENOTDIR,
        errno.ENOENT,
    }
)
"""The errors of `link` after which the name certainly does not exist. After other errors it may
exist.
"""

_LOST: Final = frozenset({errno.ESTALE, errno.ENODEV, errno.ENXIO, errno.ENOTCONN, errno.EIO})
"""The errors of reading the identity if a file system is still mounted, but its source is gone: the
export of a server, a device, or the program of a FUSE file system.
"""

_PART = re.compile(r"[A-Za-z0-9._-]+")


class LocalStore:
    """A BlobStore in the folder `root`, which is made when the first object is written.

    After the store is bound to an identity, it never makes `root` again. A folder that has vanished
    was unmounted or removed, and objects that are written to a new folder would not be found later.
    Each call checks the identity file: before it changes anything, and after it has read or
    written, because a storage can vanish in between. A `delete` checks it only before.
    """

    def __init__(self, root: Path) -> None:
        self._root = root.expanduser().absolute()
        self._identity = ""

    def create(self, path: str, data: bytes) -> CreateResult:
        """See BlobStore. StorageError if it is certain that nothing was written."""
        end_if_forked()
        target = self._target(path)
        self.confirm()
        with self._temporary(path, lambda file: _write(file, data)) as temporary:
            try:
                self._into_folder(target, lambda: os.link(temporary, target))
            except FileExistsError:
                outcome = CreateResult.EXISTS
            except OSError as error:
                if error.errno in _CERTAIN:
                    raise _translated(error, "create", target) from error
                return CreateResult.UNKNOWN
            else:
                outcome = CreateResult.CREATED
            try:
                # An existing name must also be on disk before a process relies on it: its writer
                # may have been killed between the two steps.
                _sync_folder(target.parent)
            except OSError:
                return CreateResult.UNKNOWN
            try:
                self.confirm()
            except StorageError:
                return (
                    CreateResult.UNKNOWN
                )  # the object may have been written below the mount point
            return outcome

    def put(self, path: str, data: bytes) -> None:
        """See BlobStore."""
        self._put(path, lambda file: _write(file, data))

    def put_file(self, path: str, source: Path) -> None:
        """See BlobStore."""
        self._put(path, lambda file: _copy(source, file))

    def get(self, path: str) -> bytes | None:
        """See BlobStore."""
        target = self._target(path)
        try:
            found = target.read_bytes()
        except FileNotFoundError:
            found = None
        except OSError as error:
            self.confirm()
            raise _translated(error, "read", target) from error
        self.confirm()
        return found

    def get_file(self, path: str, target: Path) -> bool:
        """See BlobStore."""
        source = self._target(path)
        try:
            with source.open("rb") as file:
                _copy_open(file.fileno(), target)
        except FileNotFoundError as error:
            if error.filename == str(source):
                self.confirm()
                return False
            raise _translated(error, "write", target) from error
        except OSError as error:
            if error.errno in {errno.ENOSPC, errno.EDQUOT}:  # the disk of the copy, not the storage
                message = (
                    f"{source} cannot be copied to {target}: the disk is full: make room there, "
                    "or set state.local_dir to a larger disk."
                )
                raise StorageError(message) from error
            self.confirm()
            raise _translated(error, f"copy to {target} from", source) from error
        self.confirm()
        return True

    def list(self, prefix: str) -> list[str]:
        """See BlobStore."""
        folder = self._target(prefix) if prefix else self._root
        found: list[str] = []
        for parent, folders, files in os.walk(folder, onerror=self._walk_failed):
            within = Path(parent).relative_to(self._root)
            at_root = within == Path()
            if at_root and _TEMPORARY in folders:
                folders.remove(_TEMPORARY)
            # One Path per folder and not per file: a journal is listed twice per checkpoint.
            head = "" if at_root else f"{within.as_posix()}/"
            found += [head + file for file in files]
        self.confirm()
        return sorted(found)

    def delete(self, path: str) -> None:
        """See BlobStore. Folders that become empty are removed too."""
        target = self._target(path)
        self.confirm()
        try:
            target.unlink(missing_ok=True)
        except NotADirectoryError:
            return
        except OSError as error:
            raise _translated(error, "delete", target) from error
        for folder in target.parents:
            if folder == self._root or not _removed_if_empty(folder):
                return

    def probe(self, *, allow_network_filesystem: bool = False) -> None:
        """See BlobStore."""
        if not allow_network_filesystem:
            refuse_unsafe(self._root)
        try:
            close_older_folders(self._root)
        except OSError as error:
            raise _translated(error, "close folders to others in", self._root) from error
        check_create_if_absent(self, str(self._root), secrets.token_hex(8))
        self._remove_abandoned()

    def identify(self) -> str:
        """See BlobStore."""
        if not self._identity:
            self._identity = read_or_create(self, str(self._root))
        return self._identity

    def bind(self, identity: str) -> None:
        """See BlobStore."""
        self._identity = identity

    def confirm(self) -> None:
        """See BlobStore."""
        if not self._identity:
            return
        file = self._root / IDENTITY
        try:
            found = file.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            raise storage_gone_error(str(self._root)) from None
        except OSError as error:
            if error.errno in _LOST:
                why = f"{IDENTITY} in it cannot be read ({error.strerror})"
                raise storage_gone_error(str(self._root), why) from error
            raise _translated(error, "read", file) from error
        compare(found, self._identity, str(self._root))

    def __repr__(self) -> str:
        return f"<LocalStore {self._root}>"

    def _target(self, path: str) -> Path:
        parts = path.split("/")
        legal = all(_PART.fullmatch(part) and part.strip(".") for part in parts)
        check(legal and parts[0] != _TEMPORARY, f"{path!r} is no path of a checkpoint storage")
        return self._root.joinpath(*parts)

    def _put(self, path: str, fill: Callable[[Path], None]) -> None:
        end_if_forked()
        target = self._target(path)
        self.confirm()
        with self._temporary(path, fill) as temporary:
            try:
                self._into_folder(target, lambda: temporary.replace(target))
                _sync_folder(target.parent)
            except OSError as error:
                raise _translated(error, "write", target) from error
        self.confirm()

    @contextlib.contextmanager
    def _temporary(self, path: str, fill: Callable[[Path], None]) -> Iterator[Path]:
        """Yield a temporary file that `fill` has written and synced. At the end of the block the
        temporary name is removed.
        """
        folder = self._root / _TEMPORARY
        temporary = folder / f"{os.getpid()}-{secrets.token_hex(8)}"
        try:
            try:
                self._into_folder(temporary, lambda: fill(temporary))
            except OSError as error:
                raise _translated(error, "write", self._root / path) from error
            yield temporary
        finally:
            with contextlib.suppress(OSError):  # a later probe removes a file that stays here
                temporary.unlink()

    def _into_folder(self, target: Path, action: Callable[[], object]) -> None:
        """Run an action that puts a file into a folder. Make the folder if it is missing."""
        for _ in range(_FOLDER_TRIES):
            try:
                action()
            except FileNotFoundError:
                self.confirm()
                self._make_folder(target.parent)
            else:
                return
        action()

    def _make_folder(self, folder: Path) -> None:
        """Make a folder and its missing parents, and sync each into its parent."""
        if folder.is_dir():
            return
        if folder == self._root and self._identity:
            raise storage_gone_error(str(self._root))
        self._make_folder(folder.parent)
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=FOLDER_MODE)
        _sync_folder(folder.parent)

    def _walk_failed(self, error: OSError) -> None:
        if not isinstance(error, FileNotFoundError | NotADirectoryError):
            self.confirm()
            raise _translated(error, "list", Path(error.filename)) from error

    def _remove_abandoned(self) -> None:
        before = time.time() - _ABANDONED_AFTER_S
        for file in (self._root / _TEMPORARY).glob("*"):
            with contextlib.suppress(FileNotFoundError):
                if file.stat().st_mtime < before:
                    file.unlink()


def _write(file: Path, data: bytes) -> None:
    with open(file, "xb", opener=private_opener) as out:
        out.write(data)
        out.flush()
        _sync(out.fileno())


def _copy(source: Path, file: Path) -> None:
    with source.open("rb") as data, open(file, "xb", opener=private_opener) as out:
        shutil.copyfileobj(data, out, length=1 << 20)
        out.flush()
        _sync(out.fileno())


def _copy_open(source: int, target: Path) -> None:
    with (
        os.fdopen(os.dup(source), "rb") as data,
        open(target, "xb", opener=private_opener) as out,
    ):
        shutil.copyfileobj(data, out, length=1 << 20)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _sync(descriptor)
    finally:
        os.close(descriptor)


def _sync(descriptor: int) -> None:
    if sys.platform == "darwin":  # pragma: no cover - fsync of macOS stops at the disk's cache
        import fcntl

        with contextlib.suppress(OSError):  # not every file system supports it: then use fsync
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
            return
    os.fsync(descriptor)


def _removed_if_empty(folder: Path) -> bool:
    try:
        folder.rmdir()
    except OSError:  # not empty, or already removed: both are expected
        return False
    return True


_REMEDIES: Final = {
    errno.ENOSPC: "the disk is full: make room, or set checkpoint.dir to another disk",
    errno.EDQUOT: "the disk quota is used up: make room, or set checkpoint.dir to another disk",
    errno.EACCES: "permission denied: let the user of this process read and write there",
    errno.EPERM: (
        "operation not permitted: the checkpoint storage must be on a file system with hard links, "
        "and this process allowed to make them"
    ),
    errno.EROFS: "the file system is read-only",
}


def _translated(error: OSError, what: str, path: Path) -> StorageError:
    why = _REMEDIES.get(error.errno or 0, error.strerror or str(error))
    return StorageError(f"Checkpoint storage: cannot {what} {path}: {why}")


_RESERVED: Final = frozenset({"_cluster", "_storage", ".temporary"})
"""The names of tidegate's folders that are not jobs. No job can have such a name."""

_OF_A_JOB: Final = {
    "journal": re.compile(r"\d{20}\.(json|hint)"),
    "manifests": re.compile(r"\d+-\d+\.json"),
    "submissions": re.compile(r"\d{20}"),
}
"""The folders of a job, and patterns of their file names that other software hardly ever uses."""


def close_older_folders(root: Path) -> None:
    """Close the folders of tidegate directly below `root` to other users. OSError if that fails.

    This version makes every folder with mode 0700. When a job is submitted, this closes the
    folders that an older version made. The root of a storage may be a home folder or a folder of
    data, so other folders next to the jobs do not belong to tidegate. A folder is closed only if
    its name is reserved for tidegate, or if it has a file that only a job of tidegate has. The root
    itself and the targets of symbolic links keep their modes.
    """
    for folder in _folders(root):
        if folder.name in _RESERVED or _is_of_a_job(folder):
            close_to_others(Path(folder.path))


def _folders(root: Path) -> Iterator[os.DirEntry[str]]:
    """Yield the folders in `root`, without symbolic links. Yield nothing if `root` is not a folder
    yet.
    """
    try:
        with os.scandir(root) as entries:
            yield from (each for each in entries if each.is_dir(follow_symlinks=False))
    except (FileNotFoundError, NotADirectoryError):
        return


def _is_of_a_job(folder: os.DirEntry[str]) -> bool:
    for name, known in _OF_A_JOB.items():
        try:
            with os.scandir(Path(folder.path, name)) as entries:
                if any(known.fullmatch(each.name) for each in entries):
                    return True
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError:  # a folder of another user, whose mode this process cannot change
            return False
    return False
