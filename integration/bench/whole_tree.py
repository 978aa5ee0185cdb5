"""CPU seconds of a process and everything below it, children that have ended included.

What a process has used is read ten times a second, and what it had used when it was last seen
counts for ever. The kernel's own sum (what a parent gets of its children when it waits for them)
would be exact, but the parent of Spark's Python workers waits for none of them, so that their time
would be lost. Lost is here what a process uses between its last sample and its end, a twentieth of
a second on average: the processes that do the work live for seconds.

Not here: which part of a run is its start (`tree.py` leaves that out of a cluster's figures).
"""

from __future__ import annotations

import contextlib
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import psutil

INTERVAL_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds of the clock, and of all processors together."""

    wall_s: float
    cpu_s: float

    def __sub__(self, other: Spent) -> Spent:
        return Spent(self.wall_s - other.wall_s, self.cpu_s - other.cpu_s)


class TreeMeter:
    """Reads what a tree of processes has used, as long as the block lasts."""

    def __init__(self, pid: int) -> None:
        self._top = psutil.Process(pid)
        self._seen: dict[psutil.Process, float] = {}
        """By process, which differs from a later one of the same pid."""
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="tree-meter", daemon=True)

    def cpu_s(self) -> float:
        """Of all processes of the tree up to now."""
        with self._lock:
            self._sample()
            return sum(self._seen.values())

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(INTERVAL_S):
            with self._lock:
                self._sample()

    def _sample(self) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in [self._top, *self._top.children(recursive=True)]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    times = process.cpu_times()
                    self._seen[process] = times.user + times.system


def run_to_end(
    command: Sequence[str], folder: Path, environment: Mapping[str, str], words: bytes = b""
) -> tuple[Spent, str]:
    """Run a command; what it and everything below it used, and its output. `words` are its input.

    RuntimeError where it fails.
    """
    began_s = time.monotonic()
    log = folder / "output.log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
        )
        with TreeMeter(process.pid) as meter:
            process.communicate(words)
            spent = Spent(time.monotonic() - began_s, meter.cpu_s())
    said = log.read_text()
    if process.returncode != 0:
        message = f"{' '.join(command)} ended with status {process.returncode}:\n{said[-4000:]}"
        raise RuntimeError(message)
    return spent, said
