"""Starts processes by role: the implementation of `ports.processes.Processes`.

A child is `python -m tidegate.role ROLE`, or a fork that was made earlier (`prestart.py`,
`forked.py`). It reads its arguments from the first line of its standard input, which is its parent
pipe afterwards (`parent_watch.py`). The output of a child goes to its log file. The parent reads
only the one line with which a server announces itself, from the server's standard output. One
waiting thread per child reports the exit status as soon as the child ends.
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

from tidegate.drivers.process import fork_protocol
from tidegate.drivers.process.forked import await_end
from tidegate.drivers.process.parent_watch import encode_arguments
from tidegate.drivers.process.prestart import ChildProcess, Prestarted, command, environment
from tidegate.drivers.process.user_forks import keep_from_forks
from tidegate.errors import ExternalError, ResourceExhaustedError, refused_resource
from tidegate.ports.processes import (
    ExitStatus,
    ForkServerEnded,
    ForkServerEvent,
    ForkServerReady,
    SlotEnded,
    SlotForked,
    SlotNotForked,
    SlotStacksDumped,
)
from tidegate.private_files import make_private_folder, private_opener


class OsProcesses:
    """Starts processes that share `common`, the settings that every process of the cluster gets."""

    def __init__(
        self,
        common: Mapping[str, object],
        logs: Path,
        prestarted: Mapping[str, Prestarted] = MappingProxyType({}),
    ) -> None:
        """Store the settings. The first start of a role uses the process of that role in
        `prestarted`, if it has one.
        """
        self._common = dict(common)
        self._logs = logs
        self._prestarted = dict(prestarted)

    def spawn(
        self,
        role: str,
        arguments: Mapping[str, object],
        *,
        log: str,
        on_exit: Callable[[ExitStatus], None],
        on_ready: Callable[[dict[str, Any]], None] | None = None,
    ) -> OsChild:
        """Start a process of `role`. ExternalError, with the reason, if the operating system
        refuses.
        """
        child = OsChild(
            self._start(role, arguments, log, announces=on_ready is not None, pass_fds=())
        )
        try:
            child.watch(on_exit, on_ready)
        except RuntimeError as error:  # no thread can watch the process, so it must not run
            child.discard()
            raise _cannot_start(role, error) from error
        return child

    def start_fork_server(
        self,
        arguments: Mapping[str, object],
        *,
        log: str,
        listener: Callable[[ForkServerEvent], None],
    ) -> OsForkServer:
        """Start a fork server. Commands that are sent before it is ready wait in the socket."""
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:
            raise _cannot_start("fork-server", error) from error
        with contextlib.ExitStack() as undo:
            undo.callback(ours.close)
            with theirs:
                process = self._start(
                    "fork-server",
                    arguments,
                    log,
                    announces=False,
                    pass_fds=(theirs.fileno(),),
                )
            child = OsChild(process)
            try:
                fork_server = OsForkServer(child, ours, listener)
            except RuntimeError as error:
                child.discard()
                raise _cannot_start("fork-server", error) from error
            undo.pop_all()  # the thread that reads from the fork server closes the socket
        return fork_server

    def _start(
        self,
        role: str,
        arguments: Mapping[str, object],
        log: str,
        *,
        announces: bool,
        pass_fds: tuple[int, ...],
    ) -> ChildProcess:
        path = self._logs / log
        given = {
            "common": self._common,
            "arguments": dict(arguments),
            "fds": list(pass_fds),
            "log": str(path.absolute()),  # the process limits the size of its log
        }
        try:
            make_private_folder(path.parent)
            with open(path, "ab", opener=private_opener) as output:
                process = self._prestarted_process(role, output.fileno(), announces, pass_fds)
                process = process or subprocess.Popen(
                    command(role),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE if announces else output,
                    stderr=output,
                    env=environment(),
                    pass_fds=pass_fds,
                    start_new_session=True,  # only the command line may receive Ctrl-C
                )
        except (OSError, MemoryError) as error:
            raise _cannot_start(role, error) from error
        _write_arguments(process, given)
        return process

    def _prestarted_process(
        self, role: str, log: int, announces: bool, pass_fds: tuple[int, ...]
    ) -> ChildProcess | None:
        """Return the prestarted process of the role, with its log and descriptors passed. None if
        no usable one exists.
        """
        early = self._prestarted.pop(role, None)
        if early is None:
            return None
        with early:
            usable = early.alive and early.announces == announces
            return early.begin(log, pass_fds) if usable else None


class OsChild:
    """A started process."""

    def __init__(self, process: ChildProcess) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()

    def discard(self) -> None:
        """Kill the process and reap it."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            _close(stream)

    def watch(
        self,
        on_exit: Callable[[ExitStatus], None],
        on_ready: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        """Report the announcement of the process, then its exit, from a new thread."""
        threading.Thread(
            target=self._wait, args=(on_exit, on_ready), name=f"wait-{self.pid}", daemon=True
        ).start()

    def _wait(
        self,
        on_exit: Callable[[ExitStatus], None],
        on_ready: Callable[[dict[str, Any]], None] | None,
    ) -> None:
        if on_ready is not None and self._process.stdout is not None:
            with self._process.stdout as output:
                line = output.readline()
            if line.endswith(b"\n"):
                on_ready(json.loads(line))
        if isinstance(self._process, subprocess.Popen):
            await_end(self._process.pid)
        status = self._process.wait()
        _close(self._process.stdin)
        on_exit(status)


class OsForkServer:
    """The fork server as its TaskManager sees it. A thread of its own reads the notices."""

    def __init__(
        self, child: OsChild, commands: socket.socket, listener: Callable[[ForkServerEvent], None]
    ) -> None:
        self._child = child
        self._commands = commands
        self._listener = listener
        self._reader = threading.Thread(target=self._listen, name="fork-server", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._child.pid

    def fork(self, start: Any) -> None:
        self._send_command(fork_protocol.Fork(start=start))

    def kill(self, pid: int) -> None:
        self._send_command(fork_protocol.Kill(pid=pid))

    def close(self) -> None:
        with contextlib.suppress(OSError):  # the fork server has already ended
            self._commands.shutdown(socket.SHUT_WR)

    def _send_command(self, command: fork_protocol.Command) -> None:
        # The fork server is gone: the reader reports that, and may already have closed the socket.
        with contextlib.suppress(OSError):
            fork_protocol.send(self._commands, command)

    def _listen(self) -> None:
        while (notice := fork_protocol.receive_notice(self._commands)) is not None:
            match notice:
                case fork_protocol.Ready(pid=pid):
                    self._listener(ForkServerReady(pid=pid))
                case fork_protocol.Forked(index=index, pid=pid):
                    self._listener(SlotForked(index=index, pid=pid))
                case fork_protocol.NotForked(index=index, reason=reason):
                    self._listener(SlotNotForked(index=index, reason=reason))
                case fork_protocol.StacksDumped(index=index, pid=pid, code=code, dump=dump):
                    self._listener(SlotStacksDumped(index=index, pid=pid, code=code, dump=dump))
                case fork_protocol.Exited(index=index, pid=pid, status=status):
                    self._listener(SlotEnded(index=index, pid=pid, status=status))
        self._child.watch(lambda status: self._listener(ForkServerEnded(status=status)))
        self._commands.close()


def _cannot_start(role: str, error: BaseException) -> ExternalError:
    kind = ExternalError if refused_resource(error) is None else ResourceExhaustedError
    return kind(f"Cannot start the {role} process: {error}.")


def _write_arguments(process: ChildProcess, arguments: Mapping[str, object]) -> None:
    parent_pipe = process.stdin
    if parent_pipe is not None:
        keep_from_forks(parent_pipe)
        with contextlib.suppress(BrokenPipeError):  # it has ended: its exit will be reported
            parent_pipe.write(encode_arguments(arguments))
            parent_pipe.flush()


def _close(stream: IO[bytes] | None) -> None:
    if stream is not None:
        with contextlib.suppress(BrokenPipeError):  # flushing arguments that were never read
            stream.close()
