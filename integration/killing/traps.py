"""Traps: a process ends (or stops) itself at the n-th time that it comes to a named point.

The points are calls of its drivers, so the code under test knows nothing of them. A plan is a row
of traps; each is armed when the one before has snapped, in whatever process that was, and snaps
once: a file that is created exclusively says so, and holds the pid. A plan travels in the
environment.

Points, as `<process>.<what it has just done or is about to do>`:

    slot.wrote                  a batch was handed to a producer
    slot.flushed                a transaction was flushed, and not described yet
    slot.described              the pre-commit check has passed, and nothing is acknowledged yet
    slot.uploading, .uploaded   before and after one file of a snapshot
    jobmaster.complete          every acknowledgement is in, the manifest is about to be written
    jobmaster.manifest          the manifest is written
    jobmaster.publishing        the journal entry is about to be created
    jobmaster.published         it was created, nothing is ended yet
    jobmaster.finishing         as published, of the final checkpoint
    jobmaster.ended             one EndTxn was answered
    jobmaster.committed         all are ended, the entry `settled` is about to be created
    jobmaster.settled           it was created
    jobmaster.claimed           a claim was created
    jobmaster.fenced            one id was fenced
    jobmaster.closing, .closed  around the last entry of a job that has ended
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec

PLAN = "TIDEGATE_TEST_TRAPS"
"""Environment variable: the plan as JSON."""


class Trap(msgspec.Struct, frozen=True):
    """One kill. `stops`: by SIGSTOP instead, so that the process can come back as a zombie."""

    point: str
    nth: int = 1
    stops: bool = False


class Plan(msgspec.Struct, frozen=True):
    """Traps in their order, and the folder in which each leaves its mark."""

    folder: str
    traps: tuple[Trap, ...]

    @classmethod
    def of(cls, folder: Path, traps: Sequence[Trap]) -> Plan:
        """A new plan; nothing has snapped."""
        folder.mkdir(parents=True, exist_ok=True)
        return cls(str(folder), tuple(traps))

    @classmethod
    def from_environment(cls) -> Plan:
        """The plan of this process; an empty one where there is none."""
        text = os.environ.get(PLAN)
        return cls(".", ()) if text is None else msgspec.json.decode(text, type=cls)

    def to_environment(self) -> dict[str, str]:
        """The inverse."""
        return {PLAN: msgspec.json.encode(self).decode()}

    def mark(self, number: int) -> Path:
        """The file that says that a trap has snapped."""
        return Path(self.folder, f"snapped-{number}")

    def snapped(self) -> list[int]:
        """Pids, in the order of the traps."""
        marks = [self.mark(number) for number in range(len(self.traps))]
        return [int(mark.read_text() or 0) for mark in marks if mark.exists()]


class Traps:
    """The traps of one process."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._pid = int(Path("/proc/self").readlink().name)  # also of one that hides its own
        self._counts: Counter[int] = Counter()

    def reached(self, point: str) -> None:
        """The process is at `point`. It may be its last."""
        for number, trap in enumerate(self._plan.traps):
            if self._plan.mark(number).exists():
                continue
            if trap.point == point:
                self._counts[number] += 1
                if self._counts[number] >= trap.nth:
                    self._snap(number, trap)
            return

    def _snap(self, number: int, trap: Trap) -> None:
        try:
            mark = os.open(self._plan.mark(number), os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        except FileExistsError:
            return  # another process was faster
        os.write(mark, str(self._pid).encode())
        os.close(mark)
        os.kill(self._pid, signal.SIGSTOP if trap.stops else signal.SIGKILL)
