"""A broker that remembers what was sent to it, as far as a sink's writer asks: producers, Describe.

No imitation of Kafka: nothing is retried, aborted or timed out by itself. Tests set states by hand.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from tidegate.errors import TransactionError
from tidegate.ids import TransactionalId
from tidegate.ports.kafka import EndTxnResult, TransactionDescription, TransactionState
from tidegate.stream_elements import TopicPartition


@dataclass
class Transaction:
    producer_id: int
    state: TransactionState = TransactionState.EMPTY
    start_ms: int = -1
    epoch: int = 0
    records: list[object] = field(default_factory=list)


class Broker:
    def __init__(self) -> None:
        self.transactions: dict[TransactionalId, Transaction] = {}
        self.log: list[tuple[TransactionalId | None, object]] = []
        """Everything sent, in the order of sending."""
        self.producers: list[ProducerDouble] = []
        self.settings: list[Mapping[str, str]] = []
        """The settings of each producer."""
        self.initialised: list[TransactionalId] = []
        self.now_s = 0.0
        self.describe_order: list[TransactionalId] = []

    # Drivers, as far as a sink asks

    @property
    def clock(self) -> Broker:
        return self

    def monotonic(self) -> float:
        return self.now_s

    def topic_ids(self, topics: Collection[str]) -> dict[str, str]:
        """No sink asks for these."""
        raise NotImplementedError

    def epoch_end_offsets(self, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """No sink asks for these."""
        raise NotImplementedError

    def producer(
        self,
        kafka: Mapping[str, str],
        transactional_id: TransactionalId | None,
        transaction_timeout_ms: int,
    ) -> ProducerDouble:
        if transactional_id is not None:
            self.initialised.append(transactional_id)
            before = self.transactions.get(transactional_id)
            number = len(self.initialised)
            epoch = 0 if before is None else before.epoch + 1
            self.transactions[transactional_id] = Transaction(number, epoch=epoch)
        made = ProducerDouble(self, transactional_id)
        self.producers.append(made)
        self.settings.append(kafka)
        return made

    # TransactionAdmin, as far as a sink asks

    def cluster_id(self) -> str:
        return "cluster"

    def describe(self, transactional_id: TransactionalId) -> TransactionDescription | None:
        self.describe_order.append(transactional_id)
        found = self.transactions.get(transactional_id)
        if found is None:
            return None
        return TransactionDescription(
            state=found.state,
            producer_id=found.producer_id,
            epoch=found.epoch,
            start_ms=found.start_ms,
        )

    def end(
        self, transactional_id: TransactionalId, producer_id: int, epoch: int, *, commit: bool
    ) -> EndTxnResult:
        raise NotImplementedError

    def fence(self, transactional_id: TransactionalId) -> None:
        raise NotImplementedError

    def list(
        self, prefix: str, *, unfinished: bool = False
    ) -> dict[TransactionalId, TransactionState]:
        raise NotImplementedError

    def close(self) -> None:
        pass


class ProducerDouble:
    def __init__(self, broker: Broker, transactional_id: TransactionalId | None) -> None:
        self._broker, self.name = broker, transactional_id
        self.unflushed: list[object] = []
        self.failure: str | None = None
        self.begun = self.flushes = 0

    def begin(self) -> None:
        self.begun += 1
        assert self.begun == 1, "a producer serves one transaction"

    def send(
        self,
        topic: str,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None,
    ) -> None:
        self._check()
        for index, value in enumerate(values):
            self._record((topic, value, None if keys is None else keys[index]))

    def send_one(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
        timestamp_ms: int | None,
    ) -> None:
        self._check()
        self._record((topic, value, key, tuple(headers), timestamp_ms))

    def flush(self, timeout_s: float) -> None:
        self._check()
        self.flushes += 1
        self.unflushed.clear()

    def _record(self, record: object) -> None:
        self._broker.log.append((self.name, record))
        self.unflushed.append(record)
        if self.name is not None:
            assert self.begun, "records are sent into a transaction that has begun"
            transaction = self._broker.transactions[self.name]
            transaction.records.append(record)
            if transaction.state is TransactionState.EMPTY:
                transaction.state = TransactionState.ONGOING
                transaction.start_ms = len(self._broker.log)

    def _check(self) -> None:
        if self.failure is not None:
            raise TransactionError(self.failure)
