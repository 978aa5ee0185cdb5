"""Files and folders that only their owner can read: mode 0600, in folders of mode 0700.

Checkpoints, keyed state, submissions, logs and results quote records and settings. Every process
makes such files through this module. A file gets its mode when it is created, so other users can
never open it. The umask can only remove rights. An existing folder keeps its mode, because its
owner may have opened it to others on purpose. The exception is a folder that an older version of
tidegate made. A caller that knows of such a folder calls `close_to_others`.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

FOLDER_MODE: Final = 0o700
FILE_MODE: Final = 0o600


def make_private_folder(folder: Path, *, exist_ok: bool = True) -> None:
    """Make a folder and its missing parents, each with mode 0700.

    Raise FileExistsError as `Path.mkdir` does, and other OSErrors as the system raises them.
    """
    try:
        folder.mkdir(mode=FOLDER_MODE)
    except FileNotFoundError:
        if folder.parent == folder:
            raise
        make_private_folder(folder.parent)
        make_private_folder(folder, exist_ok=exist_ok)
    except FileExistsError:
        if not exist_ok or not folder.is_dir():
            raise


def private_opener(path: str, flags: int) -> int:
    """Open a file for `open(..., opener=private_opener)`. A file that is created gets mode 0600."""
    return os.open(path, flags, FILE_MODE)


def write_private(path: Path, data: bytes) -> None:
    """Write a file like `Path.write_bytes`, with mode 0600 if the file is new."""
    with open(path, "wb", opener=private_opener) as out:
        out.write(data)


def copy_private(source: Path, target: Path) -> None:
    """Copy a file like `shutil.copyfile`, with mode 0600 if the target is new."""
    with source.open("rb") as data, open(target, "wb", opener=private_opener) as out:
        shutil.copyfileobj(data, out, length=1 << 20)


def close_to_others(folder: Path) -> None:
    """Remove the rights of other users from a folder of this user. The caller knows that an older
    version of tidegate made the folder. A folder of another user, or a missing folder, is not
    changed.
    """
    try:
        status = folder.lstat()
        if status.st_uid == os.geteuid() and status.st_mode & 0o077:
            folder.chmod(FOLDER_MODE)
    except FileNotFoundError:
        return
