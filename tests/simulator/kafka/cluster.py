"""`FakeKafka`, a cluster for tests and simulators, and the drivers of the processes that use it.

    kafka = FakeKafka(clock, faults=hook)
    kafka.create_topic("orders", 4)
    slot = kafka.process("slot-1", clock_of_slot_1)
    slot.producer({}, name, 60_000)  # and transaction_admin, partition_reader, kafka_admin
    slot.kill(drop_in_flight=True)

The `clock` of the brokers gives the time. A process may have its own clock, and its calls block in
the `sleep` of that clock. Code that inspects the cluster without a driver calls `run_due` first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from tests.simulator.kafka.brokers import Brokers, Rights
from tests.simulator.kafka.connection import Connection
from tests.simulator.kafka.control import FakeAdmin, FakeTransactionAdmin
from tests.simulator.kafka.coordinator import TransactionCoordinator
from tests.simulator.kafka.faults import Faults, NoFaults
from tests.simulator.kafka.log import PartitionLog
from tests.simulator.kafka.producer import FakeProducer
from tests.simulator.kafka.reader import FakeReader
from tests.simulator.kafka.timeline import Timeline
from tidegate.ids import TransactionalId
from tidegate.ports.clock import Clock
from tidegate.stream_elements import TopicPartition

TRANSACTION_MAX_TIMEOUT_MS: Final = 900_000
SCAN_S: Final = 10.0
EXPIRATION_S: Final = 7 * 86_400.0
MARKER_S: Final = 0.01
"""Time between the decision on a transaction and its markers: 7 to 26 ms on a real broker."""
MESSAGE_BYTES_MAX: Final = 1_048_588
TRANSACTION_REWRITTEN: Final = 4
"""First major version whose coordinator forgets the start of a transaction at the next
InitProducerId.
"""
ANONYMOUS: Final = "ANONYMOUS"


class FakeProcess:
    """The Kafka clients of one process: the Kafka methods of `Drivers`."""

    def __init__(self, brokers: Brokers, connection: Connection) -> None:
        self._brokers, self._connection = brokers, connection

    def kafka_admin(self, kafka: Mapping[str, str]) -> FakeAdmin:
        return FakeAdmin(self._brokers, self._connection, _user(kafka))

    def transaction_admin(self, kafka: Mapping[str, str]) -> FakeTransactionAdmin:
        return FakeTransactionAdmin(self._brokers, self._connection, _user(kafka))

    def partition_reader(
        self, kafka: Mapping[str, str], group: str, *, with_end_of_partition: bool
    ) -> FakeReader:
        return FakeReader(
            self._brokers,
            self._connection,
            _user(kafka),
            group,
            with_end_of_partition=with_end_of_partition,
        )

    def producer(
        self,
        kafka: Mapping[str, str],
        transactional_id: TransactionalId | None,
        transaction_timeout_ms: int,
    ) -> FakeProducer:
        return FakeProducer(
            self._brokers,
            self._connection,
            _user(kafka),
            kafka,
            transactional_id,
            transaction_timeout_ms,
        )

    def freeze(self) -> None:
        """Freeze the clients, as SIGSTOP does. Sent requests still arrive, no new ones are sent."""
        self._connection.freeze()

    def thaw(self) -> None:
        """Let the clients continue, as SIGCONT does."""
        self._connection.thaw()

    def kill(self, *, drop_in_flight: bool = False) -> None:
        """Kill the clients, as SIGKILL does. With `drop_in_flight`, lose the requests in flight."""
        self._connection.kill(drop_in_flight=drop_in_flight)


class FakeKafka:
    """A cluster of one `version`, as `major.minor.patch`. Versions before 4 differ from later ones.

    Settings have the defaults of Kafka. Durations are in seconds, except `max_timeout_ms`.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        version: str = "4.3.0",
        faults: Faults | None = None,
        cluster_id: str = "fake-kafka",
        max_timeout_ms: int = TRANSACTION_MAX_TIMEOUT_MS,
        scan_s: float = SCAN_S,
        expiration_s: float = EXPIRATION_S,
        marker_s: float = MARKER_S,
        on_marker: Callable[[PartitionLog], None] | None = None,
    ) -> None:
        """Create an empty cluster. `on_marker` is called with each partition that gets a marker."""
        self._faults = faults or NoFaults()
        self._timeline = Timeline(clock)
        self._brokers = Brokers(self._timeline, cluster_id)
        self._brokers.on_marker = on_marker
        self.coordinator = self._brokers.coordinator = TransactionCoordinator(
            self._timeline,
            self._faults,
            self._brokers.mark,
            max_timeout_ms=max_timeout_ms,
            scan_s=scan_s,
            expiration_s=expiration_s,
            marker_s=marker_s,
            keeps_start=int(version.partition(".")[0]) < TRANSACTION_REWRITTEN,
        )

    @property
    def rights(self) -> Rights:
        """Rights of the users. A user without an entry may do everything."""
        return self._brokers.rights

    def process(self, name: str, clock: Clock) -> FakeProcess:
        """Return the drivers of a new process. `name` identifies it in the hook of faults."""
        connection = Connection(name, clock, self._timeline, self._faults)
        return FakeProcess(self._brokers, connection)

    def create_topic(
        self, name: str, partitions: int, *, message_bytes_max: int = MESSAGE_BYTES_MAX
    ) -> None:
        """Create a topic with empty partitions."""
        logs = [
            PartitionLog(TopicPartition(name, number), message_bytes_max)
            for number in range(partitions)
        ]
        self._brokers.create_topic(name, logs)

    def delete_topic(self, name: str) -> None:
        """Delete a topic and its records. A later topic with this name has another id."""
        del self._brokers.topics[name]

    @property
    def cluster_id(self) -> str:
        """Cluster id that the brokers report."""
        return self._brokers.cluster_id

    def become_mirror(self, cluster_id: str) -> None:
        """Become another cluster to which all records were copied, with their offsets.

        The mirror has no transactional ids and no consumer groups, and its topics have other ids.
        """
        self._brokers.become_mirror(cluster_id)
        self.coordinator.forget()

    def log(self, topic_partition: TopicPartition) -> PartitionLog:
        """Return a partition. A test can inspect it, trim it (`start`) or elect a leader."""
        return self._brokers.topics[topic_partition.topic][topic_partition.partition]

    def logs(self) -> list[PartitionLog]:
        """Return all partitions."""
        return [log for logs in self._brokers.topics.values() for log in logs]

    def now_ms(self) -> int:
        """Return the time of the brokers' wall clock, in ms."""
        return self._timeline.now_ms()

    def run_due(self) -> None:
        """Run all actions of the brokers and clients that are due by now."""
        self._timeline.run_due()

    def next_s(self) -> float | None:
        """Return the time of the next action, by the brokers' monotonic clock. None without one."""
        return self._timeline.next_s()


def _user(kafka: Mapping[str, str]) -> str:
    return kafka.get("sasl.username", ANONYMOUS)
