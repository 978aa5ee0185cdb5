"""Measures the CPU per record of tidegate and of the loops, which run in turns on one broker.

Every output is read back. There are two figures of a run. The first is the difference between a run
over all records and a run over a thousand records. So the fixed cost of a run, and what a job pays
per second, are not part of it. The second is the CPU between the first and the last commit, by the
records between both. It is everything that a job pays while it works. The CPU of the broker is
measured between the same two commits.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from integration.bench.commits import Span, read_commits, span
from integration.bench.data import PARTITIONS, fill, records
from integration.bench.page import Table
from integration.bench.process_tree import Usage, measure
from integration.bench.workloads import (
    CHECKED,
    LOOP_SHAPE,
    PER_SECOND,
    SHAPE_TOLERANCE,
    WORKLOADS,
    Workload,
    check_output,
    deviations,
    slowness,
)
from integration.demo.checker import hidden_offsets

ROOT: Final = Path(__file__).parents[2]
SMALL: Final = 1_000
WALL_MIN_S: Final = 0.1
SPAN_MIN_S: Final = 0.5
"""A shorter time between the first and the last commit has too few samples of the CPU."""
ENDED_S_MAX: Final = 30.0
ENDED_POLL_S: Final = 0.02
BILL: Final = "Cost between the first and the last commit"
KINDS: Final = ("loop", "tidegate")
MEMORY_NOTE: Final = (
    "Tree MB is the largest sum of the proportional set sizes (PSS) of all processes at one time, "
    "with one sample a second."
)


@dataclass(frozen=True, slots=True)
class Pace:
    """The interval of the checkpoints of a run, or of the commits of the loop."""

    interval_ms: int
    during_backlog_ms: int | None = None
    """Interval of checkpoints in a backlog. None means the default of tidegate."""

    def settings(self) -> dict[str, str]:
        """Return the configuration for a job."""
        found = {"checkpoint.interval": f"{self.interval_ms} ms"}
        if self.during_backlog_ms is not None:
            found["checkpoint.interval_during_backlog"] = f"{self.during_backlog_ms} ms"
        return found


SECOND: Final = Pace(1_000, during_backlog_ms=0)
"""A checkpoint every second, as often as the loop commits, although the input is a backlog."""

LONG, SHORT = Pace(10_000), Pace(100)
ALWAYS_SHORT: Final = Pace(100, during_backlog_ms=0)
INTERVAL_WORKLOADS: Final = ("passthrough", "total")


@dataclass(frozen=True, slots=True)
class Run:
    """A run whose output was right."""

    usage: Usage
    sync_ms: Sequence[int] = ()
    """The synchronous part of each snapshot in the reports, in milliseconds."""
    span: Span | None = None
    """The time between the first and the last commit. None if there were fewer than two."""


class Rig:
    """A broker with two inputs (all records, and the first thousand), and a folder for runs.

    `brokers` are the processes of the broker, whose CPU is measured too.
    """

    def __init__(
        self, bootstrap: str, scratch: Path, count: int, brokers: Sequence[int] = ()
    ) -> None:
        self.bootstrap, self.scratch, self.count = bootstrap, scratch, count
        self.brokers = brokers
        self.admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        self._number = 0
        for topic, size in (("bench-in", count), ("bench-small", SMALL)):
            self.create(topic)
            fill(bootstrap, topic, records(size))

    def create(self, topic: str) -> str:
        """Create a topic and return its name."""
        self.admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result()
        return topic

    def fresh(self, what: str) -> tuple[str, Path]:
        """Create a topic, and a folder of the same name."""
        self._number += 1
        name = f"bench-{what}-{self._number}"
        folder = self.scratch / name
        folder.mkdir()
        return self.create(name), folder

    def once(self, kind: str, workload: Workload, source: str, count: int, pace: Pace) -> Run:
        """Run once to the end and check the output. Raise RuntimeError if it fails or is wrong."""
        sink, folder = self.fresh("out")
        command = self.command(kind, workload, source, sink, count, pace)
        began_s = time.time()
        usage = measure(command, folder, self.environment(), self.brokers)
        log = self.check_run(kind, workload, usage, folder)
        self.check(workload, sink, count)
        return Run(usage, synchronous_ms(log.splitlines()), self.span(source, began_s))

    def command(
        self, kind: str, workload: Workload, source: str, sink: str, count: int, pace: Pace
    ) -> list[str]:
        """Return the command of a run."""
        if kind == "loop":
            words = ["integration.bench.loop", workload.loop, self.bootstrap, source, sink]
            return [sys.executable, "-m", *words, str(count), str(pace.interval_ms)]
        settings = {
            "kafka.bootstrap_servers": self.bootstrap,
            "sources.clicks.topic": source,
            f"sinks.{workload.sink}.topic": sink,
            **pace.settings(),
            **workload.settings,
        }
        return [
            *(sys.executable, "-m", "tidegate.cli.main", "run"),
            *(f"integration.bench.pipelines:{workload.pipeline}", "--bounded"),
            *("--take-over", "--json"),  # each run has its own storage
            *(word for key, value in settings.items() for word in ("-c", f"{key}={value}")),
        ]

    def environment(self) -> dict[str, str]:
        """Return the environment of a run."""
        return {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'framework'}"}

    def check_run(self, kind: str, workload: Workload, usage: Usage, folder: Path) -> str:
        """Return the output of a run. RuntimeError if it has failed."""
        log = (folder / "output.log").read_text()
        if usage.status != 0:
            message = f"{kind} {workload.name} ended with status {usage.status}:\n{log[-4000:]}"
            raise RuntimeError(message)
        return log

    def span(self, source: str, began_s: float) -> Span | None:
        """Return the time between the first and the last commit of the run that began then."""
        return span(read_commits(self.bootstrap, source, began_s), PARTITIONS)

    def check(self, workload: Workload, sink: str, count: int) -> None:
        """Read an output, compare it with the expected records, and delete its topic."""
        check_output(workload, read_committed(self.bootstrap, sink), count)
        self.admin.delete_topics([sink])[sink].result()


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured run without its start-up.

    The rate is NaN unless the large run took over a tenth of a second longer than the small one.
    Otherwise the measurement is too noisy for a rate.
    """

    cpu_per_million: float
    records_per_s: float
    pss_mb: float
    """Largest memory of the whole process tree."""
    start_s: float
    sync_ms: Sequence[int] = ()
    """Synchronous part of each checkpoint that a report names. The slowest slot counts."""
    tree_per_million: float = math.nan
    """CPU of the whole tree between the first and the last commit. NaN if both are too close."""
    broker_per_million: float = math.nan
    """CPU of the broker between the same commits."""


