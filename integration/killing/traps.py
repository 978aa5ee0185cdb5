"""Traps: a process ends itself, stops itself, or waits, the n-th time that it comes to a named
point.

The points are calls of its drivers, so the code under test knows nothing of them. A plan is a
folder with a row of traps, to which more may be added while the processes run; each is armed when
the one before has snapped, in whatever process that was, and snaps once: a file that is created
exclusively says so, and holds the pid. The folder's name travels in the environment.

Points, as `<process>.<what it has just done or is about to do>`; of a JobMaster that recovers they
begin with `recovery`:

    slot.starting               it was forked, and has not registered yet
    slot.writing, .wrote        before and after a batch is handed to a producer
    slot.flushed                a transaction was flushed, and not described yet
    slot.described              the pre-commit check has passed, and nothing is acknowledged yet
    slot.uploading, .uploaded   before and after one file of a snapshot
    slot.restored               restored state was laid out and opened, wherever it came from
    slot.reused                 an id that was used before has a producer again
    slot.reported               of a task of a wave: its report has left, and Spark still runs it

    jobmaster.complete          every acknowledgement is in, the manifest is about to be written
    jobmaster.manifest          the manifest is written
    jobmaster.described         a transaction that is about to be named was described as open
    jobmaster.publishing        the journal entry is about to be created
    jobmaster.published         it was created, nothing of what it names is ended yet
    jobmaster.finishing         as published, of the final checkpoint
    jobmaster.ended             one EndTxn was answered
    jobmaster.confirmed         one transaction was described as committed
    jobmaster.settling          all are ended, the entry `settled` is about to be created
    jobmaster.settled           it was created
    jobmaster.freeing           slots are about to be told which ids are free
    jobmaster.swept             ids of older attempts were looked for
    jobmaster.deleted           one file that no publication needs was deleted
    jobmaster.trimmed           one old journal entry was deleted
    jobmaster.closing, .closed  around the last entry of a job that has ended

    driver.wave                 of a backfill: the next wave is about to begin
    driver.collected            all reports of a wave are there, and none is looked at
    driver.returned             `foreachBatch` is about to return
    query.committed             Spark has committed a micro-batch and asks whether there is one more

    jobmanager.storing          a submission is about to be stored
    jobmanager.accepting        it was stored, and is about to count
    jobmanager.ending           the result of a job that has ended is about to be stored

    recovery.read               a journal entry was read
    recovery.claiming, .claimed around the claim
    recovery.described          a transaction that the last publication names was described
    recovery.ended, .confirmed, .settling, .settled     as above
    recovery.fenced             one id was fenced
    recovery.enumerated         the partitions of a topic were asked for
    recovery.beginning          where the submission begins is about to be written
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec

PLAN = "TIDEGATE_TEST_TRAPS"
"""Environment variable: the folder of the plan."""

HOLD_S_MAX = 300.0
POLL_S = 0.002


class Trap(msgspec.Struct, frozen=True):
    """One kill. `stops`: by SIGSTOP instead, so that the process can come back as a zombie.
    `holds`: the process only waits at the point until it is released, and others are attacked.
    """

    point: str
    nth: int = 1
    stops: bool = False
    holds: bool = False


class Plan:
    """Traps in their order, and the folder in which each leaves its mark."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file = folder / "traps.json"
        self._stamp: tuple[int, int] | None = None
        self._traps: tuple[Trap, ...] = ()

    @classmethod
    def of(cls, folder: Path, traps: Sequence[Trap]) -> Plan:
        """A new plan; nothing has snapped."""
        folder.mkdir(parents=True, exist_ok=True)
        plan = cls(folder)
        plan.add(*traps)
        return plan

    @classmethod
    def from_environment(cls) -> Plan:
        """The plan of this process; an empty one where there is none."""
        return cls(Path(os.environ.get(PLAN, os.devnull)))

    def to_environment(self) -> dict[str, str]:
        """The inverse."""
        return {PLAN: str(self.folder)}

    def add(self, *traps: Trap) -> int:
        """Append; every process knows them at its next point. The number of the first."""
        number = len(self.traps)
        new = self._file.with_suffix(".new")
        new.write_bytes(msgspec.json.encode([*self.traps, *traps]))
        new.replace(self._file)
        return number

    @property
    def traps(self) -> tuple[Trap, ...]:
        """As they are now."""
        try:
            status = self._file.stat()
        except (FileNotFoundError, NotADirectoryError):
            return ()
        stamp = status.st_mtime_ns, status.st_ino
        if stamp != self._stamp:
            self._traps = msgspec.json.decode(self._file.read_bytes(), type=tuple[Trap, ...])
            self._stamp = stamp
        return self._traps

    def mark(self, number: int) -> Path:
        """The file that says that a trap has snapped."""
        return self.folder / f"snapped-{number}"

    def release(self, number: int) -> None:
        """Let go on what is held."""
        self._released(number).touch()

    def pid(self, number: int) -> int | None:
        """Of the process that a trap has caught; None as long as it has caught none."""
        mark = self.mark(number)
        text = mark.read_text() if mark.exists() else ""
        return int(text) if text.endswith("\n") else None  # else it is being written

    def snapped(self) -> list[int]:
        """Pids, in the order of the traps."""
        pids = [self.pid(number) for number in range(len(self.traps))]
        return [pid for pid in pids if pid is not None]

    def hold(self, number: int) -> None:
        """In the process that is held: return when it is released."""
        end_s = time.monotonic() + HOLD_S_MAX
        while not self._released(number).exists() and time.monotonic() < end_s:
            time.sleep(POLL_S)

    def _released(self, number: int) -> Path:
        return self.folder / f"released-{number}"


class Traps:
    """The traps of one process, which comes to its points in several threads."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._pid = int(Path("/proc/self").readlink().name)  # also of one that hides its own
        self._counts: Counter[int] = Counter()
        self._first = 0
        """All before this have snapped."""
        self._lock = threading.Lock()

    def reached(self, point: str) -> None:
        """The process is at a point. It may be its last."""
        with self._lock:
            number = self._snapping(point)
        if number is not None:
            self._snap(number, self.plan.traps[number])

    def _snapping(self, point: str) -> int | None:
        """The trap that snaps now, if one does."""
        traps = self.plan.traps
        while self._first < len(traps) and self.plan.mark(self._first).exists():
            self._first += 1
        number = self._first
        if number == len(traps) or traps[number].point != point:
            return None
        self._counts[number] += 1
        return number if self._counts[number] >= traps[number].nth else None

    def _snap(self, number: int, trap: Trap) -> None:
        try:
            mark = os.open(self.plan.mark(number), os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        except FileExistsError:
            return  # another process was faster
        os.write(mark, f"{self._pid}\n".encode())
        os.close(mark)
        if trap.holds:
            self.plan.hold(number)
        elif trap.stops:
            # To this very thread. One for the process is taken by any of its threads: this one went
            # on meanwhile in 25 of 40 tries, and sent what it was to be stopped before.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        else:
            os.kill(self._pid, signal.SIGKILL)
