"""Inspection of the transactions of a whole cluster: `TransactionInspector` of
`ports/inspection.py`.

The requests are those of KIP-664: ListTransactions and DescribeTransactions to coordinators,
DescribeProducers to partition leaders, and WriteTxnMarkers for hanging transactions. Their use
follows Kafka's own tool, `kafka-transactions.sh` (TransactionsCommand and AbortTransactionHandler
of Apache Kafka). The method of kafka-python with that name finds old transactions instead of
hanging ones. Only the command line uses this module, from one thread.

A broker that does not answer is part of the result and not an error, because users often inspect a
cluster while one of its brokers is down. If a broker answers, no part of its answer is omitted
silently.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import kafka.errors as theirs
from kafka.protocol.metadata import CoordinatorType

from tidegate.drivers.kafka import inspection_wire as wire
from tidegate.drivers.kafka.coordinator_connection import (
    LIBRARY_ERRORS,
    RETRY,
    STATE_TOPIC,
    CoordinatorConnection,
    raise_for_code,
)
from tidegate.errors import KafkaNotAuthorisedError, RefusedError, check
from tidegate.ids import TransactionalId
from tidegate.message_text import counted
from tidegate.ports.inspection import (
    AbortResult,
    ClusterTransactions,
    OpenTransactions,
    PartitionEndOffsets,
    ProducerState,
    Progress,
    Transaction,
)
from tidegate.ports.kafka import TransactionState
from tidegate.stream_elements import TopicPartition

T = TypeVar("T")

RIGHTS: Final = (
    "looking at transactions needs DESCRIBE on their transactional ids and READ on their topics; "
    "aborting one needs WRITE on its id, and a hanging one ALTER (before Kafka 3.8: "
    "CLUSTER_ACTION) on the cluster. Grant it, or use the credentials of a user who has it."
)
DEADLINE_S: Final = 12.0
"""The deadline in seconds of a request that must be answered. With Kafka's defaults, a failover of
brokers takes 9 s, which is shorter.
"""
TRIES: Final = 3
TRY_PAUSE_S: Final = 0.2
"""The pause in seconds between the `TRIES` of a request whose answer may be left out. In this time
a broken connection is made again, or a coordinator that has just moved loads its state. More time
would not help with a dead broker.
"""
NAMES_SHOWN: Final = 3

_SILENT: Final = (theirs.KafkaTimeoutError, theirs.RequestTimedOutError)
"""The errors after which a request is not retried, because it has already waited ten
seconds.
"""
_CHANGED: Final = (
    theirs.ProducerFencedError,
    theirs.InvalidProducerEpochError,
    theirs.InvalidProducerIdMappingError,
    theirs.UnknownProducerIdError,
    theirs.TransactionalIdNotFoundError,
)


class _Metadata(NamedTuple):
    brokers: dict[int, str]
    topics: list[Any]


class KafkaTransactionInspector:
    """An inspector of one cluster. It connects at the first call.

    The constructor raises ConfigError for a security setting that cannot be applied.
    """

    def __init__(self, settings: Mapping[str, str], *, deadline_s: float = DEADLINE_S) -> None:
        self._connection = CoordinatorConnection(settings, deadline_s=deadline_s, rights=RIGHTS)

    def cluster_id(self) -> str:
        """Return the cluster's id."""
        cluster = self._connection.client()._manager.cluster.cluster_id
        check(cluster, "a connected client knows the cluster's id")
        return str(cluster)

    def brokers(self) -> dict[int, str]:
        """Return the address, HOST:PORT, of each broker that is up, by broker id."""
        return self._metadata([STATE_TOPIC]).brokers

    def find_transactions(
        self,
        *,
        prefix: str = "",
        states: Collection[TransactionState] = (),
        producer_ids: Collection[int] = (),
        progress: Progress,
    ) -> ClusterTransactions:
        """Return the transactions that the coordinators know.

        The broker that leads an id's partition of the state topic knows the id. If a leader moves
        during the survey, an id could be missed, so all brokers are asked again.
        """
        request = wire.list_transactions(states, producer_ids)
        before = self._metadata([STATE_TOPIC])
        for _ in range(TRIES):
            found, unreachable = self._find_transactions_once(before, request, prefix, progress)
            after = self._metadata([STATE_TOPIC])
            if _leaders(after) == _leaders(before):
                break
            before = after
        else:
            unreachable.append(f"leaders of {STATE_TOPIC} move")
        wanted = [each for each in found.values() if not states or each.state in states]
        return ClusterTransactions(
            transactions=tuple(sorted(wanted, key=lambda each: each.transactional_id)),
            unreachable=tuple(unreachable),
        )

    def describe(self, transactional_id: TransactionalId) -> Transaction | None:
        """Return the transaction of one id as its coordinator knows it. None if the coordinator
        does not know the id.
        """
        client = self._connection.client()

        async def coordinator() -> int:
            ids = await client._find_coordinator_ids(
                [transactional_id], key_type=CoordinatorType.TRANSACTION
            )
            return int(ids[transactional_id])

        def once() -> Transaction | None:
            broker = client._manager.run(coordinator)
            return next(iter(self._described(broker, [transactional_id])), None)

        what = f"describe transaction {transactional_id}"
        return self._connection.run_with_retries(what, once, transactional_id)

    def partitions(self, topic: str | None = None) -> dict[TopicPartition, int]:
        """Return the leader of each partition of the topic, or of all topics; -1 for a partition
        without a leader. RefusedError if the topic does not exist.
        """
        found = {}
        for each in self._metadata(None if topic is None else [topic]).topics:
            if topic is not None:
                self._refuse_absent(topic, each.error_code)
            for part in each.partitions:
                found[TopicPartition(each.name, part.partition_index)] = int(part.leader_id)
        return found

    def open_transactions(
        self, leaders: Mapping[TopicPartition, int], *, progress: Progress
    ) -> OpenTransactions:
        """Return the open transactions as the leaders of the partitions know them.

        KafkaNotAuthorisedError if the principal may not describe producers and no partition was
        answered.
        """
        found: dict[TopicPartition, tuple[ProducerState, ...]] = {}
        unreachable: dict[str, list[TopicPartition]] = {}
        batches = list(wire.batches(leaders))
        for done, (leader, topic_partitions) in enumerate(batches):
            progress("partition leaders", done, len(batches))
            for topic_partition, rows, why in self._list_open_transactions(
                leader, topic_partitions
            ):
                if why:
                    unreachable.setdefault(why, []).append(topic_partition)
                else:
                    found[topic_partition] = wire.open_producers(rows)
        progress("partition leaders", len(batches), len(batches))
        denied = unreachable.get(theirs.TopicAuthorizationFailedError.__name__)
        if denied and not found:
            raise KafkaNotAuthorisedError(
                f"Kafka at {self._connection.servers} does not let us look at the producers of "
                f"topic {denied[0].topic}: {RIGHTS}"
            )
        return OpenTransactions(
            producers=found,
            unreachable=tuple(
                f"{_named(topic_partitions)}: {why}"
                for why, topic_partitions in unreachable.items()
            ),
        )

    def end_offsets(
        self, leaders: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, PartitionEndOffsets]:
        """Return the end offsets of the partitions whose leaders answer. The last stable offsets
        are requested first, so that none is higher than the end offset.
        """
        found = {}
        for leader, topic_partitions in wire.batches(leaders):
            if leader < 0:
                continue
            try:
                stable = self._list_end_offsets(leader, topic_partitions, wire.READ_COMMITTED)
                end_offsets = self._list_end_offsets(
                    leader, topic_partitions, wire.READ_UNCOMMITTED
                )
            except RETRY:
                continue
            except LIBRARY_ERRORS as error:
                raise self._connection.translate_error("tell offsets", error) from None
            for topic_partition in stable.keys() & end_offsets.keys():
                found[topic_partition] = PartitionEndOffsets(
                    stable=stable[topic_partition], end=end_offsets[topic_partition]
                )
        return found

    def abort(self, transaction: Transaction) -> AbortResult:
        """Request the abort of a transaction from its coordinator. The coordinator answers
        CONCURRENT_TRANSACTIONS if the transaction is open, and aborts it.
        """
        name = transaction.transactional_id

        def once() -> AbortResult:
            try:
                raise_for_code(
                    self._connection.ask(name, wire.continue_producer(transaction)).error_code
                )
            except theirs.ConcurrentTransactionsError:
                return AbortResult.ACCEPTED
            except _CHANGED:
                return AbortResult.CHANGED
            return AbortResult.ACCEPTED

        return self._connection.run_with_retries(f"abort transaction {name}", once, name)

    def write_abort_marker(self, topic_partition: TopicPartition, producer: ProducerState) -> None:
        """Write an abort marker into a partition. Each try sends it to the leader at that time."""
        where = f"{topic_partition.topic}-{topic_partition.partition}"

        def once() -> None:
            leader = self.partitions(topic_partition.topic).get(topic_partition, -1)
            if leader < 0:
                raise theirs.StaleMetadata(f"{where} has no leader")
            answer = self._send(leader, wire.abort_marker(topic_partition, producer))
            code = answer.markers[0].topics[0].partitions[0].error_code
            if code in wire.MOVED:
                raise theirs.StaleMetadata(f"the leader of {where} moved")
            raise_for_code(code)

        self._connection.run_with_retries(f"write an abort marker into {where}", once, None)

    def close(self) -> None:
        """Close the connections."""
        self._connection.close()

    def _find_transactions_once(
        self, known: _Metadata, request: Any, prefix: str, progress: Progress
    ) -> tuple[dict[TransactionalId, Transaction], list[str]]:
        unreachable = list(_leaderless(known))
        found = {}
        for done, (broker, address) in enumerate(sorted(known.brokers.items())):
            progress("coordinators", done, len(known.brokers))
            try:
                for each in self._listed(broker, request, prefix):
                    found[each.transactional_id] = each
            except RETRY as error:
                unreachable.append(f"broker {broker} at {address}: {_reason(error)}")
            except LIBRARY_ERRORS as error:
                raise self._connection.translate_error("list transactions", error) from None
        progress("coordinators", len(known.brokers), len(known.brokers))
        return found, unreachable

    def _listed(self, broker: int, request: Any, prefix: str) -> list[Transaction]:
        def once() -> list[Transaction]:
            answer = self._send(broker, request)
            raise_for_code(answer.error_code)
            names = [
                TransactionalId(row.transactional_id)
                for row in answer.transaction_states
                if row.transactional_id.startswith(prefix)
            ]
            return self._described(broker, names)

        return _tried(once)

    def _described(self, broker: int, names: Sequence[TransactionalId]) -> list[Transaction]:
        """Return the transactions of those ids that the broker knows as their coordinator."""
        found = []
        for start in range(0, len(names), wire.IDS_AT_ONCE):
            request = wire.describe_transactions(names[start : start + wire.IDS_AT_ONCE])
            for row in self._send(broker, request).transaction_states:
                if row.error_code != theirs.TransactionalIdNotFoundError.errno:
                    raise_for_code(row.error_code)
                    found.append(wire.transaction(row, broker))
        return found

    def _list_open_transactions(
        self, leader: int, topic_partitions: Sequence[TopicPartition]
    ) -> Iterator[tuple[TopicPartition, Sequence[Any], str]]:
        """Yield the active producers of each partition, or the reason why they are not known."""
        if leader < 0:
            yield from (
                (topic_partition, (), "it has no leader") for topic_partition in topic_partitions
            )
            return
        try:
            answer = _tried(lambda: self._send(leader, wire.describe_producers(topic_partitions)))
        except RETRY as error:
            why = f"its leader, broker {leader}, did not answer ({_reason(error)})"
            yield from ((topic_partition, (), why) for topic_partition in topic_partitions)
            return
        except LIBRARY_ERRORS as error:
            raise self._connection.translate_error("describe producers", error) from None
        for topic in answer.topics:
            for part in topic.partitions:
                why = theirs.for_code(part.error_code).__name__ if part.error_code else ""
                yield TopicPartition(topic.name, part.partition_index), part.active_producers, why

    def _list_end_offsets(
        self, leader: int, topic_partitions: Sequence[TopicPartition], isolation: int
    ) -> dict[TopicPartition, int]:
        answer = _tried(
            lambda: self._send(leader, wire.list_end_offsets(topic_partitions, isolation))
        )
        found = {}
        for topic in answer.topics:
            for part in topic.partitions:
                if part.error_code not in wire.MOVED:
                    raise_for_code(part.error_code)
                    found[TopicPartition(topic.name, part.partition_index)] = int(part.offset)
        return found

    def _metadata(self, topics: Sequence[str] | None) -> _Metadata:
        def once() -> _Metadata:
            answer = self._send(None, wire.metadata(topics))
            brokers = {each.node_id: f"{each.host}:{each.port}" for each in answer.brokers}
            return _Metadata(brokers, list(answer.topics))

        return self._connection.run_with_retries("describe the cluster", once, None)

    def _refuse_absent(self, topic: str, error_code: int) -> None:
        if error_code in {
            theirs.UnknownTopicOrPartitionError.errno,
            theirs.InvalidTopicError.errno,
        }:
            raise RefusedError(
                f"Kafka at {self._connection.servers} has no topic {topic!r}, or does not show it "
                "to us. Correct its name, or have DESCRIBE on it granted."
            )
        if error_code:
            error = theirs.for_code(error_code)()
            raise self._connection.translate_error(f"describe topic {topic}", error)

    def _send(self, broker: int | None, request: Any) -> Any:
        manager = self._connection.client()._manager

        async def send() -> Any:
            return await manager.send(request, node_id=broker)

        return manager.run(send)


