"""The bundle of drivers of a process.

`bootstrap` makes the real bundle, and `testing` makes a fake one. The control plane and the slots
see only this protocol, so that neither imports a driver.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Protocol

from tidegate.ids import TransactionalId
from tidegate.ports.blobs import BlobStore
from tidegate.ports.clock import Clock
from tidegate.ports.entropy import Entropy
from tidegate.ports.exchange import Exchange
from tidegate.ports.kafka import GroupCommit, PartitionReader, Producer, TransactionAdmin
from tidegate.ports.kv import KeyValueStore
from tidegate.ports.processes import CurrentProcess
from tidegate.ports.rpc import Rpc
from tidegate.ports.threads import Threads
from tidegate.ports.transactions import SinkOptions, TransactionCoordinator
from tidegate.stream_elements import TopicPartition


class KafkaAdmin(Protocol):
    """Requests to a Kafka cluster at a submit and at the start of an attempt."""

    def cluster_id(self) -> str: ...

    def partitions(self, topic: str) -> int:
        """Return the number of partitions. TopicAbsentError if the topic does not exist."""
        ...

    def rights(self, topic: str) -> frozenset[str] | None:
        """Return the allowed operations on a topic, by Kafka's names (READ, WRITE). None if the
        brokers do not report them.
        """
        ...

    def earliest(self, topic_partitions: list[TopicPartition]) -> dict[TopicPartition, int]: ...

    def latest(self, topic_partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the end offsets for `read_committed` readers: the last stable offsets."""
        ...

    def high_watermarks(self, topic_partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the end offsets, including the records of open transactions."""
        ...

    def at_time(
        self, topic_partitions: list[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int]:
        """Return the first offset at or after a time, or the end offset if no record is so late."""
        ...

    def committed(
        self, group: str, topic_partitions: list[TopicPartition]
    ) -> dict[TopicPartition, int | None]: ...

    def max_message_bytes(self, topics: Collection[str]) -> dict[str, int]:
        """Return `max.message.bytes` of each topic for which the brokers report it: the largest
        batch, in bytes after compression, that the topic accepts.
        """
        ...

    def group_commits(self, group: str) -> dict[TopicPartition, GroupCommit]:
        """Return all committed offsets of a consumer group."""
        ...

    def commit_group(self, group: str, commits: Mapping[TopicPartition, GroupCommit]) -> None:
        """Commit offsets to a consumer group without members."""
        ...

    def transaction_max_timeout_ms(self) -> int | None:
        """Return the brokers' `transaction.max.timeout.ms`, or None without the right to it."""
        ...

    def close(self) -> None: ...


class Drivers(Protocol):
    """A maker of the drivers of one process. `kafka` has librdkafka's settings, with
    bootstrap.servers.
    """

    clock: Clock
    threads: Threads
    entropy: Entropy
    process: CurrentProcess
    rpc: Rpc

    def blob_store(self, url: str) -> BlobStore:
        """Open the folder of a path or URL. ConfigError if no driver knows the scheme."""
        ...

    def kafka_admin(self, kafka: Mapping[str, str]) -> KafkaAdmin: ...

    def transaction_admin(self, kafka: Mapping[str, str]) -> TransactionAdmin: ...

    def transaction_coordinator(self, system: str, sinks: SinkOptions) -> TransactionCoordinator:
        """Make the client that ends transactions of another system than Kafka.

        `sinks` has the sinks of the job that use the system. It is empty while the job's code is
        not loaded, or if the code has no such sink any more. RefusedError if the system is unknown.
        """
        ...

    def partition_reader(
        self, kafka: Mapping[str, str], group: str, *, with_end_of_partition: bool
    ) -> PartitionReader: ...

    def producer(
        self,
        kafka: Mapping[str, str],
        transactional_id: TransactionalId | None,
        transaction_timeout_ms: int,
    ) -> Producer:
        """Make a producer and initialise its transactional id. This takes 0.06 s or longer, so the
        slot's loop never does it.
        """
        ...

    def kv_store(self, backend: str, directory: Path) -> KeyValueStore:
        """Open or make a store in `directory`. `backend` is `rocksdb` or `memory`."""
        ...

    def exchange(self, *, job: str, attempt: int, ordinal: int) -> Exchange:
        """Make and start the listening end of a slot; see `ports/exchange.py`."""
        ...
