"""Measures the cost of a record in a backfill on Spark.

The backfill is compared with a bounded run, with a PySpark job written by hand (`hand_written.py`),
and with the same backfill without transactions.

Each job runs cold and warm. Cold is a command from its start to its end, with everything that it
starts. Warm is the difference between a run over all records and a run over a thousand. On Spark,
both run in one session that has run the job before. A bounded run is two commands, so that its
start is not part of the difference.

CPU seconds are those of the whole process tree without the broker. The JVM and the Python workers
are included, also those that have ended.
"""

from __future__ import annotations

import math
import os
import statistics
import subprocess
import sys
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import msgspec
from confluent_kafka import Consumer, TopicPartition

from integration.bench.cost import ROOT, SMALL, WALL_MIN_S, Rig
from integration.bench.data import PARTITIONS
from integration.bench.page import Table
from integration.bench.spark_process import ANSWER, Order
from integration.bench.whole_tree import Spent, TreeMeter, run_to_end
from integration.bench.workloads import CHECKED, TWO_SLOTS, WORKLOADS

PARALLELISM: Final = 2
WAVE_OFFSETS: Final = 1_000_000
"""The default of backfill.wave_records."""
SPARK_WORKLOADS: Final = ("total", "transform")
HAND, BOUNDED, BACKFILL, LOOSE = "hand-written", "bounded run", "backfill", "at least once"
KINDS: Final = (HAND, BOUNDED, BACKFILL, LOOSE)
CPU_OF_BOUNDED_MAX: Final = 1.3
TRANSACTIONS_MAX: Final = 0.15
ROUNDS_MIN: Final = 3
LARGE_WAVE: Final = 10_000_000
"""The largest wave for which the page has a goal."""
SHARES: Final = (10, 5, 2, 1)
LARGE_SHARES: Final = (100, 10, 2, 1)
"""Divisors of the number of records: the quotients are the sizes of the waves."""
FEW: Final = (
    " So few rounds and records decide nothing on a shared machine. There, the figures of one kind "
    "differed by more than half from run to run."
)


@dataclass(frozen=True, slots=True)
class Rate:
    """The CPU cost per million records, and the records per second, of a run."""

    cpu_per_million: float
    records_per_s: float

    @classmethod
    def of(cls, spent: Spent, records: int) -> Self:
        """Make the rate of a run. Records per second are NaN if the time is too short."""
        rate = records / spent.wall_s if spent.wall_s > WALL_MIN_S else math.nan
        return cls(spent.cpu_s / records * 1e6, rate)


@dataclass(frozen=True, slots=True)
class Compared:
    """Medians of one workload, cold and warm, by kind."""

    workload: str
    cold: dict[str, Rate]
    warm: dict[str, Rate]

    def verdicts(self) -> list[str]:
        """Return a sentence about the warm runs for each goal."""
        cpu = {kind: rate.cpu_per_million for kind, rate in self.warm.items()}
        speed = {kind: rate.records_per_s for kind, rate in self.warm.items()}
        ratio = cpu[BACKFILL] / cpu[BOUNDED]
        faster = speed[BACKFILL] / speed[HAND]
        share = cpu[BACKFILL] / cpu[LOOSE] - 1
        return [
            (
                f"{self.workload}, CPU of the backfill: {ratio:.2f} times that of the bounded run, "
                f"{judged(ratio <= CPU_OF_BOUNDED_MAX, 'at most 1.3 times')}."
            ),
            (
                f"{self.workload}, speed of the backfill: {faster:.2f} times the job by hand, "
                f"{judged(faster >= 1.0, 'no slower')}."
            ),
            (f"{self.workload}, transactions: {share:+.0%} CPU, {_judged_share(share)}."),
        ]


def judged(met: bool, goal: str) -> str:
    return f"goal {goal}: {'met' if met else 'MISSED'}"


def decides(found: Compared, rounds: int) -> bool:
    """Return whether the figures may go into the page.

    There must be enough rounds. Each difference between the two runs of a warm figure must be
    positive.
    """
    return rounds >= ROUNDS_MIN and all(
        rate.cpu_per_million > 0 and rate.records_per_s > 0 for rate in found.warm.values()
    )


