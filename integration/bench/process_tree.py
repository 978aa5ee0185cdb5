"""Measures CPU and memory of a command and all processes below it, until the command ends.

CPU is sampled, because processes of the tree end at different times. The last sample of a process
counts, so up to one sample interval of each process is missed. A broker runs outside the tree.

The CPU that a cluster has used before its first slot runs does not count. The imports cost as much
as a million records, and their cost differs from run to run.

Memory is the proportional set size (PSS) of the whole tree at one time: each process counts its
share of shared pages. The kernel walks the pages of a process to compute it, which takes 4 ms for
160 MB, so it is read once a second. This costs one or two hundredths of a core, outside the tree
and not in its figures. A peak between two samples is not seen.
"""

from __future__ import annotations

import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil

from integration.support.resource_usage import kind_of

INTERVAL_S: Final = 0.05
MEMORY_INTERVAL_S: Final = 1.0


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
    _cpu: dict[int, float] = field(default_factory=dict)
    _before_s: float | None = None
    """CPU seconds that were used before the first slot was seen."""


def measure(command: list[str], folder: Path, environment: dict[str, str]) -> Usage:
    """Run a command to its end, and return what it used."""
    usage = Usage()
    began = time.monotonic()
    with (folder / "output.log").open("ab") as output:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=output, stderr=output
        )
    top = psutil.Process(process.pid)
    memory_at = began
    while process.poll() is None:
        without = usage._before_s is None
        _sample(top, usage)
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


def _sample(top: psutil.Process, usage: Usage) -> None:
    processes = _tree(top)
    for process in processes:
        try:
            times = process.cpu_times()
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
        usage._cpu[process.pid] = times.user + times.system
    if usage._before_s is None and any(kind_of(process) == "slot" for process in processes):
        usage._before_s = sum(usage._cpu.values())
