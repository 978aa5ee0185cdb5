"""Runs the mains of all roles with a network and a storage that can fail. All else is real.

`bootstrap` starts them instead of its own mains if `ClusterSpec.role_mains` names them. The traps
of `kill_points.mains` still work in slots and JobMasters. A role reaches Kafka by its own listener,
if the test's brokers have one. So a fault can affect the slots, but not their JobMaster.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from integration.faults.kill_matrix.faulty_storage import failing, slowed
from integration.faults.kill_matrix.proxy import HOST
from integration.faults.kill_matrix.switchboard import ADDRESS, ProxiedExchange, ProxiedRpc
from integration.faults.kill_points import mains as killing
from integration.faults.kill_points.kill_points import Plan, Traps
from tidegate.config import Config
from tidegate.controlplane.jobmanager.service import run_jobmanager as run_real_jobmanager
from tidegate.controlplane.jobmaster.process import run_jobmaster as run_real_jobmaster
from tidegate.controlplane.taskmanager.service import run_taskmanager as run_real_taskmanager
from tidegate.drivers.exchange.sockets import SocketExchange
from tidegate.drivers.system import SystemDrivers
from tidegate.ids import JobName, LeaderEpoch, TaskManagerId, TransactionalId
from tidegate.ports.blobs import BlobStore
from tidegate.ports.drivers import Drivers, KafkaAdmin
from tidegate.ports.exchange import Exchange
from tidegate.ports.kafka import PartitionReader, Producer, TransactionAdmin
from tidegate.ports.kv import KeyValueStore
from tidegate.ports.processes import Processes
from tidegate.protocol.messages import StartSlot
from tidegate.slot.main import run_slot as run_real_slot

KAFKA: Final = "TIDEGATE_TEST_KAFKA_"
"""Prefix of environment variables that hold a role's bootstrap servers. The role follows in
capitals.
"""

MAINS: Final = {
    role: f"integration.faults.kill_matrix.mains:run_{role}"
    for role in ("slot", "jobmaster", "taskmanager", "jobmanager")
}


def run_slot(
    start: StartSlot, drivers: Drivers, task_manager: TaskManagerId, task_manager_pid: int
) -> int:
    """Run a slot."""
    return run_real_slot(start, SlotDrivers(drivers), task_manager, task_manager_pid)


def run_jobmaster(job: JobName, address: str, epoch: LeaderEpoch, drivers: Drivers) -> int:
    """Run a JobMaster."""
    proxied = JobMasterDrivers(drivers)
    return run_real_jobmaster(job, address, epoch, proxied)


def run_taskmanager(
    id_: TaskManagerId,
    address: str,
    epoch: LeaderEpoch,
    slots: int,
    config: Config,
    drivers: Drivers,
    processes: Processes,
) -> int:
    """Run a TaskManager."""
    proxied = SystemDrivers(killing.endpoint_of(drivers))
    proxied.rpc = _proxied_drivers(proxied, "taskmanager")
    return run_real_taskmanager(id_, address, epoch, slots, config, proxied, processes)


def run_jobmanager(
    cluster: str,
    config: Config,
    drivers: Drivers,
    processes: Processes,
    **keywords: Any,
) -> int:
    """Run a JobManager."""
    proxied = JobManagerDrivers(drivers)
    return run_real_jobmanager(cluster, config, proxied, processes, **keywords)


def _proxied_drivers(drivers: SystemDrivers, role: str) -> Any:
    return ProxiedRpc(drivers.rpc, role) if ADDRESS in os.environ else drivers.rpc


def _of_role(kafka: Mapping[str, str], role: str) -> Mapping[str, str]:
    servers = os.environ.get(KAFKA + role.upper())
    return kafka if servers is None else {**kafka, "bootstrap.servers": servers}


class JobManagerDrivers(SystemDrivers):
    """Drivers of a JobManager, whose messages and storage can fail."""

    def __init__(self, real: Drivers) -> None:
        super().__init__(killing.endpoint_of(real))
        self.rpc = _proxied_drivers(self, "jobmanager")

    def blob_store(self, url: str) -> BlobStore:
        return failing(super().blob_store(url), "jobmanager")


class JobMasterDrivers(killing.JobMasterDrivers):
    """Drivers of a JobMaster, whose messages, storage and Kafka can fail."""

    def __init__(self, real: Drivers) -> None:
        super().__init__(Traps(Plan.from_environment()), real)
        self.rpc = _proxied_drivers(self, "jobmaster")

    def blob_store(self, url: str) -> BlobStore:
        return failing(super().blob_store(url), "jobmaster")

    def kafka_admin(self, kafka: Mapping[str, str]) -> KafkaAdmin:
        return super().kafka_admin(_of_role(kafka, "jobmaster"))

    def transaction_admin(self, kafka: Mapping[str, str]) -> TransactionAdmin:
        return super().transaction_admin(_of_role(kafka, "jobmaster"))


class SlotDrivers(killing.SlotDrivers):
    """Drivers of a slot, whose messages, exchange, storage and Kafka can fail."""

    def __init__(self, real: Drivers) -> None:
        super().__init__(Traps(Plan.from_environment()), real)
        self.rpc = _proxied_drivers(self, "slot")

    def blob_store(self, url: str) -> BlobStore:
        return failing(super().blob_store(url), "slot")

    def kv_store(self, backend: str, directory: Path) -> KeyValueStore:
        return slowed(super().kv_store(backend, directory), "slot")

    def transaction_admin(self, kafka: Mapping[str, str]) -> TransactionAdmin:
        return super().transaction_admin(_of_role(kafka, "slot"))

    def partition_reader(
        self, kafka: Mapping[str, str], group: str, *, with_end_of_partition: bool
    ) -> PartitionReader:
        of_slots = _of_role(kafka, "slot")
        return super().partition_reader(
            of_slots, group, with_end_of_partition=with_end_of_partition
        )

    def producer(
        self,
        kafka: Mapping[str, str],
        transactional_id: TransactionalId | None,
        transaction_timeout_ms: int,
    ) -> Producer:
        of_slots = _of_role(kafka, "slot")
        return super().producer(of_slots, transactional_id, transaction_timeout_ms)

    def exchange(self, *, job: str, attempt: int, ordinal: int) -> Exchange:
        if ADDRESS not in os.environ:
            return super().exchange(job=job, attempt=attempt, ordinal=ordinal)
        # The slots use TCP, as across hosts, because a Unix socket has no network that can fail.
        real = SocketExchange(job=job, attempt=attempt, ordinal=ordinal, host=HOST)
        return ProxiedExchange(real, ordinal)
