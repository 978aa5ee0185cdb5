"""The folders of a local storage that an older version has left open to other users.

This version makes every folder with mode 0700. When a job is submitted, this module closes the
folders that an older version made. The root of a storage may be a home folder or a folder of data,
so other folders next to the jobs do not belong to tidegate. A folder is closed only if its name is
reserved for tidegate, or if it has a file that only a job of tidegate has. The root itself and the
targets of symbolic links keep their modes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tidegate.private_files import close_to_others

_RESERVED: Final = frozenset({"_cluster", "_storage", ".temporary"})
"""The names of tidegate's folders that are not jobs. No job can have such a name."""

_OF_A_JOB: Final = {
    "journal": re.compile(r"\d{20}\.(json|hint)"),
    "manifests": re.compile(r"\d+-\d+\.json"),
    "submissions": re.compile(r"\d{20}"),
}
"""The folders of a job, and patterns of their file names that other software hardly ever uses."""


def close_older_folders(root: Path) -> None:
    """Close the folders of tidegate directly below `root` to other users. OSError if that fails."""
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
