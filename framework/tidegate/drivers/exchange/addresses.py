"""The addresses at which slots listen: `unix:PATH` on one host, `host:port` across hosts.

`sockets` calls this module. It opens sockets and does no other I/O. All of its sockets are
non-blocking.
"""

from __future__ import annotations

import shutil
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidegate.drivers.endpoint import bracketed
from tidegate.drivers.local_sockets import UNIX, make_socket_dir, new_socket_path
from tidegate.errors import ExchangeError

BACKLOG: Final = 1024
"""The number of connections that may wait to be accepted: all slots of a job start at the same
time.
"""

FOLDER_PREFIX: Final = "tidegate-slot-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """A listening socket, its address, and the folder that is removed with it."""

    socket: socket.socket
    address: str
    folder: Path | None

    def close(self) -> None:
        """Stop listening and remove the folder. Accepted connections stay open."""
        self.socket.close()
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)  # the temporary folder may be cleaned


def listen(host: str | None, reached_as: str | None = None) -> Listener:
    """Listen on a Unix socket in a new folder of its own, or, if `host` is given, on a free TCP
    port of that host. ExchangeError if that is not possible.

    `reached_as` is the name under which others dial the host, if the name differs from `host`.
    """
    try:
        return _listen_unix() if host is None else _listen_tcp(host, reached_as or host)
    except OSError as error:
        where = "a Unix socket" if host is None else f"a port of {host}"
        raise ExchangeError(f"The exchange cannot listen on {where}: {error}") from error


def dial(address: str) -> socket.socket:
    """Begin to connect and return the socket. It becomes writable when the connection is made or
    has failed. OSError if the connection fails immediately.
    """
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
        pass  # a non-blocking TCP socket reports in this way that it is connecting
    except OSError:
        dialled.close()
        raise
    return dialled


def prepare(connection: socket.socket) -> None:
    """Set the options that every connection needs."""
    connection.setblocking(False)
    if connection.family != socket.AF_UNIX:
        # Frames are large and written at once, so a credit must not wait for TCP to acknowledge one
        # of them.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def _listen_unix() -> Listener:
    folder = make_socket_dir(FOLDER_PREFIX)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path = new_socket_path(folder)
        listening.bind(str(path))
        listening.listen(BACKLOG)
        listening.setblocking(False)
    except OSError:
        listening.close()
        shutil.rmtree(folder)
        raise
    return Listener(socket=listening, address=f"{UNIX}{path}", folder=folder)


def _listen_tcp(host: str, reached_as: str) -> Listener:
    family = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][0]
    listening = socket.create_server((host, 0), family=family, backlog=BACKLOG)
    listening.setblocking(False)
    port = listening.getsockname()[1]
    return Listener(socket=listening, address=f"{bracketed(reached_as)}:{port}", folder=None)
