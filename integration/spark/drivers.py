"""A backfill's driver as a process of its own, started and watched by a test that strikes it.

The process runs `wave_driver`, and leads a session of processes: what carries its session id is its
own, the JVM, pyspark's daemon and the Python workers. Nothing of them is left when the context of
`running_driver` ends. Nothing here judges an output.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
import psutil

from integration.killing.traps import Plan
from integration.running import owned
from integration.spark.processes import PATIENCE_S, is_alive, processes_of

LOCAL: Final = "local[2,4]"


class DriverOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What `wave_driver` is told."""

    reference: str
    """The pipeline, as `module:Class`."""
    folder: str
    settings: dict[str, Any]
    parallelism: int = 2
    wave_offsets: int = 8_000
    master: str = LOCAL
    properties: dict[str, str] = {}
    speculation: bool = False


class Driver:
    """A driver that runs, and every process that it was seen to have."""

    def __init__(self, process: subprocess.Popen[bytes], plan: Plan, log: Path) -> None:
        self.process, self.plan, self.log = process, plan, log
        self.seen: dict[int, psutil.Process] = {}
        said = self.line()
        assert said.startswith("jvm "), f"Spark did not start: {said} {self.logged()}"
        self.jvm = int(said.removeprefix("jvm "))

    def line(self) -> str:
        """The next line that it prints; empty at its end."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().decode().rstrip()

    def lines(self) -> list[str]:
        """All that it prints until its end."""
        assert self.process.stdout is not None
        return self.process.stdout.read().decode().splitlines()

    def logged(self) -> str:
        """What it has written to standard error, the JVM's lines among them."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def look(self) -> bool:
        """Note its processes; whether it has ended."""
        ended = self.process.poll() is not None
        for each in processes_of(self.process.pid):
            self.seen.setdefault(each.pid, each)
        return ended

    def is_gone(self) -> bool:
        """Whether none of its processes lives, by their ids and by their session."""
        alive = any(map(is_alive, self.seen.values()))
        return not alive and not processes_of(self.process.pid)

    def workers(self) -> list[int]:
        """Python workers of Spark among the processes that were seen."""
        return [pid for pid in self.seen if pid not in {self.process.pid, self.jvm}]

    def ends_well(self) -> None:
        """AssertionError unless it ends by itself, with all of its waves done."""
        lines = self.lines()
        code = self.process.wait(PATIENCE_S)
        assert (code, lines[-1:]) == (0, ["closed"]), f"exit code {code}, {lines}, {self.logged()}"


@contextmanager
def running_driver(
    options: DriverOptions, plan: Plan, *, environment: Mapping[str, str] | None = None
) -> Iterator[Driver]:
    """A driver whose Spark has started. It is killed at the end of the block if it still runs."""
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
        # What was stopped dies of SIGKILL, too.
        for each in processes_of(process.pid):
            each.kill()
        if process.poll() is None:
            os.kill(process.pid, 9)
        process.communicate()
