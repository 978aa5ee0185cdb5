"""Measures what a job pays per second, whatever its records cost: memory, CPU and wake-ups of each
process of a local cluster, by the cause of its threads.

The figures come from `/proc/PID/task`. The kernel counts CPU in hundredths of a second, so a share
of a core is exact to a hundredth of a second in the time of the measurement. A wake-up is a
voluntary context switch: the thread had waited. Memory is the proportional set size, and the part
of it that no other process shares. The client is measured too. Other programs add to no figure,
but on a busy machine each wake-up costs more CPU.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil

from integration.bench.cost import Rig
from integration.bench.latency import SETTLE_S, TAKE_OVER
from integration.bench.page import Table
from integration.bench.startup_recovery import COPY, GIVE_UP_S, job_settings
from integration.bench.steady_producer import SteadyProducer
from integration.support.resource_usage import kind_of
from integration.support.running import TidegateRun, runs_with_checkpoint

CLOCK_TICKS: Final = os.sysconf("SC_CLK_TCK")
LOAD_PER_S: Final = 20_000
PYTHON, GRPC, KAFKA, OTHER = "Python", "gRPC", "librdkafka", "others"
CAUSES: Final = (PYTHON, GRPC, KAFKA, OTHER)
_GRPC_THREADS: Final = ("event_engine", "grpc", "resolver", "timer_manager")
_ORDER: Final = ("client", "jobmanager", "jobmaster", "taskmanager", "fork-server", "slot")
COLUMNS: Final = (
    "process",
    "PSS MB",
    "own MB",
    "threads",
    "CPU, of one core",
    *(f"{cause}" for cause in CAUSES),
    "wake-ups a second",
    "of gRPC",
    "goal",
)


@dataclass(frozen=True, slots=True)
class Case:
    """The state of the cluster while it is measured, and the goals of the case."""

    interval: str
    records_per_s: int = 0
    memory_goal_mb: int = 0
    """The goal for the proportional set size of the cluster, which is all processes but the client;
    0 without a goal.
    """
    cpu_goal: float = 0.0
    """The goal for the share of a core of all processes without the slots, or, without load, of
    all processes. 0 without a goal.
    """
    slot_goal_mb: int = 0
    rarer_when_idle: bool = True
    """Whether checkpoints are rarer while the job is idle (`checkpoint.interval_when_idle`)."""

    @property
    def title(self) -> str:
        """The title of the table."""
        load = f"{self.records_per_s:,} records a second" if self.records_per_s else "idle"
        return f"Cost per second: {load}, a checkpoint {self.every}"

    @property
    def every(self) -> str:
        """The time between two checkpoints, in words."""
        return f"every {self.interval}{'' if self.rarer_when_idle else ', also while idle'}"


CASES: Final = (
    Case("1 s", memory_goal_mb=180),
    Case("100 ms", cpu_goal=0.05),
    Case("100 ms", rarer_when_idle=False),
    Case("1 s", LOAD_PER_S, cpu_goal=0.10, slot_goal_mb=120),
    Case("100 ms", LOAD_PER_S),
)


@dataclass(slots=True)
class Figures:
    """The figures of one process, or the sum of several."""

    pss_mb: float = 0.0
    own_mb: float = 0.0
    threads: int = 0
    cpu: dict[str, float] = field(default_factory=lambda: dict.fromkeys(CAUSES, 0.0))
    """The share of one core by cause."""
    wakes: dict[str, float] = field(default_factory=lambda: dict.fromkeys(CAUSES, 0.0))
    """The wake-ups per second by cause."""

    def add(self, other: Figures) -> None:
        """Add another process to this sum."""
        self.pss_mb += other.pss_mb
        self.own_mb += other.own_mb
        self.threads += other.threads
        for cause in CAUSES:
            self.cpu[cause] += other.cpu[cause]
            self.wakes[cause] += other.wakes[cause]

    def row(self, name: str, goal: str = "") -> list[str]:
        """Return the cells of a table."""
        shares = [f"{self.cpu[cause]:.1%}" for cause in CAUSES]
        return [
            name,
            f"{self.pss_mb:.0f}",
            f"{self.own_mb:.0f}",
            str(self.threads),
            f"{sum(self.cpu.values()):.1%}",
            *shares,
            f"{sum(self.wakes.values()):.0f}",
            f"{self.wakes[GRPC]:.0f}",
            goal,
        ]


def measure_idle(rig: Rig, seconds: float) -> Iterator[Table]:
    """Measure one table for each case."""
    for case in CASES:
        with cluster(rig, case) as processes:
            yield table(case, measured(processes, seconds, time.sleep), seconds)


def table(case: Case, found: Sequence[tuple[str, Figures]], seconds: float) -> Table:
    """Return the table of a case, with the sums that have goals."""
    everyone, beside, of_cluster = Figures(), Figures(), Figures()
    for kind, figures in found:
        everyone.add(figures)
        if kind != "slot":
            beside.add(figures)
        if kind != "client":
            of_cluster.add(figures)
    slot_goal = f"{case.slot_goal_mb} MB" if case.slot_goal_mb else ""
    rows = [figures.row(kind, slot_goal if kind == "slot" else "") for kind, figures in found]
    share = f"{case.cpu_goal:.0%}" if case.cpu_goal else ""
    memory = f"{case.memory_goal_mb} MB" if case.memory_goal_mb else ""
    loaded = case.records_per_s > 0
    rows.append(beside.row("all but the slots", share if loaded else ""))
    rows.append(of_cluster.row("all but the client", memory))
    rows.append(everyone.row("all", "" if loaded else share))
    note = (
        f"The job is a pass-through with two slots. The figures are those of {seconds:g} s, which "
        f"begin {SETTLE_S:g} s after the first checkpoint. The columns from {PYTHON} to {OTHER} "
        "are parts of the CPU, by the threads that spent it."
    )
    if case.cpu_goal and not loaded:
        note += " While the job is idle, it takes a checkpoint every second (the default)."
    return Table(case.title, COLUMNS, rows, note)


@contextmanager
def cluster(rig: Rig, case: Case) -> Iterator[list[psutil.Process]]:
    """Run a job, and yield its processes when it has settled."""
    source, _ = rig.fresh("steady" if case.records_per_s else "silent")
    sink, folder = rig.fresh("idle")
    config = {
        **job_settings("copies", source, sink),
        "job.parallelism": "2",
        "taskmanager.slots": "2",
        "checkpoint.interval": case.interval,
    }
    if not case.rarer_when_idle:
        config["checkpoint.interval_when_idle"] = "0 ms"
    load = SteadyProducer(rig.bootstrap, source, case.records_per_s) if case.records_per_s else None
    with (
        load or nullcontext(),
        TidegateRun(folder, rig.bootstrap, pipeline=COPY, options=TAKE_OVER, config=config) as run,
    ):
        run.wait_for("a checkpoint", runs_with_checkpoint, GIVE_UP_S)
        time.sleep(SETTLE_S)
        client = psutil.Process(run.pid)
        yield [client, *client.children(recursive=True)]


def measured(
    processes: Sequence[psutil.Process], seconds: float, wait: Callable[[float], None]
) -> list[tuple[str, Figures]]:
    """Return the kinds and the figures of processes, the client first. `wait` sleeps."""
    before = {process.pid: threads_of(process.pid) for process in processes}
    began_s = time.monotonic()
    wait(seconds)
    passed_s = time.monotonic() - began_s
    found = []
    for number, process in enumerate(processes):
        kind = "client" if number == 0 else kind_of(process)
        if kind is None:
            raise RuntimeError(f"The process {process.pid} ended while it was measured.")
        found.append((kind, _figures(process, before[process.pid], passed_s)))
    return sorted(found, key=lambda pair: _ORDER.index(pair[0]))


@dataclass(frozen=True, slots=True)
class ThreadTime:
    """The CPU and the wake-ups of a thread since its start."""

    cause: str
    cpu_s: float
    wakes: int


def threads_of(pid: int) -> dict[str, ThreadTime]:
    """Return what the threads of a process have spent, by thread id."""
    tasks = Path(f"/proc/{pid}/task")
    main = (tasks / str(pid) / "comm").read_text().strip()
    found = {}
    for task in tasks.iterdir():
        try:
            fields = (task / "stat").read_text().rpartition(")")[2].split()
            name = (task / "comm").read_text().strip()
            status = (task / "status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue  # the thread has ended
        wakes = int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])
        cpu_s = (int(fields[11]) + int(fields[12])) / CLOCK_TICKS
        found[task.name] = ThreadTime(cause_of(name, main), cpu_s, wakes)
    return found


def cause_of(thread: str, main: str) -> str:
    """Return whose thread it is. Threads of Python have the name of the main thread."""
    if thread == main:
        return PYTHON
    if thread.startswith("rdk:"):
        return KAFKA
    return GRPC if thread.startswith(_GRPC_THREADS) else OTHER


def _figures(process: psutil.Process, before: dict[str, ThreadTime], seconds: float) -> Figures:
    memory = process.memory_full_info()
    now = threads_of(process.pid)
    figures = Figures(memory.pss / 1e6, memory.uss / 1e6, len(now))
    for thread, spent in now.items():
        was = before.get(thread, ThreadTime(spent.cause, 0.0, 0))
        figures.cpu[spent.cause] += (spent.cpu_s - was.cpu_s) / seconds
        figures.wakes[spent.cause] += (spent.wakes - was.wakes) / seconds
    return figures
