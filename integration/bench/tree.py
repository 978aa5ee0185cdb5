"""CPU and memory of a command and everything below it, until it ends.

Sampled, because processes of the tree end at their own times: what a process had used at its last
sample counts, so up to a sample interval of each is missed. A broker runs outside the tree.

Of a cluster, what its processes had used when the first slot was there does not count: to import
everything costs as much as a million records, and never the same twice.
"""

from __future__ import annotations

import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil

from integration.holdings import kind_of

INTERVAL_S: Final = 0.05


@dataclass(slots=True)
class Usage:
    """What a run used."""

    cpu_s: float = 0.0
    wall_s: float = 0.0
    """Of a cluster, from its first slot on."""
    started_s: float = 0.0
    """Of a cluster, to its first slot."""
    rss_max: int = 0
    """Bytes, of the largest single process."""
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
    while process.poll() is None:
        without = usage._before_s is None
        _sample(top, usage)
        if without and usage._before_s is not None:
            usage.started_s = time.monotonic() - began
        time.sleep(INTERVAL_S)
    usage.wall_s = time.monotonic() - began - usage.started_s
    usage.cpu_s = sum(usage._cpu.values()) - (usage._before_s or 0.0)
    usage.status = process.returncode
    return usage


def _sample(top: psutil.Process, usage: Usage) -> None:
    try:
        processes = [top, *top.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for process in processes:
        try:
            with process.oneshot():
                times = process.cpu_times()
                usage._cpu[process.pid] = times.user + times.system
                usage.rss_max = max(usage.rss_max, process.memory_info().rss)
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
    if usage._before_s is None and any(kind_of(process) == "slot" for process in processes):
        usage._before_s = sum(usage._cpu.values())
