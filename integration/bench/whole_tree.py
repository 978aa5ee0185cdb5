"""Measures CPU seconds of a process and all processes below it, also of ended children.

The CPU of each process is read ten times a second, and the last sample of an ended process still
counts. The kernel adds the CPU of a child to its parent when the parent waits for it, and that sum
would be exact. But the parent of Spark's Python workers does not wait for them, so their time would
be lost.

Here the CPU between the last sample and the end of a process is lost, a twentieth of a second on
average. That is little, because the processes that do the work live for seconds.

This module does not separate the start of a run from the rest. `process_tree.py` does, for
clusters.
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
    """The wall seconds, and the CPU seconds of all cores together."""

    wall_s: float
    cpu_s: float

    def __sub__(self, other: Spent) -> Spent:
        return Spent(self.wall_s - other.wall_s, self.cpu_s - other.cpu_s)


class TreeMeter:
    """A thread that samples the CPU of a process tree while the block runs."""

    def __init__(self, pid: int) -> None:
        self._top = psutil.Process(pid)
        self._seen: dict[psutil.Process, float] = {}
        """CPU by process. A later process with the same pid is another key."""
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="tree-meter", daemon=True)

    def cpu_s(self) -> float:
        """Return the CPU of all processes of the tree until now."""
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
    """Run a command with the input `words`. Raise RuntimeError if it fails.

    Return what the command and all processes below it used, and its output.
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
