"""The cells of backfills on Spark: which process is struck, by which signal, at which point.

A point is where one process of a backfill stands while another, or that very process, is struck:
`integration/killing/traps.py` says what it has just done. `Cell.excuse` says where a cell is
impossible. Each cell has one of two pipelines, in turn over versions, victims and signals: keyed
state with one sink, and two sinks of which one belongs to tasks that read Kafka.

What the faults are that are no strike at a point: `backfill_faults`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from integration.chaos.scenarios import VERSIONS

SECTION: Final = "backfill"
DRIVER, JVM, EXECUTOR, WORKER = "driver", "jvm", "executor", "worker"
VICTIMS: Final = {
    DRIVER: "driver",
    JVM: "driver's JVM",
    EXECUTOR: "executor's JVM",
    WORKER: "Python worker",
}
KILL, FREEZE = "SIGKILL", "SIGSTOP"
SIGNALS: Final = (KILL, FREEZE)
PIPELINES: Final = {"keyed": "Totals", "two sinks": "TwoSinks"}
"""The pipelines of `integration.killing.jobs` by what they are."""

IDLE: Final = "no task runs then, and an idle worker holds nothing"


@dataclass(frozen=True, slots=True)
class Point:
    """Where a process stands when one is struck."""

    point: str
    """As `integration.killing.traps` names it."""
    says: str

    @property
    def in_task(self) -> bool:
        """Whether a Python worker stands there, in the middle of a task."""
        return self.point.startswith("slot.")


POINTS: Final = (
    Point("slot.wrote", "a task is half-way"),
    Point("slot.flushed", "a task has flushed its transaction"),
    Point("slot.uploaded", "a task has uploaded its state"),
    Point("slot.reported", "a task has made its report"),
    Point("driver.collected", "all reports are collected"),
    Point("jobmaster.published", "the wave is published"),
    Point("jobmaster.ended", "some of its transactions are committed"),
    Point("jobmaster.settled", "the wave is settled"),
    Point("driver.returned", "`foreachBatch` returns"),
    Point("query.committed", "Spark has committed the micro-batch"),
)
"""In the order of a wave."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One strike."""

    version: str
    signal: str
    victim: str
    point: Point

    @property
    def pipeline(self) -> str:
        """What the job is."""
        turns = (VERSIONS.index(self.version), list(VICTIMS).index(self.victim))
        return list(PIPELINES)[(sum(turns) + SIGNALS.index(self.signal)) % len(PIPELINES)]

    @property
    def key(self) -> str:
        """Its name in the record."""
        pipeline = self.pipeline.replace(" ", "-")
        words = (SECTION, self.version, pipeline, self.signal, self.point.point, self.victim)
        return "/".join(words)

    @property
    def excuse(self) -> str:
        """Why this process cannot be struck at this point; empty where it can."""
        return IDLE if self.victim == WORKER and not self.point.in_task else ""


def all_cells() -> Iterator[Cell]:
    """Every possible one."""
    for version in VERSIONS:
        for signal in SIGNALS:
            for victim in VICTIMS:
                for point in POINTS:
                    cell = Cell(version, signal, victim, point)
                    if not cell.excuse:
                        yield cell


def cell_of(version: str, signal: str, victim: str, point: str) -> Cell:
    """The cell of a point by its name."""
    [found] = [each for each in POINTS if each.point == point]
    return Cell(version, signal, victim, found)


SAMPLED: Final = (
    ("4.3.0", KILL, DRIVER, ("slot.wrote", "jobmaster.ended")),
    ("4.3.0", KILL, WORKER, ("slot.flushed", "slot.uploaded")),
    ("4.3.0", KILL, EXECUTOR, ("slot.flushed",)),
    ("4.3.0", FREEZE, DRIVER, ("driver.collected",)),
    ("4.3.0", FREEZE, WORKER, ("slot.flushed",)),
    ("3.9.1", KILL, JVM, ("slot.reported", "query.committed")),
)
"""Strikes of the sample in `make test`: version, signal, victim, points."""


def sample() -> dict[tuple[str, str, str], list[Cell]]:
    """Those cells, by version, signal and victim."""
    return {
        (version, sign, victim): [cell_of(version, sign, victim, point) for point in points]
        for version, sign, victim, points in SAMPLED
    }
