"""Control of transactions from outside their producer: describe, end, fence and list.

`TransactionLog` of `ports/kafka.py` on kafka-python's protocol layer, because librdkafka can
neither describe a transaction nor end one that another process wrote. It speaks EndTxn v3 and
InitProducerId v4 whatever the broker offers: a transaction must be ended by the protocol of the
client that wrote it, and librdkafka writes by the old one.

Called by slots (identity of producers, pre-commit check) and by the transaction committer in
JobMaster, from any of their threads. It decides nothing: what a state means is `checkpoint/`'s
matter.

kafka-python remembers the coordinator of each id and never forgets one by itself, so that one
failover would break it for good: every error that a moved or dead coordinator can cause drops what
is known here.
"""

from __future__ import annotations

import gc
import logging
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import kafka.errors as theirs
from kafka.admin import KafkaAdminClient
from kafka.net.compat import KafkaNetClient
from kafka.protocol.admin.transactions import DescribeTransactionsRequest, ListTransactionsRequest
from kafka.protocol.metadata import CoordinatorType, MetadataRequest
from kafka.protocol.producer.transaction import EndTxnRequest, InitProducerIdRequest

from tidegate.drivers.kafka.settings import bootstrap_servers, kafka_python
from tidegate.errors import (
    KafkaError,
    KafkaNotAuthorisedError,
    KafkaUnavailableError,
    TidegateError,
    check,
)
from tidegate.ids import TransactionalId
from tidegate.ports.kafka import EndOutcome, TransactionFacts, TransactionState

T = TypeVar("T")

CONNECT_TIMEOUT_S: Final = 8.0
"""For the first connection: with one retry by the caller still within the 10 s after which a user
is told that no broker answers."""
REQUEST_TIMEOUT_MS: Final = 10_000
"""A coordinator that is silent for so long is looked up again; the default would be 30 s."""
RECONNECT_BACKOFF_MAX_MS: Final = 1_000
"""The default of 30 s made a commit 5 to 10 s late after a broker's restart."""
RETRY_PAUSE_S: Final = (0.02, 0.5)
"""First and longest pause: a busy coordinator is free after 7 to 35 ms, a failover takes
seconds."""
IN_FLIGHT: Final = 4
"""Calls at a time. The client refuses a sixth request on a connection; one is left for metadata."""
COORDINATORS_MAX: Final = 10_000
"""Cached coordinators of transactional ids, about 2 MB; every attempt brings new ids."""
FENCE_TIMEOUT_MS: Final = 1_000
"""The timeout that a fenced id is left with. Nothing is ever written under it, and it is below any
broker's maximum."""
FENCED_FROM: Final = -1
"""Producer id and epoch of an InitProducerId that continues no producer."""
STATE_TOPIC: Final = "__transaction_state"

_RETRY: Final = (
    theirs.ConcurrentTransactionsError,
    theirs.CoordinatorLoadInProgressError,
    theirs.CoordinatorNotAvailableError,
    theirs.NotCoordinatorError,
    theirs.KafkaConnectionError,
    theirs.KafkaTimeoutError,
    theirs.RequestTimedOutError,
    theirs.NodeNotReadyError,
    theirs.NetworkExceptionError,
    theirs.BrokerNotAvailableError,
    theirs.UnknownBrokerIdError,
    theirs.TooManyInFlightRequests,
    theirs.ThrottlingQuotaExceededError,
    theirs.StaleMetadata,
    theirs.Cancelled,
    theirs.CorrelationIdError,
    theirs.UnknownError,
)
"""The same request may succeed later. All but the first may mean that the coordinator is
elsewhere."""
_FOREIGN: Final = (theirs.KafkaError, OSError, RuntimeError, ValueError)
"""All that the library raises when Kafka is at fault (ValueError: a state that it does not
know)."""
_REFUSED: Final = (
    theirs.InvalidTxnStateError,
    theirs.ProducerFencedError,
    theirs.InvalidProducerEpochError,
    theirs.InvalidProducerIdMappingError,
    theirs.UnknownProducerIdError,
    theirs.TransactionalIdNotFoundError,
    theirs.TransactionCoordinatorFencedError,
)


