"""Processes that are started before their arguments are known, so that they import meanwhile.

A start of a cluster is a chain: the command starts a JobManager, which starts a TaskManager and a
JobMaster, and the TaskManager starts its zygote. Each process imports for 0.2 to 0.6 s before it
can do anything. So each one starts the next at once, imports beside it, and sends it the arguments
when they are known. The chain then takes as long as its longest link.

A prestarted process opens nothing, reads no file but code, and starts no thread until it begins.
Until then its standard input is a socket, of which only its parent has the other end. Through it
come the pipe that is its standard input and lifeline from then on (`parent_watch.py`), and its log
file: it does not differ from any other process any more. Before, what it writes is discarded, and
it ends without a word when its parent ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

MODULE: Final = "tidegate.role"
CHILD_ENVIRONMENT: Final = {
    "GRPC_ENABLE_FORK_SUPPORT": "0",  # before anything can import grpc: see drivers/rpc
    "GRPC_VERBOSITY": "NONE",
}


def command(role: str) -> list[str]:
    """How a process of a role is started."""
    # -P: the working folder is for the user's modules, ours come first in our own processes; it is
    # put on the path of those that run the user's code.
    return [sys.executable, "-P", "-m", MODULE, role]


class Prestarted:
    """A process of a role that waits for its arguments, or is about to.

    Its owner calls `begin` once, or `discard`. The end of a `with` block discards one that has not
    begun.
    """

    def __init__(self, role: str, *, announces: bool = False) -> None:
        """Start it. `announces`: its standard output is a pipe to us. OSError if the operating
        system refuses.
        """
        self.announces = announces
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = subprocess.Popen(
                    command(role),
                    stdin=theirs.fileno(),
                    stdout=subprocess.PIPE if announces else subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env={**os.environ, **CHILD_ENVIRONMENT},
                    start_new_session=True,  # Ctrl-C is the command line's to interpret
                )
        except BaseException:
            ours.close()
            raise
        self._socket = ours
        self._begun = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._begun:
            self.discard()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it is still there."""
        return self._process.poll() is None

    def begin(self, log: int, pass_fds: Sequence[int]) -> subprocess.Popen[bytes]:
        """Send its standard input, its log and copies of other file descriptors; the process, which
        takes its arguments from `stdin` as every other. One that has died since is returned as
        well: its exit will be reported. OSError if there is no pipe for it.
        """
        reading, writing = os.pipe()
        try:
            message = json.dumps({"output": [2] if self.announces else [1, 2]}).encode()
            with contextlib.suppress(ConnectionError):
                socket.send_fds(self._socket, [message], [reading, log, *pass_fds])
        finally:
            os.close(reading)
        self._process.stdin = os.fdopen(writing, "wb")
        self._socket.close()
        self._begun = True
        return self._process

    def discard(self) -> None:
        """Kill and reap it."""
        self._process.kill()
        self._process.wait()
        self._socket.close()
        if self._process.stdout is not None:
            self._process.stdout.close()


def prestarted(role: str, *, announces: bool = False) -> Prestarted | None:
    """A prestarted process, or None if the operating system refuses one now: it is started later
    then, and whoever starts it says why it cannot.
    """
    try:
        return Prestarted(role, announces=announces)
    except (OSError, MemoryError):
        return None
