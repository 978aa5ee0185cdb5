"""Control of transactions from outside their producer: describe, end, fence and list.

The module implements `TransactionAdmin` of `ports/kafka.py` with kafka-python's protocol layer,
because librdkafka can neither describe a transaction nor end a transaction of another process. It
uses EndTxn v3 and InitProducerId v4 even if the broker supports later versions. A transaction must
be ended with the protocol of the client that wrote it, and librdkafka uses the old protocol.

Slots call it (identity of producers, pre-commit check), and so does the transaction committer in
the JobMaster, from any thread. It makes no decision: `checkpoint/` interprets the states.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import kafka.errors as theirs
from kafka.protocol.admin.transactions import DescribeTransactionsRequest, ListTransactionsRequest
from kafka.protocol.metadata import MetadataRequest
from kafka.protocol.producer.transaction import EndTxnRequest, InitProducerIdRequest

from tidegate.drivers.kafka.coordinator_connection import (
    LIBRARY_ERRORS,
    RETRY,
    STATE_TOPIC,
    CoordinatorConnection,
    raise_for_code,
)
from tidegate.drivers.kafka.topic_facts import epoch_end_offsets, topic_ids
from tidegate.errors import KafkaUnavailableError, TidegateError, check
from tidegate.ids import TransactionalId
from tidegate.ports.kafka import UNFINISHED, EndTxnResult, TransactionDescription, TransactionState
from tidegate.stream_elements import TopicPartition

RIGHTS: Final = "grant the job's principal WRITE on the transactional ids with the prefix tidegate."
"""The right that a job needs; part of the error if the right is missing."""
FENCE_TIMEOUT_MS: Final = 1_000
"""The transaction timeout of an id after it is fenced, in milliseconds. No producer writes with it,
and it is below the maximum of every broker.
"""
FENCED_FROM: Final = -1
"""The producer id and the epoch of an InitProducerId that does not continue a known producer."""
LIST_TIMEOUTS_MS: Final = (10_000, 20_000, 40_000)
"""The timeouts of the first tries of ListTransactions; the last one is that of all later tries. The
answer of a broker with a million ids takes several seconds, but a silent broker must not take long.
"""
_STATES: Final = {state.value: state for state in TransactionState}
_REFUSED: Final = (
    theirs.InvalidTxnStateError,
    theirs.ProducerFencedError,
    theirs.InvalidProducerEpochError,
    theirs.InvalidProducerIdMappingError,
    theirs.UnknownProducerIdError,
    theirs.TransactionalIdNotFoundError,
    theirs.TransactionCoordinatorFencedError,
)


class KafkaTransactionAdmin:
    """Transaction control of one cluster. It connects at the first call.

    `describe`, `fence` and `list` retry for `deadline_s` seconds and then raise
    KafkaUnavailableError. The constructor raises ConfigError for a security setting that cannot be
    applied.
    """

    def __init__(self, settings: Mapping[str, str], *, deadline_s: float = 30.0) -> None:
        self._connection = CoordinatorConnection(settings, deadline_s=deadline_s, rights=RIGHTS)

    def cluster_id(self) -> str:
        """Return the cluster's id, which is part of the record of a prepared transaction."""
        cluster = self._connection.client()._manager.cluster.cluster_id
        check(cluster, "a connected client knows the cluster's id")
        return str(cluster)

    def describe(self, transactional_id: TransactionalId) -> TransactionDescription | None:
        """Return the id's transaction as its coordinator knows it. None if the coordinator does not
        know the id.
        """

        def once() -> TransactionDescription | None:
            request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
            row = self._connection.ask(transactional_id, request).transaction_states[0]
            if row.error_code == theirs.TransactionalIdNotFoundError.errno:
                return None
            raise_for_code(row.error_code)
            return TransactionDescription(
                state=TransactionState(row.transaction_state),
                producer_id=row.producer_id,
                epoch=row.producer_epoch,
                start_ms=row.transaction_start_time_ms,
            )

        return self._connection.run_with_retries(
            f"describe transaction {transactional_id}", once, transactional_id
        )

    def end(
        self, transactional_id: TransactionalId, producer_id: int, epoch: int, *, commit: bool
    ) -> EndTxnResult:
        """Send one raw EndTxn v3, once. After RETRY the request may have taken effect or not."""
        request = EndTxnRequest(
            transactional_id=transactional_id,
            producer_id=producer_id,
            producer_epoch=epoch,
            committed=commit,
            min_version=3,
            max_version=3,
        )
        try:
            raise_for_code(self._connection.ask(transactional_id, request).error_code)
        except RETRY as error:
            self._connection.invalidate_coordinator(transactional_id, error)
            return EndTxnResult.RETRY
        except KafkaUnavailableError:
            return EndTxnResult.RETRY
        except _REFUSED:
            return EndTxnResult.REFUSED
        except theirs.AuthorizationError:
            return EndTxnResult.NOT_AUTHORISED
        except TidegateError:
            raise
        except LIBRARY_ERRORS as error:
            raise self._connection.translate_error(
                f"end transaction {transactional_id}", error
            ) from None
        return EndTxnResult.ACCEPTED

    def fence(self, transactional_id: TransactionalId) -> None:
        """Fence an id with a raw InitProducerId. It aborts an open transaction of the id and locks
        out the id's older producers.
        """

        def once() -> None:
            request = InitProducerIdRequest(
                transactional_id=transactional_id,
                transaction_timeout_ms=FENCE_TIMEOUT_MS,
                producer_id=FENCED_FROM,
                producer_epoch=FENCED_FROM,
                min_version=4,
                max_version=4,
            )
            raise_for_code(self._connection.ask(transactional_id, request).error_code)

        self._connection.run_with_retries(
            f"fence transactional id {transactional_id}", once, transactional_id
        )

    def list(
        self, prefix: str, *, unfinished: bool = False
    ) -> dict[TransactionalId, TransactionState]:
        """Return all ids with this prefix, from every broker. Raise an error if the list may be
        incomplete. With `unfinished`, the brokers leave out ids whose transaction is complete.

        The prefix is compared here. Brokers since Kafka 4.1 accept a pattern (KIP-1152), but that
        is slower: 5.2 s against 3.3 s for 600,000 ids that match.
        """
        states = sorted(state.value for state in UNFINISHED) if unfinished else []
        timeouts_ms = itertools.chain(LIST_TIMEOUTS_MS, itertools.repeat(LIST_TIMEOUTS_MS[-1]))

        def once() -> dict[TransactionalId, TransactionState]:
            manager = self._connection.client()._manager
            listed: Any = manager.run(_list_everywhere, manager, states, next(timeouts_ms))
            return listed  # type: ignore[no-any-return]

        found = self._connection.run_with_retries("list transactions", once, None)
        return {name: state for name, state in found.items() if name.startswith(prefix)}

    def topic_ids(self, topics: Collection[str]) -> dict[str, str]:
        """Return the ids of those topics that exist, in Kafka's notation."""
        return topic_ids(self._connection, topics)

    def epoch_end_offsets(self, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return, for each partition, the end offset of the records of a leader epoch and of all
        earlier epochs.
        """
        return epoch_end_offsets(self._connection, epochs)

    def close(self) -> None:
        """Close the connections. Calls in progress fail."""
        self._connection.close()


async def _list_everywhere(
    manager: Any, states: Sequence[str], timeout_ms: int
) -> dict[TransactionalId, TransactionState]:
    """Return one complete list of the ids in these states; in all states if `states` is empty.

    The broker that leads an id's partition of the state topic lists the id. So every partition must
    have a leader, every broker is asked, and no leader may change during the listing. Otherwise an
    id could be missed, and a retriable error is raised.
    """
    before, brokers = await _leaders(manager)
    found: dict[TransactionalId, TransactionState] = {}
    for broker in brokers:
        request = ListTransactionsRequest(state_filters=list(states))
        answer = await manager.send(request, node_id=broker, request_timeout_ms=timeout_ms)
        raise_for_code(answer.error_code)
        for row in answer.transaction_states:
            state = _STATES.get(row.transaction_state)
            found[row.transactional_id] = state or TransactionState(row.transaction_state)
    after, _ = await _leaders(manager)
    if after != before:
        raise theirs.StaleMetadata(f"leaders of {STATE_TOPIC} moved during the listing")
    return found


async def _leaders(manager: Any) -> tuple[dict[int, tuple[int, int]], list[int]]:
    """Return the leader and the leader epoch of each partition of the state topic, and all brokers.

    The leaders are empty if the topic does not exist yet, or if this principal may not describe it
    (listing needs no right on it). In that case a change of a leader is not detected, but the
    JobMaster repeats its search for ids of older attempts.
    """
    topic = MetadataRequest.MetadataRequestTopic(name=STATE_TOPIC)
    answer = await manager.send(MetadataRequest(topics=[topic], allow_auto_topic_creation=False))
    brokers = [broker.node_id for broker in answer.brokers]
    row = answer.topics[0]
    if row.error_code in {
        theirs.UnknownTopicOrPartitionError.errno,
        theirs.TopicAuthorizationFailedError.errno,
    }:
        return {}, brokers
    leaders = {part.partition_index: (part.leader_id, part.leader_epoch) for part in row.partitions}
    if row.error_code or not leaders or any(id_ not in brokers for id_, _ in leaders.values()):
        raise theirs.CoordinatorNotAvailableError(f"a partition of {STATE_TOPIC} has no leader")
    return leaders, brokers
