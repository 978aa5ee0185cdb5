"""The parent pipe: a pipe through which a process notices that its parent is gone, and then exits.

Every process of a cluster has a pipe as its standard input. Only its parent holds the other end.
The parent writes one line into the pipe, the arguments, and nothing afterwards. (The arguments
contain secrets, and every user can read a command line.) So the end of the file means that the
parent is gone. The operating system signals it even if the parent was killed. Slots inherit the
pipe from the fork server, so they exit when the TaskManager ends. A process that is started before
its arguments are known (`prestart.py`) gets its pipe later.

This module does not ask the kernel for a signal at the parent's death. Linux sends that signal when
the *thread* that forked ends, and the parent of a slot is the fork server. If all threads of a
process are stuck in native code that holds the interpreter lock, the process exits only when that
code returns. Heartbeats detect such a process.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import threading
from collections.abc import Mapping
from typing import Any, NoReturn

from tidegate.errors import check

PARENT_PIPE_FD = 0
"""The descriptor of standard input: children inherit it by definition, and no library uses it."""

PARENT_DIED = 72
"""The exit status of a process whose parent is gone. No parent reads it; it can only appear in the
logs of the operating system.
"""

_CHUNK = 1 << 16
_FDS_MAX = 8
"""The maximum number of descriptors in one message: a parent pipe, a log, and those passed to a
role, such as the command socket of a fork server.
"""


def encode_arguments(arguments: Mapping[str, object]) -> bytes:
    """Return the line that a parent writes into the pipe."""
    return json.dumps(arguments, separators=(",", ":")).encode() + b"\n"


def read_arguments() -> dict[str, Any]:
    """Read the parent's line and return the arguments. Afterwards the pipe only shows that the
    parent is alive. Exit if the parent is already gone.

    `fds` of the result are the file descriptors that the parent has passed, with their numbers in
    this process.
    """
    passed = _take_over() if is_prestarted() else None
    line = b""
    while not line.endswith(b"\n"):
        chunk = os.read(PARENT_PIPE_FD, _CHUNK)
        if not chunk:
            os._exit(PARENT_DIED)
        line += chunk
    arguments = json.loads(line)
    check(isinstance(arguments, dict), "The arguments of a process are one JSON object.")
    return dict(arguments) if passed is None else {**arguments, "fds": passed}


def _take_over() -> list[int]:
    """Receive the parent pipe and the log of this prestarted process and make them standard input
    and output. Return the other descriptors that the parent has passed.
    """
    with _socket() as parent:
        message, fds, _, _ = socket.recv_fds(parent, _CHUNK, _FDS_MAX)
        parent.detach()
    if not message:
        os._exit(PARENT_DIED)
    parent_pipe, log, *passed = fds
    os.dup2(parent_pipe, PARENT_PIPE_FD)
    for output in json.loads(message)["output"]:
        os.dup2(log, output)
    os.close(parent_pipe)
    os.close(log)
    return passed


def is_prestarted() -> bool:
    """Return whether this process was started before its arguments were known, and has not received
    them yet.
    """
    return stat.S_ISSOCK(os.fstat(PARENT_PIPE_FD).st_mode)


def exit_if_orphaned() -> None:
    """Exit if the parent of this prestarted process is gone and has sent nothing."""
    with _socket() as parent:
        try:
            orphaned = not parent.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            orphaned = False
        finally:
            parent.detach()
    if orphaned:
        os._exit(PARENT_DIED)


def _socket() -> socket.socket:
    """Return standard input as a socket object. The caller detaches it, to keep the descriptor
    open.
    """
    return socket.socket(fileno=PARENT_PIPE_FD)


def exit_with_parent() -> None:
    """Start the thread that ends this process when its parent is gone. The fork server must not
    call it, because a process with threads must not fork.
    """
    threading.Thread(target=_watch, name="parent-watch", daemon=True).start()


def _watch() -> NoReturn:
    # Exit without cleaning up: a process without its parent must not hang in an exit handler. All
    # durable data is written so that the process may stop at any time.
    while os.read(PARENT_PIPE_FD, _CHUNK):
        continue
    if os.getpgrp() == os.getpid():
        # It also ends the processes that user code has started, which have no other parent.
        os.killpg(0, signal.SIGKILL)
    os._exit(PARENT_DIED)
