"""Looking at the transactions of a whole Kafka cluster, whoever writes them: the port of
`tidegate txn`.

Apart from `TransactionAdmin`, which carries what the commit protocol needs of one id at a time and
nothing more. What is asked here is KIP-664's: transactions as their coordinators know them, open
transactions as the leaders of partitions know them, and the two ways to end one from outside. The
two views differ exactly where something hangs.

An inspector answers as much as it can: one dead broker must not hide what the others know. What it
could not ask it says in words (`unasked`), and who concludes something from an absence must look
there first.
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
"""Told before each request of many: what is asked, how many are answered, of how many."""


class Transaction(msgspec.Struct, frozen=True, kw_only=True):
    """A transactional id as its coordinator knows it."""

    transactional_id: TransactionalId
    coordinator: int
    """The broker's id."""
    state: TransactionState
    producer_id: int
    epoch: int
    start_ms: int
    """Of the present or last transaction, by the coordinator's clock; -1 if there was none."""
    timeout_ms: int
    partitions: tuple[TopicPartition, ...]
    """Those that it has written to; while it is being ended, those that lack the marker yet."""


class ClusterTransactions(msgspec.Struct, frozen=True, kw_only=True):
    """Transactions of all coordinators that answered."""

    transactions: tuple[Transaction, ...]
    unasked: tuple[str, ...]
    """What could not be asked, a phrase each; empty if the survey is complete."""


class ProducerState(msgspec.Struct, frozen=True, kw_only=True):
    """A producer that has a transaction open on a partition, as the partition's leader knows it."""

    producer_id: int
    epoch: int
    coordinator_epoch: int
    """Of the last marker that ended a transaction of this producer here; -1 if there was none."""
    last_ms: int
    """Timestamp of the producer's last batch here."""
    start_offset: int
    """The transaction's first offset here."""


class OpenOnPartitions(msgspec.Struct, frozen=True, kw_only=True):
    """Open transactions per partition, first the one that holds the last stable offset."""

    producers: Mapping[TopicPartition, tuple[ProducerState, ...]]
    """Of every partition that was asked."""
    unasked: tuple[str, ...]


class PartitionEndOffsets(msgspec.Struct, frozen=True, kw_only=True):
    """How far the two kinds of readers may read a partition: both exclusive."""

    stable: int
    """The last stable offset: the end for `read_committed`."""
    end: int
    """The high watermark: the end for `read_uncommitted`."""


class AbortAnswer(enum.Enum):
    """What a coordinator answered to a request to abort."""

    ACCEPTED = "accepted"
    """The abort is decided, or the transaction was ending anyway: its state tells."""
    CHANGED = "changed"
    """The id has another producer or epoch by now: nothing was done."""


class TransactionInspector(Protocol):
    """The transactions of one Kafka cluster, from outside.

    Every call may raise KafkaUnavailableError where nobody answers at all and
    KafkaNotAuthorisedError where a right is missing.
    """

    def cluster_id(self) -> str: ...

    def brokers(self) -> dict[int, str]:
        """The address, HOST:PORT, of each broker."""
        ...

    def survey(
        self,
        *,
        prefix: str = "",
        states: Collection[TransactionState] = (),
        producer_ids: Collection[int] = (),
        progress: Progress,
    ) -> ClusterTransactions:
        """All transactions of these states and producers (empty: of any), asked of every broker.

        Only ids that we may describe are among them: brokers leave out others without a word.
        """
        ...

    def describe(self, transactional_id: TransactionalId) -> Transaction | None:
        """One id; None when its coordinator does not know it."""
        ...

    def partitions(self, topic: str | None = None) -> dict[TopicPartition, int]:
        """The leader of each partition of a topic, or of all; -1 where there is none now.

        RefusedError where there is no such topic.
        """
        ...

    def open_transactions(
        self, leaders: Mapping[TopicPartition, int], *, progress: Progress
    ) -> OpenOnPartitions:
        """Open transactions on these partitions, asked of their leaders."""
        ...

    def ends(
        self, leaders: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, PartitionEndOffsets]:
        """Of the partitions whose leaders answer; the others are left out."""
        ...

    def abort(self, transaction: Transaction) -> AbortAnswer:
        """Have its coordinator abort it and lock its producer out, if it is still that producer's.

        Sent until answered; what has become of the transaction, `describe` tells.
        """
        ...

    def write_abort_marker(self, origin: TopicPartition, producer: ProducerState) -> None:
        """End a transaction on one partition past its coordinator: for hanging ones only.

        Of a transaction that a coordinator knows this would break the atomicity.
        """
        ...

    def close(self) -> None: ...


def no_progress(_what: str, _done: int, _total: int) -> None:
    """For those who do not want to hear of it."""
