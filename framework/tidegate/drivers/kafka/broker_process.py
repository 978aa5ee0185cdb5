"""One process of the embedded broker: it is started, recognised again later, and stopped.

A process is identified by its pid and its start time. A pid alone may belong to another process
when `tidegate kafka down` reads it from a file. A process outlives its starter (a permanent broker)
or dies with it (`owned`). Only this module asks the kernel about broker processes.

The kernel applies the request to die with the owner to the *thread* that started the process. So an
owned broker is started from the main thread, or from a thread of this module that lives as long as
the owner.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from tidegate.drivers.kafka.java import java_environment

POLL_S = 0.02  # the pause between two checks whether a process has ended
LINUX = sys.platform == "linux"


class BrokerProcess:
    """A running or ended process of a broker."""

    def __init__(
        self, pid: int, started: str, child: subprocess.Popen[bytes] | None = None
    ) -> None:
        self.pid = pid
        self._started = started
        self._child = child

    @classmethod
    def launch(cls, command: Sequence[str], *, log: Path, owned: bool) -> BrokerProcess:
        """Start `command` in a session of its own, with its output appended to `log`.

        The session is separate, because Ctrl-C in a terminal must not reach the broker before its
        clients. On systems other than Linux, an `owned` process does not die with a killed owner:
        it ends only at `stop`.
        """
        if owned and LINUX:
            script = str(Path(__file__).with_name("die_with_parent.py"))
            command = [sys.executable, "-I", "-S", script, str(os.getpid()), *command]
        main_thread = threading.current_thread() is threading.main_thread()
        if owned and not main_thread:
            child = _lasting_thread().submit(_popen, command, log).result()
        else:
            child = _popen(command, log)
        return cls(child.pid, start_time(child.pid) or "", child)

    @classmethod
    def read(cls, path: Path) -> BrokerProcess | None:
        """Return the process in a pid file. None if it has ended or the file cannot be used."""
        try:
            pid, _, started = path.read_text(encoding="utf-8").strip().partition(" ")
            found = cls(int(pid), started)
        except (FileNotFoundError, ValueError):
            return None
        return found if found.alive() else None

    def write(self, path: Path) -> None:
        """Write the pid file that `read` reads."""
        path.write_text(f"{self.pid} {self._started}\n", encoding="utf-8")

    def alive(self) -> bool:
        """Return whether the process runs. A zombie process does not run."""
        if self._child is not None:
            return self._child.poll() is None
        return start_time(self.pid) == self._started

    def cpu_ticks(self) -> int | None:
        """Return the processor time that the process has used, in ticks of the kernel. None if it
        is not known.
        """
        fields = _stat_fields(self.pid) if LINUX else None
        return None if fields is None else int(fields[11]) + int(fields[12])  # user and system

    def signal(self, number: signal.Signals) -> None:
        """Send a signal. Do nothing if the process has ended."""
        if self.alive():
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                return  # the process has ended in between

    def wait(self, timeout_s: float) -> bool:
        """Wait for the process to end. Return False if it still runs after `timeout_s` seconds."""
        deadline = time.monotonic() + timeout_s
        while self.alive():
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_S)
        return True


def start_time(pid: int) -> str | None:
    """Return the start time of the process `pid`, in a form that is only useful for comparison.
    None if the process is gone or a zombie.
    """
    if LINUX:
        fields = _stat_fields(pid)
        return None if fields is None or fields[0] in "ZX" else fields[19]
    answer = subprocess.run(
        ["/bin/ps", "-o", "stat=,lstart=", "-p", str(pid)],
        check=False,
        capture_output=True,
        text=True,
    ).stdout.split(maxsplit=1)
    if not answer or answer[0].startswith("Z"):
        return None
    return answer[1].strip().replace(" ", "-")


def _stat_fields(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat from the state on; None if the process is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command's name is in brackets and may contain any text: count from the last bracket.
    return stat.rpartition(")")[2].split()


def _popen(command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=log.parent,
            env=java_environment(),
            start_new_session=True,
        )


@cache
def _lasting_thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="owns-brokers")
