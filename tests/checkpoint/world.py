"""A small world for the commit protocol: a store, a broker, zombies, and a scheduler on one seed.

JobMasters are started one after the other, whether the one before is dead or not; nobody is killed
explicitly: a process that is not scheduled any more is dead, one that is scheduled late is a
zombie. One effect of one process is carried out at a time, so every run is one interleaving of all
of them.

The store answers UNKNOWN at times (the create has landed, lands later, or never); an EndTxn may
arrive later and more than once; Kafka is away at times; where the test allows it, the broker aborts
an open transaction. Checked while it runs: no record is committed twice, nothing is committed that
no publication in the journal names, and with exactly what was prepared. Checked by `finish`: every
record of the input is in the output once, and nothing stays open.

`Rules` are what an attempt obeys; the mutation tests switch them off one by one.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from tidegate.checkpoint import effects
from tidegate.checkpoint.effects import Effect
from tidegate.checkpoint.journal import Lost, Publication, decode_entry, entry_number
from tidegate.checkpoint.manifest import Manifest
from tidegate.checkpoint.plan_facts import PlanFacts, SourceFacts
from tidegate.checkpoint.procedures import (
    OwnJournal,
    Patience,
    claim,
    close,
    commit,
    load_manifest,
    publish,
    recover,
    settle,
    sweep,
)
from tidegate.checkpoint.transactional_ids import format_transactional_id, parse_transactional_id
from tidegate.errors import (
    DataLossError,
    DeposedError,
    JobClosedError,
    KafkaError,
    KafkaUnavailableError,
    OutcomeUnknownError,
    StorageError,
    TidegateError,
    TransactionError,
)
from tidegate.ids import (
    Attempt,
    CheckpointId,
    JobName,
    SubtaskIndex,
    TransactionalId,
    Uid,
    VertexId,
)
from tidegate.ports.blobs import Created
from tidegate.ports.kafka import EndOutcome, TransactionFacts, TransactionState
from tidegate.protocol.snapshots import PreparedTransaction, SourceSplit, SubtaskSnapshot

JOB = JobName("job")
CLUSTER = "cluster-1"
RECORDS = 16
SINKS = 2
SLOTS = 5
PATIENCE = Patience(pause_s=0.01, give_up_s=2.0)


class Violation(AssertionError):
    """An invariant does not hold."""


class Step:
    """A point at which another process may run; nothing is asked for."""


@dataclass(kw_only=True)
class Rules:
    """What keeps the protocol exact. All true in the protocol; a mutant lacks one."""

    end_only_after_publication: bool = True
    keep_prepared_of_failed_checkpoints: bool = True
    carry_until_told_ended: bool = True
    keep_transactions_of_unknown_publications: bool = True
    free_slots_only_when_settled: bool = True
    recover: Callable[..., Any] = recover


@dataclass(kw_only=True)
class Faults:
    """Chances of a run; some are off in some runs (swarm testing)."""

    unknown_create: float = 0.0
    late_end: float = 0.0
    kafka_away: float = 0.0
    storage_fails: float = 0.0
    timeouts: int = 0

    @classmethod
    def draw(cls, chance: random.Random) -> Faults:
        return cls(
            unknown_create=chance.choice([0, 0.2, 0.5]),
            late_end=chance.choice([0, 0.3, 0.7]),
            kafka_away=chance.choice([0, 0.02, 0.1]),
            storage_fails=chance.choice([0, 0, 0.05]),
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
    in_flight: list[tuple[str, bytes]] = field(default_factory=list)

    def land(self, path: str, data: bytes) -> bool:
        if path in self.objects:
            return False
        self.objects[path] = data
        return True


@dataclass
class World:
    """Everything outside the processes, and the invariants."""

    seed: int
    rules: Rules
    faults: Faults
    chance: random.Random
    store: Store = field(default_factory=Store)
    broker: dict[TransactionalId, Transaction] = field(default_factory=dict)
    ends: list[PreparedTransaction] = field(default_factory=list)
    output: Counter[int] = field(default_factory=Counter)
    prepared: dict[tuple[TransactionalId, int], tuple[int, ...]] = field(default_factory=dict)
    timed_out: list[TransactionalId] = field(default_factory=list)
    lost_records: set[int] = field(default_factory=set)
    time_s: float = 0.0
    producer_ids: int = 0
    nonces: int = 0
    log: list[str] = field(default_factory=list)

    # --- the store ------------------------------------------------------------------------------

    def create(self, path: str, data: bytes) -> Created:
        if self.chance.random() >= self.faults.unknown_create:
            return Created.CREATED if self.store.land(path, data) else Created.EXISTS
        kind = self.chance.randrange(3)
        if kind == 0:
            self.store.land(path, data)
        elif kind == 1:
            self.store.in_flight.append((path, data))
        return Created.UNKNOWN

    def named(self) -> set[PreparedTransaction]:
        """What any publication in the journal names."""
        entries = [
            decode_entry(data, path)
            for path, data in self.store.objects.items()
            if entry_number(path) is not None
        ]
        return {txn for e in entries if isinstance(e, Publication) for txn in e.transactions}

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

    def arrive(self, txn: PreparedTransaction) -> EndOutcome:
        """An EndTxn(commit) reaches the coordinator."""
        found = self.broker.get(txn.transactional_id)
        if found is None or (found.producer_id, found.epoch) != (txn.producer_id, txn.epoch):
            return EndOutcome.REFUSED
        if found.state is TransactionState.COMPLETE_COMMIT:
            return EndOutcome.ACCEPTED
        if found.state is not TransactionState.ONGOING:
            return EndOutcome.REFUSED
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
        return EndOutcome.ACCEPTED

    def end(self, txn: PreparedTransaction) -> EndOutcome:
        if self.chance.random() < self.faults.late_end:
            if self.chance.random() < 0.7:
                self.ends.append(txn)
            return EndOutcome.RETRY
        return self.arrive(txn)

    def describe(self, tid: TransactionalId) -> TransactionFacts | None:
        found = self.broker.get(tid)
        if found is None:
            return None
        return TransactionFacts(
            state=found.state,
            producer_id=found.producer_id,
            epoch=found.epoch,
            start_ms=found.start_ms,
        )

    def environment(self) -> None:
        """Something that was sent arrives late, or a transaction times out."""
        if self.store.in_flight and self.chance.random() < 0.3:
            landing = self.chance.choice(self.store.in_flight)
            self.store.in_flight.remove(landing)
            self.store.land(*landing)
        if self.ends and self.chance.random() < 0.3:
            late = self.chance.choice(self.ends)
            if self.chance.random() < 0.7:
                self.ends.remove(late)
            self.arrive(late)
        open_ = [t for t, found in self.broker.items() if found.state is TransactionState.ONGOING]
        if open_ and self.faults.timeouts and self.chance.random() < 0.02:
            tid = self.chance.choice(sorted(open_))
            self.faults.timeouts -= 1
            self.timed_out.append(tid)
            found = self.broker[tid]
            found.state, found.epoch = TransactionState.COMPLETE_ABORT, found.epoch + 1

    # --- effects --------------------------------------------------------------------------------

    def perform(self, effect: Effect) -> Any:
        self.time_s += 0.001
        kafka = isinstance(
            effect,
            effects.Describe | effects.EndTransaction | effects.ListTransactions | effects.Fence,
        )
        if kafka and self.chance.random() < self.faults.kafka_away:
            raise KafkaUnavailableError("Kafka is away")
        storage = isinstance(effect, effects.ReadObject | effects.WriteObject)
        if storage and self.chance.random() < self.faults.storage_fails:
            raise StorageError("the storage fails")
        return self._actions[type(effect)](effect)

    def __post_init__(self) -> None:
        self._actions: dict[type, Callable[[Any], Any]] = {
            effects.CreateEntry: lambda e: self.create(e.path, e.data),
            effects.ReadObject: lambda e: self.store.objects.get(e.path),
            effects.WriteObject: lambda e: self.store.objects.__setitem__(e.path, e.data),
            effects.Describe: lambda e: self.describe(e.transactional_id),
            effects.EndTransaction: lambda e: self.end(e.transaction),
            effects.ListTransactions: lambda e: self._listed(e.prefix),
            effects.Fence: lambda e: self._fence(e.transactional_id),
            effects.Pause: lambda e: self._pass(e.seconds),
            effects.Now: lambda _: self.time_s,
            effects.WallClock: lambda _: round(self.time_s * 1000),
            effects.Nonce: lambda _: self._nonce(),
        }

    def _listed(self, prefix: str) -> dict[TransactionalId, TransactionState]:
        return {tid: found.state for tid, found in self.broker.items() if tid.startswith(prefix)}

    def _fence(self, tid: TransactionalId) -> None:
        self.init(tid)

    def _pass(self, seconds: float) -> None:
        self.time_s += seconds

    def _nonce(self) -> str:
        self.nonces += 1
        return f"{self.nonces:016x}"


@dataclass
class Tasks:
    """The subtasks of one attempt: one source position, and a sink subtask per stream."""

    world: World
    attempt: Attempt
    journal: str
    position: int
    open: dict[int, tuple[TransactionalId, Transaction]] = field(default_factory=dict)
    carry: list[PreparedTransaction] = field(default_factory=list)
    taken: set[TransactionalId] = field(default_factory=set)
    failed: bool = False

    def write_one(self) -> None:
        """Write the next record, if a slot is free for it."""
        if self.failed or self.position >= RECORDS:
            return
        sink = self.position % SINKS
        if sink not in self.open:
            free = [tid for tid in self._slots(sink) if tid not in self.taken]
            if not free:
                return
            self.taken.add(free[0])
            self.open[sink] = (free[0], self.world.init(free[0]))
        tid, mine = self.open[sink]
        if self.world.write(tid, mine.epoch, self.position):
            self.position += 1
        else:
            self.failed = True

    def prepare(self) -> None:
        """The sinks' part of a barrier: open as it must be, or the attempt fails."""
        for sink, (tid, mine) in sorted(self.open.items()):
            found = self.world.broker[tid]
            if found.epoch != mine.epoch or found.state is TransactionState.COMPLETE_ABORT:
                self.failed = True
                return
            if found.state is TransactionState.EMPTY:
                continue  # nothing was written: the producer stays
            txn = PreparedTransaction(
                cluster_id=CLUSTER,
                transactional_id=tid,
                producer_id=found.producer_id,
                epoch=found.epoch,
                start_ms=found.start_ms,
            )
            self.world.prepared[tid, found.epoch] = found.records
            self.carry.append(txn)
            del self.open[sink]

    def told_ended(self, ended: tuple[PreparedTransaction, ...]) -> None:
        self.carry = [txn for txn in self.carry if txn not in ended]
        if not self.world.rules.free_slots_only_when_settled:
            self.told_freed(ended)

    def told_freed(self, freed: tuple[PreparedTransaction, ...]) -> None:
        self.taken -= {txn.transactional_id for txn in freed}

    def _slots(self, sink: int) -> list[TransactionalId]:
        return [
            format_transactional_id(
                job=JOB,
                journal=self.journal,
                sink=Uid("totals"),
                attempt=self.attempt,
                subtask=SubtaskIndex(sink),
                slot=slot,
            )
            for slot in range(SLOTS)
        ]


