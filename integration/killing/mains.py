"""The mains of slots and JobMasters with traps in their drivers: the real ones in all else.

`bootstrap` starts them in place of its own where `Common.mains` says so. Each wraps the drivers
that it is given; a wrapper passes everything on and says which point was reached.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from integration.killing.traps import Plan, Traps
from tidegate.checkpoint.journal import (
    AnyEntry,
    Claim,
    Closed,
    Publication,
    Settled,
    decode_entry,
    entry_number,
)
from tidegate.controlplane.jobmaster.service import run_jobmaster as run_real_jobmaster
from tidegate.drivers.bundle import RealDrivers
from tidegate.ids import JobName, LeaderEpoch, TaskManagerId, TransactionalId
from tidegate.ports.blobs import BlobStore, Created
from tidegate.ports.drivers import Drivers
from tidegate.ports.kafka import (
    EndOutcome,
    PartitionReader,
    Producer,
    Run,
    TransactionFacts,
    TransactionLog,
    TransactionState,
)
from tidegate.protocol.messages import StartSlot
from tidegate.slot.main import run_slot as run_real_slot

PACE = "TIDEGATE_TEST_PACE"
"""Environment variable: records that a source subtask reads in a second; as it can without."""
POLL_S = 0.02
ZOMBIE_S_MAX = 120

MAINS = {
    "slot": "integration.killing.mains:run_slot",
    "jobmaster": "integration.killing.mains:run_jobmaster",
}


def run_slot(
    start: StartSlot, drivers: Drivers, task_manager: TaskManagerId, task_manager_pid: int
) -> int:
    """A slot that may end at a `slot.` point."""
    drivers = SlotDrivers(_traps("slot."))
    return run_real_slot(start, drivers, task_manager, task_manager_pid)


def run_jobmaster(job: JobName, address: str, epoch: LeaderEpoch, drivers: Drivers) -> int:
    """A JobMaster that may end at a `jobmaster.` point."""
    return run_real_jobmaster(job, address, epoch, JobMasterDrivers(_traps("jobmaster.")))


def _traps(process: str) -> Traps:
    plan = Plan.from_environment()
    if any(trap.stops and trap.point.startswith(process) for trap in plan.traps):
        _survive_our_killer()
    return Traps(plan)


def _survive_our_killer() -> None:
    """Go on in a child that nobody knows, under the name of this process.

    As after a network partition: whoever kills this process (its parent, its lifeline) kills an
    empty shell, and the child becomes a true zombie. It ends after a while even if nobody ends it.
    """
    known = os.getpid()
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
    os.getpid = lambda: known
    signal.alarm(ZOMBIE_S_MAX)


class SlotDrivers(RealDrivers):
    """The real drivers of a slot, with traps."""

    def __init__(self, traps: Traps) -> None:
        super().__init__()
        self._traps = traps

    def blob_store(self, url: str) -> BlobStore:
        return UploadTraps(super().blob_store(url), self._traps)

    def transaction_log(self, kafka: Mapping[str, str]) -> TransactionLog:
        return DescribeTraps(super().transaction_log(kafka), self._traps)

    def producer(
        self,
        kafka: Mapping[str, str],
        transactional_id: TransactionalId | None,
        transaction_timeout_ms: int,
    ) -> Producer:
        real = super().producer(kafka, transactional_id, transaction_timeout_ms)
        return ProducerTraps(real, self._traps)

    def partition_reader(
        self, kafka: Mapping[str, str], group: str, *, with_end_of_partition: bool
    ) -> PartitionReader:
        real = super().partition_reader(kafka, group, with_end_of_partition=with_end_of_partition)
        pace = os.environ.get(PACE)
        return real if pace is None else PacedReader(real, int(pace))


class Passing:
    """Base of wrappers: what they do not define goes to the wrapped object."""

    def __init__(self, real: Any, traps: Traps) -> None:
        self._real, self._traps = real, traps

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class UploadTraps(Passing):
    """A slot's checkpoint storage."""

    def put_file(self, path: str, source: Path) -> None:
        self._traps.reached("slot.uploading")
        self._real.put_file(path, source)
        self._traps.reached("slot.uploaded")


class DescribeTraps(Passing):
    """A slot's transaction log."""

    def describe(self, transactional_id: TransactionalId) -> TransactionFacts | None:
        facts: TransactionFacts | None = self._real.describe(transactional_id)
        if facts is not None and facts.state is TransactionState.ONGOING:  # not of a warm producer
            self._traps.reached("slot.described")
        return facts


class ProducerTraps(Passing):
    """A producer of a slot."""

    def send(
        self, topic: str, values: Sequence[bytes | None], keys: Sequence[bytes | None] | None
    ) -> None:
        self._real.send(topic, values, keys)
        if values:
            self._traps.reached("slot.wrote")

    def flush(self, timeout_s: float) -> None:
        self._real.flush(timeout_s)
        self._traps.reached("slot.flushed")


class PacedReader:
    """Reads so many records in a second, in small batches: a small input lasts."""

    def __init__(self, real: PartitionReader, pace: int) -> None:
        self._real, self._batch = real, max(1, int(pace * POLL_S))

    def poll(self, max_records: int, timeout_s: float) -> list[Run]:
        runs = self._real.poll(min(max_records, self._batch), timeout_s)
        if any(run.messages for run in runs):
            time.sleep(POLL_S)
        return runs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class JobMasterDrivers(RealDrivers):
    """The real drivers of a JobMaster, with traps."""

    def __init__(self, traps: Traps) -> None:
        super().__init__()
        self._traps = traps

    def blob_store(self, url: str) -> BlobStore:
        return JournalTraps(super().blob_store(url), self._traps)

    def transaction_log(self, kafka: Mapping[str, str]) -> TransactionLog:
        return CommitTraps(super().transaction_log(kafka), self._traps)


class JournalTraps(Passing):
    """A JobMaster's checkpoint storage."""

    def put(self, path: str, data: bytes) -> None:
        manifest = "/journal/" not in path
        if manifest:
            self._traps.reached("jobmaster.complete")
        self._real.put(path, data)
        if manifest:
            self._traps.reached("jobmaster.manifest")

    def create(self, path: str, data: bytes) -> Created:
        entry = journal_entry(path, data)
        before, after = "", ""
        match entry:
            case Claim():
                after = "jobmaster.claimed"
            case Publication(final=final):
                before = "jobmaster.publishing"
                after = "jobmaster.finishing" if final else "jobmaster.published"
            case Settled():
                before, after = "jobmaster.committed", "jobmaster.settled"
            case Closed():
                before, after = "jobmaster.closing", "jobmaster.closed"
            case _:
                pass
        self._traps.reached(before)
        created: Created = self._real.create(path, data)
        self._traps.reached(after)
        return created


def journal_entry(path: str, data: bytes) -> AnyEntry | None:
    """The entry that a create is about; None where it is about another file."""
    return None if entry_number(path) is None else decode_entry(data, path)


class CommitTraps(Passing):
    """A JobMaster's transaction log."""

    def end(
        self, transactional_id: TransactionalId, producer_id: int, epoch: int, *, commit: bool
    ) -> EndOutcome:
        outcome: EndOutcome = self._real.end(transactional_id, producer_id, epoch, commit=commit)
        self._traps.reached("jobmaster.ended")
        return outcome

    def fence(self, transactional_id: TransactionalId) -> None:
        self._real.fence(transactional_id)
        self._traps.reached("jobmaster.fenced")
