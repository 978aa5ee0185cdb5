"""The port of `tidegate txn`: transactions of a whole Kafka cluster, of any producer.

`TransactionAdmin` is a different port: it serves the commit protocol, one id at a time. This port
has the requests of KIP-664: transactions as their coordinators know them, open transactions as the
leaders of partitions know them, and the two ways to end a transaction from outside. The two views
differ exactly where a transaction hangs.

An inspector returns as much as it can, because one dead broker must not hide the knowledge of the
others. `unreachable` describes the requests without an answer. A caller that concludes from the
absence of a transaction must read it first.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

import msgspec

from tidegate.ids import TransactionalId
from tidegate.ports.kafka import TransactionState
from tidegate.stream_elements import TopicPartition

Progress = Callable[[str, int, int], None]
"""A callback before each of many requests: the subject, the number of answers, the total number."""


class Transaction(msgspec.Struct, frozen=True, kw_only=True):
    """A transactional id, as its coordinator knows it."""

    transactional_id: TransactionalId
    coordinator: int
    """The broker's id."""
    state: TransactionState
    producer_id: int
    epoch: int
    start_ms: int
    """The start of the current or last transaction, by the coordinator's clock; -1 if none existed.
    """
    timeout_ms: int
    partitions: tuple[TopicPartition, ...]
    """The partitions of the transaction; while it ends, the partitions that lack the marker."""


class ClusterTransactions(msgspec.Struct, frozen=True, kw_only=True):
    """Transactions of all coordinators that answered."""

    transactions: tuple[Transaction, ...]
    unreachable: tuple[str, ...]
    """The requests without an answer, a phrase each; empty if the survey is complete."""


class ProducerState(msgspec.Struct, frozen=True, kw_only=True):
    """A producer with an open transaction on a partition, as the partition's leader knows it."""

    producer_id: int
    epoch: int
    coordinator_epoch: int
    """The coordinator epoch of the last marker of this producer here; -1 if there was none."""
    last_ms: int
    """Timestamp of the producer's last batch here."""
    start_offset: int
    """The transaction's first offset here."""


class OpenTransactions(msgspec.Struct, frozen=True, kw_only=True):
    """Open transactions per partition. The first one holds back the last stable offset."""

    producers: Mapping[TopicPartition, tuple[ProducerState, ...]]
    """The producers of every partition whose leader answered."""
    unreachable: tuple[str, ...]


class PartitionEndOffsets(msgspec.Struct, frozen=True, kw_only=True):
    """The end offsets of a partition for the two kinds of readers, both exclusive."""

    stable: int
    """The last stable offset: the end for `read_committed`."""
    end: int
    """The high watermark: the end for `read_uncommitted`."""


class AbortResult(enum.Enum):
    """The answer of a coordinator to a request to abort."""

    ACCEPTED = "accepted"
    """The abort is decided, or the transaction was ending already: its state shows which."""
    CHANGED = "changed"
    """The id has another producer or epoch now. The coordinator did nothing."""


class TransactionInspector(Protocol):
    """An inspector of the transactions of one Kafka cluster, from outside.

    Each call may raise KafkaUnavailableError if no broker answers, and KafkaNotAuthorisedError if a
    right is missing.
    """

    def cluster_id(self) -> str: ...

    def brokers(self) -> dict[int, str]:
        """Return the address, HOST:PORT, of each broker."""
        ...

    def find_transactions(
        self,
        *,
        prefix: str = "",
        states: Collection[TransactionState] = (),
        producer_ids: Collection[int] = (),
        progress: Progress,
    ) -> ClusterTransactions:
        """Ask every broker for the transactions with these states and producers (empty: any).

        The result has only the ids that this principal may describe. Brokers leave the others out
        without an error.
        """
        ...

    def describe(self, transactional_id: TransactionalId) -> Transaction | None:
        """Return the description of one id, or None if its coordinator does not know it."""
        ...

    def partitions(self, topic: str | None = None) -> dict[TopicPartition, int]:
        """Return the leader of each partition of a topic, or of all topics; -1 for no leader.

        RefusedError if the topic does not exist.
        """
        ...

    def open_transactions(
        self, leaders: Mapping[TopicPartition, int], *, progress: Progress
    ) -> OpenTransactions:
        """Ask the leaders of these partitions for their open transactions."""
        ...

    def end_offsets(
        self, leaders: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, PartitionEndOffsets]:
        """Return the end offsets of the partitions whose leaders answer. Leave the others out."""
        ...

    def abort(self, transaction: Transaction) -> AbortResult:
        """Ask its coordinator to abort it and to fence its producer, if the producer still owns it.

        Repeat the request until the coordinator answers. `describe` returns the result.
        """
        ...

    def write_abort_marker(self, topic_partition: TopicPartition, producer: ProducerState) -> None:
        """End a hanging transaction on one partition, without its coordinator.

        For a transaction that a coordinator knows, this would break the atomicity.
        """
        ...

    def close(self) -> None: ...


def no_progress(_what: str, _done: int, _total: int) -> None:
    """Ignore the progress."""
