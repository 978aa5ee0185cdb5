"""Runs the mains of a cluster's processes with traps in their drivers. All else is real.

`bootstrap` starts them instead of its own mains if `ClusterSpec.role_mains` names them. Each main
wraps the drivers that it gets. A wrapper forwards every call, and reports which point was reached.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

from setproctitle import getproctitle, setproctitle

from integration.faults.kill_points.kill_points import Plan, Traps
from tidegate.commit.claim import claim
from tidegate.commit.journal.entries import (
    AnyEntry,
    Claim,
    Closed,
    Publication,
    Settled,
    decode_entry,
    entry_number,
)
from tidegate.commit.transactional_ids import parse_claim_id
from tidegate.config import Config
from tidegate.controlplane.jobmanager import backoff
from tidegate.controlplane.jobmanager.service import run_jobmanager as run_real_jobmanager
from tidegate.controlplane.jobmaster import service
from tidegate.controlplane.jobmaster.process import run_jobmaster as run_real_jobmaster
from tidegate.controlplane.journal import job_journal
from tidegate.controlplane.taskmanager.service import run_taskmanager as run_real_taskmanager
from tidegate.drivers.endpoint import Endpoint
from tidegate.drivers.system import SystemDrivers
from tidegate.ids import JobName, LeaderEpoch, TaskManagerId, TransactionalId
from tidegate.ports.blobs import BlobStore, CreateResult
from tidegate.ports.drivers import Drivers, KafkaAdmin
from tidegate.ports.kafka import (
    EndTxnResult,
    PartitionBatch,
    PartitionReader,
    Producer,
    TransactionAdmin,
    TransactionDescription,
    TransactionState,
)
from tidegate.ports.kv import KeyValueStore
from tidegate.ports.processes import Processes
from tidegate.ports.rpc import Rpc, RpcClient
from tidegate.protocol.messages import CheckpointCompleted, StartSlot
from tidegate.slot.main import run_slot as run_real_slot

PACE = "TIDEGATE_TEST_PACE"
"""Environment variable: records that a source subtask reads per second. Without it, a subtask reads
as fast as it can.
"""
DELIVERY = "TIDEGATE_TEST_DELIVERY"
"""Environment variable: milliseconds after which a producer drops a record, and the broker aborts
its transaction. With the settings alone, the attempt always fails for another reason before that
time.
"""
SURVIVE = "TIDEGATE_TEST_SURVIVE"
"""Environment variable that is present if slots, JobMasters and TaskManagers are to outlive the
process that kills them.
"""
SHELL: Final = "shell"
"""The title of a process whose child outlives it. Only the child shows a role."""
POLL_S = 0.02
ZOMBIE_S_MAX = 120.0
SWEEP_S = 2.0
"""Seconds between two searches for ids of older attempts. The ten seconds of the framework are too
long for a test that waits for a search.
"""
SNAPSHOT_INTERVAL = 20
"""Number of journal entries between two journal snapshots. It is small, so that the journal is soon
truncated.
"""

MAINS = {
    "slot": "integration.faults.kill_points.mains:run_slot",
    "jobmaster": "integration.faults.kill_points.mains:run_jobmaster",
    "taskmanager": "integration.faults.kill_points.mains:run_taskmanager",
    "jobmanager": "integration.faults.kill_points.mains:run_jobmanager",
}


def run_slot(
    start: StartSlot, drivers: Drivers, task_manager: TaskManagerId, task_manager_pid: int
) -> int:
    """Run a slot that may end at a `slot.` point."""
    traps = _traps()
    traps.reached("slot.starting")
    return run_real_slot(start, SlotDrivers(traps, drivers), task_manager, task_manager_pid)


def run_jobmaster(job: JobName, address: str, epoch: LeaderEpoch, drivers: Drivers) -> int:
    """Run a JobMaster that may end at a `jobmaster.` or `recovery.` point."""
    service.ZOMBIE_FENCING_AFTER_S = SWEEP_S, SWEEP_S  # type: ignore[misc]
    often = partial(claim, snapshot_interval=SNAPSHOT_INTERVAL)
    job_journal.claim = often  # type: ignore[attr-defined]
    traps = _traps()
    return run_real_jobmaster(job, address, epoch, JobMasterDrivers(traps, drivers))


def run_taskmanager(*arguments: Any) -> int:
    """Run a TaskManager that may come back after the JobManager has declared it lost."""
    if SURVIVE in os.environ:
        _survive_our_killer()
    return run_real_taskmanager(*arguments)


def run_jobmanager(
    cluster: str, config: Config, drivers: Drivers, processes: Processes, **keywords: Any
) -> int:
    """Run a JobManager that always restarts processes at once.

    The processes of these tests die repeatedly in a short time, and each death would double the
    pause before the next start.
    """
    backoff.FIRST_MS = backoff.LONGEST_MS = 0
    trapped = JobManagerDrivers(Traps(Plan.from_environment()), drivers)
    return run_real_jobmanager(cluster, config, trapped, processes, **keywords)


def endpoint_of(drivers: Drivers) -> Endpoint:
    """Return the network settings of this process, which `bootstrap` has passed to its real
    drivers.
    """
    return cast("SystemDrivers", drivers).endpoint


def _traps() -> Traps:
    if SURVIVE in os.environ:
        _survive_our_killer()
    return Traps(Plan.from_environment())


def _survive_our_killer() -> None:
    """Fork, and continue in the child, which no other process knows and which shows the pid of this
    process.

    This resembles a network partition. A process that kills this one (its parent, or the watch on
    its parent) kills an empty shell, and the child becomes a true zombie. The child exits
    `ZOMBIE_S_MAX` seconds after its shell, even if no process ends it.
    """
    known, title = os.getpid(), getproctitle()
    setproctitle(SHELL)
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
    os.setsid()  # the end of the shell must not end it
    sys.settrace(None)
    setproctitle(title)
    os.getpid = lambda: known
    threading.Thread(target=_end_later, args=(known,), name="zombie", daemon=True).start()


def _end_later(shell: int) -> None:
    while os.getppid() == shell:
        time.sleep(1.0)
    time.sleep(ZOMBIE_S_MAX)
    os._exit(1)


class JobManagerDrivers(SystemDrivers):
    """The real drivers of a JobManager, with traps."""

    def __init__(self, traps: Traps, real: Drivers) -> None:
        super().__init__(endpoint_of(real))
        self._traps = traps

    def blob_store(self, url: str) -> BlobStore:
        return StoreTraps(super().blob_store(url), self._traps)


class SlotDrivers(SystemDrivers):
    """The real drivers of a slot, with traps."""

    def __init__(self, traps: Traps, real: Drivers) -> None:
        super().__init__(endpoint_of(real))
        self._traps = traps
        self._used: set[TransactionalId] = set()

    def blob_store(self, url: str) -> BlobStore:
        return UploadTraps(super().blob_store(url), self._traps)

    def kv_store(self, backend: str, directory: Path) -> KeyValueStore:
        laid_out = directory.is_dir()
        store = super().kv_store(backend, directory)
        if laid_out:
            self._traps.reached("slot.restored")
        return store

    def transaction_admin(self, kafka: Mapping[str, str]) -> TransactionAdmin:
        return DescribeTraps(super().transaction_admin(kafka), self._traps)

    def producer(
        self,
        kafka: Mapping[str, str],
        transactional_id: TransactionalId | None,
        transaction_timeout_ms: int,
    ) -> Producer:
        timeout_ms = int(os.environ.get(DELIVERY, transaction_timeout_ms))
        real = super().producer(kafka, transactional_id, timeout_ms)
        if transactional_id is not None:
            if transactional_id in self._used:
                self._traps.reached("slot.reused")
            self._used.add(transactional_id)
        return ProducerTraps(real, self._traps)

    def partition_reader(
        self, kafka: Mapping[str, str], group: str, *, with_end_of_partition: bool
    ) -> PartitionReader:
        real = super().partition_reader(kafka, group, with_end_of_partition=with_end_of_partition)
        pace = os.environ.get(PACE)
        return real if pace is None else PacedReader(real, int(pace))


class Passing:
    """The base of wrappers. Calls that a wrapper does not define go to the wrapped object."""

    def __init__(self, real: Any, traps: Traps) -> None:
        self._real, self._traps = real, traps

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class StoreTraps(Passing):
    """A JobManager's checkpoint storage."""

    def create(self, path: str, data: bytes) -> CreateResult:
        self._reached(path)
        created: CreateResult = self._real.create(path, data)
        return created

    def put(self, path: str, data: bytes) -> None:
        self._reached(path)
        self._real.put(path, data)

    def _reached(self, path: str) -> None:
        points = {
            "submission.json": "jobmanager.storing",
            "decision.json": "jobmanager.accepting",
            "result.json": "jobmanager.ending",
        }
        self._traps.reached(points.get(path.rpartition("/")[2], ""))