class KafkaTransactionLog:
    """Transaction control of one cluster; connects at the first call.

    Describe, fence and list are retried until `deadline_s` has passed, then KafkaUnavailableError.
    ConfigError for a security setting that cannot be applied is raised by the constructor.
    """

    def __init__(self, settings: Mapping[str, str], *, deadline_s: float = 30.0) -> None:
        self._settings = kafka_python(settings)
        self._servers = bootstrap_servers(settings)
        self._deadline_s = deadline_s
        self._free = threading.BoundedSemaphore(IN_FLIGHT)
        self._connecting = threading.Lock()
        self._admin: KafkaAdminClient | None = None
        _quiet()

    def cluster_id(self) -> str:
        """The cluster's own id: part of what is recorded of a prepared transaction."""
        cluster = self._client()._manager.cluster.cluster_id
        check(cluster, "a connected client knows the cluster's id")
        return str(cluster)

    def describe(self, transactional_id: TransactionalId) -> TransactionFacts | None:
        """The coordinator's facts; None when it does not know the id."""

        def once() -> TransactionFacts | None:
            request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
            row = self._ask(transactional_id, request).transaction_states[0]
            if row.error_code == theirs.TransactionalIdNotFoundError.errno:
                return None
            _raise_for(row.error_code)
            return TransactionFacts(
                state=TransactionState(row.transaction_state),
                producer_id=row.producer_id,
                epoch=row.producer_epoch,
                start_ms=row.transaction_start_time_ms,
            )

        return self._retried(f"describe transaction {transactional_id}", once, transactional_id)

    def end(
        self, transactional_id: TransactionalId, producer_id: int, epoch: int, *, commit: bool
    ) -> EndOutcome:
        """One raw EndTxn v3, sent once. RETRY leaves open whether it took effect."""
        request = EndTxnRequest(
            transactional_id=transactional_id,
            producer_id=producer_id,
            producer_epoch=epoch,
            committed=commit,
            min_version=3,
            max_version=3,
        )
        try:
            _raise_for(self._ask(transactional_id, request).error_code)
        except _RETRY as error:
            self._forget(transactional_id, error)
            return EndOutcome.RETRY
        except KafkaUnavailableError:
            return EndOutcome.RETRY
        except _REFUSED:
            return EndOutcome.REFUSED
        except theirs.AuthorizationError:
            return EndOutcome.NOT_AUTHORISED
        except TidegateError:
            raise
        except _FOREIGN as error:
            raise self._translated(f"end transaction {transactional_id}", error) from None
        return EndOutcome.ACCEPTED

    def fence(self, transactional_id: TransactionalId) -> None:
        """One raw InitProducerId: aborts what is open, locks out older producers of the id."""

        def once() -> None:
            request = InitProducerIdRequest(
                transactional_id=transactional_id,
                transaction_timeout_ms=FENCE_TIMEOUT_MS,
                producer_id=FENCED_FROM,
                producer_epoch=FENCED_FROM,
                min_version=4,
                max_version=4,
            )
            _raise_for(self._ask(transactional_id, request).error_code)

        self._retried(f"fence transactional id {transactional_id}", once, transactional_id)

    def list(self, prefix: str) -> dict[TransactionalId, TransactionState]:
        """All ids with this prefix, asked of every broker; raises rather than leave one out."""

        def once() -> dict[TransactionalId, TransactionState]:
            client = self._client()
            listed: Any = client._manager.run(_list_everywhere, client._manager)
            return listed  # type: ignore[no-any-return]

        found = self._retried("list transactions", once, None)
        return {name: state for name, state in found.items() if name.startswith(prefix)}

    def close(self) -> None:
        """Close the connections; calls that are under way fail."""
        with self._connecting:
            if self._admin is not None:
                self._admin.close()
                self._admin = None

    def _client(self) -> Any:
        """The connected client; the first caller connects, others wait for it."""
        with self._connecting:
            if self._admin is None:
                self._admin = self._connected()
            return self._admin

    def _connected(self) -> KafkaAdminClient:
        attempt = _FirstConnection()
        try:
            return KafkaAdminClient(
                **self._settings,
                request_timeout_ms=REQUEST_TIMEOUT_MS,
                reconnect_backoff_max_ms=RECONNECT_BACKOFF_MAX_MS,
                bootstrap_timeout_ms=int(CONNECT_TIMEOUT_S * 1000),
                kafka_client=attempt.client,
            )
        except _FOREIGN as error:
            attempt.abandon()
            if isinstance(error, theirs.KafkaTimeoutError):
                raise KafkaUnavailableError(
                    f"No Kafka broker of {self._servers} answered within {CONNECT_TIMEOUT_S:.0f} s "
                    f"(last attempt: {attempt.failure}). Check that the brokers run, that "
                    "kafka.bootstrap names them, and that security.protocol and credentials in "
                    "kafka.properties are theirs."
                ) from None
            raise self._translated("connect", error) from None
        finally:
            attempt.done()

    def _ask(self, transactional_id: TransactionalId, request: Any) -> Any:
        """Send one request to the coordinator of an id."""
        client = self._client()
        manager = client._manager

        async def send() -> Any:
            found = await client._find_coordinator_ids(
                [transactional_id], key_type=CoordinatorType.TRANSACTION
            )
            return await manager.send(request, node_id=found[transactional_id])

        if not self._free.acquire(timeout=self._deadline_s):
            raise KafkaUnavailableError(
                f"{IN_FLIGHT} requests to transaction coordinators of {self._servers} are "
                f"unanswered."
            )
        try:
            return manager.run(send)
        finally:
            self._free.release()

    def _retried(
        self, what: str, once: Callable[[], T], transactional_id: TransactionalId | None
    ) -> T:
        end = time.monotonic() + self._deadline_s
        pause, longest = RETRY_PAUSE_S
        while True:
            try:
                return once()
            except _RETRY as error:
                if transactional_id is not None:
                    self._forget(transactional_id, error)
                if time.monotonic() + pause > end:
                    raise KafkaUnavailableError(
                        f"Kafka at {self._servers} could not {what} within {self._deadline_s:.0f} "
                        f"s; the last answer was: {error}. Check that all brokers run and that "
                        f"{STATE_TOPIC} has a leader for every partition."
                    ) from None
                time.sleep(pause)
                pause = min(pause * 2, longest)
            except TidegateError:
                raise
            except _FOREIGN as error:
                raise self._translated(what, error) from None

    def _forget(self, transactional_id: TransactionalId, error: Exception) -> None:
        """Drop the cached coordinator, unless the answer shows that it is the right one."""
        if isinstance(error, theirs.ConcurrentTransactionsError) or self._admin is None:
            return
        cached = self._admin._manager.cluster._coordinators
        if len(cached) > COORDINATORS_MAX:
            cached.clear()
        cached.pop((CoordinatorType.TRANSACTION, transactional_id), None)
        if isinstance(error, theirs.KafkaConnectionError):
            # The library leaves the socket of each failed connection in a cycle. A slot collects so
            # rarely that an outage could use up its file descriptors.
            gc.collect(1)

    def _translated(self, what: str, error: Exception) -> TidegateError:
        if isinstance(error, theirs.SaslAuthenticationFailedError):
            return KafkaNotAuthorisedError(
                f"Kafka at {self._servers} refused the credentials of kafka.properties "
                "(sasl.username, sasl.password, sasl.mechanism) while tidegate tried to "
                f"{what}. Correct them and start again."
            )
        if isinstance(error, theirs.AuthorizationError):
            return KafkaNotAuthorisedError(
                f"Kafka at {self._servers} does not allow tidegate to {what}: grant the job's "
                "principal WRITE on the transactional ids with the prefix tidegate. "
                f"({type(error).__name__})."
            )
        return KafkaError(f"Kafka at {self._servers} could not {what}: {error}")


