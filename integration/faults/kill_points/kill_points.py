"""Sets traps. A process ends, stops or waits in a trap at its n-th arrival at a named point.

The points are calls of the process's drivers, so the code under test knows nothing of them. A plan
is a folder with a list of traps. A test may add traps while the processes run. Each trap becomes
active after the previous trap has snapped, in whichever process that was. Each trap snaps once: the
process creates a file exclusively, and writes its pid into the file. The environment carries the
folder's name.

A point is named `<process>.<what>`. The second part says what the process has just done or will do
next. The points of a JobMaster that recovers begin with `recovery`:

    slot.starting               The slot was forked, and has not registered yet.
    slot.writing, .wrote        Before and after a batch is handed to a producer.
    slot.flushed                A transaction was flushed, and not described yet.
    slot.described              The pre-commit check has passed, without an acknowledgement yet.
    slot.uploading, .uploaded   Before and after the upload of one file of a snapshot.
    slot.restored               Restored state was placed and opened, from any origin.
    slot.reused                 A transactional id that was used before has a producer again.
    slot.reported               A task of a wave has sent its report, and Spark still runs it.

    jobmaster.complete          Every acknowledgement is in; the manifest is written next.
    jobmaster.manifest          The manifest is written.
    jobmaster.described         A transaction that the publication will list was seen open.
    jobmaster.publishing        The journal entry is created next.
    jobmaster.published         It was created, and none of its transactions is ended yet.
    jobmaster.finishing         The same as `published`, for the final checkpoint.
    jobmaster.ended             One EndTxn was answered.
    jobmaster.confirmed         One transaction was described as committed.
    jobmaster.settling          All transactions are ended; the entry `settled` is created next.
    jobmaster.settled           The entry `settled` was created.
    jobmaster.freeing           Slots are notified next which ids are reusable.
    jobmaster.swept             The ids of older attempts were listed.
    jobmaster.deleted           One file that no publication needs was deleted.
    jobmaster.trimmed           One old journal entry was deleted.
    jobmaster.closing, .closed  Before and after the last entry of a job that has ended.

    driver.wave                 The driver of a backfill begins the next wave.
    driver.collected            All reports of a wave have arrived, and none is examined.
    driver.returned             `foreachBatch` returns next.
    query.committed             Spark has committed a micro-batch, and asks for the next one.

    jobmanager.storing          A submission is stored next.
    jobmanager.accepting        It was stored, and is accepted next.
    jobmanager.ending           The result of a job that has ended is stored next.

    recovery.read               A journal entry was read.
    recovery.claiming, .claimed Before and after the claim.
    recovery.described          A transaction that the last publication lists was described.
    recovery.ended, .confirmed, .settling, .settled     The same as for `jobmaster`.
    recovery.fenced             One id was fenced.
    recovery.enumerated         The partitions of a topic were requested.
    recovery.beginning          The initial offsets of the submission are written next.
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
"""Environment variable that holds the folder of the plan."""

HOLD_S_MAX = 300.0
POLL_S = 0.002


class Trap(msgspec.Struct, frozen=True):
    """One trap, which by default kills the process that reaches its point.

    With `stops`, the process gets SIGSTOP instead, so that it can come back as a zombie. With
    `holds`, the process only waits at the point until the test releases it, and the test attacks
    other processes.
    """

    point: str
    nth: int = 1
    stops: bool = False
    holds: bool = False


class Plan:
    """A list of traps in their order, and the folder in which each trap leaves its mark."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file = folder / "traps.json"
        self._stamp: tuple[int, int] | None = None
        self._traps: tuple[Trap, ...] = ()

    @classmethod
    def of(cls, folder: Path, traps: Sequence[Trap]) -> Plan:
        """Create a plan in which no trap has snapped."""
        folder.mkdir(parents=True, exist_ok=True)
        plan = cls(folder)
        plan.add(*traps)
        return plan

    @classmethod
    def from_environment(cls) -> Plan:
        """Return the plan of this process. The plan is empty if the environment holds none."""
        return cls(Path(os.environ.get(PLAN, os.devnull)))

    def to_environment(self) -> dict[str, str]:
        """Return the environment variable from which a process reads this plan."""
        return {PLAN: str(self.folder)}

    def add(self, *traps: Trap) -> int:
        """Append traps, and return the number of the first. Every process reads them at its next
        point.
        """
        number = len(self.traps)
        new = self._file.with_suffix(".new")
        new.write_bytes(msgspec.json.encode([*self.traps, *traps]))
        new.replace(self._file)
        return number

    @property
    def traps(self) -> tuple[Trap, ...]:
        """The traps that the plan holds now."""
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
        """Return the path of the file whose existence says that a trap has snapped."""
        return self.folder / f"snapped-{number}"

    def release(self, number: int) -> None:
        """Let a process continue that a trap holds."""
        self._released(number).touch()

    def pid(self, number: int) -> int | None:
        """Return the pid of the process that a trap has caught. None if it has caught none yet."""
        mark = self.mark(number)
        text = mark.read_text() if mark.exists() else ""
        return int(text) if text.endswith("\n") else None  # otherwise the pid is not written yet

    def snapped(self) -> list[int]:
        """Return the pids of the caught processes, in the order of the traps."""
        pids = [self.pid(number) for number in range(len(self.traps))]
        return [pid for pid in pids if pid is not None]

    def hold(self, number: int) -> None:
        """Wait in the held process until the test releases it, for at most `HOLD_S_MAX` seconds."""
        end_s = time.monotonic() + HOLD_S_MAX
        while not self._released(number).exists() and time.monotonic() < end_s:
            time.sleep(POLL_S)

    def _released(self, number: int) -> Path:
        return self.folder / f"released-{number}"


class Traps:
    """The traps of one process, which reaches its points in several threads."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._pid = int(Path("/proc/self").readlink().name)  # os.getpid may be patched
        self._counts: Counter[int] = Counter()
        self._first = 0
        """Number of the first trap that may not have snapped. All traps before it have snapped."""
        self._lock = threading.Lock()

    def reached(self, point: str) -> None:
        """Note that the process is at a point. The process may end here."""
        with self._lock:
            number = self._snapping(point)
        if number is not None:
            self._snap(number, self.plan.traps[number])

    def _snapping(self, point: str) -> int | None:
        """Return the number of the trap that snaps now, or None."""
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
            # The signal goes to this very thread. Any thread of the process may take a signal that
            # is sent to the process. In 25 of 40 tries this thread then continued meanwhile, and
            # sent the message before which it was to be stopped.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        else:
            os.kill(self._pid, signal.SIGKILL)
