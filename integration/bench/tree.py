"""CPU and memory of a command and everything below it, until it ends.

Sampled, because processes of the tree end at their own times: what a process had used at its last
sample counts, so up to a sample interval of each is missed. A broker runs outside the tree.

Of a cluster, what its processes had used when the first slot was there does not count: to import
everything costs as much as a million records, and never the same twice.

Memory is what the whole tree holds at one time, shared pages divided among those who share them
(PSS). The kernel walks the pages of a process to say it, 4 ms for 160 MB, so it is asked once a
second: one or two hundredths of a core, spent outside the tree and not in its figures. A peak
between two samples is not seen.
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
    """What a run used."""

    cpu_s: float = 0.0
    wall_s: float = 0.0
    """Of a cluster, from its first slot on."""
    started_s: float = 0.0
    """Of a cluster, to its first slot."""
    pss_max: int = 0
    """Bytes, the largest sum over the tree in any sample."""
    status: int = 0
    _cpu: dict[int, float] = field(default_factory=dict)
    _before_s: float | None = None
    """What had been used when the first slot was there."""


def measure(command: list[str], folder: Path, environment: dict[str, str]) -> Usage:
    """Run a command to its end."""
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
    """What a process holds, shared pages divided among those who share them; 0 if it has ended."""
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