class _FirstConnection:
    """Listens to the library's first connection, of which it only logs why it failed.

    Refused credentials end it at once: without this they are tried until the timeout.
    """

    def __init__(self) -> None:
        self.failure: BaseException | None = None
        self._made: list[Any] = []

    def client(self, **settings: Any) -> Any:
        """Make what the library would make, and listen to its failures."""
        made = KafkaNetClient(**settings)
        self._made.append(made)
        manager = made._manager
        back_off = manager.update_backoff

        def noted(node_id: object) -> object:
            self.failure = sys.exc_info()[1] or self.failure  # called while it is handled
            if isinstance(self.failure, theirs.SaslAuthenticationFailedError):
                raise self.failure
            return back_off(node_id)

        manager.update_backoff = noted
        return made

    def done(self) -> None:
        """Listen no more."""
        for made in self._made:
            vars(made._manager).pop("update_backoff", None)

    def abandon(self) -> None:
        """Close what the library leaves behind when it cannot connect: a thread, sockets."""
        for made in self._made:
            made.close()
            made._manager._net.stop()


def _raise_for(error_code: int) -> None:
    if error_code:
        error = theirs.for_code(error_code)
        raise error()


async def _list_everywhere(manager: Any) -> dict[TransactionalId, TransactionState]:
    """One complete listing.

    An id is listed by the broker that leads its partition of the state topic. So every partition
    must have a leader, every broker is asked, and no leader may have changed meanwhile: else an id
    could be passed over. Raises a retriable error in these cases.
    """
    before, brokers = await _leaders(manager)
    found: dict[TransactionalId, TransactionState] = {}
    for broker in brokers:
        answer = await manager.send(ListTransactionsRequest(), node_id=broker)
        _raise_for(answer.error_code)
        for row in answer.transaction_states:
            found[TransactionalId(row.transactional_id)] = TransactionState(row.transaction_state)
    after, _ = await _leaders(manager)
    if after != before:
        raise theirs.StaleMetadata(f"leaders of {STATE_TOPIC} moved during the listing")
    return found


async def _leaders(manager: Any) -> tuple[dict[int, tuple[int, int]], list[int]]:
    """Leader and its epoch per partition of the state topic, and all brokers.

    No leaders where the topic does not exist yet, or may not be described by us (listing needs no
    right on it); then a move of a leader goes unnoticed, which the repeated sweeps make good.
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


def _quiet() -> None:
    """The library logs what it raises, and each retry, as errors; what it raises is enough."""
    logger = logging.getLogger("kafka")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.CRITICAL)
