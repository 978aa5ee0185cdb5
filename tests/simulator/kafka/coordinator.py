"""The transaction coordinator: producer ids, epochs, states and timeouts by transactional id.

It answers as Kafka does to clients of the old protocol (InitProducerId v4, AddPartitionsToTxn v3,
EndTxn v3). The drivers send only these versions, so an EndTxn does not raise the epoch. The
contract suite has tables of the answers of brokers 3.9.1 and 4.3.0. It runs on these brokers and on
this fake.

A transaction ends in two steps, as in Kafka. The first is the decision (PrepareCommit,
PrepareAbort), which the answer of EndTxn confirms. The second is the markers, one per partition,
each with its own verdict.

Invariant: only InitProducerId and the coordinator's own aborts change the epoch of a transaction,
and the epoch never decreases for one producer id.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterable
from typing import Final

from tests.simulator.kafka.faults import Api, BrokerError, Call, Code, Faults, LostPart
from tests.simulator.kafka.timeline import MS_PER_S, Timeline
from tidegate.ids import TransactionalId
from tidegate.ports.kafka import TransactionDescription, TransactionState
from tidegate.stream_elements import TopicPartition

EPOCH_LAST: Final = 32_766
"""Largest epoch of a producer: the largest signed 16-bit number minus one. The largest number is
reserved to fence the producer with this epoch.
"""
FIRST_PRODUCER_ID: Final = 1000
MARKER_RETRY_S: Final = 0.1

MarkPartition = Callable[[TopicPartition, int, int, bool], None]
"""A function that writes a marker: partition, producer id, epoch, whether to commit."""

_ENDED: Final = {
    TransactionState.PREPARE_COMMIT: TransactionState.COMPLETE_COMMIT,
    TransactionState.PREPARE_ABORT: TransactionState.COMPLETE_ABORT,
}
_BY_COMMIT: Final = {
    TransactionState.PREPARE_COMMIT: True,
    TransactionState.COMPLETE_COMMIT: True,
    TransactionState.PREPARE_ABORT: False,
    TransactionState.COMPLETE_ABORT: False,
}
"""Whether a transaction in this state was ended by a commit."""


class Decision(enum.Enum):
    """The end of a transaction and its cause."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    FENCED = "fenced"
    """The transaction was aborted by an InitProducerId."""
    TIMED_OUT = "timed out"


class _Transaction:
    """The state that the coordinator keeps for one transactional id."""

    __slots__ = (
        "epoch",
        "partitions",
        "producer_id",
        "start_ms",
        "state",
        "timeout_s",
        "updated_s",
    )

    def __init__(self, producer_id: int) -> None:
        self.producer_id = producer_id
        self.epoch = -1
        self.state = TransactionState.EMPTY
        self.start_ms = -1
        self.timeout_s = 0.0
        self.updated_s = 0.0
        self.partitions: dict[TopicPartition, None] = {}
        """Partitions of the open transaction. While it ends, only those without a marker yet."""