def _judged_share(share: float) -> str:
    """Judge the cost of transactions. A negative cost means that the noise is larger."""
    if share < 0:
        return f"goal less than {TRANSACTIONS_MAX:.0%}: not decided, the noise is larger"
    return judged(share < TRANSACTIONS_MAX, "less than 15 %")


def median_of(rates: Sequence[Rate]) -> Rate:
    """Return the median of each figure separately."""
    return Rate(
        statistics.median(rate.cpu_per_million for rate in rates),
        statistics.median(rate.records_per_s for rate in rates),
    )


class SparkProcess:
    """A process with a Spark session (`spark_process.py`). It runs orders."""

    def __init__(self, kind: str, folder: Path) -> None:
        self._log = (folder / "spark-process.log").open("ab")
        self._process = subprocess.Popen(
            command_of(kind, folder),
            env=environment(),
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )
        self._meter = TreeMeter(self._process.pid)

    def run(self, order: Order) -> Spent:
        """Run an order. Return what the process tree used. Raise RuntimeError if it fails."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        cpu_s, began_s = self._meter.cpu_s(), time.monotonic()
        self._process.stdin.write(line_of(order))
        self._process.stdin.flush()
        if self._process.stdout.readline() != ANSWER:
            self._process.wait()
            said = Path(self._log.name).read_text()[-4000:]
            raise RuntimeError(f"The workload {order.workload} failed:\n{said}")
        return Spent(time.monotonic() - began_s, self._meter.cpu_s() - cpu_s)

    def __enter__(self) -> Self:
        self._meter.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        """Wait until the process has stopped Spark and ended."""
        self._meter.__exit__()
        self._process.communicate()
        self._log.close()


class Runs:
    """Runs of one workload of each kind, on one broker, with checked outputs."""

    def __init__(self, rig: Rig, workload: str, wave_offsets: int = WAVE_OFFSETS) -> None:
        self._rig, self._workload = rig, WORKLOADS[workload]
        self._wave_offsets = wave_offsets
        self.ends = {topic: ends_of(rig.bootstrap, topic) for topic in ("bench-in", "bench-small")}

    def cold(self, kind: str) -> Rate:
        """Measure a command from its start to its end, over all records."""
        order, folder = self._order(kind, "bench-in")
        if kind == HAND:
            command, words = command_of(kind, folder), line_of(order)
        else:
            command, words = self._tidegate(kind, order), b""
        spent, _ = run_to_end(command, folder, environment(), words)
        self._rig.check(self._workload, order.sink, self._rig.count)
        return Rate.of(spent, self._rig.count)

    def warm(self, kind: str, process: SparkProcess | None) -> Rate:
        """Measure a run over all records minus one over a thousand; on Spark in a warm process."""
        small, large = (
            self.spent(kind, process, topic, count)
            for topic, count in (("bench-small", SMALL), ("bench-in", self._rig.count))
        )
        return Rate.of(large - small, self._rig.count - SMALL)

    def warm_up(self, kind: str, process: SparkProcess) -> None:
        """Run the job once over all records, so that its code is compiled and workers run."""
        self.spent(kind, process, "bench-in", self._rig.count)

    def spent(self, kind: str, process: SparkProcess | None, topic: str, count: int) -> Spent:
        """Run once, check the output, and return what the run used."""
        order, folder = self._order(kind, topic)
        if process is None:
            spent, _ = run_to_end(self._tidegate(kind, order), folder, environment())
        else:
            spent = process.run(order)
        self._rig.check(self._workload, order.sink, count)
        return spent

    def _order(self, kind: str, topic: str) -> tuple[Order, Path]:
        """Make a job with its own name, sink and folder."""
        sink, folder = self._rig.fresh("spark")
        reference = write_module(
            folder, self._workload.pipeline + ("AtLeastOnce" if kind == LOOSE else "")
        )
        order = Order(
            workload=self._workload.name,
            reference=reference,
            folder=str(folder),
            settings={
                "kafka.bootstrap_servers": self._rig.bootstrap,
                "sources.clicks.topic": topic,
                f"sinks.{self._workload.sink}.topic": sink,
            },
            bootstrap=self._rig.bootstrap,
            source=topic,
            sink=sink,
            ends=self.ends[topic],
            parallelism=PARALLELISM,
            wave_offsets=self._wave_offsets,
        )
        return order, folder

    def _tidegate(self, kind: str, order: Order) -> list[str]:
        command = [sys.executable, "-m", "tidegate.cli.main"]
        if kind == BOUNDED:
            command += ["run", order.reference, "--bounded", "--json"]
            settings = {**order.settings, **TWO_SLOTS}
        else:
            command += ["backfill", order.reference, "--master", f"local[{PARALLELISM}]", "--json"]
            settings = {
                **order.settings,
                "job.parallelism": str(PARALLELISM),
                "backfill.wave_records": str(self._wave_offsets),
            }
        return [*command, *(word for pair in settings.items() for word in ("-c", "=".join(pair)))]


def compare(rig: Rig, workload: str, rounds: int, tell: Callable[[str], None]) -> Compared:
    """Run every kind in turns, cold and warm, once in each round. Return the medians."""
    runs = Runs(rig, workload)
    cold: dict[str, list[Rate]] = defaultdict(list)
    warm: dict[str, list[Rate]] = defaultdict(list)

    def note(into: dict[str, list[Rate]], how: str, kind: str, rate: Rate) -> None:
        into[kind].append(rate)
        tell(
            f"{workload}, {how}, {kind}: {rate.cpu_per_million:.2f} CPU s per million, "
            f"{rate.records_per_s:,.0f} records/s"
        )

    for _ in range(rounds):
        for kind in KINDS:
            note(cold, "cold", kind, runs.cold(kind))
    with ExitStack() as stack:
        processes = {
            family: stack.enter_context(SparkProcess(family, rig.fresh("session")[1]))
            for family in (HAND, BACKFILL)
        }
        of_kind = {HAND: processes[HAND], BACKFILL: processes[BACKFILL], BOUNDED: None}
        of_kind[LOOSE] = processes[BACKFILL]
        for kind in (HAND, BACKFILL):
            tell(f"Warming up {workload}, {kind}.")
            runs.warm_up(kind, processes[kind])
        for _ in range(rounds):
            for kind in KINDS:
                note(warm, "warm", kind, runs.warm(kind, of_kind[kind]))
    return Compared(
        workload,
        {kind: median_of(rates) for kind, rates in cold.items()},
        {kind: median_of(rates) for kind, rates in warm.items()},
    )


def table_of(found: Compared, rounds: int) -> Table:
    """Make the table of one section of the page."""
    rows = [
        [
            kind,
            *(_cells(found.cold, kind)),
            *(_cells(found.warm, kind)),
            f"{found.warm[kind].cpu_per_million / found.warm[BOUNDED].cpu_per_million:.2f}",
        ]
        for kind in KINDS
    ]
    titles = ("", "cold: CPU s/M", "records/s", "warm: CPU s/M", "records/s", "x bounded run")
    note = (
        f"{' '.join(found.verdicts())} The jobs have parallelism {PARALLELISM}, "
        f"local[{PARALLELISM}] and waves of {WAVE_OFFSETS:,} offsets. Cold is a command from its "
        "start to its end. Warm is a run over all records minus a run over a thousand. On Spark, "
        "warm runs have a session that has run the job before. The CPU is that of the whole tree "
        f"with the JVM. {CHECKED} Figures are medians of {rounds} rounds."
        f"{FEW if rounds < ROUNDS_MIN else ''}"
    )
    return Table(title_of(found.workload), titles, rows, note, whole=decides(found, rounds))


@dataclass(frozen=True, slots=True)
class Line:
    """The straight line `fixed + slope * x` that is nearest to some points."""

    fixed: float
    slope: float
    off: float
    """The largest error of any point, as a share of the value of that point."""


def line_through(points: Sequence[tuple[float, float]]) -> Line:
    """Fit a line to points (x, y) by relative error, so that small values count like large ones."""
    weights = [1 / y**2 for _, y in points]
    total = sum(weights)
    mean_x = sum(w * x for w, (x, _) in zip(weights, points, strict=True)) / total
    mean_y = sum(w * y for w, (_, y) in zip(weights, points, strict=True)) / total
    over = sum(w * (x - mean_x) * (y - mean_y) for w, (x, y) in zip(weights, points, strict=True))
    slope = over / sum(w * (x - mean_x) ** 2 for w, (x, _) in zip(weights, points, strict=True))
    fixed = mean_y - slope * mean_x
    return Line(fixed, slope, max(abs((fixed + slope * x) / y - 1) for x, y in points))


def measure_lines(rig: Rig, tell: Callable[[str], None]) -> Table:
    """Measure the cost of a wave of the running total, by its size, in one warm session."""
    largest = rig.count
    shares = LARGE_SHARES if largest >= LARGE_WAVE else SHARES
    sizes = [largest // share for share in shares]
    points: list[tuple[float, Spent]] = []
    with SparkProcess(BACKFILL, rig.fresh("session")[1]) as process:
        Runs(rig, "total", largest).warm_up(BACKFILL, process)
        for size in sizes:
            spent = Runs(rig, "total", size).spent(BACKFILL, process, "bench-in", rig.count)
            waves = math.ceil(largest / size)
            points.append((size, Spent(spent.wall_s / waves, spent.cpu_s / waves)))
            tell(f"Waves of {size:,}: {points[-1][1].cpu_s:.2f} CPU s a wave")
    cpu = line_through([(x, each.cpu_s) for x, each in points])
    wall = line_through([(x, each.wall_s) for x, each in points])
    rows = [
        [
            *(f"{x:,.0f}", f"{each.wall_s:.2f}", f"{each.cpu_s:.2f}"),
            f"{each.cpu_s / x * 1e6:.2f}",
        ]
        for x, each in points
    ]
    note = (
        f"The nearest line has {cpu.fixed:.2f} CPU s a wave and {cpu.slope * 1e6:.2f} CPU s a "
        f"million records. No point is off by more than {cpu.off:.0%}. For the wall time, the line "
        f"has {wall.fixed:.2f} s a wave and {wall.slope * 1e6:.2f} s a million records, and no "
        f"point is off by more than {wall.off:.0%}. The workload is the running total with "
        f"parallelism {PARALLELISM}. Waves of each size read the same {largest:,} records. A job "
        "includes its claim and its start."
    )
    if largest < LARGE_WAVE:
        note += f" Larger waves need `--records {LARGE_WAVE}`."
    titles = ("records a wave", "s a wave", "CPU s a wave", "CPU s/M")
    return Table("Waves: by size", titles, rows, note)


def _cells(rates: dict[str, Rate], kind: str) -> tuple[str, str]:
    return f"{rates[kind].cpu_per_million:.2f}", f"{rates[kind].records_per_s:,.0f}"


def title_of(workload: str) -> str:
    """Return the title of the section of a workload."""
    return f"Backfill on Spark: {workload}"


def write_module(folder: Path, pipeline: str) -> str:
    """Write a module with a pipeline of that class and a unique name. Return its reference."""
    name = f"bench-{pipeline.lower()}-{uuid.uuid4().hex[:8]}"
    module = name.replace("-", "_")
    (folder / f"{module}.py").write_text(
        f"from integration.bench.pipelines import {pipeline}\n\n\n"
        f'class Job({pipeline}, name="{name}"):\n    """A job with its own name."""\n'
    )
    return f"{module}:Job"


def command_of(kind: str, folder: Path) -> list[str]:
    """Return the command that starts a process with a Spark session."""
    return [sys.executable, "-m", "integration.bench.spark_process", kind, str(folder)]


def line_of(order: Order) -> bytes:
    """Encode an order as the process reads it."""
    return msgspec.json.encode(order) + b"\n"


def environment() -> dict[str, str]:
    """Return the environment in which a process finds this package and tidegate."""
    return {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'framework'}"}


def ends_of(bootstrap: str, topic: str) -> dict[int, int]:
    """Return the offset after the last record of each partition."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench-ends"})
    try:
        return {
            p: consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=10)[1]
            for p in range(PARTITIONS)
        }
    finally:
        consumer.close()
