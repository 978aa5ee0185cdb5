"""Kafka, as far as tidegate needs it: reading partitions, writing transactions, controlling them.

This module has three ports. `PartitionReader` and `Producer` carry data (librdkafka).
`TransactionAdmin` sends requests to the transaction coordinator (kafka-python's protocol layer).
The ports follow the needs of the commit protocol, not the API of a client. The fakes of
`tidegate.testing` implement the same ports.

Messages of a reader keep the client's own accessors (`value()`, `key()`, `offset()`, `timestamp()`,
`headers()`), because an object of tidegate for each record would cost more than the decoding.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

import msgspec

from tidegate.ids import TransactionalId
from tidegate.stream_elements import TopicPartition


class RawRecord(Protocol):
    """A record as the client library returns it."""

    def value(self) -> bytes | None: ...
    def key(self) -> bytes | None: ...
    def offset(self) -> int: ...
    def timestamp(self) -> tuple[int, int]: ...
    def headers(self) -> list[tuple[str, bytes]] | None: ...


class PartitionBatch(NamedTuple):
    """Messages of one partition, in order. `position` is the next offset to read after them.

    An empty batch reports a position that moved without records (control records, end of
    partition).
    """

    topic_partition: TopicPartition
    messages: Sequence[RawRecord]
    position: int


class GroupCommit(NamedTuple):
    """The committed offset of a consumer group in one partition."""

    offset: int
    metadata: str
    """The metadata that was committed with the offset; empty if there was none."""


class Position(NamedTuple):
    """The position of a reader in a partition."""

    offset: int
    """The next offset to read."""
    leader_epoch: int
    """The leader epoch of the last record before it; -1 if it is unknown."""


class PartitionReader(Protocol):
    """A reader of assigned partitions from given offsets. It never joins a group.

    One thread calls it. librdkafka's consumer serves one caller at a time, and a second caller may
    wait for ever while the first one waits for records.
    """

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read exactly these partitions from these offsets on."""
        ...

    def poll(self, max_records: int, timeout_s: float) -> list[PartitionBatch]:
        """Return the records that have arrived. Wait up to `timeout_s` for the first one.

        Raise KafkaError, among other cases if an assigned offset is no longer in the log.
        """
        ...

    def positions(self) -> dict[TopicPartition, Position]:
        """Return the position in each assigned partition: after the records that `poll` has
        returned, and after the markers and aborted records that followed them. Partitions from
        which nothing was read are left out.
        """
        ...

    def pause(self, topic_partitions: Sequence[TopicPartition]) -> None:
        """Stop fetching these partitions (a bounded split that has reached its end)."""
        ...

    def high_watermarks(self) -> dict[TopicPartition, int]:
        """Return the newest known end offset of each assigned partition. Send no request."""
        ...

    def commit(self, positions: Mapping[TopicPartition, int], metadata: str = "") -> None:
        """Commit offsets, each with `metadata`, to the consumer group, and do not wait. The commit
        may fail. It serves lag monitoring, and shows whether a journal lacks its newest entries.
        """
        ...

    def connection_error(self) -> str:
        """Return the reason why the client cannot read now, although it retries. Empty if no
        problem is known. Never wait.
        """
        ...

    def close(self) -> None: ...


class TransactionState(enum.Enum):
    """States of a transaction at its coordinator, by Kafka's names."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    COMPLETE_COMMIT = "CompleteCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_ABORT = "CompleteAbort"
    DEAD = "Dead"
    PREPARE_EPOCH_FENCE = "PrepareEpochFence"


UNFINISHED: Final = frozenset(
    {
        TransactionState.EMPTY,
        TransactionState.ONGOING,
        TransactionState.PREPARE_COMMIT,
        TransactionState.PREPARE_ABORT,
        TransactionState.PREPARE_EPOCH_FENCE,
    }
)
"""States of an id that has an open transaction, or whose producer may open one with its first
record. A producer of tidegate writes one transaction, so none follows a complete one.
"""


class TransactionDescription(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of DescribeTransactions for one id."""

    state: TransactionState
    producer_id: int
    epoch: int
    start_ms: int
    """The start of the current or last transaction; -1 if there was none. Only equality counts."""


class Producer(Protocol):
    """A librdkafka producer. With a transactional id, it serves exactly one transaction.

    Each exception of a method makes the transaction unsafe, so the attempt fails. A prepared
    producer is dropped and never closed, because to close it would abort the transaction.
    """

    def begin(self) -> None:
        """Begin the transaction (transactional producers only)."""
        ...

    def send(
        self,
        topic: str,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None,
    ) -> None:
        """Send a batch in order. Serve the queue while it is full."""
        ...

    def send_one(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
        timestamp_ms: int | None,
    ) -> None:
        """Send one record with headers or a timestamp."""
        ...

    def flush(self, timeout_s: float) -> None:
        """Return when all records are acknowledged. TransactionError if they are not in time, or if
        one failed.
        """
        ...


class EndTxnResult(enum.Enum):
    """An answer of the coordinator to EndTxn."""

    ACCEPTED = "accepted"
    RETRY = "retry"
    """Moved, loading, busy, unreachable or unanswered: the outcome is unknown."""
    REFUSED = "refused"
    """Fenced, another state or another producer id. Describe shows which."""
    NOT_AUTHORISED = "not authorised"


class TransactionAdmin(Protocol):
    """Requests to the transaction coordinators of one Kafka cluster, and requests about topics that
    need the same connection.

    A call repeats its request until its own deadline if that is safe. After the deadline it raises
    KafkaUnavailableError.
    """

    def cluster_id(self) -> str: ...

    def describe(self, transactional_id: TransactionalId) -> TransactionDescription | None:
        """Return the coordinator's description; None if it does not know the id."""
        ...

    def end(
        self, transactional_id: TransactionalId, producer_id: int, epoch: int, *, commit: bool
    ) -> EndTxnResult:
        """Send one raw EndTxn v3, and never repeat it: the caller describes, then decides."""
        ...

    def fence(self, transactional_id: TransactionalId) -> None:
        """Send one raw InitProducerId, which aborts the open transaction and fences producers."""
        ...

    def list(
        self, prefix: str, *, unfinished: bool = False
    ) -> dict[TransactionalId, TransactionState]:
        """Ask every broker for the ids with this prefix. Raise if a broker does not answer, so that
        no id is left out. `unfinished` selects the ids whose state is one of `UNFINISHED`.
        """
        ...

    def topic_ids(self, topics: Collection[str]) -> dict[str, str]:
        """Return the ids of topics (KIP-516), in Kafka's notation, with one request. Topics that do
        not exist are left out. An id is empty if the brokers have no topic ids.
        """
        ...

    def epoch_end_offsets(self, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the end offset of a leader epoch in each partition (OffsetForLeaderEpoch,
        KIP-101); -1 if the leader does not know the epoch. A position of that epoch after this
        end belongs to a log that was truncated. Partitions that do not exist are left out.
        """
        ...

    def close(self) -> None: ...