def times(cost: float, of_loop: float) -> str:
    """Return a cost as a multiple of the loop's, or "?" if a run was too short."""
    return f"{cost / of_loop:.2f}" if of_loop > 0 and not math.isnan(cost) else "?"


def told(cost: float) -> str:
    """Return a cost as text, or "?" if its run was too short."""
    return "?" if math.isnan(cost) else f"{cost:.2f}"


def synchronous_ms(lines: Iterable[str]) -> list[int]:
    """Return the synchronous part of each checkpoint that the JSON reports of a run name.

    Reports come twice a second. If there are more checkpoints per second, most are in no report.
    """
    found: dict[str, int] = {}
    for line in lines:
        last = json.loads(line).get("last_checkpoint") if line.startswith("{") else None
        if last is not None:
            found[last["id"]] = last["sync_ms"]
    return list(found.values())


def figure(rig: Rig, kind: str, workload: Workload, pace: Pace = SECOND) -> Figure:
    """Measure a run over all records, minus a run over a thousand records."""
    small = rig.once(kind, workload, "bench-small", SMALL, pace).usage
    run = rig.once(kind, workload, "bench-in", rig.count, pace)
    large = run.usage
    more, wall_s = rig.count - SMALL, large.wall_s - small.wall_s
    tree, broker = per_million_between_commits(run)
    return Figure(
        cpu_per_million=(large.cpu_s - small.cpu_s) / more * 1e6,
        records_per_s=more / wall_s if wall_s > WALL_MIN_S else math.nan,
        pss_mb=large.pss_max / 1e6,
        start_s=small.started_s,
        sync_ms=run.sync_ms,
        tree_per_million=tree,
        broker_per_million=broker,
    )


def per_million_between_commits(run: Run) -> tuple[float, float]:
    """Return the CPU of the tree and of the broker between the first and the last commit of a run.

    Both are seconds per million records of the input. They are NaN if the commits are too close.
    """
    if run.span is None or run.span.records <= 0 or _seconds(run.span) < SPAN_MIN_S:
        return math.nan, math.nan
    tree_s, broker_s = run.usage.between(run.span.first_s, run.span.last_s)
    return tree_s / run.span.records * 1e6, broker_s / run.span.records * 1e6


