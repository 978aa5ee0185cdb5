"""Measures CPU and memory of a command and all processes below it, until the command ends.

CPU is sampled, because processes of the tree end at different times. The last sample of a process
counts, so up to one sample interval of each process is missed. A broker runs outside the tree.

The CPU that a cluster has used before its first slot runs does not count. The imports cost as much
as a million records, and their cost differs from run to run.

The CPU of a broker is sampled at the same times, apart from the tree. Each sample is kept with its
time, so that the CPU between two commits can be read afterwards (`commits.py`).

Memory is the proportional set size (PSS) of the whole tree at one time: each process counts its
share of shared pages. The kernel walks the pages of a process to compute it, which takes 4 ms for
160 MB, so it is read once a second. This costs one or two hundredths of a core, outside the tree
and not in its figures. A peak between two samples is not seen.
"""

from __future__ import annotations

import math
import subprocess
import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import psutil

from integration.support.resource_usage import kind_of

INTERVAL_S: Final = 0.05
MEMORY_INTERVAL_S: Final = 1.0


class Sample(NamedTuple):
    """The CPU seconds that the tree and the brokers have used until a time."""

    at_s: float
    """Seconds since the Unix epoch, as in the records of Kafka."""
    tree_s: float
    brokers_s: float


@dataclass(slots=True)
class Usage:
    """The CPU, the time and the memory of a run."""

    cpu_s: float = 0.0
    wall_s: float = 0.0
    """Wall time of the command. For a cluster, it begins at the start of the first slot."""
    started_s: float = 0.0
    """Time from the start of a cluster to its first slot. 0 for other commands."""
    pss_max: int = 0
    """Largest sum of the bytes of the tree in any sample."""
    status: int = 0
    samples: list[Sample] = field(default_factory=list)
    """The CPU in the course of the run, with the CPU before the first slot."""
    _cpu: dict[int, float] = field(default_factory=dict)
    _before_s: float | None = None
    """CPU seconds that were used before the first slot was seen."""

    def between(self, first_s: float, last_s: float) -> tuple[float, float]:
        """Return the CPU seconds of the tree and of the brokers between two times of the run."""
        first, last = self._until(first_s), self._until(last_s)
        return last.tree_s - first.tree_s, last.brokers_s - first.brokers_s

    def _until(self, at_s: float) -> Sample:
        """Return the CPU until a time, on the line between the samples before and after it.

        NaN if there are no samples. A time outside of the samples counts as the nearest of them.
        """
        samples = self.samples
        if not samples:
            return Sample(at_s, math.nan, math.nan)
        place = bisect_left(samples, at_s, key=lambda sample: sample.at_s)
        if place in {0, len(samples)}:
            return samples[min(place, len(samples) - 1)]
        before, after = samples[place - 1 : place + 1]
        share = (at_s - before.at_s) / (after.at_s - before.at_s)
        return Sample(
            at_s,
            before.tree_s + share * (after.tree_s - before.tree_s),
            before.brokers_s + share * (after.brokers_s - before.brokers_s),
        )


def measure(
    command: list[str], folder: Path, environment: dict[str, str], brokers: Sequence[int] = ()
) -> Usage:
    """Run a command to its end, and return what it used.

    `brokers` are the processes of the brokers that it works with. They must outlive it.
    """
    usage = Usage()
    beside = [psutil.Process(pid) for pid in brokers]
    began = time.monotonic()
    with (folder / "output.log").open("ab") as output:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=output, stderr=output
        )
    top = psutil.Process(process.pid)
    memory_at = began
    while process.poll() is None:
        without = usage._before_s is None
        _sample(top, usage, beside)
        if without and usage._before_s is not None:
            usage.started_s = time.monotonic() - began
        if time.monotonic() >= memory_at:
            memory_at += MEMORY_INTERVAL_S
            usage.pss_max = max(usage.pss_max, sum(map(proportional_bytes, _tree(top))))
        time.sleep(INTERVAL_S)
    usage.wall_s = time.monotonic() - began - usage.started_s
    usage.cpu_s = sum(usage._cpu.values()) - (usage._before_s or 0.0)
    usage.status = process.returncode
    return usage


def proportional_bytes(process: psutil.Process) -> int:
    """Return the proportional set size of a process in bytes, or 0 if it has ended."""
    try:
        rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return sum(int(line.split()[1]) for line in rollup.splitlines() if line[:4] == "Pss:") * 1024


def _tree(top: psutil.Process) -> list[psutil.Process]:
    try:
        return [top, *top.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _sample(top: psutil.Process, usage: Usage, beside: Sequence[psutil.Process]) -> None:
    processes = _tree(top)
    at_s = time.time()
    for process in processes:
        try:
            usage._cpu[process.pid] = _cpu_s(process)
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
    if usage._before_s is None and any(kind_of(process) == "slot" for process in processes):
        usage._before_s = sum(usage._cpu.values())
    usage.samples.append(Sample(at_s, sum(usage._cpu.values()), sum(map(_cpu_s, beside))))


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system