Thread = Generator["Effect | Step", Any, None]


class JobMaster:
    """One process: a main thread, a committer, and the attempt's tasks. It makes one attempt."""

    def __init__(
        self, world: World, number: int, *, final: bool = False, **claim_args: Any
    ) -> None:
        self.world = world
        self.name = f"JM{number}"
        self.claim_args = {"submission": "s1", **claim_args}
        self.final = final
        self.locked = False
        self.journal: OwnJournal | None = None
        self.tasks: Tasks | None = None
        self.outcome: TidegateError | str | None = None
        self.position = 0
        self.threads: list[Thread] = [self._main()]
        self.answers: dict[int, Any] = {}

    def advance(self, thread: Thread) -> None:
        """Run one thread up to its next effect, and carry that out."""
        try:
            answer = self.answers.pop(id(thread), None)
            failed = isinstance(answer, TidegateError)
            effect = thread.throw(answer) if failed else thread.send(answer)
        except StopIteration:
            return
        except TidegateError as error:
            self.stop(error)
            return
        if isinstance(effect, Step):
            return
        try:
            self.answers[id(thread)] = self.world.perform(effect)
        except TidegateError as error:
            self.answers[id(thread)] = error

    def stop(self, outcome: TidegateError | str) -> None:
        self.world.log.append(f"{self.name} ends: {outcome!r}"[:160])
        self.outcome = outcome
        self.threads.clear()

    def _main(self) -> Thread:
        rules = self.world.rules
        self.journal = journal = yield from claim(JOB, patience=PATIENCE, **self.claim_args)
        self.world.log.append(f"{self.name} claims {journal.attempt}")
        yield from rules.recover(journal, ending=PATIENCE, fencing=PATIENCE, storing=PATIENCE)
        point = journal.restore_point("latest")
        position = 0
        if point is not None:
            position = (yield from load_manifest(point)).splits[0].offset
        self.world.log.append(f"{self.name} starts at {position}")
        self.tasks = Tasks(self.world, journal.attempt, journal.name, position)
        self.threads.append(self._committer())
        counter = 0
        self.position = position
        while not (self.final and self.position >= RECORDS):
            for _ in range(self.world.chance.randrange(4)):
                yield Step()
                self.tasks.write_one()
            counter += 1
            yield from self._checkpoint(journal, self.tasks, counter)
            if self.world.chance.random() < 0.1:
                yield from sweep(journal, patience=PATIENCE)
        while self.locked:
            yield Step()
        self.locked = True
        yield from close(journal, "finished", ending=PATIENCE, fencing=PATIENCE, storing=PATIENCE)
        self.stop("closed")  # the committer's generator ends with the process

    def _checkpoint(self, journal: OwnJournal, tasks: Tasks, counter: int) -> Iterator[Any]:
        rules = self.world.rules
        tasks.prepare()
        if tasks.failed:
            raise TransactionError("a producer is gone")
        acknowledged, position = tuple(tasks.carry), tasks.position
        yield Step()
        if self.world.chance.random() < 0.15:
            if not rules.keep_prepared_of_failed_checkpoints:
                tasks.carry.clear()
            return
        while self.locked:
            yield Step()
        self.locked = True
        if not rules.end_only_after_publication:
            for txn in acknowledged:
                yield effects.EndTransaction(transaction=txn)
        yield from self._publish(
            journal, tasks, _manifest(journal, counter, position, acknowledged)
        )
        self.locked = False

    def _publish(self, journal: OwnJournal, tasks: Tasks, manifest: Manifest) -> Iterator[Any]:
        rules, acknowledged = self.world.rules, manifest.transactions
        try:
            published = yield from publish(
                journal, manifest, acknowledged, checking=PATIENCE, storing=PATIENCE
            )
        except (StorageError, KafkaError):
            if not rules.keep_transactions_of_unknown_publications:
                for txn in acknowledged:
                    self.world.init(txn.transactional_id)
                raise
            return
        self.position = manifest.splits[0].offset
        self.world.log.append(f"{self.name} publishes {self.position}")
        if not rules.carry_until_told_ended:
            tasks.carry = [txn for txn in tasks.carry if txn not in acknowledged]
        yield Step()
        tasks.told_freed(published.freed)

    def _committer(self) -> Thread:
        assert self.journal is not None
        assert self.tasks is not None
        while True:
            yield Step()
            if not self.journal.unended:
                continue
            result = yield from commit(self.journal, patience=PATIENCE)
            while self.locked:
                yield Step()
            self.locked = True
            freed = yield from settle(self.journal, result, ending=PATIENCE, storing=PATIENCE)
            self.locked = False
            yield Step()
            self.tasks.told_ended(result.ended)
            yield Step()
            self.tasks.told_freed(freed)


