"""JobMasters and their tasks, as processes of `world.py`, and the scheduler that runs them.

A JobMaster is one attempt: a main thread that takes checkpoints, and a committer in parallel with
it. It keeps the `Rules` of its world. It ends as a failed process does, so its successor must
handle every state that it leaves.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tests.commit.world import (
    JOB,
    RECORDS,
    RETRY_POLICY,
    SINKS,
    TRANSACTIONAL_IDS,
    Faults,
    Rules,
    Step,
    Transaction,
    Violation,
    World,
)
from tidegate.checkpoint.manifest import Manifest
from tidegate.checkpoint.state_metadata import SourceMetadata, StateMetadata
from tidegate.commit import effects
from tidegate.commit.claim import claim
from tidegate.commit.committer import commit
from tidegate.commit.effects import Effect, Procedure
from tidegate.commit.fencing import fence_zombies
from tidegate.commit.journal.claimed import ClaimedJournal
from tidegate.commit.journal.entries import SNAPSHOT_INTERVAL, Lost
from tidegate.commit.publish import load_manifest, publish
from tidegate.commit.recover import close
from tidegate.commit.settle import settle
from tidegate.commit.transactional_ids import (
    format_transactional_id,
    parse_claim_id,
    parse_transactional_id,
)
from tidegate.commit.truncation import truncate
from tidegate.errors import (
    DataLossError,
    FencedError,
    JobClosedError,
    KafkaError,
    OutcomeUnknownError,
    StorageError,
    TidegateError,
    TransactionError,
)
from tidegate.ids import (
    Attempt,
    CheckpointId,
    SubtaskIndex,
    TransactionalId,
    Uid,
    VertexId,
)
from tidegate.ports.kafka import TransactionState
from tidegate.protocol.subtask_snapshot import PreparedTransaction, SourceSplit, SubtaskSnapshot


@dataclass
class Tasks:
    """The subtasks of one attempt: one source position, and a sink subtask per stream."""

    world: World
    attempt: Attempt
    journal: str
    position: int
    open: dict[int, tuple[TransactionalId, Transaction]] = field(default_factory=dict)
    pending: list[PreparedTransaction] = field(default_factory=list)
    taken: set[TransactionalId] = field(default_factory=set)
    failed: bool = False

    def write_one(self) -> None:
        """Write the next record, if an id is free for it."""
        if self.failed or self.position >= RECORDS:
            return
        sink = self.position % SINKS
        if sink not in self.open:
            free = [tid for tid in self._ids(sink) if tid not in self.taken]
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
                cluster_id=self.world.cluster,
                transactional_id=tid,
                producer_id=found.producer_id,
                epoch=found.epoch,
                start_ms=found.start_ms,
            )
            self.world.prepared[tid, found.epoch] = found.records
            self.pending.append(txn)
            del self.open[sink]

    def on_committed(self, ended: tuple[PreparedTransaction, ...]) -> None:
        self.pending = [txn for txn in self.pending if txn not in ended]
        if not self.world.rules.free_ids_only_when_settled:
            self.on_reusable(ended)

    def on_reusable(self, freed: tuple[PreparedTransaction, ...]) -> None:
        self.taken -= {txn.transactional_id for txn in freed}

    def _ids(self, sink: int) -> list[TransactionalId]:
        return [
            format_transactional_id(
                job=JOB,
                journal_id=self.journal,
                sink=Uid("totals"),
                attempt=self.attempt,
                subtask=SubtaskIndex(sink),
                index=index,
            )
            for index in range(TRANSACTIONAL_IDS)
        ]


Thread = Generator["Effect | Step", Any, None]


class JobMaster:
    """One process: a main thread, a committer, and the attempt's tasks. It makes one attempt."""

    def __init__(
        self, world: World, number: int, *, final: bool = False, **claim_args: Any
    ) -> None:
        self.world = world
        self.name = f"JM{number}"
        self.claim_args = {"submission_id": "s1", **claim_args}
        self.final = final
        self.locked = False
        self.journal: ClaimedJournal | None = None
        self.tasks: Tasks | None = None
        self.outcome: TidegateError | str | None = None
        self.position = 0
        self.threads: list[Thread] = [self._main()]
        self.answers: dict[int, Any] = {}
        self.after: dict[int, Callable[[], Thread]] = {}
        """Chooses the thread that continues when a thread has ended, by the id of the ended one."""

    def advance(self, thread: Thread) -> None:
        """Run one thread up to its next effect, and carry that out: of another thread, where this
        one ends or begins several.
        """
        try:
            answer = self.answers.pop(id(thread), None)
            failed = isinstance(answer, TidegateError)
            effect = thread.throw(answer) if failed else thread.send(answer)
        except StopIteration:
            if id(thread) in self.after:
                self.threads.remove(thread)
                self.advance(self.after.pop(id(thread))())
            return
        except TidegateError as error:
            self.stop(error)
            return
        if isinstance(effect, Step):
            return
        if isinstance(effect, effects.Gather):
            self.advance(self._start_gathered(thread, effect))
            return
        try:
            self.answers[id(thread)] = self.world.perform(effect)
        except TidegateError as error:
            self.answers[id(thread)] = error

    def _start_gathered(self, parent: Thread, effect: effects.Gather) -> Thread:
        """Starts threads that the scheduler interleaves, and returns the one that continues. The
        parent waits until the last of them has ended.
        """
        results: dict[int, Any] = {}
        failures: dict[int, TidegateError] = {}
        left: list[Thread] = []
        self.threads.remove(parent)

        def child(place: int, procedure: Procedure[Any]) -> Thread:
            try:
                results[place] = yield from procedure
            except TidegateError as error:
                failures[place] = error

        def next_after(ended: Thread) -> Thread:
            left.remove(ended)
            if left:
                return self.world.rng.choice(left)
            in_order = [results[place] for place in sorted(results)]
            self.answers[id(parent)] = failures[min(failures)] if failures else in_order
            self.threads.append(parent)
            return parent

        left += [child(place, each) for place, each in enumerate(effect.procedures)]
        self.threads += left
        self.after |= {id(one): partial(next_after, one) for one in left}
        return self.world.rng.choice(left)

    def stop(self, outcome: TidegateError | str) -> None:
        self.world.log.append(f"{self.name} ends: {outcome!r}"[:160])
        self.outcome = outcome
        self.threads.clear()

    def _main(self) -> Thread:
        rules = self.world.rules
        every = self.world.snapshot_interval
        self.journal = journal = yield from claim(
            JOB, retry_policy=RETRY_POLICY, snapshot_interval=every, **self.claim_args
        )
        self.world.log.append(f"{self.name} claims {journal.attempt}")
        yield from rules.recover(
            journal, commit_retry=RETRY_POLICY, fence_retry=RETRY_POLICY, storage_retry=RETRY_POLICY
        )
        point = journal.restore_point("latest")
        position = 0
        if point is not None:
            position = (yield from load_manifest(point)).splits[0].offset
        self.world.log.append(f"{self.name} starts at {position}")
        self.tasks = Tasks(self.world, journal.attempt, journal.journal_id, position)
        self.threads.append(self._committer())
        counter = 0
        self.position = position
        while not (self.final and self.position >= RECORDS):
            for _ in range(self.world.rng.randrange(4)):
                yield Step()
                self.tasks.write_one()
            counter += 1
            yield from self._checkpoint(journal, self.tasks, counter)
            if self.world.rng.random() < 0.1:
                yield from fence_zombies(journal, retry_policy=RETRY_POLICY)
        while self.locked:
            yield Step()
        self.locked = True
        yield from close(
            journal,
            "finished",
            commit_retry=RETRY_POLICY,
            fence_retry=RETRY_POLICY,
            storage_retry=RETRY_POLICY,
        )
        self.stop("closed")  # the committer's generator ends with the process

    def _checkpoint(self, journal: ClaimedJournal, tasks: Tasks, counter: int) -> Iterator[Any]:
        rules = self.world.rules
        tasks.prepare()
        if tasks.failed:
            raise TransactionError("a producer is gone")
        acknowledged, position = tuple(tasks.pending), tasks.position
        yield Step()
        if self.world.rng.random() < 0.15:
            if not rules.keep_prepared_of_failed_checkpoints:
                tasks.pending.clear()
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

    def _publish(self, journal: ClaimedJournal, tasks: Tasks, manifest: Manifest) -> Iterator[Any]:
        rules, acknowledged = self.world.rules, manifest.transactions
        try:
            published = yield from publish(
                journal,
                manifest,
                acknowledged,
                describe_retry=RETRY_POLICY,
                storage_retry=RETRY_POLICY,
            )
        except (StorageError, KafkaError):
            if not rules.keep_transactions_of_unknown_publications:
                for txn in acknowledged:
                    self.world.init(txn.transactional_id)
                raise
            return
        self.position = manifest.splits[0].offset
        self.world.log.append(f"{self.name} publishes {self.position}")
        if not rules.keep_until_committed:
            tasks.pending = [txn for txn in tasks.pending if txn not in acknowledged]
        yield Step()
        tasks.on_reusable(published.reusable)

    def _committer(self) -> Thread:
        assert self.journal is not None
        assert self.tasks is not None
        while True:
            yield Step()
            if not self.journal.uncommitted:
                continue
            result = yield from commit(self.journal, retry_policy=RETRY_POLICY)
            while self.locked:
                yield Step()
            self.locked = True
            freed = yield from settle(
                self.journal, result, commit_retry=RETRY_POLICY, storage_retry=RETRY_POLICY
            )
            self.locked = False
            yield Step()
            self.tasks.on_committed(result.ended)
            yield Step()
            self.tasks.on_reusable(freed)
            if freed:
                yield from self._trim(self.journal)

    def _trim(self, journal: ClaimedJournal) -> Iterator[Any]:
        try:
            yield from truncate(journal)
        except StorageError:
            return  # with the next checkpoint


