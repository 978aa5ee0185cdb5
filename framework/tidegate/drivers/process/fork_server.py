"""The fork server: a process that has imported all modules that slots need, has opened nothing, and
forks the slots.

Forking is safe only from a process with one thread and without clients, so the fork server has no
other work. It waits for commands of its TaskManager and for the end of its children, reaps the
children and reports their exit status. It also passes on the stacks of a slot in which no thread
can run (`stack_pipes.py`). A slot starts as a copy of the fork server. That takes a few
milliseconds instead of a quarter of a second of imports, and most of the memory is shared. The fork
server never imports a user's module, because one job must not see the modules of another.

A tracer or a debugger in the user's environment may start a thread in every Python process. The
fork server then starts each slot as a program, in which the tracer works too.

The fork server runs until the command socket ends, which means that the TaskManager is gone. Then
it kills its children and exits. If the fork server itself is killed, the TaskManager exits, and the
slots exit because their parent pipe ends.
"""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import random
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, TextIO

import msgspec

from tidegate.drivers.process import fork_protocol
from tidegate.drivers.process.forked import CRASHED, await_end, count_threads, end_group
from tidegate.drivers.process.parent_watch import exit_with_parent
from tidegate.drivers.process.prestart import command, environment
from tidegate.drivers.process.rotating_output import open_at, rotating_text
from tidegate.drivers.process.stack_pipes import StackPipes
from tidegate.private_files import make_private_folder
from tidegate.protocol.messages import StartSlot
from tidegate.user_exceptions import Terminated, traceback_of


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRole:
    """The parts of a slot process that are the same in a fork and in a program."""

    main: Callable[[StartSlot, int], int]
    """The main function, which returns the exit status. It runs after the parent pipe is watched
    and the log is redirected. It gets the descriptor for the stacks of the slot's threads, which
    leads to the fork server.
    """
    log: Callable[[StartSlot], Path]
    """The file of standard error."""
    output: Callable[[StartSlot], Path]
    """The file of standard output, which has only what user code prints."""
    max_file_size: int
    """The maximum size of both files in bytes."""
    arguments: Mapping[str, object]
    """The data from which a program makes this role again."""


def run_fork_server(commands: socket.socket, role: SlotRole) -> int:
    """Start slots on command until the TaskManager is gone. Return the exit status."""
    return _ForkServer(commands, role).run()


_log = logging.getLogger(__name__)


