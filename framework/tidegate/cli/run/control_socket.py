"""Local runs as other terminals see them: a Unix socket per `tidegate run` in the working folder.

The run listens on `.tidegate/runs/PID-HOST-BOOT-RANDOM.sock`. `status`, `list`, `stop` and `cancel`
find the sockets of their working folder, send one request as a JSON line and read one answer. The
run itself carries out a stop, as after a Ctrl-C, so it ends as its own terminal expects.

Only the owner of the folder can reach a socket: the folder has mode 0700 and the socket 0600. A run
that is killed leaves its socket behind. No process listens on it, so the next command that looks
removes it. A lock keeps a command from removing the socket of a run that is just starting.

Containers and hosts can share a working folder. Process ids and host names of two containers can be
equal, so a name has a random part. A Unix socket of another kernel refuses connections as one of a
killed run does. So a command removes a socket only if its name has this host or this boot.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import secrets
import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, NamedTuple, Self

import msgspec

from tidegate.cli.run.stopping import RunStop, StopRequest
from tidegate.drivers.local_sockets import PATH_BYTES_MAX
from tidegate.errors import RefusedError, RpcError
from tidegate.ids import JobName
from tidegate.private_files import FILE_MODE, make_private_folder
from tidegate.protocol.reports import JobReport

RUNS: Final = Path(".tidegate") / "runs"
"""The folder of the sockets, below the working folder."""
ANSWER_S: Final = 5.0
"""The longest time in seconds for an answer about the state. A run answers within milliseconds."""
PROGRESS_S: Final = 1.0
"""The time in seconds between two reports of a run that a stop waits for."""
REQUEST_BYTES_MAX: Final = 4096
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
REPORT: Final = "report"
STOP: Final = "stop"


class LocalRun(NamedTuple):
    """A local run that has answered. `report` is None while its cluster starts."""

    path: Path
    pid: int
    job: JobName
    report: JobReport | None


class RunSocket:
    """The socket of this run, inside its block."""

    def __init__(self, folder: Path, job: JobName, stop: RunStop) -> None:
        self._folder, self._job, self._stop = folder / RUNS, job, stop
        self._path = self._folder / _new_name()
        self._server: socket.socket | None = None
        self._ended = threading.Event()
        self.problem = ""
        """The reason why other terminals cannot find the run; empty if they can."""

    def __enter__(self) -> Self:
        try:
            with _locked(self._folder):
                self._server = _listening(self._path)
            threading.Thread(target=self._serve, name="run-socket", daemon=True).start()
        except (OSError, RuntimeError) as error:
            self.problem = str(error)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        if self._server is not None:
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)
                self._server.shutdown(socket.SHUT_RDWR)
            self._server.close()
        for thread in threading.enumerate():
            if thread.name == _ANSWERS:
                thread.join(1.0)  # the last report is on its way to the one who has asked for it

    def _serve(self) -> None:
        while not self._ended.is_set() and self._server is not None:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(
                target=self._answer, args=(connection,), name=_ANSWERS, daemon=True
            ).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError, msgspec.MsgspecError):
            connection.settimeout(ANSWER_S)
            with connection.makefile("rb") as lines:
                asked = msgspec.json.decode(lines.readline(REQUEST_BYTES_MAX), type=_Request)
            if asked.request == STOP:
                self._stop.request(StopRequest(asked.final_checkpoint, asked.drain))
                self._ended.wait()
            connection.sendall(self._state())

    def _state(self) -> bytes:
        report = self._stop.latest
        body = {
            "pid": os.getpid(),
            "job": self._job,
            "report": None if report is None else msgspec.Raw(msgspec.json.encode(report)),
        }
        return msgspec.json.encode(body) + b"\n"


_ANSWERS: Final = "run-socket-answer"


class _Request(msgspec.Struct, frozen=True):
    request: Literal["report", "stop"]
    final_checkpoint: bool = True
    drain: bool = False


class _Answer(msgspec.Struct, frozen=True):
    pid: int
    job: JobName
    report: JobReport | None


def find_local_runs(folder: Path) -> list[LocalRun]:
    """Return the live runs of a working folder, by job. Remove sockets that killed runs left."""
    found = [_ask(path) for path in sorted((folder / RUNS).glob("*.sock"))]
    return sorted((run for run in found if run is not None), key=lambda run: (run.job, run.pid))


def stop_local_run(
    run: LocalRun,
    *,
    final_checkpoint: bool,
    drain: bool,
    on_report: Callable[[JobReport], None],
) -> JobReport:
    """Stop a run, wait for its end and return its last report. `on_report` is called with each
    report until then.

    RefusedError if the run ends before its job has started. RpcError if it ends without an answer.
    """
    request = _Request(STOP, final_checkpoint, drain)
    try:
        with _connected(run.path) as connection:
            _send(connection, request)
            while not select.select([connection], [], [], PROGRESS_S)[0]:
                present = _ask(run.path)
                if present is not None and present.report is not None:
                    on_report(present.report)
            answer = _receive(connection, timeout_s=ANSWER_S)
    except OSError:  # it has ended since it was found
        answer = None
    if answer is None:
        raise RpcError(
            f"The run of job {run.job} (process {run.pid}) ended without an answer. Its terminal "
            "says how; the next run continues from the last checkpoint."
        )
    if answer.report is None:
        raise RefusedError(f"The run of job {run.job} ended before its job was started.")
    return answer.report


def _ask(path: Path) -> LocalRun | None:
    try:
        with _connected(path) as connection:
            _send(connection, _Request(REPORT))
            answer = _receive(connection, timeout_s=ANSWER_S)
    except (ConnectionRefusedError, FileNotFoundError):
        _remove_stale(path)
        return None
    except (OSError, msgspec.MsgspecError):  # it ends just now, or it is of another version
        return None
    return None if answer is None else LocalRun(path, answer.pid, answer.job, answer.report)


def _send(connection: socket.socket, request: _Request) -> None:
    connection.sendall(msgspec.json.encode(request) + b"\n")


def _receive(connection: socket.socket, *, timeout_s: float) -> _Answer | None:
    connection.settimeout(timeout_s)
    with connection.makefile("rb") as lines:
        line = lines.readline()
    return msgspec.json.decode(line, type=_Answer) if line.endswith(b"\n") else None


def _remove_stale(path: Path) -> None:
    """Remove a socket on which no process listens. The lock excludes a run that is starting. A
    socket of another kernel stays, because its run may be alive.
    """
    if not _may_be_of_this_kernel(path):
        return
    with contextlib.suppress(OSError), _locked(path.parent):
        try:
            with _connected(path):
                return
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)


def _new_name() -> str:
    host, boot = _this_kernel()
    return f"{os.getpid()}-{host}-{boot}-{secrets.token_hex(3)}.sock"


def _may_be_of_this_kernel(path: Path) -> bool:
    """Return False if the name has another host and another boot. A container has the boot of its
    host, and a host that was started again has its name.
    """
    match path.stem.split("-"):
        case [_, host, boot, _]:
            own_host, own_boot = _this_kernel()
            return host == own_host or boot == own_boot
        case _:
            return True  # of an earlier version of tidegate


@functools.cache
def _this_kernel() -> tuple[str, str]:
    """Return short texts for the host's name and for the time since its start. A system that has no
    id of its boot gets a random one, which no other process has.
    """
    try:
        boot = _BOOT_ID.read_bytes()
    except OSError:
        boot = secrets.token_bytes(8)
    return _short(socket.gethostname().encode()), _short(boot)


def _short(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:6]


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    make_private_folder(folder)
    file = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, FILE_MODE)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


def _listening(path: Path) -> socket.socket:
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        before = os.umask(0o177)  # the socket has mode 0600 from its beginning
        try:
            _at(path, server.bind)
        finally:
            os.umask(before)
        server.listen()
        server.settimeout(None)  # user code may have set a default for all new sockets
    except BaseException:
        server.close()
        raise
    return server


@contextmanager
def _connected(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(ANSWER_S)
        _at(path, connection.connect)
        yield connection


def _at(path: Path, do: Callable[[str], object]) -> None:
    """Bind or connect at a path. The kernel limits its length, so a longer one is named through a
    descriptor of its folder.
    """
    if len(os.fsencode(path)) <= PATH_BYTES_MAX:
        do(str(path))
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        do(f"/proc/self/fd/{folder}/{path.name}")
    finally:
        os.close(folder)
