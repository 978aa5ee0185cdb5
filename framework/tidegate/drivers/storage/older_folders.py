"""The folders of a local storage that an older version has left open to other users.

Today every folder is made with mode 0700. Folders that an older version made are closed when a job
is submitted. The root of a storage may be a home folder or a folder of data, so what lies beside
the jobs is not tidegate's: a folder is closed only if its name is one of ours, or if it holds a
file that only a job of tidegate has. The root itself, and what a symbolic link leads to, keep their
modes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tidegate.private_files import close_to_others

_RESERVED: Final = frozenset({"_cluster", "_storage", ".temporary"})
"""No job has such a name."""

_OF_A_JOB: Final = {
    "journal": re.compile(r"\d{20}\.(json|hint)"),
    "manifests": re.compile(r"\d+-\d+\.json"),
    "submissions": re.compile(r"\d{20}"),
}
"""Folders of a job, and the names that are in them and hardly anywhere else."""


def close_older_folders(root: Path) -> None:
    """Close the folders of tidegate directly below `root` to others; OSError."""
    for folder in _folders(root):
        if folder.name in _RESERVED or _is_of_a_job(folder):
            close_to_others(Path(folder.path))


def _folders(root: Path) -> Iterator[os.DirEntry[str]]:
    """The folders there, without symbolic links; none if `root` is no folder yet."""
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
        except PermissionError:  # another user's, whose rights are not ours to change
            return False
    return False
