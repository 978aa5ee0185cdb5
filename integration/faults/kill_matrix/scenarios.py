"""Defines scenarios, which make attacks and yield one result for each of their cells.

A module with scenarios defines `scenarios() -> Iterable[Scenario]` and is listed in
`__main__.MODULES`. A cell is named by a path, `section/version/...`. `CELLS` selects paths by
wildcards, and the record keeps a result under its path. The first part is the section of the
report. Scenarios run one after the other, and each ends everything that it starts.
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
    """The result of one cell."""

    cell: str
    """Unique path of the cell, `section/version/pipeline/...`."""
    name: str
    """Description of the attack."""
    version: str
    """Version of Kafka."""
    pipeline: str
    """Name of the pipeline: `stateless`, `keyed` or `two sinks`, or another name for another
    job.
    """
    signal: str
    """The signal `SIGKILL` or `SIGSTOP`, or the fault: `cut`, `stall`, `full disk`."""
    seed: int
    kills: int
    """Number of processes that were killed or frozen, brokers that were stopped, and faults that
    were made.
    """
    recovery_s: tuple[float, ...]
    """Recovery times in seconds, one for each fault. A time ends when a committed reader has seen
    the first output of a new attempt, or the next output if no new attempt is due. Empty if no time
    is measured.
    """
    verdict: str
    """The verdict: EXACT, or a sentence that says what is wrong."""
    date: str
    """Date of the run, in ISO format."""
    note: str = ""
    """A remark for readers of this cell."""

    @property
    def section(self) -> str:
        """The section of the report that shows the cell."""
        return self.cell.partition("/")[0]

    @property
    def right(self) -> bool:
        """Whether the verdict is EXACT."""
        return self.verdict == EXACT


@dataclass(slots=True)
class Stage:
    """The surroundings of a scenario: brokers for the whole run, folders, random numbers, and
    messages.
    """

    folder: Path
    seed: int
    date: str
    say: Callable[[str], None]
    brokers: dict[str, EmbeddedKafka] = field(default_factory=dict)
    """Brokers by version: those that exist already, and those that this stage has started."""
    _open: ExitStack = field(default_factory=ExitStack)
    _shared: dict[str, Any] = field(default_factory=dict)
    _folders: int = 0

    def broker(self, version: str) -> EmbeddedKafka:
        """Return a cluster of one node that no scenario attacks. All users of a version share
        it.
        """
        if version not in self.brokers:
            directory = self.folder / f"kafka-{version}"
            cluster = EmbeddedKafka.start(version, directory=directory, owned=True)
            self.brokers[version] = self._open.enter_context(cluster)
        return self.brokers[version]

    def shared(self, name: str, start: Callable[[Path, ExitStack], T]) -> T:
        """Return the object that `start` makes once, in a folder of its own, for all users of this
        name.

        The end of the run also ends everything that `start` enters into the stack.
        """
        if name not in self._shared:
            self._shared[name] = start(self.new_folder(name), self._open)
        shared: T = self._shared[name]
        return shared

    def new_folder(self, name: str) -> Path:
        """Make an empty folder. It is kept with its logs if the run ends with a wrong cell."""
        self._folders += 1
        plain = re.sub(r"[^a-z0-9.-]+", "-", name.lower())
        folder = self.folder / f"{self._folders:03d}-{plain}"
        folder.mkdir(parents=True)
        return folder

    def rng(self, name: str) -> random.Random:
        """Return a random generator that is the same for the same seed and name."""
        return random.Random(f"{self.seed} {name}")

    def close(self) -> None:
        """End the brokers, and everything else that the stage has started."""
        self._open.close()


class Scenario(Protocol):
    """One attack, or several on the same running job."""

    @property
    def cells(self) -> Sequence[str]:
        """Names of the cells that the scenario can yield, in their order."""
        ...

    def run(self, cells: Sequence[str], stage: Stage) -> Iterator[Result]:
        """Run these of its cells, and yield each result as soon as it is known.

        An exception is a verdict too. All cells without a result are then reported wrong, with the
        text of the exception.
        """
        ...
