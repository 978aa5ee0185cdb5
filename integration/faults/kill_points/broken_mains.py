"""Runs mains that break the commit protocol on purpose. A comparison must detect each of them.

If the comparison missed one of these mains, the tests of kills would prove nothing. Each main
breaks one rule. It also deceives those checks of the framework that would otherwise stop the
attempt, so that the damage reaches the output.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

import msgspec

from integration.faults.kill_points.kill_points import Plan, Traps
from integration.faults.kill_points.mains import (
    CommitTraps,
    DescribeTraps,
    JobMasterDrivers,
    JournalTraps,
    Passing,
    Phase,
    SlotDrivers,
    journal_entry,
)
from tidegate.commit.journal.entries import Publication
from tidegate.controlplane.jobmaster.process import run_jobmaster as run_real_jobmaster
from tidegate.drivers.kafka.producer import KafkaProducer
from tidegate.drivers.system import SystemDrivers
from tidegate.ids import JobName, LeaderEpoch, TaskManagerId, TransactionalId
from tidegate.ports.blobs import BlobStore, CreateResult
from tidegate.ports.drivers import Drivers
from tidegate.ports.kafka import (
    EndTxnResult,
    Producer,
    TransactionAdmin,
    TransactionDescription,
    TransactionState,
)
from tidegate.protocol.messages import StartSlot
from tidegate.slot.main import run_slot as run_real_slot

HERE = "integration.faults.kill_points.broken_mains"
TRAPPED = "integration.faults.kill_points.mains"

RECOVERY_WITHOUT_END = {
    "slot": f"{TRAPPED}:run_slot",
    "jobmaster": f"{HERE}:run_without_end_in_recovery",
}
"""Mains with a recovery that reports transactions as ended although they are open. Its fencing then
aborts them, so records are missing.
"""

END_BEFORE_PUBLICATION = {
    "slot": f"{TRAPPED}:run_slot",
    "jobmaster": f"{HERE}:run_end_before_publication",
}
"""Mains that end transactions first and publish afterwards. A kill in between writes records twice.
"""

REUSED_PRODUCER = {
    "slot": f"{HERE}:run_slot_with_one_producer",
    "jobmaster": f"{HERE}:run_believing",
}
"""Mains in which one producer serves one transaction after the other. To be free for the next
transaction, the producer commits each one as soon as it is flushed, published or not. A kill then
writes records twice.
"""


def run_without_end_in_recovery(
    job: JobName, address: str, epoch: LeaderEpoch, drivers: Drivers
) -> int:
    """Run the JobMaster of `RECOVERY_WITHOUT_END`."""

    class Broken(JobMasterDrivers):
        def transaction_admin(self, kafka: Mapping[str, str]) -> TransactionAdmin:
            return _WithoutEnd(super().transaction_admin(kafka), self._traps)

    return run_real_jobmaster(job, address, epoch, Broken(Traps(Plan.from_environment()), drivers))


class _WithoutEnd(Passing):
    """A transaction admin that ends nothing before the second listing, and reports that it did.

    The claim lists transactions first. The second listing is the start of the fencing.
    """

    def __init__(self, real: TransactionAdmin, traps: Traps) -> None:
        super().__init__(real, traps)
        self._listings = 0
        self._pretended: set[TransactionalId] = set()

    def list(
        self, prefix: str, *, unfinished: bool = False
    ) -> dict[TransactionalId, TransactionState]:
        self._listings += 1
        listed: dict[TransactionalId, TransactionState] = self._real.list(
            prefix, unfinished=unfinished
        )
        return listed

    def end(
        self, transactional_id: TransactionalId, producer_id: int, epoch: int, *, commit: bool
    ) -> EndTxnResult:
        if self._listings < 2:
            self._pretended.add(transactional_id)
            return EndTxnResult.ACCEPTED
        outcome: EndTxnResult = self._real.end(transactional_id, producer_id, epoch, commit=commit)
        return outcome

    def describe(self, transactional_id: TransactionalId) -> TransactionDescription | None:
        facts: TransactionDescription | None = self._real.describe(transactional_id)
        if facts is None or transactional_id not in self._pretended:
            return facts
        return msgspec.structs.replace(facts, state=TransactionState.COMPLETE_COMMIT)


def run_end_before_publication(
    job: JobName, address: str, epoch: LeaderEpoch, drivers: Drivers
) -> int:
    """Run the JobMaster of `END_BEFORE_PUBLICATION`."""

    class Broken(JobMasterDrivers):
        log: TransactionAdmin

        def transaction_admin(self, kafka: Mapping[str, str]) -> TransactionAdmin:
            self.log = super().transaction_admin(kafka)
            return self.log

        def blob_store(self, url: str) -> BlobStore:
            real = SystemDrivers.blob_store(self, url)
            return _EndsFirst(real, self._traps, self._phase, lambda: self.log)

    return run_real_jobmaster(job, address, epoch, Broken(Traps(Plan.from_environment()), drivers))


class _EndsFirst(JournalTraps):
    def __init__(
        self, real: BlobStore, traps: Traps, phase: Phase, log: Callable[[], TransactionAdmin]
    ) -> None:
        """Keep `log`, which is called at a publication. The store is made before the transaction
        admin, because the JobMaster first reads the code of the job.
        """
        super().__init__(real, traps, phase)
        self._log = log

    def create(self, path: str, data: bytes) -> CreateResult:
        entry = journal_entry(path, data)
        if isinstance(entry, Publication):
            for txn in entry.transactions:
                self._log().end(txn.transactional_id, txn.producer_id, txn.epoch, commit=True)
        return super().create(path, data)


def run_slot_with_one_producer(
    start: StartSlot, drivers: Drivers, task_manager: TaskManagerId, task_manager_pid: int
) -> int:
    """Run a slot of `REUSED_PRODUCER`."""
    broken = _OneProducer(Traps(Plan.from_environment()), drivers)
    return run_real_slot(start, broken, task_manager, task_manager_pid)


class _OneProducer(SlotDrivers):
    """Drivers with one producer for each subtask of a sink, for all transactional ids of its
    pool.
    """

    def __init__(self, traps: Traps, real: Drivers) -> None:
        super().__init__(traps, real)
        self._lock = threading.Lock()
        self._shared: dict[TransactionalId, _Shared] = {}
        self._begun: set[TransactionalId] = set()

    def producer(
        self,
        kafka: Mapping[str, str],
        transactional_id: TransactionalId | None,
        transaction_timeout_ms: int,
    ) -> Producer:
        assert transactional_id is not None
        name = _shared_id(transactional_id)
        with self._lock:
            if name not in self._shared:
                self._shared[name] = _Shared(KafkaProducer(kafka, name, transaction_timeout_ms))
        return _Alias(self._shared[name], lambda: self._begun.add(transactional_id))

    def transaction_admin(self, kafka: Mapping[str, str]) -> TransactionAdmin:
        return _SlotLies(super().transaction_admin(kafka), self._traps, self._begun)


class _Shared:
    """A producer, and whether it is in a transaction."""

    def __init__(self, producer: KafkaProducer) -> None:
        self.producer = producer
        self.open = False

    def begin(self) -> None:
        self.producer.begin()
        self.open = True

    def flush(self, timeout_s: float) -> None:
        """Flush, and commit the transaction at once.

        A commit at the next `begin` would be too late: a sink that gets no further records never
        calls `begin`, and its last output would be missing instead.
        """
        self.producer.flush(timeout_s)
        if self.open:
            self.producer._client.commit_transaction()
            self.open = False


class _Alias:
    """An object that the pool treats as the producer of one transactional id."""

    def __init__(self, shared: _Shared, begun: object) -> None:
        self._shared, self._note = shared, begun

    def begin(self) -> None:
        self._note()  # type: ignore[operator]
        self._shared.begin()

    def send(
        self, topic: str, values: Sequence[bytes | None], keys: Sequence[bytes | None] | None
    ) -> None:
        self._shared.producer.send(topic, values, keys)

    def send_one(self, *arguments: object) -> None:
        raise NotImplementedError

    def flush(self, timeout_s: float) -> None:
        self._shared.flush(timeout_s)


class _SlotLies(DescribeTraps):
    """A transaction admin that reports a separate transaction for each alias."""

    def __init__(self, real: TransactionAdmin, traps: Traps, begun: set[TransactionalId]) -> None:
        super().__init__(real, traps)
        self._begun = begun

    def describe(self, transactional_id: TransactionalId) -> TransactionDescription | None:
        facts: TransactionDescription | None = self._real.describe(_shared_id(transactional_id))
        state = (
            TransactionState.ONGOING if transactional_id in self._begun else TransactionState.EMPTY
        )
        return facts and msgspec.structs.replace(facts, state=state, start_ms=1)


def run_believing(job: JobName, address: str, epoch: LeaderEpoch, drivers: Drivers) -> int:
    """Run the JobMaster of `REUSED_PRODUCER`, which believes what slots report of their
    transactions.
    """

    class Broken(JobMasterDrivers):
        def transaction_admin(self, kafka: Mapping[str, str]) -> TransactionAdmin:
            real = SystemDrivers.transaction_admin(self, kafka)
            return _Believing(real, self._traps, self._phase)

    return run_real_jobmaster(job, address, epoch, Broken(Traps(Plan.from_environment()), drivers))


class _Believing(CommitTraps):
    """A transaction admin that reports for each alias the state that the protocol expects, and ends
    nothing.
    """

    def __init__(self, real: TransactionAdmin, traps: Traps, phase: Phase) -> None:
        super().__init__(real, traps, phase)
        self._ended: set[TransactionalId] = set()

    def describe(self, transactional_id: TransactionalId) -> TransactionDescription | None:
        facts: TransactionDescription | None = self._real.describe(_shared_id(transactional_id))
        state = (
            TransactionState.COMPLETE_COMMIT
            if transactional_id in self._ended
            else TransactionState.ONGOING
        )
        return facts and msgspec.structs.replace(facts, state=state, start_ms=1)

    def end(
        self, transactional_id: TransactionalId, producer_id: int, epoch: int, *, commit: bool
    ) -> EndTxnResult:
        self._ended.add(transactional_id)
        return EndTxnResult.ACCEPTED


def _shared_id(transactional_id: TransactionalId) -> TransactionalId:
    """Return the id of the producer that serves all transactional ids of a subtask's sink."""
    return TransactionalId(transactional_id.rpartition(".")[0] + ".0")
