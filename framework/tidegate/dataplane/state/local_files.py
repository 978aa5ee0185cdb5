"""`LocalFiles`: what earlier attempts of a job left on this host, so that a restore need not fetch
it (the idea of FLIP-1, task-local recovery).

A slot that was killed, or whose attempt failed, leaves its folder. Its stores keep the files of
their newest checkpoint there. Tables are never changed in place, so a restore links them, whoever
may still use them. What a library might rewrite (rocksdict does that to its own settings) is small,
and small files are copied. Which file is which, its name, size and SHA-256 say; nothing else is
trusted, neither where a file lies nor who left it. A file that is gone, cannot be read, or lies on
another file system is fetched from the checkpoint storage as if there had been none.

Not here: when the folders are removed (`local_folder.py`).
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from tidegate.errors import StorageError
from tidegate.private_files import copy_private
from tidegate.protocol.snapshots import StateFile

LINKED_BYTES_MIN: Final = 64 << 10
"""Smaller files are copied."""


class LocalFiles:
    """Files by name; read only. The default is none."""

    def __init__(self, by_name: Mapping[str, Sequence[Path]] | None = None) -> None:
        self._by_name = by_name or {}

    @classmethod
    def under(cls, folders: Sequence[Path]) -> LocalFiles:
        """All files in and below `folders`, which may vanish meanwhile: then what was seen of
        them.
        """
        by_name: dict[str, list[Path]] = defaultdict(list)
        for folder in folders:
            try:
                for path in folder.rglob("*"):
                    if path.is_file():
                        by_name[path.name].append(path)
            except OSError:
                continue
        return cls(by_name)

    def names(self) -> Iterable[str]:
        """The names of all files."""
        return self._by_name.keys()

    def take(self, file: StateFile, target: Path) -> bool:
        """Make `target` what `file` states; False where nothing here is that, and then there is no
        `target`.
        """
        for path in self._by_name.get(file.name, ()):
            try:
                if path.stat().st_size != file.size:
                    continue
                if file.size < LINKED_BYTES_MIN:
                    copy_private(path, target)
                else:
                    target.hardlink_to(path)
                if sha256_of(target) == file.sha256:
                    return True
            except (OSError, StorageError):
                pass  # gone meanwhile, or a bad sector: one more that is not what it should be
            target.unlink(missing_ok=True)
        return False


def sha256_of(path: Path) -> str:
    """In hexadecimal; StorageError where it cannot be read."""
    try:
        with path.open("rb") as source:
            return hashlib.file_digest(source, "sha256").hexdigest()
    except OSError as error:
        raise StorageError(f"state file {path} cannot be read: {error}") from error
