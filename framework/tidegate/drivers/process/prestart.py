"""Processes that are started before their arguments are known, so that they can import meanwhile.

The start of a local cluster is a chain: the command starts a JobManager, which starts a TaskManager
and a JobMaster, and the TaskManager starts its fork server. Each process needs imports of 0.2 to
0.6 s before it can do anything. So the command starts the JobManager immediately. The JobManager
imports what all of them need, while the command does its own imports, and forks the others
(`forked.py`). Each process sends the arguments of the next one when they are known. A process that
replaces one that was lost is started as a program, because its parent has threads by then.

A prestarted process opens nothing, reads no file except code, and starts no thread until it begins.
Until then its standard input is a socket, and only its parent has the other end. To begin, it
receives two descriptors through this socket. One is the pipe that becomes its standard input and
parent pipe (`parent_watch.py`), the other is its log file. From then on it does not differ from any
other process. Before it begins, its output is discarded, and it exits silently if its parent ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Final, NoReturn, Self

from tidegate.drivers.process.forked import ForkedProcess, fork
from tidegate.drivers.process.user_forks import keep_from_forks

MODULE: Final = "tidegate.role"
CHILD_ENVIRONMENT: Final = {
    "GRPC_ENABLE_FORK_SUPPORT": "0",  # before anything can import grpc: see drivers/rpc
    "GRPC_VERBOSITY": "NONE",
    "SPT_NOENV": "1",  # setproctitle writes over the command only, and `ps e` still shows the rest
}
DEFAULTS: Final = {"MALLOC_ARENA_MAX": "64"}
"""Environment variables that the user may override. They are for slots. Slots are forks of forks of
the first process, and glibc reads its settings when a program starts.

A slot has about 40 threads, most of them librdkafka's. glibc makes at most 8 arenas per core, so
with two cores some threads share the arena of the thread that processes the records. Then `malloc`
and `free` of records take twice as long, and a running total costs 4 to 10 % more CPU. Profiles
with `perf` showed such sharing in 6 of 9 runs with glibc's own limit, in both runs with one arena,
and in none of 10 runs with 64 arenas. The arenas cost 12 MB more memory of 340. Other C libraries
ignore the variable.
"""

ChildProcess = subprocess.Popen[bytes] | ForkedProcess


def command(role: str) -> list[str]:
    """Return the command that starts a process of a role."""
    # -P: the working folder may contain the user's modules, so it must not come before tidegate's
    # own on the module path. Only processes that run the user's code add it to their path.
    return [sys.executable, "-P", "-m", MODULE, role]


def environment() -> dict[str, str]:
    """Return the environment of a process of any role."""
    return {**DEFAULTS, **os.environ, **CHILD_ENVIRONMENT}


class Prestarted:
    """A process of a role that waits for its arguments, or is still on the way to that point.

    Its owner calls `begin` once, or `discard`. The end of a `with` block discards a process that
    has not begun.
    """

    def __init__(
        self, role: str, *, announces: bool = False, become: Callable[[str], NoReturn] | None = None
    ) -> None:
        """Start the process. With `announces`, its standard output is a pipe that this process
        reads. With `become`, the process is a fork of this one that calls `become(role)`, and
        announces nothing. OSError if the operating system refuses.
        """
        self.announces = announces
        self._process: ChildProcess
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                if become is not None:
                    self._process = fork(partial(become, role), theirs.fileno())
                else:
                    self._process = _start(role, theirs.fileno(), announces=announces)
        except BaseException:
            ours.close()
            raise
        self._socket = ours
        keep_from_forks(ours)  # its end tells the child that this process is gone
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
        """Whether the process is still running."""
        return self._process.poll() is None

    def begin(self, log: int, pass_fds: Sequence[int]) -> ChildProcess:
        """Send the process its standard input, its log and copies of other file descriptors. Return
        the process, whose `stdin` takes the arguments as in any other child. A process that has
        ended in the meantime is returned too: its exit will be reported. OSError if the operating
        system refuses a pipe.
        """
        reading, writing = os.pipe()
        try:
            message = json.dumps({"output": [2] if self.announces else [1, 2]}).encode()
            with contextlib.suppress(ConnectionError):
                socket.send_fds(self._socket, [message], [reading, log, *pass_fds])
        finally:
            os.close(reading)
        self._process.stdin = os.fdopen(writing, "wb")
        keep_from_forks(self._process.stdin)
        self._socket.close()
        self._begun = True
        return self._process

    def discard(self) -> None:
        """Kill the process and reap it."""
        self._process.kill()
        self._process.wait()
        self._socket.close()
        if self._process.stdout is not None:
            self._process.stdout.close()


def _start(role: str, stdin: int, *, announces: bool) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command(role),
        stdin=stdin,
        stdout=subprocess.PIPE if announces else subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment(),
        start_new_session=True,  # only the command line may receive Ctrl-C
    )


def prestarted(
    role: str, *, announces: bool = False, become: Callable[[str], NoReturn] | None = None
) -> Prestarted | None:
    """Return a prestarted process, or None if the operating system refuses one now. In that case
    the process is started later, and that start reports the error if it also fails.
    """
    try:
        return Prestarted(role, announces=announces, become=become)
    except (OSError, MemoryError):
        return None
