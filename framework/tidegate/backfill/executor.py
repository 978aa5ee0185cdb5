"""What runs the tasks of a wave, and the one that runs them in this process.

An executor carries rows from level to level: all rows of a receiver, sorted by `(ord, sender,
seq)`, to its task. It may run a task several times and need not say so, because the rows and the
reports prove whether the wave is whole.
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
    """The tasks of a wave: one of each level with each index."""

    levels: int
    deploys: tuple[Deploy, ...]
    """By index."""


class Executor(Protocol):
    """Runs the tasks of a wave."""

    def check(self, config: Config) -> None:
        """Refuse, before the first wave, what cannot work."""
        ...

    def run(self, wave: WaveTasks) -> list[TaskReport]:
        """Run all tasks; the reports that came, in any order."""
        ...


class InProcessExecutor:
    """Runs the tasks one after the other, level by level, over lists of rows.

    For small backfills and for tests: it needs no Spark, and `run_task` is one call.
    """

    def __init__(self, host: TaskHost) -> None:
        self._host = host
        self._numbers = count()

    def check(self, config: Config) -> None:
        """Nothing: the tasks run in this very process."""

    def run(self, wave: WaveTasks) -> list[TaskReport]:
        """Run all tasks; all their reports."""
        rows: list[Row] = []
        reports: list[TaskReport] = []
        for level in range(wave.levels):
            sent = list(self.run_level(wave, level, rows))
            # A task that stops at once, because its sender failed, would not pass them on.
            reports += [read_report(row.frame) for row in sent if row.edge == REPORT]
            rows = [row for row in sent if row.edge != REPORT]
        return reports

    def run_level(self, wave: WaveTasks, level: int, rows: list[Row]) -> Iterator[Row]:
        """What the tasks of a level make of the rows of the level before."""
        for index in range(len(wave.deploys)):
            mine = sorted((row for row in rows if row.receiver == index), key=ORDER)
            yield from self.run_task(wave, level, index, mine)

    def run_task(self, wave: WaveTasks, level: int, index: int, rows: list[Row]) -> Iterator[Row]:
        """One run of a task."""
        task = LevelTask(wave.deploys[index], level, self._host, next(self._numbers))
        for sent in task.run(rows):
            yield from sent
