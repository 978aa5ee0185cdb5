"""A job's history for the checker of the commit protocol, step by step as a test writes it.

Transactions are real ones of the fake Kafka, so the brokers' knowledge of them is not invented
here. Journal entries are created in the form in which the storage would report them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from tests.drivers.kafka.clocks import SleepingClock
from tests.simulator.blobs import MemoryBlobs
from tests.simulator.invariants import ProtocolChecker
from tests.simulator.kafka.cluster import FakeKafka
from tests.simulator.kafka.faults import PROCEED, Call, Verdict
from tests.simulator.kafka.log import PartitionLog
from tests.simulator.oracle import Oracle
from tests.simulator.pipelines import IN_A, OUT_A, SHAPES, Event, Result
from tests.simulator.scheduler import Scheduler, SimProcess
from tidegate.checkpoint.manifest import Manifest, encode_manifest, file_digest
from tidegate.checkpoint.state_metadata import StateMetadata
from tidegate.commit.journal.entries import (
    AnyEntry,
    Claim,
    Lost,
    Publication,
    RolledBack,
    Settled,
    encode_entry,
    entry_path,
)
from tidegate.commit.transactional_ids import claim_id, format_transactional_id
from tidegate.ids import (
    Attempt,
    CheckpointId,
    JobName,
    JournalNumber,
    SubtaskIndex,
    TransactionalId,
    Uid,
    VertexId,
)
from tidegate.protocol.subtask_snapshot import (
    KeyedSnapshot,
    PreparedTransaction,
    SourceSplit,
    StateFile,
    SubtaskSnapshot,
)
from tidegate.stream_elements import TopicPartition

JOB = JobName("stateless")
TIMEOUT_MS = 60_000
SCAN_S = 10.0


class History:
    """One job's journal and brokers. `master` and `slot` are its processes; who asks is
    `requester`.
    """

    def __init__(self) -> None:
        self.scheduler, self.clock = Scheduler(0), SleepingClock()
        self.oracle, self.blobs = Oracle(SHAPES[0]), MemoryBlobs()
        self.kafka = FakeKafka(self.clock, faults=self, on_marker=self._on_marker)
        self.kafka.create_topic(OUT_A, 1)
        self.watch = ProtocolChecker(self.scheduler, self.blobs, self.kafka, self.oracle)
        self.master, self.slot = self.process("jobmaster"), self.process("slot")
        self.requester = self.master
        self.clients = self.kafka.process("client", self.clock)
        self.log = self.clients.transaction_admin({})
        self.attempt = Attempt(0)
        self.events = 0

    def process(self, name: str) -> SimProcess:
        return self.scheduler.process(name)

    def decide(self, call: Call) -> Verdict:
        """`kafka.faults.Faults`."""
        self.watch.check_request(call, self.requester)
        return PROCEED

    def _on_marker(self, log: PartitionLog) -> None:
        self.watch.on_marker(log)

    @property
    def found(self) -> str:
        return "" if self.watch.found is None else str(self.watch.found)

    def advance_time(self, seconds: float) -> None:
        self.clock.sleep(seconds)
        self.kafka.run_due()

    # --- the journal ----------------------------------------------------------------------------

    def create(self, kind: Callable[..., AnyEntry], *, skipped: int = 0, **fields: Any) -> int:
        """The next entry, or one behind it."""
        number = JournalNumber(len(self.watch.journal.entries) + 1 + skipped)
        entry = kind(
            number=number, nonce=str(number), previous="", journal_id="j", created_ms=0, **fields
        )
        watch = self.blobs.watch
        assert watch is not None
        watch(self.master, entry_path(JOB, number), encode_entry(entry))
        return number

    def claim(
        self, restore: str = "latest", submission: str = "s", *, initialises: bool = True
    ) -> None:
        """A new attempt, with a slot of its own."""
        if initialises:
            requester, self.requester = self.requester, self.master
            self.log.fence(claim_id(JOB, "j"))
            self.requester = requester
        self.attempt = Attempt(self.create(Claim, submission_id=submission, restore=restore))
        self.slot = self.process(f"slot-{self.attempt}")
        self.watch.record_slot(self.slot, self.attempt)

    def publish(
        self,
        *transactions: PreparedTransaction,
        counter: int = 1,
        attempt: Attempt | None = None,
        offsets: tuple[int, ...] = (),
        files: tuple[str, ...] = (),
    ) -> JournalNumber:
        """Publishes a checkpoint, by default of all events until now. `files` are the files of its
        state.
        """
        checkpoint = CheckpointId(attempt or self.attempt, counter)
        splits = tuple(
            SourceSplit(source=Uid("events"), topic=IN_A, partition=partition, offset=offset)
            for partition, offset in enumerate(offsets or (self.events,))
        )
        keyed = KeyedSnapshot(
            uid=Uid("u"),
            backend="memory",
            first_key_group=0,
            last_key_group=127,
            files=tuple(StateFile(name=path, path=path, size=0, sha256="") for path in files),
            schemas={},
        )
        part = SubtaskSnapshot(
            vertex=VertexId("v"), index=SubtaskIndex(0), splits=splits, keyed=(keyed,)
        )
        manifest = Manifest(
            job=JOB,
            checkpoint=checkpoint,
            submission_id="s",
            created_ms=0,
            final=False,
            kafka_cluster="c",
            fingerprint="f",
            plan=StateMetadata(parallelism=1, max_parallelism=128),
            subtasks=(part,),
        )
        path = f"manifest-{len(self.watch.journal.entries)}"
        data = self.blobs.objects[path] = encode_manifest(manifest)
        number = self.create(
            Publication,
            attempt=attempt or self.attempt,
            checkpoint=checkpoint,
            submission_id="s",
            manifest=path,
            sha256=file_digest(data),
            transactions=transactions,
            final=False,
        )
        return JournalNumber(number)

    def settle(self, publication: int) -> None:
        self.create(Settled, attempt=self.attempt, publication=JournalNumber(publication))

    def lose(self, publication: int, *transactions: PreparedTransaction) -> JournalNumber:
        number = self.create(
            Lost,
            attempt=self.attempt,
            publication=JournalNumber(publication),
            transactions=transactions,
            statement="some is gone",
        )
        return JournalNumber(number)

    def roll_back(self, publication: int, *transactions: PreparedTransaction) -> None:
        self.create(
            RolledBack,
            attempt=self.attempt,
            publication=JournalNumber(publication),
            aborted=transactions,
        )

    # --- transactions ---------------------------------------------------------------------------

    def name(self, slot: int = 0, attempt: int | None = None) -> TransactionalId:
        return format_transactional_id(
            job=JOB,
            journal_id="j",
            sink=Uid("results"),
            attempt=Attempt(attempt or self.attempt),
            subtask=SubtaskIndex(0),
            index=slot,
        )

    def event(self) -> Event:
        """One more, committed to the source."""
        event = Event(f"{IN_A}-0:{self.events}", "a", 1)
        self.events += 1
        self.oracle.expect(TopicPartition(IN_A, 0), event, self.events - 1)
        return event

    def prepare(self, *events: Event, slot: int = 0) -> PreparedTransaction:
        """Prepares a transaction of the slot: results of these events, or of a new one, flushed and
        open.
        """
        self.requester, name = self.slot, self.name(slot)
        producer = self.clients.producer({}, name, TIMEOUT_MS)
        producer.begin()
        results = [Result(each.name, each.key, each.amount) for each in events or (self.event(),)]
        producer.send(OUT_A, [msgspec.json.encode(each) for each in results], None)
        producer.flush(30.0)
        self.requester = self.master
        description = self.log.describe(name)
        assert description is not None
        return PreparedTransaction(
            cluster_id="c",
            transactional_id=name,
            producer_id=description.producer_id,
            epoch=description.epoch,
            start_ms=description.start_ms,
        )

    def end(self, txn: PreparedTransaction, *, commit: bool = True) -> None:
        self.log.end(txn.transactional_id, txn.producer_id, txn.epoch, commit=commit)
        self.advance_time(1.0)

    def time_out(self) -> None:
        """Everything that is open."""
        self.advance_time(TIMEOUT_MS / 1000 + SCAN_S + 1.0)