def _manifest(
    journal: OwnJournal, counter: int, position: int, transactions: tuple[PreparedTransaction, ...]
) -> Manifest:
    split = SourceSplit(source=Uid("orders"), topic="orders", partition=0, offset=position)
    return Manifest(
        job=JOB,
        checkpoint=CheckpointId(journal.attempt, counter),
        submission=journal.submission,
        created_ms=0,
        final=False,
        kafka_cluster=CLUSTER,
        fingerprint="f",
        plan=PlanFacts(
            parallelism=1,
            max_parallelism=128,
            sources=(SourceFacts(uid=Uid("orders"), topic="orders"),),
        ),
        subtasks=(
            SubtaskSnapshot(
                vertex=VertexId("orders"),
                index=SubtaskIndex(0),
                splits=(split,),
                transactions=transactions,
            ),
        ),
    )


EXPECTED = (
    DeposedError,
    OutcomeUnknownError,
    TransactionError,
    StorageError,
    KafkaError,
    JobClosedError,
)
"""How a JobMaster may end: its successor goes on, and nothing is lost."""


def chaos(world: World, *, attempts: int = 4, steps: int = 600) -> list[JobMaster]:
    """Run JobMasters against each other and the faults."""
    masters: list[JobMaster] = []
    for _ in range(steps):
        world.environment()
        idle = not any(master.threads for master in masters)
        if len(masters) < attempts and (idle or world.chance.random() < 0.01):
            masters.append(JobMaster(world, len(masters)))
        live = [master for master in masters if master.threads]
        if not live:
            return masters
        # Mostly the newest runs; the others are zombies that wake up now and then.
        master = live[-1] if world.chance.random() < 0.7 else world.chance.choice(live)
        master.advance(world.chance.choice(master.threads))
        check(master, world)
    return masters