class _ForkServer:
    def __init__(self, commands: socket.socket, role: SlotRole) -> None:
        self._commands = commands
        self._role = role
        self._children: dict[int, int] = {}
        """The slot index by pid, for children that are not reaped."""
        self._stacks = StackPipes()
        self._woken, self._waker = socket.socketpair()
        self._woken.setblocking(False)
        self._waker.setblocking(False)

    def run(self) -> int:
        if count_threads() > 1:
            _log.warning(
                "an import or the environment of Python has started a thread, so slots start as "
                "programs, which takes half a second longer"
            )
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _signal, _frame: None)
        gc.collect()
        gc.freeze()  # these objects stay: the collector would only unshare their pages
        try:
            self._send_notice(fork_protocol.Ready(pid=os.getpid()))
            while self._serve():
                continue
        finally:
            for pid in self._children:
                os.kill(pid, signal.SIGKILL)
                end_group(pid)
        return 0

    def _serve(self) -> bool:
        """Wait for one event and handle it. Return False if the TaskManager is gone."""
        stacks = self._stacks.descriptors()
        awaited: list[socket.socket | int] = [self._commands, self._woken, *stacks]
        readable, _, _ = select.select(awaited, [], [], self._stacks.wait_s())
        for read_end in stacks:
            if read_end in readable:
                self._stacks.read(read_end)
        for dump in self._stacks.complete():
            self._send_notice(
                fork_protocol.StacksDumped(
                    index=dump.index, pid=dump.pid, code=dump.code, dump=dump.text
                )
            )
        if self._woken in readable:
            with contextlib.suppress(BlockingIOError):
                self._woken.recv(4096)
            self._reap()
        if self._commands in readable:
            match fork_protocol.receive_command(self._commands):
                case fork_protocol.Fork(start=start):
                    self._fork(start)
                case fork_protocol.Kill(pid=pid):
                    if pid in self._children:  # not reaped, so the pid is still that slot's
                        os.kill(pid, signal.SIGKILL)
                case None:
                    return False
        return True

    def _fork(self, start: StartSlot) -> None:
        try:
            read_end, write_end = os.pipe()
        except OSError as error:  # no file is free: the other slots must continue
            self._send_notice(fork_protocol.NotForked(index=start.index, reason=str(error)))
            return
        try:
            pid = os.fork() if count_threads() == 1 else self._start_program(start, write_end)
        except OSError as error:  # no memory or no process id: the other slots must continue
            os.close(read_end)
            os.close(write_end)
            self._send_notice(fork_protocol.NotForked(index=start.index, reason=str(error)))
            return
        if pid == 0:
            self._become_slot(start, write_end)
        os.close(write_end)
        self._stacks.add(read_end, start.index, pid)
        self._children[pid] = start.index
        self._send_notice(fork_protocol.Forked(index=start.index, pid=pid))

    def _start_program(self, start: StartSlot, stacks: int) -> int:
        """Start a slot as a program, and return its pid."""
        arguments = {**self._role.arguments, "start": msgspec.to_builtins(start)}
        with tempfile.TemporaryFile() as file:
            file.write(json.dumps(arguments).encode())
            file.seek(0)
            program = subprocess.Popen(
                [*command("slot"), str(file.fileno()), str(stacks)],
                stdout=subprocess.DEVNULL,
                env=environment(),
                pass_fds=(file.fileno(), stacks),
                start_new_session=True,
            )
        program.returncode = 0  # `_reap` reaps it, and not the object
        return program.pid

    def _reap(self) -> None:
        while self._children:
            ended = await_end(-1, os.WNOHANG)
            pid, status = os.waitpid(ended, os.WNOHANG) if ended else (0, 0)
            if pid == 0:
                return
            index = self._children.pop(pid)
            self._stacks.remove(pid)
            self._send_notice(
                fork_protocol.Exited(index=index, pid=pid, status=os.waitstatus_to_exitcode(status))
            )

    def _send_notice(self, notice: fork_protocol.Notice) -> None:
        with contextlib.suppress(ConnectionError):  # no TaskManager: the next read detects that
            fork_protocol.send(self._commands, notice)

    def _become_slot(self, start: StartSlot, stacks: int) -> NoReturn:
        """Turn this fork into a slot process and run the slot. The slot drops the fork server's
        files and signal handlers, and keeps no descriptor of it other than `stacks`.
        """
        try:
            os.setsid()  # a slot must not receive signals of the terminal
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for ours in (self._commands, self._woken, self._waker):
                ours.detach()
            random.seed()
            os.closerange(3, stacks)
            os.closerange(stacks + 1, os.sysconf("SC_OPEN_MAX"))
            become_slot(start, self._role, stacks)
        finally:
            os._exit(CRASHED)


def become_slot(start: StartSlot, role: SlotRole, stacks: int) -> NoReturn:
    """Make a slot process of this one and run the slot. The slot gets a log and a parent pipe of
    its own.

    This function closes no descriptor. In a program, some belong to a tracer, which would then use
    the next file or connection with their numbers.
    """
    status, output = CRASHED, None
    try:
        output = sys.stdout = _redirected(1, role.output(start), role.max_file_size)
        sys.stderr = _redirected(2, role.log(start), role.max_file_size)
        exit_with_parent()
        status = role.main(start, stacks)
    except Terminated:
        status = 0
    except BaseException as error:  # noqa: BLE001  # the last frame: print it, then exit
        os.write(2, f"the slot failed: {traceback_of(error)}".encode())
    finally:
        if output is not None:
            output.flush()  # user code may have printed half a line
        os._exit(status)


def _redirected(descriptor: int, path: Path, max_size: int) -> TextIO:
    make_private_folder(path.parent)
    open_at(descriptor, path)
    return rotating_text(descriptor, path, max_size)