class TransactionCoordinator:
    """A single coordinator that stands for all coordinators of a cluster.

    `max_timeout_ms` is the transaction.max.timeout.ms of the brokers. `scan_s` is the interval of
    the search for timed-out transactions. `expiration_s` is transactional.id.expiration.ms, in
    seconds. `marker_s` is the time that a marker takes to its partition. With `keeps_start`, an id
    that is initialised again is described with the start of its last transaction, as before
    Kafka 4.
    """

    def __init__(
        self,
        timeline: Timeline,
        faults: Faults,
        mark: MarkPartition,
        *,
        max_timeout_ms: int,
        scan_s: float,
        expiration_s: float,
        marker_s: float,
        keeps_start: bool,
    ) -> None:
        self._timeline, self._faults, self._mark = timeline, faults, mark
        self.max_timeout_ms = max_timeout_ms
        self._scan_s, self._expiration_s, self._marker_s = scan_s, expiration_s, marker_s
        self._keeps_start = keeps_start
        self._started_s = timeline.now_s()
        self._known: dict[TransactionalId, _Transaction] = {}
        self._producer_ids = FIRST_PRODUCER_ID
        self.decided: dict[tuple[TransactionalId, int, int], Decision] = {}
        """Decision on each transaction, by transactional id, producer id and epoch of its producer.
        Checkers and tests use it; no request returns it.
        """

    def new_producer_id(self) -> int:
        """Return a producer id that was not used before."""
        self._producer_ids += 1
        return self._producer_ids

    # --- requests -------------------------------------------------------------------------------

    def init_producer_id(self, name: TransactionalId, timeout_ms: int) -> tuple[int, int]:
        """Run InitProducerId of a producer without an id. Return producer id and epoch.

        If a transaction is open, the call only starts its abort. It raises CONCURRENT_TRANSACTIONS
        until the abort is complete.
        """
        if not 0 < timeout_ms <= self.max_timeout_ms:
            raise BrokerError(Code.INVALID_TRANSACTION_TIMEOUT)
        found = self._find(name)
        if found is None:
            found = self._known[name] = _Transaction(self.new_producer_id())
        if found.state is TransactionState.ONGOING:
            self._abort_by_epoch(found, name, Decision.FENCED)
            raise BrokerError(Code.CONCURRENT_TRANSACTIONS)
        if found.state in _ENDED:
            raise BrokerError(Code.CONCURRENT_TRANSACTIONS)
        if found.epoch >= EPOCH_LAST:
            found.producer_id, found.epoch = self.new_producer_id(), 0
        else:
            found.epoch += 1
        found.timeout_s = timeout_ms / MS_PER_S
        if not self._keeps_start:
            found.start_ms = -1
        self._to(found, TransactionState.EMPTY)
        return found.producer_id, found.epoch

    def add_partitions(
        self,
        name: TransactionalId,
        producer_id: int,
        epoch: int,
        topic_partitions: Iterable[TopicPartition],
    ) -> None:
        """Run AddPartitionsToTxn. The first call begins the transaction and its timeout."""
        found = self._of_producer(name, producer_id, epoch)
        if found.state in _ENDED:
            raise BrokerError(Code.CONCURRENT_TRANSACTIONS)
        if found.state is not TransactionState.ONGOING:
            found.start_ms = self._timeline.now_ms()
            self._to(found, TransactionState.ONGOING)
            self._watch(found, name)
        found.partitions.update(dict.fromkeys(topic_partitions))

    def end(self, name: TransactionalId, producer_id: int, epoch: int, *, commit: bool) -> None:
        """Run EndTxn v3. Success means that the decision is made. The markers follow later."""
        found = self._of_producer(name, producer_id, epoch)
        if found.state is TransactionState.ONGOING:
            self.decided[name, producer_id, epoch] = (
                Decision.COMMITTED if commit else Decision.ABORTED
            )
            self._end(found, name, commit=commit)
            return
        if _BY_COMMIT.get(found.state) is not commit:
            raise BrokerError(Code.INVALID_TXN_STATE)
        if found.state in _ENDED:
            raise BrokerError(Code.CONCURRENT_TRANSACTIONS)

    def describe(self, name: TransactionalId) -> TransactionDescription:
        """Run DescribeTransactions for one id."""
        found = self._find(name)
        if found is None:
            raise BrokerError(Code.TRANSACTIONAL_ID_NOT_FOUND)
        return TransactionDescription(
            state=found.state,
            producer_id=found.producer_id,
            epoch=found.epoch,
            start_ms=found.start_ms,
        )

    def list(self) -> dict[TransactionalId, TransactionState]:
        """Run ListTransactions on all brokers."""
        return {
            name: found.state
            for name in list(self._known)
            if (found := self._find(name)) is not None
        }

    def includes(
        self, name: TransactionalId, producer_id: int, epoch: int, topic_partition: TopicPartition
    ) -> bool:
        """Return whether the open transaction of a producer includes a partition.

        A leader asks this before it takes the first batch.
        """
        found = self._find(name)
        return (
            found is not None
            and (found.producer_id, found.epoch) == (producer_id, epoch)
            and found.state is TransactionState.ONGOING
            and topic_partition in found.partitions
        )

    def forget(self) -> None:
        """Drop all transactional ids, for simulators. No transaction may be open."""
        self._known.clear()

    def set_epoch(self, name: TransactionalId, epoch: int) -> None:
        """Set the epoch of an id, for tests, as if it had been initialised that often."""
        self._known[name].epoch = epoch

    # --- a transaction's end --------------------------------------------------------------------

    def _end(self, found: _Transaction, name: TransactionalId, *, commit: bool) -> None:
        self._to(
            found, TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT
        )
        for topic_partition in list(found.partitions):
            self._send_marker(found, name, topic_partition, commit=commit)

    def _abort_by_epoch(self, found: _Transaction, name: TransactionalId, why: Decision) -> None:
        """Abort a transaction by the coordinator. The new epoch fences the producer."""
        self.decided[name, found.producer_id, found.epoch] = why
        found.epoch += 1
        self._end(found, name, commit=False)

    def _send_marker(
        self,
        found: _Transaction,
        name: TransactionalId,
        topic_partition: TopicPartition,
        *,
        commit: bool,
    ) -> None:
        verdict = self._faults.decide(Call(Api.WRITE_MARKERS, "", name, topic_partition))
        due_s = self._timeline.now_s() + self._marker_s + verdict.request_s

        def again() -> None:
            self._send_marker(found, name, topic_partition, commit=commit)

        def arrive() -> None:
            self._mark(topic_partition, found.producer_id, found.epoch, commit)
            if verdict.lost is not None:
                # The marker is written, but its answer is lost: a second one follows, as in Kafka.
                self._timeline.at(due_s + verdict.answer_s + MARKER_RETRY_S, again)
                return
            del found.partitions[topic_partition]
            if not found.partitions:
                self._to(found, _ENDED[found.state])

        if verdict.lost is LostPart.REQUEST or verdict.refusal is not None:
            self._timeline.at(due_s + verdict.answer_s + MARKER_RETRY_S, again)
        elif due_s > self._timeline.now_s():
            self._timeline.at(due_s, arrive)
        else:
            arrive()

    def _watch(self, found: _Transaction, name: TransactionalId) -> None:
        """Schedule the abort of a transaction at the first search after its timeout."""
        of = (found.producer_id, found.epoch, found.start_ms)
        ends_s = self._timeline.now_s() + found.timeout_s
        scans = math.floor((ends_s - self._started_s) / self._scan_s) + 1

        def search() -> None:
            same = (found.producer_id, found.epoch, found.start_ms) == of
            if same and found.state is TransactionState.ONGOING:
                self._abort_by_epoch(found, name, Decision.TIMED_OUT)

        self._timeline.at(self._started_s + scans * self._scan_s, search)

    # --- what is known --------------------------------------------------------------------------

    def _find(self, name: TransactionalId) -> _Transaction | None:
        """Return the state of an id. Drop it and return None if it has been idle for too long."""
        found = self._known.get(name)
        if found is None:
            return None
        idle = found.state is not TransactionState.ONGOING and found.state not in _ENDED
        if idle and self._timeline.now_s() - found.updated_s >= self._expiration_s:
            del self._known[name]
            return None
        return found

    def _of_producer(self, name: TransactionalId, producer_id: int, epoch: int) -> _Transaction:
        found = self._find(name)
        if found is None or found.producer_id != producer_id:
            raise BrokerError(Code.INVALID_PRODUCER_ID_MAPPING)
        if found.epoch != epoch:
            raise BrokerError(Code.PRODUCER_FENCED)
        return found

    def _to(self, found: _Transaction, state: TransactionState) -> None:
        found.state = state
        found.updated_s = self._timeline.now_s()