class UploadTraps(Passing):
    """A slot's checkpoint storage."""

    def put_file(self, path: str, source: Path) -> None:
        self._traps.reached("slot.uploading")
        self._real.put_file(path, source)
        self._traps.reached("slot.uploaded")


class DescribeTraps(Passing):
    """A slot's transaction admin."""

    def describe(self, transactional_id: TransactionalId) -> TransactionDescription | None:
        facts: TransactionDescription | None = self._real.describe(transactional_id)
        if facts is not None and facts.state is TransactionState.ONGOING:  # no pooled producer
            self._traps.reached("slot.described")
        return facts


class ProducerTraps(Passing):
    """A producer of a slot."""

    def send(
        self, topic: str, values: Sequence[bytes | None], keys: Sequence[bytes | None] | None
    ) -> None:
        if values:
            self._traps.reached("slot.writing")
        self._real.send(topic, values, keys)
        if values:
            self._traps.reached("slot.wrote")

    def flush(self, timeout_s: float) -> None:
        self._real.flush(timeout_s)
        self._traps.reached("slot.flushed")


class PacedReader:
    """A reader that reads a fixed number of records per second in small batches, so that a small
    input lasts.
    """

    def __init__(self, real: PartitionReader, pace: int) -> None:
        self._real, self._batch = real, max(1, int(pace * POLL_S))
        self._pause_s = max(POLL_S, self._batch / pace)

    def poll(self, max_records: int, timeout_s: float) -> list[PartitionBatch]:
        runs = self._real.poll(min(max_records, self._batch), timeout_s)
        if any(run.messages for run in runs):
            time.sleep(self._pause_s)
        return runs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class Phase:
    """The phase of a JobMaster. It recovers from the claim until its first checkpoint is
    complete.
    """

    def __init__(self) -> None:
        self.name = "recovery"

    def __call__(self, point: str) -> str:
        """Return a point's name in this phase."""
        return f"{self.name}.{point}"


