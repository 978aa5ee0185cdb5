"""Forks of this process that become processes of another role.

A fork shares the memory of all that its parent has imported, and needs no time to import it. It is
safe only in a process with one thread and without clients: so before a role begins
(`bootstrap.run_role`), and in the fork server (`fork_server.py`), which forks slots.

`ForkedProcess` has the methods of `subprocess.Popen` that the owner of a child uses. `subprocess`
itself always starts a program.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO, Final, NoReturn

from tidegate.errors import check

CRASHED: Final = 70
"""The exit status of a fork whose main function raised an exception (EX_SOFTWARE)."""


class ForkedProcess:
    """A child of this process. Any thread may call its methods."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        """The exit status, or the negative number of the signal that ended the process. None until
        it is reaped.
        """
        self.stdin: IO[bytes] | None = None
        self.stdout: IO[bytes] | None = None
        self._reaping = threading.Lock()

    def wait(self) -> int:
        """Wait until the process ends, reap it, and return its exit status."""
        with self._reaping:
            return self._reap(0) or 0

    def poll(self) -> int | None:
        """Return the exit status; None if the process has not ended, or another thread waits."""
        if self._reaping.acquire(blocking=False):
            try:
                self._reap(os.WNOHANG)
            finally:
                self._reaping.release()
        return self.returncode

    def terminate(self) -> None:
        """Send SIGTERM, unless the process is reaped."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL, unless the process is reaped."""
        self._signal(signal.SIGKILL)

    def _reap(self, options: int) -> int | None:
        if self.returncode is None:
            try:
                if not await_end(self.pid, options):
                    return None
                pid, status = os.waitpid(self.pid, options)
            except ChildProcessError:  # its status is lost: 0, as in `subprocess`
                pid, status = self.pid, 0
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def _signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            # The thread that waits may have reaped the process, and not noted the status yet.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


def fork(main: Callable[[], NoReturn], stdin: int) -> ForkedProcess:
    """Fork this process. The fork runs `main`, with the descriptor `stdin` as standard input, and
    with a session of its own. It has no other descriptor of this process, and no output.

    Raise OSError if the operating system refuses, and InternalError if this process has a second
    thread.
    """
    check(count_threads() == 1, "A process that forks must have one thread.")
    pid = os.fork()
    if pid:
        return ForkedProcess(pid)
    try:
        os.setsid()  # only the command line may receive Ctrl-C
        nothing = os.open(os.devnull, os.O_RDWR)
        for target, source in enumerate((stdin, nothing, nothing)):
            os.dup2(source, target)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        # The frames below this call are never left. So no file object of the parent closes a
        # descriptor that has its number here.
        main()
    finally:
        os._exit(CRASHED)


def await_end(pid: int, options: int = 0) -> int:
    """Wait until a child ends, and kill what it has left: the processes of its process group, which
    user code has started. Those in a session of their own stay. Return the pid to reap.

    The child may be any (-1). With `os.WNOHANG`, return 0 at once if no child has ended.
    """
    if not hasattr(os, "waitid"):  # macOS before Python 3.13: what user code has started stays
        return pid
    which = (os.P_ALL, 0) if pid == -1 else (os.P_PID, pid)
    try:
        # While a child is not reaped, no other process can have its id.
        ended = os.waitid(*which, os.WEXITED | os.WNOWAIT | options)
    except ChildProcessError:  # its status is lost, and the next call says so
        return pid
    if ended is None:
        return 0
    end_group(ended.si_pid)
    return ended.si_pid


def end_group(leader: int) -> None:
    """Kill the processes of the process group of `leader`, if it has one."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def count_threads() -> int:
    """Count the threads of this process, native ones too if the system lists them."""
    tasks = Path("/proc/self/task")
    return len(list(tasks.iterdir())) if tasks.is_dir() else threading.active_count()