def _manifest(
    journal: ClaimedJournal,
    counter: int,
    position: int,
    transactions: tuple[PreparedTransaction, ...],
) -> Manifest:
    split = SourceSplit(source=Uid("orders"), topic="orders", partition=0, offset=position)
    return Manifest(
        job=JOB,
        checkpoint=CheckpointId(journal.attempt, counter),
        submission_id=journal.submission_id,
        created_ms=0,
        final=False,
        kafka_cluster=journal.state.kafka_cluster,
        fingerprint="f",
        plan=StateMetadata(
            parallelism=1,
            max_parallelism=128,
            sources=(SourceMetadata(uid=Uid("orders"), topic="orders"),),
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
    FencedError,
    OutcomeUnknownError,
    TransactionError,
    StorageError,
    KafkaError,
    JobClosedError,
)
"""Errors by which a JobMaster may end: its successor continues, and nothing is lost."""


def run_with_faults(world: World, *, attempts: int = 4, steps: int = 600) -> list[JobMaster]:
    """Run JobMasters against each other and the faults."""
    masters: list[JobMaster] = []
    for _ in range(steps):
        world.environment()
        idle = not any(master.threads for master in masters)
        if len(masters) < attempts and (idle or world.rng.random() < 0.01):
            masters.append(JobMaster(world, len(masters)))
        live = [master for master in masters if master.threads]
        if not live:
            return masters
        # Mostly the newest runs; the others are zombies that wake up now and then.
        master = live[-1] if world.rng.random() < 0.7 else world.rng.choice(live)
        master.advance(world.rng.choice(master.threads))
        check(master, world)
    return masters


def check(master: JobMaster, world: World) -> None:
    """Checks that the JobMaster ended in one of the allowed ways."""
    outcome = master.outcome
    if isinstance(outcome, DataLossError):
        if not world.timed_out and not world.intruded:
            raise Violation(f"false alarm: {outcome}")
        if not world.intruded and not world.visible_of_the_last():
            raise Violation(f"a loss although nothing of the publication is visible: {outcome}")
    elif outcome is not None and outcome != "closed" and not isinstance(outcome, EXPECTED):
        raise Violation(f"{master.name} ended by {outcome!r}") from (
            outcome if isinstance(outcome, BaseException) else None
        )


def finish(world: World, masters: list[JobMaster]) -> None:
    """No faults any more: a last JobMaster runs the job to its end, and the output is checked."""
    world.faults = Faults()
    submission_id = "s1"
    for _ in range(20):
        last = JobMaster(
            world,
            len(masters),
            final=True,
            submission_id=submission_id,
            accept_data_loss=submission_id != "s1",
        )
        masters.append(last)
        for _ in range(20_000):
            if not last.threads:
                break
            world.environment()
            last.advance(world.rng.choice(last.threads))
        check(last, world)
        if last.outcome == "closed":
            break
        if isinstance(last.outcome, DataLossError):
            submission_id = "s2"
    else:
        raise Violation(f"stuck: {masters[-1].outcome!r}")
    _check_output(world)


def _check_output(world: World) -> None:
    lost = set()
    for entry in world.entries():
        if isinstance(entry, Lost):
            for txn in entry.transactions:
                lost |= set(world.prepared[txn.transactional_id, txn.epoch])
    want = {record for record in range(RECORDS) if record not in lost}
    have = {record for record, count in world.output.items() if count}
    if world.intruded:
        have -= lost  # a fence hides that something was committed: then it is called lost
    if have != want:
        raise Violation(f"output {sorted(have)}, stated as lost {sorted(lost)}")
    for tid, found in world.broker.items():
        assert parse_transactional_id(tid) or parse_claim_id(tid)
        if found.state is TransactionState.ONGOING:
            raise Violation(f"stall: {tid} stays open with {found.records}")


def simulate(
    seed: int,
    rules: Rules | None = None,
    *,
    timeouts: int = 0,
    intruders: int = 0,
    attempts: int = 4,
    snapshot_interval: int = SNAPSHOT_INTERVAL,
) -> World:
    """One whole run; Violation (with the log so far) if an invariant breaks."""
    rng = random.Random(seed)
    world = World(seed, rules or Rules(), Faults.draw(rng), rng)
    world.snapshot_interval = snapshot_interval
    world.faults.timeouts, world.faults.intruders = timeouts, intruders
    masters: list[JobMaster] = []
    try:
        masters = run_with_faults(world, attempts=attempts)
        finish(world, masters)
    except Violation as broken:
        story = "\n  ".join(world.log[-40:])
        raise Violation(f"seed {seed}: {broken}\n  {story}") from broken
    return world


def run_without_faults(seed: int) -> World:
    """One JobMaster, no faults: the job must run to its end in one attempt."""
    rng = random.Random(seed)
    world = World(seed, Rules(), Faults(), rng)
    only = JobMaster(world, 0, final=True)
    for _ in range(20_000):
        if only.threads:
            only.advance(rng.choice(only.threads))
    if only.outcome != "closed":
        raise Violation(f"seed {seed}: {only.outcome!r}")
    _check_output(world)
    return world
