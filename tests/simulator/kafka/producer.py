"""The `Producer` on the fake brokers, with the request order and the failures of librdkafka.

Records wait in a queue for each partition until `LINGER_S` has passed or until a flush. The
producer then sends them in the background, as librdkafka does. It first sends AddPartitionsToTxn
for partitions that are new to the transaction. It then sends batches, one at a time for each
partition. It sends a batch again until it is acknowledged or its message timeout has passed. The
log takes a batch that arrives twice only once, because of its sequence number.

The first failure is final, as in the real driver: every later call raises it again. There is no
close and no commit. A dropped producer leaves its transaction open.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import Final, NoReturn

from tests.simulator.kafka.brokers import Brokers
from tests.simulator.kafka.connection import Connection, Exchange
from tests.simulator.kafka.faults import RETRIABLE, Api, BrokerError, Call, Code
from tests.simulator.kafka.log import Record, size_of
from tests.simulator.kafka.murmur2 import partition_of
from tests.simulator.kafka.timeline import MS_PER_S, ROUNDING_S
from tidegate.errors import (
    KafkaError,
    KafkaNotAuthorisedError,
    KafkaUnavailableError,
    RecordTooLargeError,
    RefusedError,
    TidegateError,
    TransactionError,
)
from tidegate.ids import TransactionalId
from tidegate.message_text import counted
from tidegate.stream_elements import TopicPartition

LINGER_S: Final = 0.005
BATCH_BYTES: Final = 1_000_000
INITIALISE_TIMEOUT_S: Final = 60.0
INITIALISE_PAUSE_S: Final = 0.5
"""Pause before librdkafka asks again, also while an open transaction of the id is aborted."""
RETRY_PAUSE_S: Final = (0.1, 1.0)
"""The first and the longest pause before a request is sent again."""
BUSY_PAUSE_S: Final = 0.02
"""Pause before the next try while the coordinator still ends the previous transaction."""
ROOM_PAUSE_S: Final = 0.005
PLAIN_MESSAGE_TIMEOUT_MS: Final = 300_000
PROPAGATION_MS: Final = "30000"
"""Time in ms that a topic may be unknown before its records fail. It is librdkafka's default."""
MESSAGE_BYTES_MAX: Final = "1000000"
QUEUE_RECORDS_MAX: Final = "100000"

_FENCING: Final = frozenset(
    {Code.PRODUCER_FENCED, Code.INVALID_PRODUCER_EPOCH, Code.INVALID_PRODUCER_ID_MAPPING}
)


@dataclass(slots=True)
class _Batch:
    """A batch of records in flight to one partition."""

    topic_partition: TopicPartition
    sequence: int
    records: list[Record]
    expires_s: float
    pause_s: float = RETRY_PAUSE_S[0]


