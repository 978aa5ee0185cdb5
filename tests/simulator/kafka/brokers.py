"""The request handling of the fake brokers: topics, groups, rights and transactions.

Every method handles one request at once, without waiting, for a user given by name. A refused
request raises `BrokerError` with the name that Kafka gives to the error. `connection.py` simulates
the delivery of requests, including their loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from tests.simulator.kafka.coordinator import TransactionCoordinator
from tests.simulator.kafka.faults import BrokerError, Code
from tests.simulator.kafka.log import PartitionLog, Record, StoredRecord
from tests.simulator.kafka.timeline import Timeline
from tidegate.ids import TransactionalId
from tidegate.ports.kafka import GroupCommit, TransactionDescription, TransactionState
from tidegate.stream_elements import TopicPartition

OPERATIONS: Final = frozenset(
    {
        "READ",
        "WRITE",
        "CREATE",
        "DELETE",
        "ALTER",
        "DESCRIBE",
        "DESCRIBE_CONFIGS",
        "ALTER_CONFIGS",
    }
)
"""Operations that can be allowed on a topic."""


class Fetched(NamedTuple):
    """The answer to a fetch of one partition by a `read_committed` reader."""

    records: Sequence[StoredRecord]
    position: int
    last_stable: int
    end: int
    leader_epoch: int
    """Leader epoch of the entry before `position`."""


class Rights:
    """The rights of the users. A user without an entry may do everything."""

    def __init__(self) -> None:
        self._granted: dict[str, list[tuple[str, str]]] = {}

    def restrict(self, user: str, *granted: tuple[str, str]) -> None:
        """Allow a user only these operations.

        Each is a pair of an operation and a prefix of a topic, a group or a transactional id.
        """
        self._granted[user] = list(granted)

    def of(self, user: str, name: str) -> frozenset[str]:
        """Return the operations that a user may do. READ and WRITE imply DESCRIBE."""
        granted = self._granted.get(user)
        if granted is None:
            return OPERATIONS
        found = {operation for operation, prefix in granted if name.startswith(prefix)}
        return frozenset(found | ({"DESCRIBE"} if found & {"READ", "WRITE"} else set()))

    def check(self, user: str, operation: str, name: str, code: Code) -> None:
        """Raise BrokerError(code) unless the user has the right."""
        if user in self._granted and operation not in self.of(user, name):
            raise BrokerError(code)


class Brokers:
    """The state of a cluster.

    `coordinator` is set after construction, because the coordinator writes markers into it.
    """

    coordinator: TransactionCoordinator

    def __init__(self, timeline: Timeline, cluster_id: str) -> None:
        self.timeline = timeline
        self.cluster_id = cluster_id
        self.rights = Rights()
        self.topics: dict[str, list[PartitionLog]] = {}
        self._topic_ids: dict[str, str] = {}
        self._topics_made = 0
        self.on_marker: Callable[[PartitionLog], None] | None = None
        self._offsets: dict[str, dict[TopicPartition, GroupCommit]] = {}

    def partition(self, topic_partition: TopicPartition) -> PartitionLog:
        """Return the log of a partition. Raise BrokerError if the partition does not exist."""
        found = self.topics.get(topic_partition.topic, ())
        if not 0 <= topic_partition.partition < len(found):
            raise BrokerError(Code.UNKNOWN_TOPIC_OR_PARTITION)
        return found[topic_partition.partition]

    def create_topic(self, name: str, partitions: Sequence[PartitionLog]) -> None:
        """Create a topic with a new id, even if a topic of this name existed before."""
        self._topics_made += 1
        self.topics[name] = list(partitions)
        self._topic_ids[name] = f"fake-topic-id-{self._topics_made:08d}"

    def become_mirror(self, cluster_id: str) -> None:
        """Become another cluster with the same records, other ids and no offsets of groups."""
        self.cluster_id = cluster_id
        self._offsets.clear()
        for name, logs in self.topics.items():
            self.create_topic(name, logs)

    def mark(
        self, topic_partition: TopicPartition, producer_id: int, epoch: int, commit: bool
    ) -> None:
        """Handle WriteTxnMarkers of the coordinator. Ignore a partition that no longer exists."""
        found = self.topics.get(topic_partition.topic, ())
        if topic_partition.partition < len(found):
            now_ms = self.timeline.now_ms()
            log = found[topic_partition.partition]
            log.mark(producer_id, epoch, now_ms, commit=commit)
            if self.on_marker is not None:
                self.on_marker(log)

    # --- data -----------------------------------------------------------------------------------

    def produce(
        self,
        user: str,
        topic_partition: TopicPartition,
        name: TransactionalId | None,
        producer_id: int,
        epoch: int,
        sequence: int,
        records: Sequence[Record],
    ) -> None:
        """Produce to one partition, in a transaction if `name` is given."""
        self.rights.check(user, "WRITE", topic_partition.topic, Code.TOPIC_AUTHORIZATION_FAILED)
        self.partition(topic_partition).append(
            producer_id,
            epoch,
            sequence,
            records,
            is_open=None
            if name is None
            else lambda: self.coordinator.includes(name, producer_id, epoch, topic_partition),
        )

    def fetch(
        self, user: str, topic_partition: TopicPartition, position: int, records_max: int
    ) -> Fetched:
        """Fetch from one partition."""
        self.rights.check(user, "READ", topic_partition.topic, Code.TOPIC_AUTHORIZATION_FAILED)
        log = self.partition(topic_partition)
        records, reached = log.read(position, records_max)
        epoch = log.epoch_at(reached - 1)
        return Fetched(records, reached, log.last_stable, log.end, epoch)

    def partitions(self, user: str, topic: str) -> int:
        """Return the number of partitions of a topic."""
        self.rights.check(user, "DESCRIBE", topic, Code.TOPIC_AUTHORIZATION_FAILED)
        if topic not in self.topics:
            raise BrokerError(Code.UNKNOWN_TOPIC_OR_PARTITION)
        return len(self.topics[topic])

    def offset(
        self, user: str, topic_partition: TopicPartition, at: int | None, *, earliest: bool = False
    ) -> int:
        """Handle ListOffsets for `read_committed`.

        Return the earliest offset, the first at or after the time `at` (-1 if no offset is), or
        the latest offset.
        """
        self.rights.check(user, "DESCRIBE", topic_partition.topic, Code.TOPIC_AUTHORIZATION_FAILED)
        log = self.partition(topic_partition)
        if earliest:
            return log.start
        if at is None:
            return log.last_stable
        found = log.at_time(at)
        return -1 if found is None else found

    def high_watermark(self, user: str, topic_partition: TopicPartition) -> int:
        """Handle ListOffsets for `read_uncommitted`: return the high watermark."""
        self.rights.check(user, "DESCRIBE", topic_partition.topic, Code.TOPIC_AUTHORIZATION_FAILED)
        return self.partition(topic_partition).end

    def topic_ids(self, user: str, topics: Iterable[str]) -> dict[str, str]:
        """Handle Metadata: return the ids of the topics that exist."""
        found = [topic for topic in topics if topic in self.topics]
        for topic in found:
            self.rights.check(user, "DESCRIBE", topic, Code.TOPIC_AUTHORIZATION_FAILED)
        return {topic: self._topic_ids[topic] for topic in found}

    def epoch_end(self, user: str, topic_partition: TopicPartition, epoch: int) -> int | None:
        """Handle OffsetForLeaderEpoch. Return None for a partition that does not exist."""
        self.rights.check(user, "DESCRIBE", topic_partition.topic, Code.TOPIC_AUTHORIZATION_FAILED)
        if topic_partition.partition >= len(self.topics.get(topic_partition.topic, ())):
            return None
        return self.partition(topic_partition).epoch_end(epoch)

    def commit_offsets(
        self, user: str, group: str, positions: Mapping[TopicPartition, GroupCommit]
    ) -> None:
        """Handle OffsetCommit for a group without members."""
        self.rights.check(user, "READ", group, Code.GROUP_AUTHORIZATION_FAILED)
        self._offsets.setdefault(group, {}).update(positions)

    def committed(self, user: str, group: str) -> dict[TopicPartition, GroupCommit]:
        """Handle OffsetFetch: return all offsets of the group."""
        self.rights.check(user, "DESCRIBE", group, Code.GROUP_AUTHORIZATION_FAILED)
        return dict(self._offsets.get(group, {}))

    # --- transactions ---------------------------------------------------------------------------

    def init_producer_id(
        self, user: str, name: TransactionalId, timeout_ms: int
    ) -> tuple[int, int]:
        """Handle InitProducerId with a transactional id. Return producer id and epoch."""
        self._check_id(user, "WRITE", name)
        return self.coordinator.init_producer_id(name, timeout_ms)

    def add_partitions(
        self,
        user: str,
        name: TransactionalId,
        producer_id: int,
        epoch: int,
        topic_partitions: Sequence[TopicPartition],
    ) -> None:
        """Handle AddPartitionsToTxn: add all partitions or none."""
        self._check_id(user, "WRITE", name)
        for topic_partition in topic_partitions:
            self.rights.check(user, "WRITE", topic_partition.topic, Code.TOPIC_AUTHORIZATION_FAILED)
            self.partition(topic_partition)
        self.coordinator.add_partitions(name, producer_id, epoch, topic_partitions)

    def end(
        self, user: str, name: TransactionalId, producer_id: int, epoch: int, *, commit: bool
    ) -> None:
        """Handle EndTxn v3."""
        self._check_id(user, "WRITE", name)
        self.coordinator.end(name, producer_id, epoch, commit=commit)

    def describe(self, user: str, name: TransactionalId) -> TransactionDescription:
        """Handle DescribeTransactions."""
        self._check_id(user, "DESCRIBE", name)
        return self.coordinator.describe(name)

    def list(self, user: str, prefix: str) -> dict[TransactionalId, TransactionState]:
        """Handle ListTransactions: return those that the user may describe."""
        return {
            name: state
            for name, state in self.coordinator.list().items()
            if name.startswith(prefix) and "DESCRIBE" in self.rights.of(user, name)
        }

    def _check_id(self, user: str, operation: str, name: TransactionalId) -> None:
        self.rights.check(user, operation, name, Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