def _leaders(known: _Metadata) -> dict[int, tuple[int, int]]:
    """Return the leader and the leader epoch of each partition of the state topic. Empty if the
    principal may not describe the topic.
    """
    return {
        part.partition_index: (part.leader_id, part.leader_epoch)
        for topic in known.topics
        for part in topic.partitions
    }


def _leaderless(known: _Metadata) -> Iterator[str]:
    """Yield a phrase if partitions of the state topic have no leader, because no broker knows the
    ids of those partitions now.
    """
    leaders = _leaders(known)
    without = [part for part, (leader, _) in leaders.items() if leader not in known.brokers]
    if without:
        partitions = counted(len(leaders), "partition")
        yield f"{len(without)} of {partitions} of {STATE_TOPIC}: they have no leader"


def _tried(once: Callable[[], T]) -> T:
    for _ in range(TRIES - 1):
        try:
            return once()
        except _SILENT:
            raise
        except RETRY:
            time.sleep(TRY_PAUSE_S)
    return once()


def _named(topic_partitions: Sequence[TopicPartition]) -> str:
    shown = ", ".join(
        f"{topic_partition.topic}-{topic_partition.partition}"
        for topic_partition in topic_partitions[:NAMES_SHOWN]
    )
    more = len(topic_partitions) - NAMES_SHOWN
    return f"{shown} and {counted(more, 'more partition')}" if more > 0 else shown


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
