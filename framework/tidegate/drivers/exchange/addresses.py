"""Where slots listen and how they are reached: `unix:PATH` on one host, `host:port` across hosts.

Called by `sockets`. Opens sockets and nothing else; every socket made here does not block.
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidegate.drivers.network import bracketed
from tidegate.errors import ExchangeError

UNIX_PATH_BYTES_MAX: Final = 100
"""The kernel's field holds 108 bytes on Linux and 104 on macOS, with a zero at the end."""

BACKLOG: Final = 1024
"""Peers that may knock before this slot looks: all of a job's slots start at once."""

UNIX: Final = "unix:"

SOCKET: Final = "x"
FOLDER_PREFIX: Final = "tidegate-slot-"
STALE_S: Final = 600.0
"""So old must a folder be to be looked at by others: a younger one may be about to listen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """A listening socket, its address, and the folder that is removed with it."""

    socket: socket.socket
    address: str
    folder: Path | None

    def close(self) -> None:
        """Stop listening; connections that were accepted stay."""
        self.socket.close()
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)  # the temporary folder may be cleaned


def listen(host: str | None, reached_as: str | None = None) -> Listener:
    """Listen on a Unix socket in a new folder of its own, or on a free TCP port of a host.

    `reached_as` is the name under which others dial that host, where it is another.
    """
    try:
        return _listen_unix() if host is None else _listen_tcp(host, reached_as or host)
    except OSError as error:
        where = "a Unix socket" if host is None else f"a port of {host}"
        raise ExchangeError(f"the exchange cannot listen on {where}: {error}") from error


def dial(address: str) -> socket.socket:
    """Begin to connect: the socket is writable once that has succeeded or failed. OSError."""
    if address.startswith(UNIX):
        dialled = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        target: object = address.removeprefix(UNIX)
    else:
        host, _, port = address.rpartition(":")
        family, kind, protocol, _, target = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM
        )[0]
        dialled = socket.socket(family, kind, protocol)
    try:
        dialled.setblocking(False)
        prepare(dialled)
        dialled.connect(target)  # type: ignore[arg-type]  # a path or what getaddrinfo gave
    except BlockingIOError:
        pass  # under way, which is what a socket that does not block says of a TCP connection
    except OSError:
        dialled.close()
        raise
    return dialled


def prepare(connection: socket.socket) -> None:
    """Options of every connection."""
    connection.setblocking(False)
    if connection.family != socket.AF_UNIX:
        # Frames are large and written whole: a credit must not wait for the answer to one of them.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def _listen_unix() -> Listener:
    folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX))
    if len(os.fsencode(folder / SOCKET)) > UNIX_PATH_BYTES_MAX:
        folder.rmdir()
        folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX, dir="/tmp"))
    _remove_stale(folder.parent)
    path = folder / SOCKET
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.bind(str(path))
        listening.listen(BACKLOG)
        listening.setblocking(False)
    except OSError:
        listening.close()
        shutil.rmtree(folder)
        raise
    return Listener(socket=listening, address=f"{UNIX}{path}", folder=folder)


def _remove_stale(parent: Path) -> None:
    """Remove folders of slots that were killed before all their peers were linked.

    Nobody else knows of them. One is stale if it is old and nobody listens on its socket.
    """
    before_s = time.time() - STALE_S
    for folder in parent.glob(f"{FOLDER_PREFIX}*"):
        try:
            facts = folder.lstat()
            if facts.st_uid == os.getuid() and facts.st_mtime < before_s and _unheard(folder):
                shutil.rmtree(folder, ignore_errors=True)
        except FileNotFoundError:
            continue  # another slot was faster


def _unheard(folder: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(folder / SOCKET))
        except (ConnectionRefusedError, FileNotFoundError):
            return True
        except OSError:
            return False
        return False


def _listen_tcp(host: str, reached_as: str) -> Listener:
    family = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][0]
    listening = socket.create_server((host, 0), family=family, backlog=BACKLOG)
    listening.setblocking(False)
    port = listening.getsockname()[1]
    return Listener(socket=listening, address=f"{bracketed(reached_as)}:{port}", folder=None)
