"""The `TransactionAdmin` and the `KafkaAdmin` on the fake brokers, with the retries of the drivers.

Retries, deadlines and pauses are those of `drivers/kafka/`: describe, fence and list are retried
until a deadline, EndTxn is never retried. Errors have the same classes and name the same things.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Final, TypeVar

from tests.simulator.kafka.brokers import Brokers
from tests.simulator.kafka.connection import Connection
from tests.simulator.kafka.faults import RETRIABLE, Api, BrokerError, Call, Code
from tidegate.errors import (
    KafkaError,
    KafkaNotAuthorisedError,
    KafkaUnavailableError,
    NotAllowedError,
    TidegateError,
    TopicAbsentError,
)
from tidegate.ids import TransactionalId
from tidegate.ports.kafka import (
    UNFINISHED,
    EndTxnResult,
    GroupCommit,
    TransactionDescription,
    TransactionState,
)
from tidegate.stream_elements import TopicPartition

T = TypeVar("T")

CONTROL_DEADLINE_S: Final = 30.0
ADMIN_DEADLINE_S: Final = 9.0
RETRY_PAUSE_S: Final = (0.02, 0.5)
"""The first and the longest pause before a request is sent again."""
FENCE_TIMEOUT_MS: Final = 1_000
"""Transaction timeout that a fenced id gets."""

_REFUSED: Final = frozenset(
    {
        Code.INVALID_TXN_STATE,
        Code.PRODUCER_FENCED,
        Code.INVALID_PRODUCER_EPOCH,
        Code.INVALID_PRODUCER_ID_MAPPING,
        Code.TRANSACTIONAL_ID_NOT_FOUND,
    }
)
_DENIED: Final = frozenset(
    {
        Code.TOPIC_AUTHORIZATION_FAILED,
        Code.GROUP_AUTHORIZATION_FAILED,
        Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)


class FakeTransactionAdmin:
    """The transaction admin of one process."""

    def __init__(self, brokers: Brokers, connection: Connection, user: str) -> None:
        self._brokers, self._connection, self._user = brokers, connection, user

    def cluster_id(self) -> str:
        """Return the id of the cluster."""
        return self._retry("connect", self._cluster_id)

    def describe(self, transactional_id: TransactionalId) -> TransactionDescription | None:
        """Return the coordinator's description of an id; None if it does not know the id."""
        call = self._call(Api.DESCRIBE_TRANSACTIONS, transactional_id)

        def once() -> TransactionDescription | None:
            try:
                return self._connection.ask(
                    call, lambda: self._brokers.describe(self._user, transactional_id)
                )
            except BrokerError as error:
                if error.code is Code.TRANSACTIONAL_ID_NOT_FOUND:
                    return None
                raise

        return self._retry(f"describe transaction {transactional_id}", once)

    def end(
        self, transactional_id: TransactionalId, producer_id: int, epoch: int, *, commit: bool
    ) -> EndTxnResult:
        """Send one EndTxn v3, once. After RETRY it is unknown whether it took effect."""
        call = self._call(Api.END_TXN, transactional_id)._replace(producer=(producer_id, epoch))
        try:
            self._connection.ask(
                call,
                lambda: self._brokers.end(
                    self._user, transactional_id, producer_id, epoch, commit=commit
                ),
            )
        except BrokerError as error:
            if error.code in RETRIABLE:
                return EndTxnResult.RETRY
            if error.code in _REFUSED:
                return EndTxnResult.REFUSED
            if error.code in _DENIED:
                return EndTxnResult.NOT_AUTHORISED
            raise _translated(f"end transaction {transactional_id}", error) from None
        return EndTxnResult.ACCEPTED

    def fence(self, transactional_id: TransactionalId) -> None:
        """Send InitProducerId, and repeat it while it aborts an open transaction."""
        call = self._call(Api.INIT_PRODUCER_ID, transactional_id)

        def once() -> None:
            self._connection.ask(
                call,
                lambda: self._brokers.init_producer_id(
                    self._user, transactional_id, FENCE_TIMEOUT_MS
                ),
            )

        self._retry(f"fence transactional id {transactional_id}", once)

    def list(
        self, prefix: str, *, unfinished: bool = False
    ) -> dict[TransactionalId, TransactionState]:
        """Return the ids with this prefix. With `unfinished`, leave out complete transactions."""
        call = Call(Api.LIST_TRANSACTIONS, self._connection.name, name=prefix)

        def once() -> dict[TransactionalId, TransactionState]:
            return self._connection.ask(call, lambda: self._brokers.list(self._user, prefix))

        found = self._retry("list transactions", once)
        return {name: at for name, at in found.items() if not unfinished or at in UNFINISHED}

    def topic_ids(self, topics: Collection[str]) -> dict[str, str]:
        """Return the ids of the topics that exist."""
        call = Call(Api.METADATA, self._connection.name)

        def once() -> dict[str, str]:
            return self._connection.ask(
                call, lambda: self._brokers.topic_ids(self._user, sorted(topics))
            )

        return self._retry("describe the topics of the job", once)

    def epoch_end_offsets(self, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the end offset of the records up to a leader epoch, for each partition."""
        found: dict[TopicPartition, int] = {}
        for topic_partition, epoch in sorted(epochs.items()):
            end = self._retry(
                "tell where leader epochs end", partial(self._epoch_end, topic_partition, epoch)
            )
            if end is not None:
                found[topic_partition] = end
        return found

    def close(self) -> None:
        """Do nothing: no resource is open."""

    def _epoch_end(self, topic_partition: TopicPartition, epoch: int) -> int | None:
        call = Call(
            Api.OFFSET_FOR_LEADER_EPOCH, self._connection.name, topic_partition=topic_partition
        )
        return self._connection.ask(
            call, lambda: self._brokers.epoch_end(self._user, topic_partition, epoch)
        )

    def _call(self, api: Api, transactional_id: TransactionalId) -> Call:
        return Call(api, self._connection.name, transactional_id)

    def _cluster_id(self) -> str:
        call = Call(Api.METADATA, self._connection.name)
        return self._connection.ask(call, lambda: self._brokers.cluster_id)

    def _retry(self, what: str, once: Callable[[], T]) -> T:
        return _retry(self._connection, what, CONTROL_DEADLINE_S, once)


class FakeAdmin:
    """The Kafka admin of one process."""

    def __init__(self, brokers: Brokers, connection: Connection, user: str) -> None:
        self._brokers, self._connection, self._user = brokers, connection, user

    def cluster_id(self) -> str:
        """Return the id of the cluster."""
        return self._request_metadata("describe the cluster", "", lambda: self._brokers.cluster_id)

    def partitions(self, topic: str) -> int:
        """Return the number of partitions. Raise TopicAbsentError if the topic does not exist."""
        return self._request_metadata(
            f"describe topic {topic}", topic, lambda: self._brokers.partitions(self._user, topic)
        )

    def rights(self, topic: str) -> frozenset[str] | None:
        """Return the operations that this user may do on a topic."""
        self.partitions(topic)
        return self._brokers.rights.of(self._user, topic)

    def earliest(self, topic_partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the first offsets that are still in the log."""
        return self._offsets(
            topic_partitions,
            lambda each: self._brokers.offset(self._user, each, None, earliest=True),
        )

    def latest(self, topic_partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the last stable offsets."""
        return self._offsets(
            topic_partitions, lambda each: self._brokers.offset(self._user, each, None)
        )

    def high_watermarks(self, topic_partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the ends of the logs, including records of open transactions."""
        return self._offsets(
            topic_partitions, lambda each: self._brokers.high_watermark(self._user, each)
        )

    def at_time(
        self, topic_partitions: list[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int]:
        """Return the first offset at or after a time, or else the last stable offset."""
        found = self._offsets(
            topic_partitions, lambda each: self._brokers.offset(self._user, each, timestamp_ms)
        )
        return {**found, **self.latest([each for each, at in found.items() if at < 0])}

    def committed(
        self, group: str, topic_partitions: list[TopicPartition]
    ) -> dict[TopicPartition, int | None]:
        """Return the offsets of a consumer group; None for a partition without one."""
        held = self.group_commits(group)
        return {
            topic_partition: held[topic_partition].offset if topic_partition in held else None
            for topic_partition in topic_partitions
        }

    def group_commits(self, group: str) -> dict[TopicPartition, GroupCommit]:
        """Return all offsets of a consumer group."""
        call = Call(Api.OFFSET_FETCH, self._connection.name, name=group)
        return self._retry(
            f"read the offsets of consumer group {group}",
            call,
            lambda: self._brokers.committed(self._user, group),
        )

    def commit_group(self, group: str, commits: Mapping[TopicPartition, GroupCommit]) -> None:
        """Commit offsets to a consumer group without members."""
        call = Call(Api.OFFSET_COMMIT, self._connection.name, name=group)
        self._retry(
            f"commit offsets to consumer group {group}",
            call,
            lambda: self._brokers.commit_offsets(self._user, group, commits),
        )

    def max_message_bytes(self, topics: Collection[str]) -> dict[str, int]:
        """Return the `max.message.bytes` of each topic that exists."""
        return {
            topic: limit
            for topic in topics
            if (
                limit := self._request_metadata(
                    f"describe topic {topic}", topic, partial(self._limit, topic)
                )
            )
        }

    def _limit(self, topic: str) -> int:
        logs = self._brokers.topics.get(topic)
        return logs[0].message_bytes_max if logs else 0

    def transaction_max_timeout_ms(self) -> int | None:
        """Return the transaction.max.timeout.ms of the brokers."""
        maximum = self._brokers.coordinator.max_timeout_ms
        return self._request_metadata("describe the cluster", "", lambda: maximum)

    def close(self) -> None:
        """Do nothing: no resource is open."""

    def _offsets(
        self, topic_partitions: list[TopicPartition], ask: Callable[[TopicPartition], int]
    ) -> dict[TopicPartition, int]:
        found = {}
        for topic_partition in topic_partitions:
            call = Call(Api.LIST_OFFSETS, self._connection.name, topic_partition=topic_partition)
            what = f"tell the offsets of {topic_partition.topic}-{topic_partition.partition}"
            found[topic_partition] = self._retry(what, call, partial(ask, topic_partition))
        return found

    def _request_metadata(self, what: str, name: str, act: Callable[[], T]) -> T:
        return self._retry(what, Call(Api.METADATA, self._connection.name, name=name), act)

    def _retry(self, what: str, call: Call, act: Callable[[], T]) -> T:
        return _retry(
            self._connection, what, ADMIN_DEADLINE_S, lambda: self._connection.ask(call, act)
        )


def _retry(connection: Connection, what: str, deadline_s: float, once: Callable[[], T]) -> T:
    end_s = connection.timeline.now_s() + deadline_s
    pause_s, longest_s = RETRY_PAUSE_S
    while True:
        try:
            return once()
        except BrokerError as error:
            retried_s = connection.timeline.now_s() + pause_s
            if error.code not in RETRIABLE:
                raise _translated(what, error) from None
            if retried_s > end_s:
                raise KafkaUnavailableError(
                    f"The fake Kafka could not {what} within {deadline_s:.0f} s; the last answer "
                    f"was: {error}."
                ) from None
        connection.sleep_until(retried_s)
        pause_s = min(pause_s * 2, longest_s)


def _translated(what: str, error: BrokerError) -> TidegateError:
    if error.code is Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
        return KafkaNotAuthorisedError(
            f"The fake Kafka does not allow tidegate to {what}: grant WRITE on the id."
        )
    if error.code in _DENIED:
        return NotAllowedError(f"The fake Kafka does not allow tidegate to {what}: {error}.")
    if error.code is Code.UNKNOWN_TOPIC_OR_PARTITION:
        return TopicAbsentError(
            f"The fake Kafka could not {what}: there is no such topic or partition."
        )
    return KafkaError(f"The fake Kafka could not {what}: {error}")
