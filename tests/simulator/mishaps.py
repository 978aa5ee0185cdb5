"""Mishaps of the checkpoint storage of a run, and hosts that see another storage or cluster.

A *mishap* begins at a given time and lasts a few seconds, until the operator corrects it. There are
these kinds. Calls hang: they never return, or return after every timeout. The storage vanishes, as
after an unmount. Another storage is behind the path: an empty one or an older copy. The new slots
of one host see another storage, or reach another Kafka cluster. During a mishap the job waits or
restarts. It publishes no checkpoint that it cannot restore, writes to no other place, and continues
without help.

Runs with a blackout have no mishaps: a job without its storage commits no transaction, so the loss
of a publication would be expected. A JobManager of a session cluster that starts again reads the id
of the storage from the path, because no other process passes the id to it. It therefore never meets
another storage in these runs (`session_cluster`). Its calls never hang forever, because no watchdog
guards them; they are only late.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from tests.simulator.blobs import MemoryBlobs, StorageVerdict
from tests.simulator.cluster import SimCluster, host_of, kind_of
from tests.simulator.faults import FaultRates
from tests.simulator.mounts import ANOTHER, ProcessFilter, everyone, nothing, older_copy
from tests.simulator.scheduler import SimProcess

MISHAPS: Final = 0.25
"""Share of the runs with mishaps, among those with any fault."""
LATEST: Final = 0.7
"""Latest begin of a mishap, as a share of the time of faults. Most mishaps begin early."""
SECONDS: Final = (0.5, 6.0)
HANGS: Final = "the storage hangs"
VANISHES: Final = "the storage vanishes"
REPLACED: Final = "another storage lies behind the path"
SLOTS_ELSEWHERE: Final = "a host sees another storage"
SLOTS_MISDIRECTED: Final = "a host reaches another Kafka cluster"
KINDS: Final = (HANGS, VANISHES, REPLACED, SLOTS_ELSEWHERE, SLOTS_MISDIRECTED)
COPIES: Final = 0.8
"""Share of the storages seen by one host that have the same identity as the job's storage."""
OF_A_HOST: Final = frozenset({SLOTS_ELSEWHERE, SLOTS_MISDIRECTED})
LONGER_S: Final = 4.0
"""Extra duration in seconds of the mishaps of one host, because only a deployment meets them."""
CHECK_INTERVAL_S: Final = 0.1
"""Time in seconds until the next check whether a waiting mishap can begin."""
HANGING: Final = 0.4
"""Share of the calls that hang or are late while the storage hangs."""
FOR_EVER: Final = 0.5
"""Share of these calls of JobMasters and slots that never return. Others are late."""
LATE_S: Final = (1.0, 12.0)
SLOW_S: Final = 3.0
"""Longest delay in seconds of calls that no watchdog guards."""


@dataclass(frozen=True, slots=True)
class Mishap:
    """One mishap."""

    kind: str
    at_s: float
    """Earliest begin, in seconds. The mishap waits until the job has begun."""
    lasts_s: float


def drawn(
    rng: random.Random, fault_rates: FaultRates, *, session_cluster: bool
) -> tuple[Mishap, ...]:
    """Draw the mishaps of a run: none in most runs, one or two in others, one after the other."""
    if rng.random() >= MISHAPS or not fault_rates.any() or fault_rates.blackout:
        return ()
    kinds = [kind for kind in KINDS if not (session_cluster and kind == REPLACED)]
    mishaps, at_s = [], 0.0
    for _ in range(rng.randint(1, 2)):
        at_s += (LATEST * fault_rates.fault_period_s - at_s) * rng.random() ** 2
        kind, lasts_s = rng.choice(kinds), rng.uniform(*SECONDS)
        mishaps.append(Mishap(kind, at_s, lasts_s + (LONGER_S if kind in OF_A_HOST else 0.0)))
    return tuple(mishaps)


