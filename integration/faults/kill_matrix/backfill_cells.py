"""Defines the cells of backfills on Spark. Each has a struck process, a signal and a point.

At a point, one process of a backfill waits while that process or another one is struck.
`integration/faults/kill_points/kill_points.py` says what it has just done. `Cell.excuse` says why a
cell is impossible. Each cell has one of two pipelines, in turn over versions, victims and signals.
One has keyed state and one sink. The other has two sinks, and one of them belongs to tasks that
read Kafka.

`backfill_faults` holds the faults that are not a strike at a point.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from integration.faults.kill_matrix.scenarios import VERSIONS

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
"""The pipelines of `integration.faults.kill_points.jobs` by their names in the record."""

IDLE: Final = "no task runs at this point, and an idle worker has no state"


@dataclass(frozen=True, slots=True)
class Point:
    """The position of a process at the time of a strike."""

    point: str
    """Name of the point in `integration.faults.kill_points.kill_points`."""
    says: str

    @property
    def in_task(self) -> bool:
        """Whether the process at the point is a Python worker in the middle of a task."""
        return self.point.startswith("slot.")


POINTS: Final = (
    Point("slot.wrote", "a task has written a batch"),
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
"""The points in the order of a wave."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One strike."""

    version: str
    signal: str
    victim: str
    point: Point

    @property
    def pipeline(self) -> str:
        """Name of the job's pipeline in the record."""
        turns = (VERSIONS.index(self.version), list(VICTIMS).index(self.victim))
        return list(PIPELINES)[(sum(turns) + SIGNALS.index(self.signal)) % len(PIPELINES)]

    @property
    def key(self) -> str:
        """Name of the cell in the record."""
        pipeline = self.pipeline.replace(" ", "-")
        words = (SECTION, self.version, pipeline, self.signal, self.point.point, self.victim)
        return "/".join(words)

    @property
    def excuse(self) -> str:
        """Reason why this process cannot be struck at this point. The text is empty if it can."""
        return IDLE if self.victim == WORKER and not self.point.in_task else ""


def all_cells() -> Iterator[Cell]:
    """Yield every possible cell."""
    for version in VERSIONS:
        for signal in SIGNALS:
            for victim in VICTIMS:
                for point in POINTS:
                    cell = Cell(version, signal, victim, point)
                    if not cell.excuse:
                        yield cell


def cell_of(version: str, signal: str, victim: str, point: str) -> Cell:
    """Return the cell of a point by the point's name."""
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
"""The strikes of the sample in `make test`: version, signal, victim and points."""


def sample() -> dict[tuple[str, str, str], list[Cell]]:
    """Return the cells of the sample, by version, signal and victim."""
    return {
        (version, sign, victim): [cell_of(version, sign, victim, point) for point in points]
        for version, sign, victim, points in SAMPLED
    }
