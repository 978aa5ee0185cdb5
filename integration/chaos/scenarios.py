"""What an attack is: a scenario yields one result for each of its cells.

A module that brings scenarios defines `scenarios() -> Iterable[Scenario]` and stands in
`__main__.MODULES`. A cell is named by a path, `section/version/...`, which `CELLS` selects by
wildcards and under which its result is kept; the first part is the section of the report. Scenarios
run one after the other; whatever one starts it ends.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from tidegate.drivers.kafka.embedded import EmbeddedKafka

T = TypeVar("T")

EXACT = "exact"
"""The only verdict that is not a defect."""

VERSIONS = ("3.9.1", "4.3.0")


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one cell."""

    cell: str
    """`section/version/pipeline/...`: unique."""
    name: str
    """What was done, in words."""
    version: str
    """Of Kafka."""
    pipeline: str
    """`stateless`, `keyed` or `two sinks`; another word for another job."""
    signal: str
    """`SIGKILL`, `SIGSTOP`, or the fault: `cut`, `stall`, `full disk`."""
    seed: int
    kills: int
    """Processes that were killed or frozen, brokers that were stopped, faults that were made."""
    recovery_s: tuple[float, ...]
    """For each fault: until a committed reader has seen the first output of a new attempt (or the
    next output at all, where no new attempt is due). Empty where there is nothing to measure."""
    verdict: str
    """EXACT, or what is wrong, in a sentence."""
    date: str
    """Of the run, ISO."""
    note: str = ""
    """What a reader should know of this cell."""

    @property
    def section(self) -> str:
        """The part of the report that it belongs to."""
        return self.cell.partition("/")[0]

    @property
    def right(self) -> bool:
        """What was expected has happened."""
        return self.verdict == EXACT


@dataclass(slots=True)
class Stage:
    """What a scenario is given: brokers that stand for the whole run, folders, chance, a voice."""

    folder: Path
    seed: int
    date: str
    say: Callable[[str], None]
    brokers: dict[str, EmbeddedKafka] = field(default_factory=dict)
    """By version: those that are there already, and those that were started."""
    _open: ExitStack = field(default_factory=ExitStack)
    _shared: dict[str, Any] = field(default_factory=dict)
    _folders: int = 0

    def broker(self, version: str) -> EmbeddedKafka:
        """One node that nobody attacks; shared by all who ask for this version."""
        if version not in self.brokers:
            directory = self.folder / f"kafka-{version}"
            cluster = EmbeddedKafka.start(version, directory=directory, owned=True)
            self.brokers[version] = self._open.enter_context(cluster)
        return self.brokers[version]

    def shared(self, name: str, start: Callable[[Path, ExitStack], T]) -> T:
        """What is started once, in a folder of its own, for all who ask for this name; what
        `start` enters into the stack is ended with the run.
        """
        if name not in self._shared:
            self._shared[name] = start(self.new_folder(name), self._open)
        shared: T = self._shared[name]
        return shared

    def new_folder(self, name: str) -> Path:
        """An empty folder; kept, with the logs in it, if the run ends with a wrong cell."""
        self._folders += 1
        plain = re.sub(r"[^a-z0-9.-]+", "-", name.lower())
        folder = self.folder / f"{self._folders:03d}-{plain}"
        folder.mkdir(parents=True)
        return folder

    def chance(self, name: str) -> random.Random:
        """Chance of one's own, the same for the same seed and name."""
        return random.Random(f"{self.seed} {name}")

    def close(self) -> None:
        """Stop the brokers."""
        self._open.close()


class Scenario(Protocol):
    """One attack, or several on the same running job."""

    @property
    def cells(self) -> Sequence[str]:
        """What it can yield, in its order."""
        ...

    def run(self, cells: Sequence[str], stage: Stage) -> Iterator[Result]:
        """Carry out these of its cells, and yield each result as soon as it is known.

        An exception is a verdict too: the cells that are still owed are then reported wrong, with
        its text.
        """
        ...
