"""A backfill's driver as a process of its own, which a test starts, watches and kills.

The process runs `wave_driver`, and leads a session of processes. All processes with its session id
belong to it: the JVM, pyspark's daemon and the Python workers. None of them is left when the
context of `running_driver` ends. This module judges no output.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec
import psutil

from integration.faults.kill_points.kill_points import Plan
from integration.spark.processes import TIMEOUT_S, is_alive, processes_of
from integration.support.backfill_process import DriverArguments
from integration.support.running import owned

LOCAL: Final = "local[2,4]"


class DriverOptions(DriverArguments, frozen=True, kw_only=True):
    """The options of `wave_driver`."""

    master: str = LOCAL
    properties: dict[str, str] = msgspec.field(default_factory=dict)
    speculation: bool = False


class Driver:
    """A running driver, and every process of it that was seen."""

    def __init__(self, process: subprocess.Popen[bytes], plan: Plan, log: Path) -> None:
        self.process, self.plan, self.log = process, plan, log
        self.seen: dict[int, psutil.Process] = {}
        said = self.line()
        assert said.startswith("jvm "), f"Spark did not start: {said} {self.logged()}"
        self.jvm = int(said.removeprefix("jvm "))

    def line(self) -> str:
        """Return the next line that the driver prints. It is empty at the end."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().decode().rstrip()

    def lines(self) -> list[str]:
        """Return all lines that the driver prints until its end."""
        assert self.process.stdout is not None
        return self.process.stdout.read().decode().splitlines()

    def logged(self) -> str:
        """Return the text that the driver has written to standard error, with the lines of the
        JVM.
        """
        return self.log.read_text(encoding="utf-8", errors="replace")

    def look(self) -> bool:
        """Note the driver's processes, and return whether the driver has ended."""
        ended = self.process.poll() is not None
        for each in processes_of(self.process.pid):
            self.seen.setdefault(each.pid, each)
        return ended

    def is_gone(self) -> bool:
        """Return whether none of the driver's processes lives, by their ids and by their
        session.
        """
        alive = any(map(is_alive, self.seen.values()))
        return not alive and not processes_of(self.process.pid)

    def workers(self) -> list[int]:
        """Return the pids of Spark's Python workers among the processes that were seen."""
        return [pid for pid in self.seen if pid not in {self.process.pid, self.jvm}]

    def ends_well(self) -> None:
        """Wait until the driver ends. AssertionError unless it ends by itself with all of its waves
        done.
        """
        lines = self.lines()
        code = self.process.wait(TIMEOUT_S)
        assert (code, lines[-1:]) == (0, ["closed"]), f"exit code {code}, {lines}, {self.logged()}"


@contextmanager
def running_driver(
    options: DriverOptions, plan: Plan, *, environment: Mapping[str, str] | None = None
) -> Iterator[Driver]:
    """Run a driver whose Spark has started. It is killed at the end of the block if it still
    runs.
    """
    folder = Path(options.folder)
    log = folder / f"driver-{plan.folder.name}.log"
    process = owned(
        [
            sys.executable,
            "-m",
            "integration.spark.wave_driver",
            msgspec.json.encode(options).decode(),
        ],
        folder=folder,
        log=log,
        pipe=True,
        environment={**plan.to_environment(), **(environment or {})},
    )
    try:
        yield Driver(process, plan, log)
    finally:
        # SIGKILL also ends processes that were stopped.
        for each in processes_of(process.pid):
            each.kill()
        if process.poll() is None:
            os.kill(process.pid, 9)
        process.communicate()
