"""The rules of the commit protocol, checked at the moment when they could be broken.

It watches from outside: which journal entries came into being, which requests go to the
coordinators, when a source starts, what stays open. It folds the journal by itself and shares no
decision with the code that it judges. What it finds is kept (`found`), and ends the run: a
violation that is raised in the process under test would be handled as one of its errors.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from tidegate.checkpoint.journal import (
    AnyEntry,
    Claim,
    Closed,
    Lost,
    Publication,
    Settled,
    decode_entry,
    entry_number,
)
from tidegate.checkpoint.manifest import Manifest, decode_manifest
from tidegate.checkpoint.transactional_ids import parse_transactional_id
from tidegate.ids import CheckpointId, TransactionalId
from tidegate.ports.kafka import TransactionState
from tidegate.testing.sim.blobs import MemoryBlobs
from tidegate.testing.sim.kafka.cluster import FakeKafka
from tidegate.testing.sim.kafka.faults import Api, Call
from tidegate.testing.sim.kafka.log import PartitionLog
from tidegate.testing.sim.oracle import Oracle, Violation
from tidegate.testing.sim.scheduler import Scheduler, SimProcess

STALL_S: Final = 45.0
"""A sweep is 10 s after the one before, and asks for so long as brokers take to answer: with that,
so long may a transaction of a dead attempt hold readers back once all faults are over."""


@dataclass(slots=True)
class JournalView:
    """What the entries that exist add up to."""

    entries: dict[int, AnyEntry] = field(default_factory=dict)
    attempt: int = 0
    claimed_ms: int = 0
    """The brokers' time of the newest claim."""
    publication: Publication | None = None
    settled: bool = True
    checkpoints: set[CheckpointId] = field(default_factory=set)
    offsets: dict[tuple[str, str, int], int] = field(default_factory=dict)
    named: set[TransactionalId] = field(default_factory=set)
    """By any publication."""
    losses: int = 0

    @property
    def unsettled(self) -> frozenset[TransactionalId]:
        """What the last publication names, and is not settled."""
        if self.publication is None or self.settled:
            return frozenset()
        return frozenset(each.transactional_id for each in self.publication.transactions)


