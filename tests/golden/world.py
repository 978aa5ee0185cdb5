"""The Kafka side of a golden storage: what was read and written, and the transactions as they were.

`make.py` takes it from a real broker when it writes a storage. A test puts it into a `FakeKafka` of
the same cluster id, topic ids and transactions, and restores the storage there.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from tests.simulator.kafka.cluster import FakeKafka, FakeProcess
from tests.simulator.kafka.coordinator import _Transaction
from tests.simulator.kafka.log import Record
from tidegate.drivers.system import SystemDrivers
from tidegate.ids import TransactionalId
from tidegate.ports.kafka import TransactionState
from tidegate.stream_elements import TopicPartition

STORAGES: Final = Path(__file__).parent / "storages"
WORLD: Final = "world.json"
STORAGE: Final = "checkpoints"
TIMEOUT_S: Final = 600.0
"""The timeout of open transactions."""


class StoredMessage(msgspec.Struct, frozen=True, array_like=True):
    """A record of a topic, with the accessors of the client library's messages."""

    partition_: int
    key_: bytes | None
    value_: bytes | None
    headers_: list[tuple[str, bytes | None]]
    timestamp_ms: int

    def partition(self) -> int:
        return self.partition_

    def key(self) -> bytes | None:
        return self.key_

    def value(self) -> bytes | None:
        return self.value_

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return self.headers_ or None

    def timestamp(self) -> tuple[int, int]:
        return 1, self.timestamp_ms

    def record(self) -> Record:
        """The record as a producer sends it."""
        return Record(self.value_, self.key_, self.headers_, self.timestamp_ms)


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """A topic that the job reads: all of it."""

    topic: str
    topic_id: str
    records: list[StoredMessage]


class Sink(msgspec.Struct, frozen=True, kw_only=True):
    """A topic that the job writes, as it was when the storage was taken."""

    topic: str
    committed: list[StoredMessage]
    open: list[tuple[int, StoredMessage]]
    """Records of open transactions, each with the id of its producer."""


class Transaction(msgspec.Struct, frozen=True, kw_only=True):
    """The coordinator's description of a transactional id."""

    id: TransactionalId
    state: TransactionState
    producer_id: int
    epoch: int
    start_ms: int
    partitions: list[tuple[str, int]]
    """Topics and partitions of one that is open."""


class Due(msgspec.Struct, frozen=True, kw_only=True):
    """Output and state of the job that wrote the storage, after it had read all its input."""

    messages: dict[str, list[StoredMessage]]
    """Output by sink."""
    state: dict[str, list[tuple[bytes, bytes]]]
    """Keys and values of each step's store, by the uid of the step."""
    positions: list[tuple[str, str, int, int]]
    """Source, topic, partition, and the next offset."""


class World(msgspec.Struct, frozen=True, kw_only=True):
    """A golden storage without the storage."""

    tidegate_version: str
    case: str
    """A case of `tests/golden/cases.py`."""
    job: str
    backend: str
    parallelism: int
    cluster_id: str
    partitions: int
    """The number of partitions of each topic."""
    sources: dict[str, Source]
    sinks: dict[str, Sink]
    transactions: list[Transaction]
    due: Due

    def write(self, path: Path) -> None:
        """Write it as JSON."""
        path.write_bytes(msgspec.json.encode(self) + b"\n")

    @classmethod
    def read(cls, path: Path) -> World:
        """The inverse."""
        return msgspec.json.decode(path.read_bytes(), type=cls)

    def settings(self) -> dict[str, str]:
        """The topics and the backend, as settings of a run."""
        return {
            "kafka.bootstrap_servers": "fake:9092",
            "state.backend": self.backend,
            **{f"sources.{name}.topic": source.topic for name, source in self.sources.items()},
            **{f"sinks.{name}.topic": sink.topic for name, sink in self.sinks.items()},
        }

    def write_module(self, path: Path) -> None:
        """A module with the class `Job`."""
        from tests.golden.cases import case_of

        pipeline = case_of(self.case).pipeline
        path.write_text(
            f"from {pipeline.__module__} import {pipeline.__name__}\n\n\n"
            f'class Job({pipeline.__name__}, name="{self.job}"):\n'
            '    """A job with a name of its own."""\n'
        )