class JobMasterDrivers(SystemDrivers):
    """The real drivers of a JobMaster, with traps."""

    def __init__(self, traps: Traps, real: Drivers) -> None:
        super().__init__(endpoint_of(real))
        self._traps, self._phase = traps, Phase()
        self.rpc = cast("Rpc", LineTraps(self.rpc, traps))

    def blob_store(self, url: str) -> BlobStore:
        return JournalTraps(super().blob_store(url), self._traps, self._phase)

    def transaction_admin(self, kafka: Mapping[str, str]) -> TransactionAdmin:
        return CommitTraps(super().transaction_admin(kafka), self._traps, self._phase)

    def kafka_admin(self, kafka: Mapping[str, str]) -> KafkaAdmin:
        return SplitTraps(super().kafka_admin(kafka), self._traps)


class LineTraps(Passing):
    """A JobMaster's RPC connections to other processes."""

    def connect(self, address: str) -> RpcClient:
        return cast("RpcClient", CallTraps(self._real.connect(address), self._traps))


class CallTraps(Passing):
    """One connection of a JobMaster."""

    def call(self, message: object, timeout_s: float = 10.0) -> object:
        if isinstance(message, CheckpointCompleted) and message.reusable:
            self._traps.reached("jobmaster.freeing")
        return self._real.call(message, timeout_s)


