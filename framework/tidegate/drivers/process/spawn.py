"""Starting processes by role: `ports.processes.Processes` by subprocess.

A child is `python -m tidegate.role ROLE` with the arguments as the first line of its standard
input, which is its lifeline from then on (`parent_watch.py`). The first child of a role may have
been started before (`prestart.py`). Its output goes to its log file; the one line that a server
announces itself with goes to its parent first. One waiting thread per child reports the exit status
the moment the child is gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

from tidegate.drivers.process import frames
from tidegate.drivers.process.parent_watch import encode_arguments
from tidegate.drivers.process.prestart import CHILD_ENVIRONMENT, Prestarted, command
from tidegate.errors import ExternalError, ResourceExhaustedError, refused_resource
from tidegate.ports.processes import (
    ExitStatus,
    SlotEnded,
    SlotForked,
    SlotNotForked,
    ZygoteEnded,
    ZygoteEvent,
    ZygoteReady,
)
from tidegate.private_files import make_private_folder, private_opener


class OsProcesses:
    """Starts processes that share `common`: settings every process of the cluster is given."""

    def __init__(
        self,
        common: Mapping[str, object],
        logs: Path,
        prestarted: Mapping[str, Prestarted] = MappingProxyType({}),
    ) -> None:
        """`prestarted` processes, by role, are used by the first start of their role."""
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
        """Start `role`; ExternalError names the reason if the operating system refuses."""
        child = OsChild(
            self._start(role, arguments, log, announces=on_ready is not None, pass_fds=())
        )
        try:
            child.watch(on_exit, on_ready)
        except RuntimeError as error:  # no thread for it: a process that nobody watches must not be
            child.discard()
            raise _cannot_start(role, error) from error
        return child

    def start_zygote(
        self, arguments: Mapping[str, object], *, log: str, listener: Callable[[ZygoteEvent], None]
    ) -> OsForkServer:
        """Start a zygote; what is asked of it before it is ready waits in the socket."""
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:
            raise _cannot_start("zygote", error) from error
        with contextlib.ExitStack() as undo:
            undo.callback(ours.close)
            with theirs:
                process = self._start(
                    "zygote",
                    arguments,
                    log,
                    announces=False,
                    pass_fds=(theirs.fileno(),),
                )
            child = OsChild(process)
            try:
                zygote = OsForkServer(child, ours, listener)
            except RuntimeError as error:
                child.discard()
                raise _cannot_start("zygote", error) from error
            undo.pop_all()  # the zygote's thread closes it
        return zygote

    def _start(
        self,
        role: str,
        arguments: Mapping[str, object],
        log: str,
        *,
        announces: bool,
        pass_fds: tuple[int, ...],
    ) -> subprocess.Popen[bytes]:
        path = self._logs / log
        given = {"common": self._common, "arguments": dict(arguments), "fds": list(pass_fds)}
        try:
            make_private_folder(path.parent)
            with open(path, "ab", opener=private_opener) as output:
                process = self._prestarted_process(role, output.fileno(), announces, pass_fds)
                process = process or subprocess.Popen(
                    command(role),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE if announces else output,
                    stderr=output,
                    env={**os.environ, **CHILD_ENVIRONMENT},
                    pass_fds=pass_fds,
                    start_new_session=True,  # Ctrl-C is the command line's to interpret
                )
        except (OSError, MemoryError) as error:
            raise _cannot_start(role, error) from error
        _write_arguments(process, given)
        return process

    def _prestarted_process(
        self, role: str, log: int, announces: bool, pass_fds: tuple[int, ...]
    ) -> subprocess.Popen[bytes] | None:
        """The one of that role, unless there is none any more."""
        early = self._prestarted.pop(role, None)
        if early is None:
            return None
        with early:
            usable = early.alive and early.announces == announces
            return early.begin(log, pass_fds) if usable else None


class OsChild:
    """A started process."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()

    def discard(self) -> None:
        """Kill it and reap it."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            _close(stream)

    def watch(
        self,
        on_exit: Callable[[ExitStatus], None],
        on_ready: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        """Report what it announces, then its exit, from a thread of its own."""
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
        status = self._process.wait()
        _close(self._process.stdin)
        on_exit(status)


class OsForkServer:
    """A TaskManager's end of its zygote; notices are read in a thread of its own."""

    def __init__(
        self, child: OsChild, commands: socket.socket, listener: Callable[[ZygoteEvent], None]
    ) -> None:
        self._child = child
        self._commands = commands
        self._listener = listener
        self._reader = threading.Thread(target=self._listen, name="zygote", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._child.pid

    def fork(self, start: Any) -> None:
        self._tell(frames.Fork(start=start))

    def kill(self, pid: int) -> None:
        self._tell(frames.Kill(pid=pid))

    def close(self) -> None:
        with contextlib.suppress(OSError):  # it ended before
            self._commands.shutdown(socket.SHUT_WR)

    def _tell(self, command: frames.Command) -> None:
        # It is gone: the reader reports that, and may have closed the socket meanwhile.
        with contextlib.suppress(OSError):
            frames.send(self._commands, command)

    def _listen(self) -> None:
        while (notice := frames.receive_notice(self._commands)) is not None:
            match notice:
                case frames.Ready(pid=pid):
                    self._listener(ZygoteReady(pid=pid))
                case frames.Forked(index=index, pid=pid):
                    self._listener(SlotForked(index=index, pid=pid))
                case frames.NotForked(index=index, reason=reason):
                    self._listener(SlotNotForked(index=index, reason=reason))
                case frames.Exited(index=index, pid=pid, status=status):
                    self._listener(SlotEnded(index=index, pid=pid, status=status))
        self._child.watch(lambda status: self._listener(ZygoteEnded(status=status)))
        self._commands.close()


def _cannot_start(role: str, error: BaseException) -> ExternalError:
    kind = ExternalError if refused_resource(error) is None else ResourceExhaustedError
    return kind(f"Cannot start the {role} process: {error}.")


def _write_arguments(process: subprocess.Popen[bytes], arguments: Mapping[str, object]) -> None:
    lifeline = process.stdin
    if lifeline is not None:
        with contextlib.suppress(BrokenPipeError):  # it died at once: its exit will be reported
            lifeline.write(encode_arguments(arguments))
            lifeline.flush()


def _close(stream: IO[bytes] | None) -> None:
    if stream is not None:
        with contextlib.suppress(BrokenPipeError):  # flushing arguments that nobody read
            stream.close()