def _seconds(found: Span) -> float:
    return found.last_s - found.first_s


def measure_cost(rig: Rig, names: Sequence[str], rounds: int) -> tuple[tuple[Table, Table], bool]:
    """Return the tables of all rounds, and whether the loops have their known proportions."""
    figures: dict[tuple[str, str], list[Figure]] = {}
    for number in range(rounds):
        for name in names:
            for kind in KINDS:
                found = figure(rig, kind, WORKLOADS[name])
                figures.setdefault((name, kind), []).append(found)
                print(
                    f"Round {number + 1}, {name}, {kind}: {found.cpu_per_million:.2f} CPU s per "
                    f"million ({told(found.tree_per_million)} between commits, the broker "
                    f"{told(found.broker_per_million)}), {found.records_per_s:,.0f} records/s",
                    flush=True,
                )
    table, holds = _slope_table(figures, names, rounds)
    return (table, _bill_table(figures, rounds, whole=table.whole)), holds


Figures = dict[tuple[str, str], list[Figure]]
"""The figures of all rounds, by workload and kind."""


def _slope_table(figures: Figures, names: Sequence[str], rounds: int) -> tuple[Table, bool]:
    """Return the table of the slopes, and whether the loops have their known proportions."""
    rows = []
    loops: dict[str, float] = {}
    least_of_loops: dict[str, float] = {}
    for (name, kind), runs in figures.items():
        cpu = statistics.median(run.cpu_per_million for run in runs)
        least = min(run.cpu_per_million for run in runs)
        loops.setdefault(name, cpu)
        least_of_loops.setdefault(name, least)
        goal = WORKLOADS[name].goal
        rows.append(
            [
                *(name, kind, f"{cpu:.2f}"),
                times(cpu, loops[name]) if kind != "loop" else "",
                f"{goal:.1f}" if goal and kind != "loop" else "",
                f"{least:.2f}",
                times(least, least_of_loops[name]) if kind != "loop" else "",
                f"{statistics.median(run.records_per_s for run in runs):,.0f}",
                f"{max(run.pss_mb for run in runs):.0f}",
                f"{statistics.median(run.start_s for run in runs):.1f}",
            ]
        )
    holds, note = (
        True,
        (
            f"{CHECKED} Figures are medians of {rounds} rounds, and `least` is the cheapest round. "
            f"{MEMORY_NOTE} "
        ),
    )
    if loops.keys() >= LOOP_SHAPE.keys():
        off = deviations(loops)
        holds = all(abs(share) <= SHAPE_TOLERANCE for share in off.values())
        shares = ", ".join(f"{name} {share:+.0%}" for name, share in off.items())
        note += (
            f"The loops take {slowness(loops):.1f} x as long as where the goals were set. Their "
            f"deviations from the proportions there: {shares}. "
        )
    if not holds:
        note += "VOID: the loops do not have their known proportions, because the machine was busy."
    cpu_titles = ("CPU s/M", "x loop", "goal", "least", "x least")
    titles = ("workload", "", *cpu_titles, "records/s", "tree MB", "to slot s")
    whole = set(names) == set(WORKLOADS)
    return Table("Cost per record", titles, rows, note.strip(), whole), holds


def _bill_table(figures: Figures, rounds: int, *, whole: bool) -> Table:
    """Return the table of the CPU between commits: of the whole tree, and of the broker."""
    rows = []
    for (name, kind), runs in figures.items():
        workload, loops = WORKLOADS[name], figures[name, "loop"]
        tree, broker, slope = _medians(runs)
        of_loop = _medians(loops)
        compared = kind != "loop"
        rows.append(
            [
                *(name, kind, told(tree)),
                times(tree, of_loop[0]) if compared else "",
                _tree_goal(workload, of_loop[0]) if compared else "",
                told(tree - slope),
                told(broker),
                times(broker, of_loop[1]) if compared else "",
                _goal(workload.broker_goal) if compared else "",
            ]
        )
    titles = ("workload", "", "tree, CPU s/M", "x loop", "goal", "more than the slope")
    broker_titles = ("broker, CPU s/M", "broker x loop", "broker goal")
    note = (
        "The CPU is that between the first and the last commit of a run, per million records that "
        "it committed between them. Commits and checkpoints come every second. The tree has all "
        "processes of the run. Its goal is the multiple that is the goal of the slope, and "
        f"{PER_SECOND} s/M more. `More than the slope` is the difference from the table `Cost per "
        f"record`: what a job pays per second. Figures are medians of {rounds} rounds. A run with "
        'too short a time between its commits has "?".'
    )
    return Table(BILL, (*titles, *broker_titles), rows, note, whole)


