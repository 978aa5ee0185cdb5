"""The state of the model of waves: drivers, runs of tasks, brokers, files, and the output.

As in `state.py`, no step kills a process. A driver or a run that takes no further step is dead, and
one that takes a step late is a zombie.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from tests.commit.model.broker import Broker, Records, Tid, Txn

# What a driver does next.
DECIDE: Final = "decide"
RUN: Final = "run"
COMMIT: Final = "commit"
DONE: Final = "done"
DEAD: Final = "dead"

# What a run of a task has done.
SENT: Final = "sent"
"""All of its rows, and its report: it is not of the last level."""
READ: Final = "read"
OPEN: Final = "open"
"""It has initialised its transactional id."""
REPORTED: Final = "reported"
FAILED: Final = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class WaveBounds:
    """The limits of the model, and the rule that is broken."""

    widths: tuple[int, ...] = (2, 2)
    """Tasks of each level."""
    runs: tuple[int, ...] = (2, 2)
    """Runs of each task of a level, in the first attempt."""
    later_runs: int = 1
    """The same in attempts after it."""
    records: int = 1
    """Records of each source in each wave."""
    waves: int = 1
    attempts: int = 2
    """Claims: each wave needs one, and each wave that is run again."""
    faults: int = 0
    """Tasks that are given other rows than those of one run of each sender."""
    broken: str = ""
    """The rule that is broken, by its name in `cases.py`."""

    @property
    def sources(self) -> int:
        """Tasks of level 0, each with one split."""
        return self.widths[0]

    @property
    def last(self) -> int:
        """The level that has the sinks."""
        return len(self.widths) - 1


class TaskRun(NamedTuple):
    """One run of a task."""

    status: str
    consumed: tuple[int, ...] = ()
    """The run that the rows of each sender named, or -1 if no row arrived."""
    holds: Records = ()
    sends: tuple[Records, ...] = ()
    """The records for each receiver, one frame for each record."""
    epoch: int = 0


Level = tuple[tuple[TaskRun, ...], ...]
"""Runs, by task and by number of the run."""
Path = tuple[int, ...]


class Publication(NamedTuple):
    """A journal entry, with what its manifest says."""

    positions: tuple[int, ...]
    """Waves that are read, for each source."""
    pending_commits: tuple[Txn, ...]
    files: tuple[tuple[Path, Records], ...]
    """The state of each task of the last level: where it lies, and what it held."""


class Driver(NamedTuple):
    """A driver, which is an attempt."""

    does: str
    begins: tuple[int, ...]
    """The wave that the tasks of each source read."""
    positions: tuple[int, ...]
    """Waves of each source that the restored publication has read."""
    named: tuple[Txn, ...]
    unended: tuple[Txn, ...]


class WaveState(NamedTuple):
    """A state of the whole model."""

    drivers: tuple[Driver, ...]
    """The last of them has the newest claim."""
    publications: tuple[Publication, ...]
    broker: Broker
    ends: frozenset[tuple[Tid, int]]
    """Id and epoch of each EndTxn that was sent."""
    tasks: tuple[tuple[Level, ...], ...]
    """Levels, by attempt and level."""
    files: tuple[tuple[Path, Records], ...]
    output: Records
    faults: int

    def with_driver(self, number: int, driver: Driver) -> WaveState:
        """With another driver of this number."""
        drivers = (*self.drivers[:number], driver, *self.drivers[number + 1 :])
        return self._replace(drivers=drivers)

    def with_run(self, attempt: int, level: int, task: int, run: int, made: TaskRun) -> WaveState:
        """With one more or another run of a task."""
        levels = self.tasks[attempt]
        runs = levels[level][task]
        runs = (*runs[:run], made, *runs[run + 1 :])
        row = (*levels[level][:task], runs, *levels[level][task + 1 :])
        levels = (*levels[:level], row, *levels[level + 1 :])
        return self._replace(tasks=(*self.tasks[:attempt], levels, *self.tasks[attempt + 1 :]))
