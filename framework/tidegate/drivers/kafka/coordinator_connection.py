"""The connection for requests to coordinators and brokers, on kafka-python's protocol layer, below
its public API.

librdkafka can neither describe a transaction nor end a transaction of another process, so such
requests are sent as raw protocol messages. This module connects, finds coordinators, retries
requests that may succeed later, and translates the library's errors. Its users make the requests
and interpret the answers (`transactions`, `topic_facts`, `inspection`). Any thread may call it.

kafka-python caches the coordinator of each id and never drops one itself, so one failover would
break it permanently. Therefore every error that a moved or dead coordinator can cause drops the
cached coordinator.
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
from kafka.protocol.metadata import CoordinatorType
from kafka.protocol.schemas.fields.codecs.tagged_fields import TaggedFields
from kafka.protocol.schemas.fields.codecs.types import UnsignedVarInt32

from tidegate.drivers.kafka.settings import bootstrap_servers, kafka_python
from tidegate.drivers.process.user_forks import end_if_forked
from tidegate.errors import (
    KafkaError,
    KafkaNotAuthorisedError,
    KafkaUnavailableError,
    TidegateError,
)
from tidegate.ids import TransactionalId
from tidegate.message_text import counted

T = TypeVar("T")

CONNECT_TIMEOUT_S: Final = 8.0
"""The maximum time for the first connection, in seconds. The user must get the report that no
broker answers within 10 s, including one retry by the caller.
"""
FIRST_TRY_MS: Final = 1_000
"""The maximum time to connect to the first broker, in milliseconds; it doubles for each further
broker. The library would spend all of the time on the first broker, even if its host is gone and
other brokers would answer.
"""
REQUEST_TIMEOUT_MS: Final = 10_000
"""The time after which a silent coordinator is looked up again, in milliseconds. The default would
be 30 s.
"""
RESPONSE_BYTES_MAX: Final = 1 << 30
"""The maximum size of a response. A broker lists 14 million transactional ids in this size, and 1.4
million in the library's default.
"""
RECONNECT_BACKOFF_MAX_MS: Final = 1_000
"""The maximum pause before a reconnect, in milliseconds. With the default of 30 s, a commit was 5
to 10 s late after a broker's restart.
"""
RETRY_PAUSE_S: Final = (0.02, 0.5)
"""The first and the longest pause between retries, in seconds. A busy coordinator is free after 7
to 35 ms, a failover takes seconds.
"""
IN_FLIGHT: Final = 4
"""The maximum number of concurrent calls. The client refuses a sixth request on a connection, and
one request is reserved for metadata.
"""
COORDINATORS_MAX: Final = 10_000
"""The maximum number of cached coordinators of transactional ids, about 2 MB. Every attempt adds
new ids.
"""
STATE_TOPIC: Final = "__transaction_state"

RETRY: Final = (
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
"""The errors after which the same request may succeed later. All except the first may mean that the
coordinator has moved.
"""
LIBRARY_ERRORS: Final = (theirs.KafkaError, OSError, RuntimeError, ValueError)
"""The exceptions that the library raises for a failure of Kafka (ValueError: a transaction state
that the library does not know).
"""


class CoordinatorConnection:
    """A connection to one cluster, made at the first call.

    `run_with_retries` tries for `deadline_s` seconds and then raises KafkaUnavailableError.
    `rights` is the sentence in an error message that says which missing right to grant. The
    constructor raises ConfigError for a security setting that cannot be applied.
    """

    def __init__(self, settings: Mapping[str, str], *, deadline_s: float, rights: str) -> None:
        self.servers = bootstrap_servers(settings)
        self._settings = kafka_python(settings)
        self._deadline_s = deadline_s
        self._rights = rights
        self._free = threading.BoundedSemaphore(IN_FLIGHT)
        self._connecting = threading.Lock()
        self._admin: KafkaAdminClient | None = None
        self._closed = False
        _quiet()

    def close(self) -> None:
        """Close the connections permanently. Calls in progress and later calls fail."""
        with self._connecting:
            self._closed = True
            if self._admin is not None:
                self._admin.close()
                self._admin = None

    def client(self) -> Any:
        """Return the connected client. The first caller connects, and other callers wait for it.

        KafkaUnavailableError after `close`: otherwise a late thread would make a client that is
        never closed.
        """
        end_if_forked()
        with self._connecting:
            if self._closed:
                raise KafkaUnavailableError(f"The connection to {self.servers} is closed.")
            if self._admin is None:
                self._admin = self._connected()
            return self._admin

    def _connected(self) -> KafkaAdminClient:
        attempt = _FirstConnection()
        try:
            return KafkaAdminClient(
                **self._settings,
                request_timeout_ms=REQUEST_TIMEOUT_MS,
                receive_message_max_bytes=RESPONSE_BYTES_MAX,
                reconnect_backoff_max_ms=RECONNECT_BACKOFF_MAX_MS,
                bootstrap_timeout_ms=int(CONNECT_TIMEOUT_S * 1000),
                kafka_client=attempt.client,
            )
        except LIBRARY_ERRORS as error:
            attempt.abandon()
            if isinstance(error, theirs.KafkaTimeoutError):
                raise KafkaUnavailableError(
                    f"No Kafka broker of {self.servers} answered within {CONNECT_TIMEOUT_S:.0f} s "
                    f"(last attempt: {attempt.failure}). Check that the brokers run, that "
                    "kafka.bootstrap_servers names them, and that security.protocol and "
                    "credentials in kafka.properties are theirs."
                ) from None
            raise self.translate_error("connect", error) from None
        finally:
            attempt.done()

    def ask(self, transactional_id: TransactionalId, request: Any) -> Any:
        """Send one request to the coordinator of an id and return the answer."""
        client = self.client()
        manager = client._manager

        async def send() -> Any:
            found = await client._find_coordinator_ids(
                [transactional_id], key_type=CoordinatorType.TRANSACTION
            )
            return await manager.send(request, node_id=found[transactional_id])

        if not self._free.acquire(timeout=self._deadline_s):
            raise KafkaUnavailableError(
                f"{IN_FLIGHT} requests to transaction coordinators of {self.servers} are "
                f"unanswered."
            )
        try:
            return manager.run(send)
        finally:
            self._free.release()

    def run_with_retries(
        self, what: str, once: Callable[[], T], transactional_id: TransactionalId | None
    ) -> T:
        """Return the result of `once`; call it again after an error that may be temporary.

        `what` completes "could not ..." in error messages. If an error may mean that the id's
        coordinator has moved, the coordinator is looked up again.
        """
        end = time.monotonic() + self._deadline_s
        pause, longest = RETRY_PAUSE_S
        while True:
            try:
                return once()
            except RETRY as error:
                self.invalidate_coordinator(transactional_id, error)
                if time.monotonic() + pause > end:
                    raise KafkaUnavailableError(
                        f"Kafka at {self.servers} could not {what} within {self._deadline_s:.0f} "
                        f"s; the last answer was: {error}. Check that all brokers run and that "
                        f"{STATE_TOPIC} has a leader for every partition."
                    ) from None
                time.sleep(pause)
                pause = min(pause * 2, longest)
            except TidegateError:
                raise
            except LIBRARY_ERRORS as error:
                raise self.translate_error(what, error) from None

    def invalidate_coordinator(
        self, transactional_id: TransactionalId | None, error: Exception
    ) -> None:
        """Drop the cached coordinator of the id, unless the error shows that it is the right one.
        Also repair the client as the error requires: look up brokers again, or close connections.
        """
        if isinstance(error, theirs.ConcurrentTransactionsError) or self._admin is None:
            return
        manager = self._admin._manager
        if transactional_id is not None:
            cached = manager.cluster._coordinators
            if len(cached) > COORDINATORS_MAX:
                cached.clear()
            cached.pop((CoordinatorType.TRANSACTION, transactional_id), None)
        if isinstance(error, theirs.UnknownBrokerIdError):
            manager.run(_look_for_brokers, manager)
        if isinstance(error, theirs.RequestTimedOutError):
            manager.run(_close_silent, manager)
        if isinstance(error, theirs.KafkaConnectionError):
            # The library leaves the socket of each failed connection in a reference cycle. A slot
            # collects garbage so rarely that an outage could use up its file descriptors.
            gc.collect(1)

    def translate_error(self, what: str, error: Exception) -> TidegateError:
        """Return the error of tidegate for an error of the library. `what` completes "could not
        ..." in the message.
        """
        if isinstance(error, theirs.SaslAuthenticationFailedError):
            return KafkaNotAuthorisedError(
                f"Kafka at {self.servers} refused the credentials of kafka.properties "
                "(sasl.username, sasl.password, sasl.mechanism) while tidegate tried to "
                f"{what}. Correct them and start again."
            )
        if isinstance(error, theirs.AuthorizationError):
            return KafkaNotAuthorisedError(
                f"Kafka at {self.servers} does not allow tidegate to {what}: {self._rights} "
                f"({type(error).__name__})."
            )
        return KafkaError(f"Kafka at {self.servers} could not {what}: {error}")


async def _look_for_brokers(manager: Any) -> None:
    """Make the library request the list of brokers again. Otherwise a broker that came back while
    the library was connected stays unknown to it for five minutes, even if other answers name it.
    """
    manager.cluster.request_update()


async def _close_silent(manager: Any) -> None:
    """Close idle connections that have received no data for as long as the request that timed out.
    If a firewall or a host has dropped them, the next request on each would also wait that long.
    """
    heard_before = time.monotonic() - REQUEST_TIMEOUT_MS / 1000
    for connection in list(manager._conns.values()):
        idle = connection.connected and not connection.in_flight_requests
        if idle and connection.transport.last_read < heard_before:
            connection.close()


class _FirstConnection:
    """Observes the library's first connection, because the library only logs why it failed.

    Refused credentials end the first connection at once. Otherwise the library would try them until
    the timeout. A silent broker gets only part of the time, so that other brokers are tried too.
    """

    def __init__(self) -> None:
        self.failure: BaseException | None = None
        self._made: list[Any] = []

    def client(self, **settings: Any) -> Any:
        """Make the client that the library would make, and observe its failures. The client has no
        metrics, because they are unused and cost an eighth of the time of a request.
        """
        made = KafkaNetClient(**{**settings, "metrics": None})
        self._made.append(made)
        manager = made._manager
        back_off = manager.update_backoff

        def noted(node_id: object) -> object:
            self.failure = sys.exc_info()[1] or self.failure  # called while the library handles it
            if isinstance(self.failure, theirs.SaslAuthenticationFailedError):
                raise self.failure
            return back_off(node_id)

        connect, try_ms = manager.get_connection, FIRST_TRY_MS

        def briefly(node_id: object, timeout_ms: float | None = None, **how: Any) -> Any:
            nonlocal try_ms
            if timeout_ms is not None:
                timeout_ms, try_ms = min(timeout_ms, try_ms), 2 * try_ms
            return connect(node_id, timeout_ms=timeout_ms, **how)

        manager.update_backoff = noted
        manager.get_connection = briefly
        return made

    def done(self) -> None:
        """Stop observing."""
        for made in self._made:
            for name in ("update_backoff", "get_connection"):
                vars(made._manager).pop(name, None)

    def abandon(self) -> None:
        """Close the thread and the sockets that the library leaves behind if it cannot connect."""
        for made in self._made:
            made.close()
            made._manager._net.stop()


def _read_no_tags(_tags: type[TaggedFields], data: Any) -> None:
    """Read the number of tagged fields of a structure that declares none: 0."""
    count = UnsignedVarInt32.decode(data)
    if count:
        raise ValueError(f"{counted(count, 'tagged field')} in an answer that may have none.")


# The library reads this number inside an `assert`. Without it (`python -O`), each field behind it
# would be read from the wrong place, and every answer would be unreadable.
TaggedFields.decode_empty = classmethod(_read_no_tags)


def raise_for_code(error_code: int) -> None:
    """Raise the library's error for an answer's code, unless the code is 0."""
    if error_code:
        error = theirs.for_code(error_code)
        raise error()


def _quiet() -> None:
    """Silence the library's log, unless its level is set. The library logs each retry and each
    exception that it raises as errors, and the exceptions are enough.
    """
    logger = logging.getLogger("kafka")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.CRITICAL)
