"""The protocol of the executors that run the tasks of a wave, and an executor in this process.

An executor carries rows from level to level. Each task gets all rows that name it as receiver,
sorted by `(ord, sender, seq)`. An executor may run a task several times, and need not report this.
The rows and the reports prove whether the wave is complete.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from operator import attrgetter
from typing import Final, Protocol

from tidegate.config import Config
from tidegate.dataplane.waves.level_task import LevelTask, TaskHost
from tidegate.protocol.messages import Deploy
from tidegate.protocol.waves import REPORT, Row, TaskReport, read_report

ORDER: Final = attrgetter("ord", "sender", "seq")


@dataclass(frozen=True, slots=True, kw_only=True)
class WaveTasks:
    """The tasks of a wave. Each level has one task for each index."""

    levels: int
    deploys: tuple[Deploy, ...]
    """The deployments, ordered by index."""


class Executor(Protocol):
    """Runs the tasks of a wave."""

    def check(self, config: Config) -> None:
        """Raise an error for settings that cannot work. The driver calls this before the first
        wave.
        """
        ...

    def run(self, wave: WaveTasks) -> list[TaskReport]:
        """Run all tasks. Return the reports that arrived, in any order."""
        ...


class InProcessExecutor:
    """Runs the tasks one after the other, level by level, over lists of rows.

    Small backfills and tests use it. It needs no Spark, and a test can call `run_task`.
    """

    def __init__(self, host: TaskHost) -> None:
        self._host = host
        self._numbers = count()

    def check(self, config: Config) -> None:
        """Check nothing, because the tasks run in this process."""

    def run(self, wave: WaveTasks) -> list[TaskReport]:
        """Run all tasks. Return all their reports."""
        rows: list[Row] = []
        reports: list[TaskReport] = []
        for level in range(wave.levels):
            sent = list(self.run_level(wave, level, rows))
            # Reports stay here, because a task whose sender failed stops and forwards no report.
            reports += [read_report(row.frame) for row in sent if row.edge == REPORT]
            rows = [row for row in sent if row.edge != REPORT]
        return reports

    def run_level(self, wave: WaveTasks, level: int, rows: list[Row]) -> Iterator[Row]:
        """Run the tasks of a level on the rows of the previous level. Yield their rows."""
        for index in range(len(wave.deploys)):
            mine = sorted((row for row in rows if row.receiver == index), key=ORDER)
            yield from self.run_task(wave, level, index, mine)

    def run_task(self, wave: WaveTasks, level: int, index: int, rows: list[Row]) -> Iterator[Row]:
        """Run a task once. Yield the rows that it sends."""
        task = LevelTask(wave.deploys[index], level, self._host, next(self._numbers))
        for sent in task.run(rows):
            yield from sent
