"""The zygote: a process that has imported what slots need and opened nothing, and forks them.

Forking is safe only from a process with one thread and without clients, so this one does nothing
else: it waits for commands of its TaskManager and for the end of its children, reaps them and
reports their status. A slot is its copy: a few milliseconds instead of a quarter of a second of
imports, and mostly shared memory. It never imports a user's module: that of one job must not be
seen by another.

It runs until the command socket ends (the TaskManager is gone); then it kills what it forked and
exits. Should it be killed itself, the TaskManager ends, and the slots with their lifeline.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import select
import signal
import socket
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from tidegate.drivers.process import frames
from tidegate.drivers.process.parent_watch import exit_with_parent
from tidegate.errors import check
from tidegate.private_files import FILE_MODE, make_private_folder
from tidegate.protocol.messages import StartSlot

SlotMain = Callable[[StartSlot], int]
"""The main of a slot process: its exit status. Runs in the fork, lifeline held, logs redirected."""

_FIRST_FD_OF_OTHERS = 3
_CRASHED = 70
"""Exit status of a slot whose main raised (EX_SOFTWARE)."""


def run_fork_server(
    commands: socket.socket, slot_main: SlotMain, slot_log: Callable[[StartSlot], Path]
) -> int:
    """Serve forks until the TaskManager is gone; returns the exit status."""
    return _Zygote(commands, slot_main, slot_log).run()


class _Zygote:
    def __init__(
        self,
        commands: socket.socket,
        slot_main: SlotMain,
        slot_log: Callable[[StartSlot], Path],
    ) -> None:
        self._commands = commands
        self._slot_main = slot_main
        self._slot_log = slot_log
        self._children: dict[int, int] = {}
        """Slot index by pid, of children that are not reaped."""
        self._woken, self._waker = socket.socketpair()
        self._woken.setblocking(False)
        self._waker.setblocking(False)

    def run(self) -> int:
        check(_threads() == 1, "A zygote with threads must not fork: some import started one.")
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _signal, _frame: None)
        gc.collect()
        gc.freeze()  # what is here stays: the collector would only unshare its pages
        try:
            self._tell(frames.Ready(pid=os.getpid()))
            while self._serve():
                continue
        finally:
            for pid in self._children:
                os.kill(pid, signal.SIGKILL)
        return 0

    def _serve(self) -> bool:
        """One round; False when the TaskManager is gone."""
        readable, _, _ = select.select([self._commands, self._woken], [], [])
        if self._woken in readable:
            with contextlib.suppress(BlockingIOError):
                self._woken.recv(4096)
            self._reap()
        if self._commands in readable:
            match frames.receive_command(self._commands):
                case frames.Fork(start=start):
                    self._fork(start)
                case frames.Kill(pid=pid):
                    if pid in self._children:  # not reaped, so the pid is still that slot's
                        os.kill(pid, signal.SIGKILL)
                case None:
                    return False
        return True

    def _fork(self, start: StartSlot) -> None:
        try:
            pid = os.fork()
        except OSError as error:  # no memory or no process id: the other slots must live on
            self._tell(frames.NotForked(index=start.index, reason=str(error)))
            return
        if pid == 0:
            self._become_slot(start)
        self._children[pid] = start.index
        self._tell(frames.Forked(index=start.index, pid=pid))

    def _reap(self) -> None:
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            index = self._children.pop(pid)
            self._tell(
                frames.Exited(index=index, pid=pid, status=os.waitstatus_to_exitcode(status))
            )

    def _tell(self, notice: frames.Notice) -> None:
        with contextlib.suppress(ConnectionError):  # the TaskManager is gone: the next read says so
            frames.send(self._commands, notice)

    def _become_slot(self, start: StartSlot) -> NoReturn:
        """In the fork: own what a process owns, drop what is the zygote's, run, never return."""
        status = _CRASHED
        try:
            os.setsid()  # signals of the terminal are not for slots
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for ours in (self._commands, self._woken, self._waker):
                ours.detach()
            os.closerange(_FIRST_FD_OF_OTHERS, os.sysconf("SC_OPEN_MAX"))
            _redirect_output(self._slot_log(start))
            exit_with_parent()
            random.seed()
            status = self._slot_main(start)
        except SystemExit as exit_:
            status = exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
        except BaseException as error:  # noqa: BLE001  # the last frame: said, then left
            trace = "".join(traceback.format_exception(error))
            os.write(2, f"the slot failed: {trace}".encode(errors="backslashreplace"))
        finally:
            os._exit(status)


def _threads() -> int:
    """Threads of this process, native ones too where the system lists them."""
    tasks = Path("/proc/self/task")
    return len(list(tasks.iterdir())) if tasks.is_dir() else threading.active_count()


def _redirect_output(path: Path) -> None:
    make_private_folder(path.parent)
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, FILE_MODE)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
