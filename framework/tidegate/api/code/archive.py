"""The files of a pipeline as one archive. A submit stores the archive, and every attempt runs it.

`pack` reads the files of the pipeline's package, or of the folder of a single-module pipeline, into
a zip archive. The archive is named by its SHA-256. `install` fetches an archive from the checkpoint
storage, verifies it, and writes its files into a local folder, from which a process imports the
pipeline. So a file that is edited after the submit changes no attempt of that submission.

`pipeline_files.py` selects the files and says what is left out. Files of every kind belong to a
pipeline, so that code may open data by a path relative to `__file__`. Installed packages outside
of the working folder are not packed.

The same files give the same archive: names are sorted, and times and modes are fixed. This module
does not depend on jobs, storages or processes, except on `ports.blobs`. So other runtimes can use
it too.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import shutil
import stat
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from tidegate.api.code.pipeline_files import (
    LeftOut,
    find_files,
    limit_file_count,
    limit_size,
    refuse_linked_modules,
)
from tidegate.api.pipeline import Pipeline
from tidegate.errors import CorruptCheckpointError, StorageError
from tidegate.ports.blobs import BlobStore
from tidegate.private_files import make_private_folder

INSTALLED_KEPT: Final = 3
"""Number of archives of a job that stay unpacked on a host. The newest ones are kept."""

_FIXED_TIME: Final = (1980, 1, 1, 0, 0, 0)
"""The first time that a zip archive can hold."""
_FIXED_MODE: Final = (stat.S_IFREG | 0o600) << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeArchive:
    """The packed files of a pipeline."""

    data: bytes
    digest: str
    """SHA-256 of `data`, in hex."""
    size: int
    """Size of all unpacked files together, in bytes."""
    files: tuple[str, ...]
    left_out: tuple[LeftOut, ...]


# --- packing ------------------------------------------------------------------------------------


def pack(
    pipeline: type[Pipeline],
    folder: Path,
    *,
    size_max: int,
    root: Path | None = None,
    data_files: Iterable[str] = (),
    ours: Iterable[Path] = (),
) -> CodeArchive:
    """Pack the files of the pipeline; `folder` is the working folder.

    `root` is the folder from which the pipeline is imported, if it is not the working folder.
    `data_files` are paths below the working folder. These files belong to the pipeline wherever
    they are. `ours` are files and folders that tidegate writes itself; they are left out.
    `size_max` is in bytes. PipelineError if the modules are larger than `size_max`, if there are
    too many files, or if a module was imported through a link out of its folder.
    """
    found = find_files(pipeline, folder, root=root, data_files=data_files, ours=ours)
    refuse_linked_modules(found)
    limit_file_count(found)
    limit_size(found, size_max)
    data = io.BytesIO()
    packed, size = [], 0
    with zipfile.ZipFile(data, "w") as archive:
        for name, path in sorted(found.files.items()):
            try:
                content = path.read_bytes()
            except FileNotFoundError:
                continue  # it was deleted meanwhile
            except OSError as error:
                found.left_out.append(LeftOut(name, f"cannot be read: {error.strerror}"))
                continue
            info = zipfile.ZipInfo(name, _FIXED_TIME)
            info.external_attr, info.create_system = _FIXED_MODE, 3
            archive.writestr(info, content, zipfile.ZIP_DEFLATED, 6)
            packed.append(name)
            size += len(content)
    return CodeArchive(
        data=data.getvalue(),
        digest=digest_of(data.getvalue()),
        size=size,
        files=tuple(packed),
        left_out=tuple(sorted(found.left_out, key=lambda each: each.path)),
    )


def digest_of(data: bytes) -> str:
    """Return the name of an archive: the SHA-256 of its bytes, in hex."""
    return hashlib.sha256(data).hexdigest()


# --- unpacking ----------------------------------------------------------------------------------


def code_cache_folder(working_folder: str, state_directory: str, job: str) -> Path:
    """Return the folder for a job's unpacked archives on a host, next to its local state."""
    return Path(working_folder, state_directory, job, "code")


def install(blobs: BlobStore, path: str, digest: str, size: int, root: Path) -> Path:
    """Unpack the archive at `path` in the checkpoint storage and return the folder of its files.

    The folder is `root/digest`, which only this user can read. Several processes may install at
    once: each replaces a file atomically, and all write the same content. An existing file is
    compared with the archive, and written again if it differs. The unpacked files together may
    have at most `size` bytes.

    CorruptCheckpointError if the archive is missing or is not the one that was stored, StorageError
    if the storage does not answer or the folder cannot be written.
    """
    data = blobs.get(path)
    if data is None or digest_of(data) != digest:
        problem = "is missing" if data is None else "is damaged: its SHA-256 differs"
        raise CorruptCheckpointError(
            f"The code of the job, {path} in the checkpoint storage, {problem}. Submit the job "
            "again: it continues from its last checkpoint."
        )
    folder = root / digest
    try:
        make_private_folder(folder)
        for name, content in contents(data, path, size):
            _write(folder / name, content)
        os.utime(folder)
        _remove_old(root)
    except OSError as error:
        raise StorageError(
            f"The code of the job cannot be written to {error.filename or folder}: "
            f"{error.strerror}. Make room there, or set state.local_dir to another folder."
        ) from error
    return folder


def contents(data: bytes, path: str, size_max: int) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the content of each file of an archive.

    All names are checked before the first file is yielded, so that no file is written outside of
    the folder. CorruptCheckpointError names `path`.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            infos = archive.infolist()
            _check(infos, path, size_max)
            for info in infos:
                yield info.filename, archive.read(info)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        raise CorruptCheckpointError(f"The archive {path} cannot be read: {error}.") from error


def _check(infos: Sequence[zipfile.ZipInfo], path: str, size_max: int) -> None:
    names = set()
    for info in infos:
        name = info.filename
        parts = PurePosixPath(name).parts
        kind = stat.S_IFMT(info.external_attr >> 16)
        plain = "/".join(parts) == name and parts and not {".", ".."}.intersection(parts)
        if not plain or name.startswith("/") or "\\" in name or "\0" in info.orig_filename:
            raise CorruptCheckpointError(f"The archive {path} has a file with the name {name!r}.")
        if kind not in {0, stat.S_IFREG} or name in names:
            raise CorruptCheckpointError(
                f"The archive {path} has {name!r} twice, or not as a regular file."
            )
        names.add(name)
    if sum(info.file_size for info in infos) > size_max:
        raise CorruptCheckpointError(
            f"The files of the archive {path} have more than {size_max} bytes together, which is "
            "what was submitted."
        )


def _write(file: Path, content: bytes) -> None:
    try:
        if not file.is_symlink() and file.read_bytes() == content:
            return
    except FileNotFoundError:
        make_private_folder(file.parent)
    descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=".")  # 0600
    try:
        with os.fdopen(descriptor, "wb") as written:
            written.write(content)
        Path(name).replace(file)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise


def _remove_old(root: Path) -> None:
    """Remove the unpacked archives of older submissions, which no process runs any longer.

    Other processes of the host may remove the same folders at the same time.
    """
    found: list[tuple[float, Path]] = []
    for folder in root.iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append((folder.stat().st_mtime, folder))
    for _, folder in sorted(found, reverse=True)[INSTALLED_KEPT:]:
        shutil.rmtree(folder, ignore_errors=True)