class FakeProducer:
    """A producer with an initialised transactional id, or an idempotent producer without one.

    The constructor blocks until the id is initialised. It raises KafkaUnavailableError,
    KafkaNotAuthorisedError, RefusedError or KafkaError if that fails.
    """

    def __init__(
        self,
        brokers: Brokers,
        connection: Connection,
        user: str,
        settings: Mapping[str, str],
        transactional_id: TransactionalId | None,
        transaction_timeout_ms: int,
    ) -> None:
        self._brokers, self._connection, self._user = brokers, connection, user
        self._name = transactional_id
        self._what = "a producer" if transactional_id is None else f"producer {transactional_id}"
        self._bytes_max = int(settings.get("message.max.bytes", MESSAGE_BYTES_MAX))
        self._records_max = int(settings.get("queue.buffering.max.messages", QUEUE_RECORDS_MAX))
        self._propagation_s = (
            int(settings.get("topic.metadata.propagation.max.ms", PROPAGATION_MS)) / MS_PER_S
        )
        timeout_ms = (
            PLAIN_MESSAGE_TIMEOUT_MS if transactional_id is None else transaction_timeout_ms
        )
        self._timeout_s = timeout_ms / MS_PER_S
        self._failure: TidegateError | None = None
        self._begun = False
        self._queues: dict[TopicPartition, deque[tuple[Record, float]]] = {}
        self._unrouted: deque[tuple[str, Record, float]] = deque()
        self._left = 0
        self._sequences: dict[TopicPartition, int] = {}
        self._sending: set[TopicPartition] = set()
        self._added: set[TopicPartition] = set()
        self._adding = self._lingers = False
        self._keyless = 0
        self._wakes: list[float] = []
        if transactional_id is None:
            self._identity = (brokers.coordinator.new_producer_id(), 0)
        else:
            self._identity = self._initialised(transactional_id, transaction_timeout_ms)

    @property
    def identity(self) -> tuple[int, int]:
        """Producer id and epoch."""
        return self._identity

    def begin(self) -> None:
        """Begin the transaction. A producer has only one transaction."""
        self._check()
        if self._name is None or self._begun:
            self._fail("begin a transaction: not in the state for it")
        self._begun = True

    def send(
        self,
        topic: str,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None,
    ) -> None:
        """Hand over a batch in order. Wait while the queue is full."""
        self._connection.timeline.run_due()
        self._check()
        now_ms = self._connection.timeline.now_ms()
        own = repeat(None, len(values)) if keys is None else keys
        for value, key in zip(values, own, strict=True):
            self._take(topic, Record(value, key, (), now_ms))
        self._check()

    def send_one(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
        timestamp_ms: int | None,
    ) -> None:
        """Hand over one record with headers or a timestamp."""
        self._connection.timeline.run_due()
        self._check()
        at_ms = timestamp_ms or self._connection.timeline.now_ms()
        self._take(topic, Record(value, key, tuple(headers), at_ms))

    def flush(self, timeout_s: float) -> None:
        """Wait until all records are acknowledged.

        Raise the first failure of the producer, or TransactionError after `timeout_s`.
        """
        timeline = self._connection.timeline
        timeline.run_due()
        end_s = timeline.now_s() + timeout_s
        self._pump()
        while self._left and self._failure is None:
            now_s = timeline.now_s()
            if now_s >= end_s - ROUNDING_S:
                self._fail(
                    f"get {counted(self._left, 'record')} acknowledged within {timeout_s:.0f} s"
                )
            self._wakes = [at for at in self._wakes if at > now_s + ROUNDING_S]
            self._connection.sleep_until(min([end_s, *self._wakes]))
        self._check()

    # --- taking records -------------------------------------------------------------------------

    def _take(self, topic: str, record: Record) -> None:
        if self._name is not None and not self._begun:
            self._fail(f"write to topic {topic}: no transaction was begun")
        if size_of(record) > self._bytes_max:
            self._fail(f"write to topic {topic}: MSG_SIZE_TOO_LARGE", RecordTooLargeError)
        while self._left >= self._records_max:
            self._pump()
            if self._left >= self._records_max:
                self._connection.sleep_until(self._connection.timeline.now_s() + ROOM_PAUSE_S)
            self._check()
        self._left += 1
        self._enqueue(topic, record, self._connection.timeline.now_s())
        if not self._lingers:
            self._lingers = True
            self._later(LINGER_S, self._lingered)

    def _enqueue(self, topic: str, record: Record, taken_s: float) -> None:
        partitions = len(self._brokers.topics.get(topic, ()))
        if partitions == 0:
            self._unrouted.append((topic, record, taken_s))
            return
        if record.key is not None:
            number = partition_of(record.key, partitions)
        else:
            # librdkafka chooses a random partition. The fake takes the partitions in turn.
            self._keyless += 1
            number = self._keyless % partitions
        self._queues.setdefault(TopicPartition(topic, number), deque()).append((record, taken_s))

    # --- sending them ---------------------------------------------------------------------------

    def _lingered(self) -> None:
        self._lingers = False
        self._pump()

    def _pump(self) -> None:
        """Send all requests that can be sent now."""
        if self._failure is not None:
            return
        self._route_waiting()
        if self._name is None:
            ready = list(self._queues)
        else:
            self._add_partitions(self._name)
            ready = [
                topic_partition
                for topic_partition in self._queues
                if topic_partition in self._added
            ]
        for topic_partition in ready:
            # A request that is answered at once pumps again, and may have emptied the queue.
            if topic_partition not in self._sending and topic_partition in self._queues:
                self._produce(self._next_batch(topic_partition))

    def _route_waiting(self) -> None:
        """Queue records whose topic is known by now. Fail if a topic is unknown for too long."""
        if not self._unrouted:
            return
        waiting, self._unrouted = self._unrouted, deque()
        now_s = self._connection.timeline.now_s()
        for topic, record, taken_s in waiting:
            self._enqueue(topic, record, taken_s)
        if self._unrouted:
            topic, _, taken_s = self._unrouted[0]
            if now_s - taken_s >= self._propagation_s - ROUNDING_S:
                self._failed(f"deliver a record to topic {topic}: there is no such topic")
            else:
                self._later(RETRY_PAUSE_S[0], self._pump)

    def _add_partitions(self, name: TransactionalId) -> None:
        new = [
            topic_partition
            for topic_partition in self._queues
            if topic_partition not in self._added
        ]
        if not new or self._adding or self._failure is not None:
            return
        self._adding = True
        call = Call(Api.ADD_PARTITIONS, self._connection.name, name, new[0])
        self._send(
            call,
            lambda: self._brokers.add_partitions(self._user, name, *self._identity, new),
            partial(self._partitions_added, new),
        )

    def _partitions_added(self, new: list[TopicPartition], sent_request: Exchange[None]) -> None:
        self._adding = False
        try:
            sent_request.result()
        except BrokerError as error:
            if error.code is Code.CONCURRENT_TRANSACTIONS:
                self._later(BUSY_PAUSE_S, self._pump)
            elif error.code in RETRIABLE or error.code is Code.UNKNOWN_TOPIC_OR_PARTITION:
                self._retry_adding(new)
            else:
                self._refused(new[0], error.code)
            return
        self._added.update(new)
        self._pump()

    def _retry_adding(self, new: list[TopicPartition]) -> None:
        """Send AddPartitionsToTxn again later, until the oldest record has waited for too long."""
        now_s = self._connection.timeline.now_s()
        taken_s = min(self._queues[topic_partition][0][1] for topic_partition in new)
        if now_s - taken_s >= self._timeout_s:
            self._timed_out(new[0])
        else:
            self._later(RETRY_PAUSE_S[0], self._pump)

    def _next_batch(self, topic_partition: TopicPartition) -> _Batch:
        """Take the records of one request from the queue of a partition."""
        queue = self._queues[topic_partition]
        expires_s = queue[0][1] + self._timeout_s
        records: list[Record] = []
        size = 0
        while queue and (not records or size + size_of(queue[0][0]) <= BATCH_BYTES):
            record, _ = queue.popleft()
            records.append(record)
            size += size_of(record)
        if not queue:
            del self._queues[topic_partition]
        sequence = self._sequences.get(topic_partition, 0)
        self._sequences[topic_partition] = sequence + len(records)
        return _Batch(topic_partition, sequence, records, expires_s)

    def _produce(self, batch: _Batch) -> None:
        if self._failure is not None:
            return
        self._sending.add(batch.topic_partition)
        self._send(
            Call(Api.PRODUCE, self._connection.name, self._name, batch.topic_partition),
            lambda: self._brokers.produce(
                self._user,
                batch.topic_partition,
                self._name,
                *self._identity,
                batch.sequence,
                batch.records,
            ),
            partial(self._produced, batch),
        )

    def _produced(self, batch: _Batch, sent_request: Exchange[None]) -> None:
        if self._failure is not None:
            return
        try:
            sent_request.result()
        except BrokerError as error:
            self._not_produced(batch, error.code)
            return
        self._left -= len(batch.records)
        self._sending.discard(batch.topic_partition)
        if batch.topic_partition in self._queues:
            self._pump()

    def _not_produced(self, batch: _Batch, code: Code) -> None:
        now_s = self._connection.timeline.now_s()
        gone = code is Code.UNKNOWN_TOPIC_OR_PARTITION
        if not gone and code not in RETRIABLE:
            self._refused(batch.topic_partition, code)
        elif gone and now_s >= batch.expires_s - self._timeout_s + self._propagation_s:
            topic = batch.topic_partition.topic
            self._failed(f"deliver a record to topic {topic}: there is no such topic")
        elif now_s >= batch.expires_s:
            self._timed_out(batch.topic_partition)
        else:
            self._later(batch.pause_s, partial(self._produce, batch))
            batch.pause_s = min(batch.pause_s * 2, RETRY_PAUSE_S[1])

    def _send(
        self, call: Call, act: Callable[[], None], answered: Callable[[Exchange[None]], None]
    ) -> None:
        self._wakes.append(self._connection.send(call, act, answered))

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        due_s = self._connection.timeline.now_s() + seconds
        self._wakes.append(due_s)
        self._connection.later(due_s, action)

    # --- failing --------------------------------------------------------------------------------

    def _initialised(self, name: TransactionalId, timeout_ms: int) -> tuple[int, int]:
        timeline = self._connection.timeline
        end_s = timeline.now_s() + INITIALISE_TIMEOUT_S
        call = Call(Api.INIT_PRODUCER_ID, self._connection.name, name)
        while True:
            try:
                return self._connection.ask(
                    call, lambda: self._brokers.init_producer_id(self._user, name, timeout_ms)
                )
            except BrokerError as error:
                if error.code not in RETRIABLE or timeline.now_s() >= end_s:
                    raise self._not_initialised(error.code) from None
            self._connection.sleep_until(timeline.now_s() + INITIALISE_PAUSE_S)

    def _not_initialised(self, code: Code) -> TidegateError:
        if code is Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
            kind: type[TidegateError] = KafkaNotAuthorisedError
        elif code is Code.INVALID_TRANSACTION_TIMEOUT:
            kind = RefusedError
        elif code in RETRIABLE:
            kind = KafkaUnavailableError
        else:
            kind = KafkaError
        return kind(
            f"The fake Kafka did not initialise {self._what}: {code.value}. Grant WRITE on "
            "transactional ids with the prefix tidegate, or look at the timeout or the brokers."
        )

    def _refused(self, topic_partition: TopicPartition, code: Code) -> None:
        """Fail because a request was refused permanently."""
        what = f"deliver a record to topic {topic_partition.topic}: {code.value}"
        if code in _FENCING:
            what = f"write: it was fenced ({code.value}), another producer took the id"
        kind = RecordTooLargeError if code is Code.MESSAGE_TOO_LARGE else TransactionError
        self._failed(what, kind)

    def _timed_out(self, topic_partition: TopicPartition) -> None:
        self._failed(f"deliver a record to topic {topic_partition.topic}: _MSG_TIMED_OUT")

    def _failed(self, what: str, kind: type[TidegateError] = TransactionError) -> None:
        """Keep the first failure, and send nothing more."""
        if self._failure is None:
            text = f"{self._what} could not {what}."
            self._failure = kind(text[0].upper() + text[1:])
            self._queues.clear()
            self._unrouted.clear()

    def _fail(self, what: str, kind: type[TidegateError] = TransactionError) -> NoReturn:
        self._failed(what, kind)
        self._check()
        raise AssertionError

    def _check(self) -> None:
        """Raise the failure, if any. Each call raises a new error, so tracebacks stay separate."""
        if self._failure is not None:
            raise type(self._failure)(*self._failure.args)