def _medians(runs: Sequence[Figure]) -> tuple[float, float, float]:
    """Return the medians of the tree, of the broker, and of the slope."""
    return (
        statistics.median(run.tree_per_million for run in runs),
        statistics.median(run.broker_per_million for run in runs),
        statistics.median(run.cpu_per_million for run in runs),
    )


def _tree_goal(workload: Workload, of_loop: float) -> str:
    if workload.goal is None or workload.tree_goal is None:
        return ""
    return told(workload.goal * of_loop + workload.tree_goal)


def _goal(goal: float | None) -> str:
    return "" if goal is None else f"{goal:.1f}"


def measure_intervals(rig: Rig, rounds: int) -> Table:
    """Compare throughput at checkpoints of 100 ms and of 10 s, with and without state.

    Measure the same for the loop. The input is a backlog until its end, so
    `interval_during_backlog` is the interval of checkpoints. One more run switches this setting
    off, so that a checkpoint comes every 100 ms.
    """
    variants = {
        ("loop", ""): ("loop", SHORT),
        ("tidegate", "85 %"): ("tidegate", SHORT),
        ("tidegate, also in a backlog", ""): ("tidegate", ALWAYS_SHORT),
    }
    rows = []
    for name in INTERVAL_WORKLOADS:
        found: dict[tuple[str, Pace], list[Figure]] = {}
        for _ in range(rounds):
            for kind, pace in [(kind, LONG) for kind in KINDS] + list(variants.values()):
                run = figure(rig, kind, WORKLOADS[name], pace)
                found.setdefault((kind, pace), []).append(run)
        for (title, goal), (kind, pace) in variants.items():
            both = found[kind, LONG], found[kind, pace]
            long, short = (statistics.median(run.records_per_s for run in runs) for runs in both)
            rows.append(
                [
                    *(name, title, f"{long:,.0f}", f"{short:,.0f}", f"{short / long:.0%}", goal),
                    *map(_synchronous_part, both),
                ]
            )
    titles = ("workload", "", "records/s at 10 s", "at 100 ms", "share", "goal")
    sync_titles = ("synchronous part, ms, at 10 s", "synchronous part, ms, at 100 ms")
    note = (
        f"{CHECKED} Figures are medians of {rounds} rounds. All records exist when a run begins, "
        "so nearly the whole run is a backlog. In a backlog, checkpoints come every three seconds "
        "(the default of checkpoint.interval_during_backlog). If this setting is off, they come "
        "every 100 ms. The synchronous part of a snapshot is the time in which its slot processes "
        "nothing (goal: milliseconds). The table has the median and the largest value of the "
        "checkpoints in the reports."
    )
    return Table("Throughput by checkpoint interval", (*titles, *sync_titles), rows, note)


def _synchronous_part(runs: Sequence[Figure]) -> str:
    each_ms = [each for run in runs for each in run.sync_ms]
    if not each_ms:
        return ""
    return f"{statistics.median(each_ms):.0f}, {max(each_ms)} of {len(each_ms)}"


def read_committed(bootstrap: str, topic: str) -> list[Any]:
    """Return all committed messages of a topic, once no transaction is open in it.

    This function must wait, because Kafka confirms the end of a transaction before it writes the
    markers.
    """
    end_s = time.monotonic() + ENDED_S_MAX
    while hidden := hidden_offsets(bootstrap, topic):
        if time.monotonic() > end_s:
            said = f"{hidden} offsets of {topic} are behind transactions that no process ends."
            raise RuntimeError(said)
        time.sleep(ENDED_POLL_S)
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench-check",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "fetch.queue.backoff.ms": 5,
        }
    )
    consumer.assign([TopicPartition(topic, p, 0) for p in range(PARTITIONS)])
    found: list[Any] = []
    open_partitions = set(range(PARTITIONS))
    while open_partitions:
        # Wait for one message, then take all that are there. A larger first number would wait
        # until it is reached.
        messages = consumer.consume(1, 5)
        messages += consumer.consume(5000, 0) if messages else []
        for message in messages:
            if message.error() is None:
                found.append(message)
            else:
                open_partitions.discard(message.partition())
    consumer.close()
    return found