class Watch:
    """Watches one job in one simulated world."""

    def __init__(
        self, scheduler: Scheduler, blobs: MemoryBlobs, kafka: FakeKafka, oracle: Oracle
    ) -> None:
        self._scheduler, self._blobs, self._kafka, self._oracle = scheduler, blobs, kafka, oracle
        self.journal = JournalView()
        self.found: Violation | None = None
        self.steps = 0
        """Steps of the commit protocol so far: entries, EndTxn, prepares, uploads."""
        self._attempts: dict[int, int] = {}
        """Of processes by pid: the attempt that a JobMaster claimed last, or a slot belongs to."""
        self._open_since_s: dict[tuple[TransactionalId, int], float] = {}
        blobs.watch = self._created

    def slot_is(self, process: SimProcess, attempt: int) -> None:
        """A slot process of an attempt has begun."""
        self._attempts[process.pid] = attempt

    def violated(self, message: str) -> None:
        """Keep the first violation."""
        if self.found is None:
            self.found = Violation(message)
            self._scheduler.tell("VIOLATION: %s", message)

    # --- the journal ----------------------------------------------------------------------------

    def _created(self, process: SimProcess, path: str, data: bytes) -> None:
        number = entry_number(path)
        if number is None:
            return
        self.steps += 1
        entry = decode_entry(data, path)
        journal = self.journal
        self._scheduler.story.tell(
            self._scheduler.now, process.name, "journal %d: %s", number, _short(entry)
        )
        if number != len(journal.entries) + 1:
            self.violated(f"journal entry {number} was created after {len(journal.entries)}")
        journal.entries[number] = entry
        match entry:
            case Claim():
                journal.attempt = number
                journal.claimed_ms = self._kafka.now_ms()
                self._attempts[process.pid] = number
            case Publication():
                self._published(entry)
            case Settled():
                journal.settled = True
            case Lost():
                journal.losses += 1
                self.violated(f"output is lost: {entry.statement}")
            case Closed():
                self._of_newest("closed", entry.attempt)
            case _:
                pass

    def _published(self, entry: Publication) -> None:
        journal = self.journal
        self._of_newest("published", entry.attempt)
        if entry.checkpoint in journal.checkpoints:
            self.violated(f"checkpoint id {entry.checkpoint} was used twice")
        journal.checkpoints.add(entry.checkpoint)
        journal.publication, journal.settled = entry, False
        journal.named.update(each.transactional_id for each in entry.transactions)
        for each in entry.transactions:
            parts = parse_transactional_id(each.transactional_id)
            if parts is None or parts.attempt > entry.attempt:
                self.violated(f"{entry.checkpoint} names {each.transactional_id}")
        self._offsets(entry)

    def _of_newest(self, what: str, attempt: int) -> None:
        if attempt != self.journal.attempt:
            self.violated(f"attempt {attempt} {what} after attempt {self.journal.attempt} claimed")

    def _offsets(self, entry: Publication) -> None:
        data = self._blobs.objects.get(entry.manifest)
        manifest: Manifest = decode_manifest(data, entry.manifest, entry.sha256)
        known = self.journal.offsets
        for split in manifest.splits:
            place = (split.source, split.topic, split.partition)
            if split.offset < known.get(place, 0):
                self.violated(
                    f"checkpoint {entry.checkpoint} goes back in {split.topic}-{split.partition}: "
                    f"from offset {known[place]} to {split.offset}"
                )
            known[place] = split.offset
        if not known.keys() <= {(s.source, s.topic, s.partition) for s in manifest.splits}:
            self.violated(f"checkpoint {entry.checkpoint} has lost a partition")

    # --- brokers --------------------------------------------------------------------------------

    def asked(self, call: Call, process: SimProcess | None) -> None:
        """A request is on its way to a coordinator."""
        name = call.transactional_id
        if name is None or process is None:
            return
        if call.api is Api.END_TXN:
            self.steps += 1
            if name not in self.journal.named:
                self.violated(f"{name} is ended, and no publication names it")
        elif call.api is Api.INIT_PRODUCER_ID:
            self._initialised(name, process)

    def _initialised(self, name: TransactionalId, process: SimProcess) -> None:
        parts = parse_transactional_id(name)
        own = self._attempts.get(process.pid)
        if parts is None or own is None:
            self.violated(f"{process.name} initialises {name}")
            return
        if parts.attempt > own:
            self.violated(f"{process.name} of attempt {own} fences {name} of a newer attempt")
        if name in self.journal.unsettled:
            self.violated(
                f"{process.name} initialises {name}, which an unsettled publication names"
            )

    def marked(self, log: PartitionLog) -> None:
        """A transaction was ended in a partition."""
        try:
            self._oracle.look(log)
        except Violation as violation:
            self.violated(str(violation))

    def source_starts(self, process: SimProcess) -> None:
        """A slot begins to read: what dead attempts left open must be gone by now."""
        own = self._attempts.get(process.pid, 0)
        if own != self.journal.attempt:
            return  # a zombie's
        for name, state in self._kafka.coordinator.list().items():
            parts = parse_transactional_id(name)
            if parts is None or parts.attempt >= own or state is not TransactionState.ONGOING:
                continue
            began_ms = self._kafka.coordinator.describe(name).start_ms
            if began_ms < self.journal.claimed_ms:
                self.violated(f"a source of attempt {own} starts, and {name} is not fenced")

    # --- what may not last ----------------------------------------------------------------------

    def look_for_stalls(self, *, quiet_since_s: float | None) -> None:
        """Transactions of dead attempts that hold readers back; to be called now and then."""
        now_s = self._scheduler.now
        open_now: dict[tuple[TransactionalId, int], float] = {}
        for name, state in self._kafka.coordinator.list().items():
            if state is not TransactionState.ONGOING:
                continue
            parts = parse_transactional_id(name)
            if parts is None or parts.attempt >= self.journal.attempt:
                continue
            which = (name, self._kafka.coordinator.describe(name).start_ms)
            open_now[which] = self._open_since_s.get(which, now_s)
            if quiet_since_s is not None:
                since_s = max(open_now[which], quiet_since_s)
                if now_s - since_s > STALL_S:
                    self.violated(f"{name} of a dead attempt is open for {now_s - since_s:.0f} s")
        self._open_since_s = open_now

    def nothing_open(self) -> None:
        """At the end of a job: no transaction of it is left."""
        for name, state in self._kafka.coordinator.list().items():
            if state is TransactionState.ONGOING:
                self.violated(f"{name} is open after the end of the job")


def _short(entry: AnyEntry) -> str:
    match entry:
        case Publication():
            named = ", ".join(each.transactional_id.split(".", 3)[3] for each in entry.transactions)
            final = ", final" if entry.final else ""
            return f"checkpoint {entry.checkpoint}{final}, names [{named}]"
        case Claim():
            return f"claim of attempt {entry.number}"
        case Settled() | Lost():
            return f"{type(entry).__name__.lower()}, of entry {entry.publication}"
        case _:
            return type(entry).__name__.lower()
