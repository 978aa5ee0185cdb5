"""The resource usage of a running cluster, measured from outside, for the soak.

The figures are memory, threads and open files of each kind of process, open transactions, and files
on disk. A process that has just started uses less than one that has worked. The figures of a kind
are therefore those of its oldest process. The other processes count only in the number of
processes.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import psutil

from integration.support.running import TidegateRun
from tidegate.commit.journal.entries import SNAPSHOT_INTERVAL
from tidegate.drivers.kafka.transactions import KafkaTransactionAdmin
from tidegate.errors import KafkaError
from tidegate.ports.kafka import TransactionState

MIB: Final = 1 << 20
FOLDERS: Final = ("checkpoints", "state", "logs")

SLACK: Final = {
    "processes": 4.0,
    "open transactions": 8.0,
    "open transactions, age in s": 20.0,
    **{
        f"{kind} {what}": slack
        for kind in ("command", "jobmanager", "taskmanager", "fork-server", "jobmaster", "slot")
        for what, slack in (("MiB", 16.0), ("threads", 8.0), ("open files", 12.0))
    },
    "checkpoints files": 2.0 * SNAPSHOT_INTERVAL
    + 60.0,  # the journal grows until a snapshot allows its truncation
    "checkpoints MiB": 8.0,
    "state files": 60.0,
    "state MiB": 16.0,
    "logs files": 20.0,
    "logs MiB": 4.0,
}
"""The growth that each figure may always have: about two checkpoints or one attempt more."""


class ResourceUsage:
    """The samples of one cluster."""

    def __init__(self, bootstrap: str, folder: Path) -> None:
        """Take the brokers and `folder`, the cluster's `.tidegate`, which holds its files."""
        self._folder = folder
        self._admin = KafkaTransactionAdmin({"bootstrap.servers": bootstrap})
        self._open_since: dict[str, float] = {}
        self.samples: list[tuple[float, dict[str, float]]] = []
        """Pairs of monotonic seconds and figures by name."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._admin.close()

    def __str__(self) -> str:
        """Describe the newest sample."""
        if not self.samples:
            return "nothing measured yet"
        figures = self.samples[-1][1]
        return ", ".join(f"{name} {figures[name]:,.0f}" for name in sorted(figures))

    def sample(self, run: TidegateRun) -> None:
        """Measure once, and keep the sample."""
        now_s = time.monotonic()
        figures = {**_of_processes(run.pid), **self._of_transactions(now_s)}
        for name in FOLDERS:
            count, size = files_below(self._folder / name)
            figures[f"{name} files"], figures[f"{name} MiB"] = count, size / MIB
        self.samples.append((now_s, figures))

    def _of_transactions(self, now_s: float) -> dict[str, float]:
        """Count the open transactions, and measure for how long the oldest has been seen open."""
        try:
            listed = self._admin.list("tidegate.")
        except KafkaError:
            return {}
        open_ = {id_ for id_, state in listed.items() if state is TransactionState.ONGOING}
        self._open_since = {id_: self._open_since.get(id_, now_s) for id_ in open_}
        age_s = max((now_s - since for since in self._open_since.values()), default=0.0)
        return {"open transactions": len(open_), "open transactions, age in s": age_s}


def _of_processes(pid: int) -> dict[str, float]:
    """Measure each kind of process. `command` is the process `pid`, the others are below it."""
    kinds: dict[str, list[psutil.Process]] = defaultdict(list)
    try:
        command = psutil.Process(pid)
        below = command.children(recursive=True)
    except psutil.NoSuchProcess:
        return {}
    kinds["command"].append(command)
    for process in below:
        if (kind := kind_of(process)) is not None:
            kinds[kind].append(process)
    figures: dict[str, float] = {"processes": 1 + len(below)}
    for kind, found in kinds.items():
        try:
            oldest = min(found, key=lambda process: process.create_time())
            with oldest.oneshot():
                figures[f"{kind} MiB"] = oldest.memory_info().rss / MIB
                figures[f"{kind} threads"] = oldest.num_threads()
                figures[f"{kind} open files"] = oldest.num_fds()
        except psutil.NoSuchProcess:
            continue
    return figures


def kind_of(process: psutil.Process) -> str | None:
    """Return the role of a process of a cluster; None if it has ended."""
    try:
        role, parent = _role_of(process), process.parent()
        if role is not None and parent is not None and _role_of(parent) == role:
            # A new fork shows this, until it has a title of its own.
            return "slot" if role == "fork-server" else None
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return None
    return role


def _role_of(process: psutil.Process) -> str | None:
    """Return what the process shows: `tidegate ROLE` and its job, or the command of its start."""
    words = " ".join(process.cmdline()).split()
    if not words:
        return None
    return words[1] if words[0] == "tidegate" else words[-1]


def files_below(folder: Path) -> tuple[int, int]:
    """Count the files below a folder and their bytes. The folder may change during the count."""
    count = size = 0
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                size += Path(path, name).lstat().st_size
            except FileNotFoundError:
                continue
            count += 1
    return count, size
