"""Unix sockets that only their owner can reach: a folder of mode 0700 for each server or cluster.

The processes of a local cluster (`tidegate run`) and the slots of one host connect through these
sockets. The mode of the folder keeps every other user out. A TCP port of the loopback address would
be open to all users. The kernel limits the length of a socket's path, so the folder is in the
temporary folder, or in /tmp if that path is too long.

A process that is killed leaves its folder behind. The next process that makes a folder removes old
folders without a listening process. `rpc` and `exchange` use this module. It opens no connection,
except to test whether a process listens on a socket of an old folder.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import stat
import tempfile
import time
from pathlib import Path
from typing import Final

UNIX: Final = "unix:"
"""The prefix of a Unix socket's address; the path follows."""

PATH_BYTES_MAX: Final = 100
"""The maximum length of a socket's path in bytes. The kernel's field has 108 bytes on Linux and 104
on macOS, including a zero byte at the end.
"""

NAME_BYTES: Final = 4
"""The number of random bytes in a socket's name: a process that restarts gets another address."""

STALE_S: Final = 600.0
"""The age in seconds from which other processes may remove a folder. The owner of a younger folder
may not listen yet.
"""


def make_socket_dir(prefix: str) -> Path:
    """Make a new folder for sockets, and remove stale folders with the same prefix. OSError if the
    folder cannot be made.
    """
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    longest = folder / ("f" * 2 * NAME_BYTES)
    if len(os.fsencode(longest)) > PATH_BYTES_MAX:
        folder.rmdir()
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir="/tmp"))
    _remove_stale(folder.parent, prefix)
    return folder


def new_socket_path(folder: Path) -> Path:
    """Return a free path in a folder of `make_socket_dir`. Make the folder again if it was removed.

    PermissionError if the folder belongs to another user or is open to others: the temporary folder
    is shared, and another user may have made a folder with this name.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    facts = folder.lstat()
    own = stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.getuid()
    if not own or facts.st_mode & 0o077:
        raise PermissionError(f"{folder} is not a folder that only this user can reach")
    return folder / secrets.token_hex(NAME_BYTES)


def _remove_stale(parent: Path, prefix: str) -> None:
    """Remove folders that killed processes left: old folders without a listening process."""
    before_s = time.time() - STALE_S
    for folder in parent.glob(f"{prefix}*"):
        try:
            facts = folder.lstat()
            old = facts.st_uid == os.getuid() and facts.st_mtime < before_s
            if old and not any(map(_has_listener, folder.iterdir())):
                shutil.rmtree(folder, ignore_errors=True)
        except (FileNotFoundError, NotADirectoryError):
            continue  # another process was faster, or it is a file


def _has_listener(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True  # for example a full queue of connections: keep the folder
        return True
