"""A small world for the commit protocol: a store, a broker, zombies, and a scheduler on one seed.

JobMasters start one after the other, whether or not the one before is dead. No step kills a
process: one that is not scheduled again is dead, and one that is scheduled late is a zombie. The
world carries out one effect of one process at a time, so every run is one interleaving of all of
them.

The store sometimes answers UNKNOWN: the create has landed, lands later, or never does. An EndTxn
may arrive later and more than once. Kafka is sometimes unavailable. If the test allows it, the
broker aborts an open transaction, or an intruder fences an id.

Checked during a run: no record is committed twice, and nothing is committed that no publication in
the journal names. A transaction is committed with exactly the records that were prepared. Checked
by `finish`: every record of the input is in the output once, and no transaction stays open.

`masters.py` holds the processes. An attempt obeys the `Rules`; the mutation tests switch them off
one by one.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from tidegate.commit import effects
from tidegate.commit.effects import Effect
from tidegate.commit.journal.entries import (
    SNAPSHOT_INTERVAL,
    AnyEntry,
    LossAccepted,
    Publication,
    RolledBack,
    Settled,
    decode_entry,
    entry_number,
)
from tidegate.commit.recover import recover
from tidegate.commit.retry import RetryPolicy
from tidegate.errors import (
    KafkaUnavailableError,
    StorageError,
)
from tidegate.ids import (
    JobName,
    TransactionalId,
)
from tidegate.ports.blobs import CreateResult
from tidegate.ports.kafka import UNFINISHED, EndTxnResult, TransactionDescription, TransactionState
from tidegate.protocol.subtask_snapshot import PreparedTransaction

JOB = JobName("job")
CLUSTER = "cluster-1"
RECORDS = 16
SINKS = 2
TRANSACTIONAL_IDS = 5
RETRY_POLICY = RetryPolicy(pause_s=0.01, timeout_s=2.0)


class Violation(AssertionError):
    """An invariant does not hold."""


class Step:
    """A point at which another process may run; nothing is asked for."""


@dataclass(kw_only=True)
class Rules:
    """Rules that keep the protocol exact. All are true in the protocol; a mutant lacks one."""

    end_only_after_publication: bool = True
    keep_prepared_of_failed_checkpoints: bool = True
    keep_until_committed: bool = True
    keep_transactions_of_unknown_publications: bool = True
    free_ids_only_when_settled: bool = True
    recover: Callable[..., Any] = recover


@dataclass(kw_only=True)
class Faults:
    """Chances of a run; some are off in some runs (swarm testing)."""

    unknown_create: float = 0.0
    late_end: float = 0.0
    kafka_away: float = 0.0
    storage_fails: float = 0.0
    timeouts: int = 0
    intruders: int = 0

    @classmethod
    def draw(cls, rng: random.Random) -> Faults:
        return cls(
            unknown_create=rng.choice([0, 0.2, 0.5]),
            late_end=rng.choice([0, 0.3, 0.7]),
            kafka_away=rng.choice([0, 0.02, 0.1]),
            storage_fails=rng.choice([0, 0, 0.05]),
        )


@dataclass(kw_only=True)
class Transaction:
    """A transactional id at the coordinator."""

    state: TransactionState
    producer_id: int
    epoch: int
    start_ms: int = -1
    records: tuple[int, ...] = ()


@dataclass
class Store:
    """The checkpoint storage."""

    objects: dict[str, bytes] = field(default_factory=dict)
    history: dict[str, bytes] = field(default_factory=dict)
    """The first object created under each path, also if it was deleted later."""
    in_flight: list[tuple[str, bytes]] = field(default_factory=list)

    def land(self, path: str, data: bytes) -> bool:
        if path in self.objects:
            return False
        self.objects[path] = data
        self.history.setdefault(path, data)
        return True


@dataclass
class World:
    """Everything outside the processes, and the invariants."""

    seed: int
    rules: Rules
    faults: Faults
    rng: random.Random
    store: Store = field(default_factory=Store)
    broker: dict[TransactionalId, Transaction] = field(default_factory=dict)
    ends: list[tuple[PreparedTransaction, bool]] = field(default_factory=list)
    output: Counter[int] = field(default_factory=Counter)
    prepared: dict[tuple[TransactionalId, int], tuple[int, ...]] = field(default_factory=dict)
    timed_out: list[TransactionalId] = field(default_factory=list)
    intruded: list[TransactionalId] = field(default_factory=list)
    lost_records: set[int] = field(default_factory=set)
    time_s: float = 0.0
    snapshot_interval: int = SNAPSHOT_INTERVAL
    """Entries between two snapshots, which is how often a journal is trimmed."""
    producer_ids: int = 0
    nonces: int = 0
    log: list[str] = field(default_factory=list)
    cluster: str = CLUSTER
    """The Kafka cluster of the brokers' addresses."""

    # --- the store ------------------------------------------------------------------------------

    def create(self, path: str, data: bytes) -> CreateResult:
        if self.rng.random() >= self.faults.unknown_create:
            return CreateResult.CREATED if self.store.land(path, data) else CreateResult.EXISTS
        kind = self.rng.randrange(3)
        if kind == 0:
            self.store.land(path, data)
        elif kind == 1:
            self.store.in_flight.append((path, data))
        return CreateResult.UNKNOWN

    def entries(self) -> list[AnyEntry]:
        """The journal, also what of it was trimmed."""
        for path, data in self.store.history.items():
            number = entry_number(path)
            if number is not None and number not in self._decoded:
                self._decoded[number] = decode_entry(data, path)
        return [self._decoded[number] for number in sorted(self._decoded)]

    def named(self) -> set[PreparedTransaction]:
        """Transactions that any publication in the journal names, except those that were rolled
        back.
        """
        named: set[PreparedTransaction] = set()
        for entry in self.entries():
            if isinstance(entry, Publication):
                named |= set(entry.transactions)
            elif isinstance(entry, RolledBack):
                named -= set(entry.aborted)
        return named

    def visible_of_the_last(self) -> bool:
        """Whether something is committed that the last publication was the first to name.

        Told from the entries alone, by the algorithm of the protocol's model and not by the code
        under test.
        """
        stack: list[
            tuple[PreparedTransaction, ...]
        ] = []  # of each publication, those it named first
        names: list[tuple[PreparedTransaction, ...]] = [()]
        for entry in self.entries():
            if isinstance(entry, Publication):
                stack.append(tuple(t for t in entry.transactions if t not in names[-1]))
                names.append(entry.transactions)
            elif isinstance(entry, Settled | LossAccepted):
                names[-1] = ()
            elif isinstance(entry, RolledBack):
                stack.pop()
                carried = names.pop()
                names[-1] = tuple(t for t in names[-1] if t in carried)
        records = [self.prepared[t.transactional_id, t.epoch] for t in stack[-1]]
        return any(self.output[record] for one in records for record in one)

    # --- the broker -----------------------------------------------------------------------------

    def init(self, tid: TransactionalId) -> Transaction:
        """InitProducerId: always succeeds, aborts what is open."""
        found = self.broker.get(tid)
        if found is None:
            self.producer_ids += 1
            new = Transaction(state=TransactionState.EMPTY, producer_id=self.producer_ids, epoch=0)
        else:
            step = 2 if found.state is TransactionState.ONGOING else 1
            new = Transaction(
                state=TransactionState.EMPTY,
                producer_id=found.producer_id,
                epoch=found.epoch + step,
            )
        self.broker[tid] = new
        return replace(new)

    def write(self, tid: TransactionalId, epoch: int, record: int) -> bool:
        """False for a producer that was fenced or timed out."""
        found = self.broker[tid]
        aborted = found.state is TransactionState.COMPLETE_ABORT
        if found.epoch != epoch or aborted:
            return False
        if found.state is not TransactionState.ONGOING:
            self.time_s += 0.001
            found.state, found.start_ms = TransactionState.ONGOING, round(self.time_s * 1000)
            found.records = ()
        found.records += (record,)
        return True

    def arrive(self, txn: PreparedTransaction, *, commit: bool) -> EndTxnResult:
        """An EndTxn reaches the coordinator."""
        found = self.broker.get(txn.transactional_id)
        if found is None or (found.producer_id, found.epoch) != (txn.producer_id, txn.epoch):
            return EndTxnResult.REFUSED
        wanted = TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT
        if found.state is wanted:
            return EndTxnResult.ACCEPTED
        if found.state is not TransactionState.ONGOING:
            return EndTxnResult.REFUSED
        if not commit:
            found.state = wanted
            self.log.append(f"aborted {txn.transactional_id} with {found.records}")
            return EndTxnResult.ACCEPTED
        mine = f"{txn.transactional_id} with {found.records}"
        if txn not in self.named():
            raise Violation(f"committed before its publication: {mine}")
        if found.records != self.prepared[txn.transactional_id, txn.epoch]:
            raise Violation(f"committed with other content than was prepared: {mine}")
        found.state = TransactionState.COMPLETE_COMMIT
        self.output.update(found.records)
        self.log.append(f"committed {mine}")
        if max(self.output.values()) > 1:
            raise Violation(f"twice in the output: {mine}; {self.output}")
        return EndTxnResult.ACCEPTED

    def end(self, txn: PreparedTransaction, *, commit: bool) -> EndTxnResult:
        if self.rng.random() < self.faults.late_end:
            if self.rng.random() < 0.7:
                self.ends.append((txn, commit))
            return EndTxnResult.RETRY
        return self.arrive(txn, commit=commit)

    def describe(self, tid: TransactionalId) -> TransactionDescription | None:
        found = self.broker.get(tid)
        if found is None:
            return None
        return TransactionDescription(
            state=found.state,
            producer_id=found.producer_id,
            epoch=found.epoch,
            start_ms=found.start_ms,
        )

    def environment(self) -> None:
        """Something that was sent arrives late, or a transaction times out."""
        if self.store.in_flight and self.rng.random() < 0.3:
            landing = self.rng.choice(self.store.in_flight)
            self.store.in_flight.remove(landing)
            self.store.land(*landing)
        if self.ends and self.rng.random() < 0.3:
            late = self.rng.choice(self.ends)
            if self.rng.random() < 0.7:
                self.ends.remove(late)
            self.arrive(late[0], commit=late[1])
        if self.broker and self.faults.intruders and self.rng.random() < 0.02:
            self._intrude(self.rng.choice(sorted(self.broker)))
        open_ = [t for t, found in self.broker.items() if found.state is TransactionState.ONGOING]
        if open_ and self.faults.timeouts and self.rng.random() < 0.02:
            tid = self.rng.choice(sorted(open_))
            self.faults.timeouts -= 1
            self.timed_out.append(tid)
            self._abort_by_bumping(self.broker[tid])

    def _abort_by_bumping(self, found: Transaction) -> None:
        """Aborts and raises the epoch, as a timeout does and the first half of a fence."""
        found.state, found.epoch = TransactionState.COMPLETE_ABORT, found.epoch + 1

    def _intrude(self, tid: TransactionalId) -> None:
        """Another client initialises an id of the job, or dies in the middle of it."""
        self.faults.intruders -= 1
        self.intruded.append(tid)
        self.log.append(f"an intruder fences {tid}, {self.broker[tid].state.value}")
        half = self.broker[tid].state is TransactionState.ONGOING and self.rng.random() < 0.5
        if half:
            self._abort_by_bumping(self.broker[tid])
        else:
            self.init(tid)

    # --- effects --------------------------------------------------------------------------------

    def perform(self, effect: Effect) -> Any:
        self.time_s += 0.001
        kafka = isinstance(
            effect,
            effects.ClusterId
            | effects.Describe
            | effects.EndTransaction
            | effects.ListTransactions
            | effects.Fence,
        )
        if kafka and self.rng.random() < self.faults.kafka_away:
            raise KafkaUnavailableError("Kafka is away")
        storage = isinstance(
            effect,
            effects.ReadObject | effects.WriteObject | effects.ListObjects | effects.DeleteObject,
        )
        if storage and self.rng.random() < self.faults.storage_fails:
            raise StorageError("the storage fails")
        return self._actions[type(effect)](effect)

    def __post_init__(self) -> None:
        self._decoded: dict[int, AnyEntry] = {}
        self._trimmed: set[int] = set()
        self._actions: dict[type, Callable[[Any], Any]] = {
            effects.CreateEntry: lambda e: self.create(e.path, e.data),
            effects.ListObjects: lambda e: self._paths(e.prefix),
            effects.DeleteObject: lambda e: self._delete(e.path),
            effects.ReadObject: lambda e: self.store.objects.get(e.path),
            effects.WriteObject: lambda e: self.store.objects.__setitem__(e.path, e.data),
            effects.ClusterId: lambda _: self.cluster,
            effects.Describe: self._describe,
            effects.EndTransaction: self._end,
            effects.ListTransactions: lambda e: self._listed(e.prefix, unfinished=e.unfinished),
            effects.Fence: lambda e: self._fence(e.transactional_id),
            effects.Sleep: lambda e: self._pass(e.seconds),
            effects.MonotonicTime: lambda _: self.time_s,
            effects.WallClock: lambda _: round(self.time_s * 1000),
            effects.Nonce: lambda _: self._nonce(),
        }

    def _describe(self, effect: effects.Describe) -> TransactionDescription | None:
        self._same_cluster(effect.transaction.cluster_id)
        return self.describe(effect.transaction.transactional_id)

    def _end(self, effect: effects.EndTransaction) -> EndTxnResult:
        self._same_cluster(effect.transaction.cluster_id)
        return self.end(effect.transaction, commit=effect.commit)

    def _same_cluster(self, cluster_id: str) -> None:
        if cluster_id != self.cluster:
            raise Violation(f"a request about Kafka cluster {cluster_id} goes to {self.cluster}")

    def _paths(self, prefix: str) -> list[str]:
        return sorted(path for path in self.store.objects if path.startswith(f"{prefix}/"))

    def _delete(self, path: str) -> None:
        """Entries go oldest first, and none that the newest publications or snapshots stand on."""
        number = entry_number(path)
        if number is not None and path in self.store.objects:
            older = set(range(1, number)) - self._trimmed  # entries that land again are orphans
            published = [e.number for e in self.entries() if isinstance(e, Publication)]
            if older:
                raise Violation(f"entry {number} is trimmed before {sorted(older)}")
            if number >= max(published[-2:-1], default=0):
                raise Violation(f"entry {number} is trimmed, but publications are {published}")
            self._trimmed.add(number)
        self.store.objects.pop(path, None)

    def _listed(self, prefix: str, *, unfinished: bool) -> dict[TransactionalId, TransactionState]:
        return {
            tid: found.state
            for tid, found in self.broker.items()
            if tid.startswith(prefix) and (not unfinished or found.state in UNFINISHED)
        }

    def _fence(self, tid: TransactionalId) -> None:
        self.init(tid)

    def _pass(self, seconds: float) -> None:
        self.time_s += seconds

    def _nonce(self) -> str:
        self.nonces += 1
        return f"{self.nonces:016x}"
