"""How a process ends with its parent, however the parent ended.

Every process of a cluster has a pipe as its standard input, whose other end only its parent holds.
The parent writes one line into it, the arguments (they hold secrets, and a command line can be read
by anybody), and nothing ever after; so the end of the file means that the parent is gone, and the
operating system sends it also for a parent that was killed. Slots inherit the pipe from the zygote,
and with it the TaskManager's life. A process that is started before its arguments are known
(`prestart.py`) is given its pipe later.

What is not done: asking the kernel for a signal at the parent's death (Linux sends it when the
*thread* that forked ends, and a slot's parent is the zygote). A process whose threads are all stuck
in native code that holds the interpreter lock ends only when that returns; heartbeats see to the
rest.
"""

from __future__ import annotations

import json
import os
import socket
import stat
import threading
from collections.abc import Mapping
from typing import Any, NoReturn

from tidegate.errors import check

LIFELINE_FD = 0
"""Standard input: inherited by definition, and no library uses it."""

PARENT_DIED = 72
"""Exit status of a process whose parent is gone; nobody is left to see it but the logs of a
system."""

_CHUNK = 1 << 16
_FDS_MAX = 8
"""A lifeline, a log, and what a role is passed: the socket of a zygote."""


def encode_arguments(arguments: Mapping[str, object]) -> bytes:
    """The line that a parent writes."""
    return json.dumps(arguments, separators=(",", ":")).encode() + b"\n"


def read_arguments() -> dict[str, Any]:
    """Read the parent's line; the lifeline is what remains. Exits if the parent is gone already.

    `fds` of the result are the file descriptors that the parent has passed, by their numbers here.
    """
    passed = _take_over() if is_prestarted() else None
    line = b""
    while not line.endswith(b"\n"):
        chunk = os.read(LIFELINE_FD, _CHUNK)
        if not chunk:
            os._exit(PARENT_DIED)
        line += chunk
    arguments = json.loads(line)
    check(isinstance(arguments, dict), "The arguments of a process are one JSON object.")
    return dict(arguments) if passed is None else {**arguments, "fds": passed}


def _take_over() -> list[int]:
    """Put the lifeline and the log of a prestarted process in their places; the other descriptors
    that were passed.
    """
    with _socket() as parent:
        message, fds, _, _ = socket.recv_fds(parent, _CHUNK, _FDS_MAX)
        parent.detach()
    if not message:
        os._exit(PARENT_DIED)
    lifeline, log, *passed = fds
    os.dup2(lifeline, LIFELINE_FD)
    for output in json.loads(message)["output"]:
        os.dup2(log, output)
    os.close(lifeline)
    os.close(log)
    return passed


def is_prestarted() -> bool:
    """Whether this process was started before its arguments were known, and has none yet."""
    return stat.S_ISSOCK(os.fstat(LIFELINE_FD).st_mode)


def leave_if_orphaned() -> None:
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
    """Standard input as the socket that it is; to be detached."""
    return socket.socket(fileno=LIFELINE_FD)


def exit_with_parent() -> None:
    """Start the thread that ends this process with its parent. Not in the zygote: threads forbid
    fork.
    """
    threading.Thread(target=_watch, name="lifeline", daemon=True).start()


def _watch() -> NoReturn:
    # No cleaning up: whoever is left without its parent must not get a chance to hang in an exit
    # handler, and everything durable is written so that it can be left at any moment.
    while os.read(LIFELINE_FD, _CHUNK):
        continue
    os._exit(PARENT_DIED)