class Mishaps:
    """The execution of the mishaps of one run.

    `begun` says whether the running job has claimed. `swaps.py` simulates another storage behind
    the path at the start of a job.
    """

    def __init__(
        self, world: SimCluster, mishaps: Sequence[Mishap], begun: Callable[[], bool]
    ) -> None:
        self._world, self._mishaps, self._begun = world, mishaps, begun
        self._scheduler = world.scheduler
        self._rng = world.scheduler.random_for("mishaps")
        self._now: Mishap | None = None
        self._over = False

    def begin(self) -> None:
        """Schedule the mishaps."""
        if self._mishaps:
            self._world.request_faults.hanging = self._verdict
        for each in self._mishaps:
            self._scheduler.call_later(each.at_s, partial(self._begins, each))

    def stop(self) -> None:
        """End the current mishap, and start no other."""
        self._over = True
        self.correct()

    def correct(self) -> None:
        """End the current mishap, as the operator does, at least before the job is run again."""
        if self._now is not None:
            self._record_event("corrected: %s", self._now.kind)
            self._now = None
            self._world.mounts.correct()
            self._world.correct_addresses()

    def _begins(self, mishap: Mishap) -> None:
        if self._over:
            return
        host = self._host() if mishap.kind in OF_A_HOST else None
        if self._now is not None or not self._begun() or (mishap.kind in OF_A_HOST and not host):
            self._scheduler.call_later(CHECK_INTERVAL_S, partial(self._begins, mishap))
            return
        self._now = mishap
        self._record_event("%s%s", mishap.kind, f": {host.name}" if host else "")
        ends = partial(self._ends, mishap)
        if host is None:
            self._apply(mishap.kind, everyone)
            self._scheduler.call_later(mishap.lasts_s, ends)
            return
        later = partial(self._scheduler.call_later, mishap.lasts_s, ends)
        self._apply(mishap.kind, self._new_slots_of(host, later))
        for process in self._slots():  # the host restarts without its volumes and names
            if host_of(process) is host:
                process.kill()

    def _apply(self, kind: str, selects: ProcessFilter) -> None:
        world = self._world
        if kind == VANISHES:
            world.mount_other(nothing(), selects)
        elif kind == REPLACED:
            world.mount_other(self._another(ANOTHER), selects)
        elif kind == SLOTS_ELSEWHERE:
            # A copy has the same identity. Only the claim distinguishes it from the job's storage.
            is_copy = self._rng.random() < COPIES
            identity = world.blobs.identity if is_copy else ANOTHER
            world.mount_other(self._another(identity), selects)
        elif kind == SLOTS_MISDIRECTED:
            world.misdirect(selects)

    def _ends(self, mishap: Mishap) -> None:
        if self._now is mishap:
            self.correct()

    def _another(self, identity: str) -> MemoryBlobs:
        """Return an empty storage, or a copy from before the claim of the current attempt."""
        if self._rng.random() < 0.5:
            return MemoryBlobs(identity)
        return older_copy(self._world.blobs, self._world.watch.journal.attempt, identity)

    def _slots(self) -> list[SimProcess]:
        return [
            process
            for process in self._scheduler.processes
            if process.alive and kind_of(process) == "slot"
        ]

    def _host(self) -> SimProcess | None:
        """Draw a host that runs slots."""
        hosts = {host_of(process).pid: host_of(process) for process in self._slots()}
        return hosts[self._rng.choice(sorted(hosts))] if hosts else None

    def _new_slots_of(self, host: SimProcess, met: Callable[[], None]) -> ProcessFilter:
        """Select the new slots of a host.

        `met` is called once, when the first of them looks at the storage or cluster. The operator
        can correct a mishap only after a process has met it.
        """
        since_s, told = self._scheduler.now, False

        def sees(process: SimProcess) -> bool:
            nonlocal told
            is_new = process.started_s >= since_s and kind_of(process) == "slot"
            if not is_new or host_of(process) is not host:
                return False
            if not told:
                told = True
                met()
            return True

        return sees

    def _verdict(self, process: SimProcess, kind: str) -> StorageVerdict | None:
        """Return the verdict of a call while the storage hangs; None for a call that does not."""
        if self._now is None or self._now.kind != HANGS or self._rng.random() >= HANGING:
            return None
        if kind_of(process) in {"jobmaster", "slot"}:
            if self._rng.random() < FOR_EVER:
                self._record_event("a call never returns: %s of %s", kind, process.name)
                return StorageVerdict(hangs=True)
            return StorageVerdict(answer_s=self._rng.uniform(*LATE_S))
        return StorageVerdict(answer_s=self._rng.uniform(0.0, SLOW_S))

    def _record_event(self, what: str, *details: object) -> None:
        self._scheduler.story.record(self._scheduler.now, "world", what, *details)
