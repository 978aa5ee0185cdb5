"""Unix sockets that only their owner can reach: a folder of mode 0700 for each server or cluster.

The processes of a local cluster (`tidegate run`) and the slots of one host meet here. The folder's
mode keeps every other user away; a TCP port of the loopback address would be open to all of them.
The kernel limits the path of a socket, so the folder lies in the temporary folder, or in /tmp where
that path is too long.

A process that is killed leaves its folder behind. The next process that makes one removes old
folders in which nobody listens. Used by `rpc` and `exchange`; it opens no connection of its own.
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
"""How the address of a Unix socket begins; its path follows."""

PATH_BYTES_MAX: Final = 100
"""The kernel's field holds 108 bytes on Linux and 104 on macOS, with a zero at the end."""

NAME_BYTES: Final = 4
"""Random bytes in a socket's name: a process that restarts gets another address."""

STALE_S: Final = 600.0
"""Other processes leave a younger folder alone: its owner may be about to listen."""


def make_socket_dir(prefix: str) -> Path:
    """Make a new folder for sockets, and remove stale ones of the same prefix. OSError."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    longest = folder / ("f" * 2 * NAME_BYTES)
    if len(os.fsencode(longest)) > PATH_BYTES_MAX:
        folder.rmdir()
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir="/tmp"))
    _remove_stale(folder.parent, prefix)
    return folder


def new_socket_path(folder: Path) -> Path:
    """A free path in a folder of `make_socket_dir`; makes the folder again where it was removed.

    PermissionError where the folder belongs to another user or is open to others: the temporary
    folder is shared, and somebody may have taken the name.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    facts = folder.lstat()
    own = stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.getuid()
    if not own or facts.st_mode & 0o077:
        raise PermissionError(f"{folder} is not a folder that only this user can reach")
    return folder / secrets.token_hex(NAME_BYTES)


def _remove_stale(parent: Path, prefix: str) -> None:
    """Remove folders that killed processes left: old ones in which nobody listens."""
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
            return True  # for example a full queue of connections: leave it alone
        return True