class GoldenDrivers(SystemDrivers):
    """The real drivers, but for Kafka. The fake brokers know no threads, so calls wait for each
    other.
    """

    def __init__(self, world: World) -> None:
        super().__init__()
        self.kafka = fake_kafka(world, self)
        self._process: FakeProcess = self.kafka.process("restoring", self.clock)
        self._one_at_a_time = threading.RLock()

    def kafka_admin(self, kafka: Mapping[str, str]) -> Any:
        return self._locked(self._process.kafka_admin)(kafka)

    def transaction_admin(self, kafka: Mapping[str, str]) -> Any:
        return self._locked(self._process.transaction_admin)(kafka)

    def partition_reader(
        self, kafka: Mapping[str, str], group: str, *, with_end_of_partition: bool
    ) -> Any:
        made = self._process.partition_reader(
            kafka, group, with_end_of_partition=with_end_of_partition
        )
        return _Locked(made, self._one_at_a_time)

    def producer(
        self,
        kafka: Mapping[str, str],
        transactional_id: TransactionalId | None,
        transaction_timeout_ms: int,
    ) -> Any:
        with self._one_at_a_time:
            made = self._process.producer(kafka, transactional_id, transaction_timeout_ms)
        return _Locked(made, self._one_at_a_time)

    def _locked(self, make: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *given: _Locked(make(*given), self._one_at_a_time)


class _Locked:
    """A driver whose methods are called by one thread at a time."""

    def __init__(self, driver: object, lock: threading.RLock) -> None:
        self._driver, self._lock = driver, lock

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._driver, name)
        if not callable(found):
            return found

        def called(*given: Any, **named: Any) -> Any:
            with self._lock:
                return found(*given, **named)

        return called


def fake_kafka(world: World, drivers: SystemDrivers) -> FakeKafka:
    """Brokers on which the world is as it was."""
    kafka = FakeKafka(drivers.clock, cluster_id=world.cluster_id, expiration_s=1e9)
    for source in world.sources.values():
        kafka.create_topic(source.topic, world.partitions)
        kafka._brokers._topic_ids[source.topic] = source.topic_id
        _append(kafka, source.topic, source.records)
    for sink in world.sinks.values():
        kafka.create_topic(sink.topic, world.partitions)
        _append(kafka, sink.topic, sink.committed)
    for transaction in world.transactions:
        _know(kafka, transaction)
    for sink in world.sinks.values():
        _open(kafka, world, sink)
    return kafka


def _append(kafka: FakeKafka, topic: str, records: list[StoredMessage]) -> None:
    for message in records:
        log = kafka.log(TopicPartition(topic, message.partition()))
        producer = kafka.coordinator.new_producer_id()
        log.append(producer, 0, 0, [message.record()], is_open=None)


def _know(kafka: FakeKafka, transaction: Transaction) -> None:
    known = _Transaction(transaction.producer_id)
    known.epoch, known.state = transaction.epoch, transaction.state
    known.start_ms, known.timeout_s = transaction.start_ms, TIMEOUT_S
    known.partitions = {TopicPartition(*each): None for each in transaction.partitions}
    known.updated_s = kafka._timeline.now_s()
    kafka.coordinator._known[transaction.id] = known


def _open(kafka: FakeKafka, world: World, sink: Sink) -> None:
    epochs = {each.producer_id: each.epoch for each in world.transactions}
    sequences: Counter[tuple[int, int]] = Counter()
    for producer_id, message in sink.open:
        channel = producer_id, message.partition()
        kafka.log(TopicPartition(sink.topic, message.partition())).append(
            producer_id,
            epochs[producer_id],
            sequences[channel],
            [message.record()],
            is_open=lambda: True,
        )
        sequences[channel] += 1


def committed(kafka: FakeKafka, sink: Sink, partitions: int) -> list[StoredMessage]:
    """The records of a sink's topic that `read_committed` readers see."""
    kafka.run_due()
    found = []
    for number in range(partitions):
        log = kafka.log(TopicPartition(sink.topic, number))
        assert log.last_stable == log.end, "a transaction is open"
        for record in log.read(0, log.end)[0]:
            headers: list[tuple[str, bytes | None]] = [*(record.headers() or [])]
            found.append(
                StoredMessage(number, record.key(), record.value(), headers, record.timestamp()[1])
            )
    return found
