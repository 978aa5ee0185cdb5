"""The real drivers of a process, as `ports.drivers.Drivers`.

Each driver is imported when it is first requested, because every import makes the start of a
process slower: a TaskManager, for example, needs no Kafka driver. The fork server imports all
drivers before it forks, so that its slots have them.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tidegate.drivers.clock import SystemClock
from tidegate.drivers.endpoint import LOOPBACK, Endpoint
from tidegate.drivers.process.current import OsProcess
from tidegate.drivers.threads import SystemThreads
from tidegate.errors import ConfigError
from tidegate.ids import TransactionalId
from tidegate.ports.blobs import BlobStore
from tidegate.ports.clock import Clock
from tidegate.ports.drivers import Drivers, KafkaAdmin
from tidegate.ports.entropy import Entropy
from tidegate.ports.exchange import Exchange
from tidegate.ports.kafka import PartitionReader, Producer, TransactionAdmin
from tidegate.ports.kv import KeyValueStore
from tidegate.ports.processes import CurrentProcess
from tidegate.ports.rpc import Rpc
from tidegate.ports.threads import Threads
from tidegate.ports.transactions import SinkOptions, TransactionCoordinator


class SystemEntropy:
    """An implementation of `ports.entropy.Entropy` with the operating system's random source."""

    def token_hex(self, nbytes: int) -> str:
        return secrets.token_hex(nbytes)

    def random(self) -> float:
        return random.random()  # noqa: S311 - spreads restarts, protects nothing


class SystemDrivers:
    """The drivers of one process, which listens and is reached as `endpoint` says."""

    clock: Clock
    threads: Threads
    entropy: Entropy
    process: CurrentProcess
    rpc: Rpc

    def __init__(self, endpoint: Endpoint = LOOPBACK) -> None:
        from tidegate.drivers.rpc.channel import GrpcRpc

        self.clock = SystemClock()
        self.threads = SystemThreads()
        self.entropy = SystemEntropy()
        self.process = OsProcess()
        self.rpc = GrpcRpc(endpoint)
        self.endpoint = endpoint

    def blob_store(self, url: str) -> BlobStore:
        from tidegate.drivers.storage import open_store

        return open_store(url)

    def kafka_admin(self, kafka: Mapping[str, str]) -> KafkaAdmin:
        from tidegate.drivers.kafka.admin import KafkaClusterAdmin

        return KafkaClusterAdmin(kafka)

    def transaction_admin(self, kafka: Mapping[str, str]) -> TransactionAdmin:
        from tidegate.drivers.kafka.transactions import KafkaTransactionAdmin

        return KafkaTransactionAdmin(kafka)

    def transaction_coordinator(self, system: str, sinks: SinkOptions) -> TransactionCoordinator:
        from tidegate.drivers.transaction_coordinators import make_transaction_coordinator

        return make_transaction_coordinator(system, sinks)

    def partition_reader(
        self, kafka: Mapping[str, str], group: str, *, with_end_of_partition: bool
    ) -> PartitionReader:
        from tidegate.drivers.kafka.reader import KafkaPartitionReader

        return KafkaPartitionReader(kafka, group, with_end_of_partition=with_end_of_partition)

    def producer(
        self,
        kafka: Mapping[str, str],
        transactional_id: TransactionalId | None,
        transaction_timeout_ms: int,
    ) -> Producer:
        from tidegate.drivers.kafka.producer import KafkaProducer

        return KafkaProducer(kafka, transactional_id, transaction_timeout_ms)

    def kv_store(self, backend: str, directory: Path) -> KeyValueStore:
        if backend == "rocksdb":
            from tidegate.drivers.rocksdb.store import RocksDBStore

            return RocksDBStore(directory)
        if backend == "memory":
            from tidegate.drivers.memory.store import MemoryStore

            return MemoryStore(directory)
        raise ConfigError(f"state.backend = {backend!r} is unknown: choose 'rocksdb' or 'memory'.")

    def exchange(self, *, job: str, attempt: int, ordinal: int) -> Exchange:
        from tidegate.drivers.exchange.sockets import SocketExchange

        if self.endpoint.is_one_host:
            return SocketExchange(job=job, attempt=attempt, ordinal=ordinal)
        return SocketExchange(
            job=job,
            attempt=attempt,
            ordinal=ordinal,
            host=self.endpoint.bind_address,
            reached_as=self.endpoint.host,
        )


if TYPE_CHECKING:
    _drivers: Drivers = SystemDrivers()
    _entropy: Entropy = SystemEntropy()
