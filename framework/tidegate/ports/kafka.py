"""Kafka, as far as tidegate needs it: reading partitions, writing transactions, controlling them.

Three ports. `PartitionReader` and `Producer` carry data (librdkafka), `TransactionAdmin` carries
control messages to the transaction coordinator (kafka-python's protocol layer). They are shaped on
what the commit protocol asks, not on a client's API; the fakes of `tidegate.testing` implement the
same.

Messages of a reader keep the client's own accessors (`value()`, `key()`, `offset()`, `timestamp()`,
`headers()`), because wrapping each record in an object of ours would cost more than decoding it.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

import msgspec

from tidegate.ids import TransactionalId
from tidegate.stream_elements import TopicPartition


class RawRecord(Protocol):
    """One record as the client library hands it over."""

    def value(self) -> bytes | None: ...
    def key(self) -> bytes | None: ...
    def offset(self) -> int: ...
    def timestamp(self) -> tuple[int, int]: ...
    def headers(self) -> list[tuple[str, bytes]] | None: ...


class PartitionBatch(NamedTuple):
    """Messages of one partition, in order. `position` is the next offset to read after them.

    An empty run reports a position that moved without records (control records, end of partition).
    """

    origin: TopicPartition
    messages: Sequence[RawRecord]
    position: int


class GroupCommit(NamedTuple):
    """What a consumer group holds of one partition."""

    offset: int
    metadata: str
    """What was committed beside the offset; empty where nothing was."""


class Position(NamedTuple):
    """Where a reader is in a partition."""

    offset: int
    """The next offset to read."""
    leader_epoch: int
    """The leader epoch of the last record before it; -1 where it is not known."""


class PartitionReader(Protocol):
    """Reads assigned partitions from given offsets; never joins a group.

    One thread calls it: librdkafka's consumer is given to one caller at a time, and whoever comes
    while it waits for records may wait for ever.
    """

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read exactly these partitions from these offsets on."""
        ...

    def poll(self, max_records: int, timeout_s: float) -> list[PartitionBatch]:
        """What has arrived, waiting up to `timeout_s` for the first of it.

        Raises KafkaError, among others when an assigned offset is not in the log any more.
        """
        ...

    def positions(self) -> dict[TopicPartition, Position]:
        """The position in each assigned partition: behind what `poll` has returned, and behind
        markers and aborted records that followed it. Those of which nothing was read are left out.
        """
        ...

    def pause(self, origins: Sequence[TopicPartition]) -> None:
        """Stop fetching these partitions (a bounded split that has reached its end)."""
        ...

    def high_watermarks(self) -> dict[TopicPartition, int]:
        """The newest known end offset of each assigned partition, without asking the broker."""
        ...

    def commit(self, positions: Mapping[TopicPartition, int], metadata: str = "") -> None:
        """Commit offsets to the consumer group, without waiting, with `metadata` beside each: for
        lag monitoring, and to recognise a journal that lacks its end. It may fail.
        """
        ...

    def connection_error(self) -> str:
        """Why nothing can be read at the moment, though the client tries again; empty if nothing
        is known to be wrong. Never waits.
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
"""States of an id under which something is open, or may be opened by a producer that waits for its
first record. Of our producers each writes one transaction: under a complete one nothing follows."""


class TransactionDescription(msgspec.Struct, frozen=True, kw_only=True):
    """What DescribeTransactions says of one id."""

    state: TransactionState
    producer_id: int
    epoch: int
    start_ms: int
    """Of the present or last transaction; -1 if there was none. Compared for equality only."""


class Producer(Protocol):
    """One librdkafka producer. With a transactional id it serves exactly one transaction.

    Any exception out of any method means that the transaction cannot be trusted: the attempt fails.
    A prepared producer is dropped, never closed: closing aborts.
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
        """Hand over a batch, in order, serving the queue while it is full."""
        ...

    def send_one(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
        timestamp_ms: int | None,
    ) -> None:
        """Hand over one record with headers or a timestamp."""
        ...

    def flush(self, timeout_s: float) -> None:
        """Return when everything is acknowledged; TransactionError if it is not, or anything
        failed.
        """
        ...


class EndTxnResult(enum.Enum):
    """What the coordinator answered to EndTxn."""

    ACCEPTED = "accepted"
    RETRY = "retry"
    """Moved, loading, busy, unreachable or unanswered: the outcome may still be either."""
    REFUSED = "refused"
    """Fenced, another state, another producer id: Describe tells which."""
    NOT_AUTHORISED = "not authorised"


class TransactionAdmin(Protocol):
    """Control messages to the transaction coordinators of one Kafka cluster, and questions about
    topics that need the same connection.

    Calls retry what is safe to retry within their own deadline and then raise
    KafkaUnavailableError.
    """

    def cluster_id(self) -> str: ...

    def describe(self, transactional_id: TransactionalId) -> TransactionDescription | None:
        """The coordinator's facts; None when it does not know the id."""
        ...

    def end(
        self, transactional_id: TransactionalId, producer_id: int, epoch: int, *, commit: bool
    ) -> EndTxnResult:
        """One raw EndTxn v3. Never retried inside: the caller describes, then decides."""
        ...

    def fence(self, transactional_id: TransactionalId) -> None:
        """One raw InitProducerId: aborts what is open, locks out older producers of the id."""
        ...

    def list(
        self, prefix: str, *, unfinished: bool = False
    ) -> dict[TransactionalId, TransactionState]:
        """All ids with this prefix, asked of every broker; raises rather than leave one out.
        `unfinished`: those alone whose state is one of `UNFINISHED`.
        """
        ...

    def topic_ids(self, topics: Collection[str]) -> dict[str, str]:
        """The ids of topics (KIP-516), in Kafka's notation, in one request. Topics that do not
        exist are left out; an id is empty where the brokers have no topic ids.
        """
        ...

    def epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Where the records of a leader epoch and of all before it end in each partition
        (OffsetForLeaderEpoch, KIP-101); -1 where the leader does not know the epoch. A position of
        that epoch behind this end is of a log that was truncated. Partitions that do not exist are
        left out.
        """
        ...

    def close(self) -> None: ...
