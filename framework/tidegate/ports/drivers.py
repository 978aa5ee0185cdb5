"""The bundle of drivers that a process is given.

`bootstrap` makes the real one, `testing` a fake one; the control plane and slots see only this
protocol, so that neither imports a driver.
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
from tidegate.stream_elements import TopicPartition


class KafkaAdmin(Protocol):
    """Questions to a Kafka cluster that are asked at submit and at the start of an attempt."""

    def cluster_id(self) -> str: ...

    def partitions(self, topic: str) -> int:
        """Number of partitions; TopicAbsentError that names the topic where there is none."""
        ...

    def rights(self, topic: str) -> frozenset[str] | None:
        """What we may do with a topic, by Kafka's names (READ, WRITE); None where brokers do not
        say.
        """
        ...

    def earliest(self, origins: list[TopicPartition]) -> dict[TopicPartition, int]: ...

    def latest(self, origins: list[TopicPartition]) -> dict[TopicPartition, int]:
        """End offsets for `read_committed` readers (the last stable offset)."""
        ...

    def high_watermarks(self, origins: list[TopicPartition]) -> dict[TopicPartition, int]:
        """End offsets with what open transactions hide from `read_committed` readers."""
        ...

    def at_time(
        self, origins: list[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int]:
        """First offset at or after a time; the end offset where there is none."""
        ...

    def committed(
        self, group: str, origins: list[TopicPartition]
    ) -> dict[TopicPartition, int | None]: ...

    def max_message_bytes(self, topics: Collection[str]) -> dict[str, int]:
        """`max.message.bytes` of each topic, where the brokers tell it: the bytes of the largest
        batch, after compression, that the topic takes.
        """
        ...

    def group_commits(self, group: str) -> dict[TopicPartition, GroupCommit]:
        """All that a consumer group holds."""
        ...

    def commit_group(self, group: str, commits: Mapping[TopicPartition, GroupCommit]) -> None:
        """Commit offsets to a consumer group without members."""
        ...

    def transaction_max_timeout_ms(self) -> int | None:
        """The brokers' `transaction.max.timeout.ms`; None where we may not read it."""
        ...

    def close(self) -> None: ...


class Drivers(Protocol):
    """Makes the drivers of one process. `kafka` is librdkafka settings, bootstrap.servers
    included.
    """

    clock: Clock
    threads: Threads
    entropy: Entropy
    process: CurrentProcess
    rpc: Rpc

    def blob_store(self, url: str) -> BlobStore:
        """A path or URL of a folder; ConfigError for a scheme that no driver knows."""
        ...

    def kafka_admin(self, kafka: Mapping[str, str]) -> KafkaAdmin: ...

    def transaction_log(self, kafka: Mapping[str, str]) -> TransactionAdmin: ...

    def partition_reader(
        self, kafka: Mapping[str, str], group: str, *, with_end_of_partition: bool
    ) -> PartitionReader: ...

    def producer(
        self,
        kafka: Mapping[str, str],
        transactional_id: TransactionalId | None,
        transaction_timeout_ms: int,
    ) -> Producer:
        """A producer, its transactional id initialised: takes 0.06 s or longer, so never in the
        loop.
        """
        ...

    def kv_store(self, backend: str, directory: Path) -> KeyValueStore:
        """An empty or existing store in `directory`; `backend` is `rocksdb` or `memory`."""
        ...

    def exchange(self, *, job: str, attempt: int, ordinal: int) -> Exchange:
        """A slot's end of all its connections, listening; see `ports/exchange.py`."""
        ...