class SplitTraps(Passing):
    """A JobMaster's requests for the partitions of topics."""

    def partitions(self, topic: str) -> int:
        count: int = self._real.partitions(topic)
        self._traps.reached("recovery.enumerated")
        return count


class JournalTraps(Passing):
    """A JobMaster's checkpoint storage."""

    def __init__(self, real: BlobStore, traps: Traps, phase: Phase) -> None:
        super().__init__(real, traps)
        self._phase = phase

    def get(self, path: str) -> bytes | None:
        data: bytes | None = self._real.get(path)
        if data is not None and entry_number(path) is not None:
            self._traps.reached("recovery.read")
        return data

    def put(self, path: str, data: bytes) -> None:
        manifest = "/journal/" not in path
        if manifest:
            self._phase.name = "jobmaster"
            self._traps.reached("jobmaster.complete")
        self._real.put(path, data)
        if manifest:
            self._traps.reached("jobmaster.manifest")

    def create(self, path: str, data: bytes) -> CreateResult:
        before, after = self._points(journal_entry(path, data))
        self._traps.reached("recovery.beginning" if "/beginnings/" in path else before)
        created: CreateResult = self._real.create(path, data)
        self._traps.reached(after)
        return created

    def delete(self, path: str) -> None:
        self._real.delete(path)
        entry = entry_number(path) is not None
        self._traps.reached("jobmaster.trimmed" if entry else "jobmaster.deleted")

    def _points(self, entry: AnyEntry | None) -> tuple[str, str]:
        match entry:
            case Claim():
                self._phase.name = "recovery"
                return "recovery.claiming", "recovery.claimed"
            case Publication(final=True):
                return "jobmaster.publishing", "jobmaster.finishing"
            case Publication(transactions=()):  # no entry was written, so no transaction is ended
                return "", ""
            case Publication():
                return "jobmaster.publishing", "jobmaster.published"
            case Settled():
                return self._phase("settling"), self._phase("settled")
            case Closed():
                return "jobmaster.closing", "jobmaster.closed"
            case _:
                return "", ""


def journal_entry(path: str, data: bytes) -> AnyEntry | None:
    """Return the journal entry that a create writes, or None if it writes another file."""
    return None if entry_number(path) is None else decode_entry(data, path)


class CommitTraps(Passing):
    """A JobMaster's transaction admin.

    A JobMaster sends the EndTxns of one publication in parallel. If the plan has a trap at an
    `ended` point, they are sent one after the other, so that a process can be caught between two of
    them.
    """

    def __init__(self, real: TransactionAdmin, traps: Traps, phase: Phase) -> None:
        super().__init__(real, traps)
        self._phase = phase
        self._between_ends = threading.Lock()

    def describe(self, transactional_id: TransactionalId) -> TransactionDescription | None:
        facts: TransactionDescription | None = self._real.describe(transactional_id)
        if facts is not None and facts.state is TransactionState.ONGOING:
            self._traps.reached(self._phase("described"))
        elif facts is not None and facts.state is TransactionState.COMPLETE_COMMIT:
            self._traps.reached(self._phase("confirmed"))
        return facts

    def end(
        self, transactional_id: TransactionalId, producer_id: int, epoch: int, *, commit: bool
    ) -> EndTxnResult:
        trapped = any(trap.point.endswith(".ended") for trap in self._traps.plan.traps)
        with self._between_ends if trapped else nullcontext():
            outcome: EndTxnResult = self._real.end(
                transactional_id, producer_id, epoch, commit=commit
            )
            self._traps.reached(self._phase("ended"))
            return outcome

    def fence(self, transactional_id: TransactionalId) -> None:
        self._real.fence(transactional_id)
        if parse_claim_id(transactional_id) is None:  # that one belongs to the claim
            self._traps.reached("recovery.fenced")

    def list(
        self, prefix: str, *, unfinished: bool = False
    ) -> dict[TransactionalId, TransactionState]:
        listed: dict[TransactionalId, TransactionState] = self._real.list(
            prefix, unfinished=unfinished
        )
        if self._phase.name != "recovery":
            self._traps.reached("jobmaster.swept")
        return listed