def check(master: JobMaster, world: World) -> None:
    """How a JobMaster ended must be one of the ways it may."""
    outcome = master.outcome
    if isinstance(outcome, DataLossError):
        if not world.timed_out:
            raise Violation(f"false alarm: {outcome}")
    elif outcome is not None and outcome != "closed" and not isinstance(outcome, EXPECTED):
        raise Violation(f"{master.name} ended by {outcome!r}") from (
            outcome if isinstance(outcome, BaseException) else None
        )


def finish(world: World, masters: list[JobMaster]) -> None:
    """No faults any more: a last JobMaster runs the job to its end, and the output is checked."""
    world.faults = Faults()
    submission = "s1"
    for _ in range(20):
        last = JobMaster(
            world,
            len(masters),
            final=True,
            submission=submission,
            accept_loss=submission != "s1",
        )
        masters.append(last)
        for _ in range(20_000):
            if not last.threads:
                break
            world.environment()
            last.advance(world.chance.choice(last.threads))
        check(last, world)
        if last.outcome == "closed":
            break
        if isinstance(last.outcome, DataLossError):
            submission = "s2"
    else:
        raise Violation(f"stuck: {masters[-1].outcome!r}")
    _check_output(world)


def _check_output(world: World) -> None:
    lost = set()
    for path, data in world.store.objects.items():
        entry = decode_entry(data, path) if entry_number(path) is not None else None
        if isinstance(entry, Lost):
            for txn in entry.transactions:
                lost |= set(world.prepared[txn.transactional_id, txn.epoch])
    want = {record for record in range(RECORDS) if record not in lost}
    have = {record for record, count in world.output.items() if count}
    if have != want:
        raise Violation(f"output {sorted(have)}, stated as lost {sorted(lost)}")
    for tid, found in world.broker.items():
        parts = parse_transactional_id(tid)
        assert parts is not None
        if found.state is TransactionState.ONGOING:
            raise Violation(f"stall: {tid} stays open with {found.records}")


def simulate(
    seed: int, rules: Rules | None = None, *, timeouts: int = 0, attempts: int = 4
) -> World:
    """One whole run; Violation (with the log so far) if an invariant breaks."""
    chance = random.Random(seed)
    world = World(seed, rules or Rules(), Faults.draw(chance), chance)
    world.faults.timeouts = timeouts
    masters: list[JobMaster] = []
    try:
        masters = chaos(world, attempts=attempts)
        finish(world, masters)
    except Violation as broken:
        story = "\n  ".join(world.log[-40:])
        raise Violation(f"seed {seed}: {broken}\n  {story}") from broken
    return world


def calm(seed: int) -> World:
    """One JobMaster, no faults: the job must run to its end in one attempt."""
    chance = random.Random(seed)
    world = World(seed, Rules(), Faults(), chance)
    only = JobMaster(world, 0, final=True)
    for _ in range(20_000):
        if only.threads:
            only.advance(chance.choice(only.threads))
    if only.outcome != "closed":
        raise Violation(f"seed {seed}: {only.outcome!r}")
    _check_output(world)
    return world
