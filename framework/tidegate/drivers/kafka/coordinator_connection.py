"""The connection of control messages: kafka-python's protocol layer, below its public API.

librdkafka can neither describe a transaction nor end one that another process wrote, so requests to
coordinators and brokers are made here and sent as they are. This module connects, finds
coordinators, retries what may succeed later and translates what the library raises; what is asked,
and what an answer means, is its users' matter (`transactions`, `inspection`). From any thread.

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
from kafka.protocol.metadata import CoordinatorType

from tidegate.drivers.kafka.settings import bootstrap_servers, kafka_python
from tidegate.errors import (
    KafkaError,
    KafkaNotAuthorisedError,
    KafkaUnavailableError,
    TidegateError,
)
from tidegate.ids import TransactionalId

T = TypeVar("T")

CONNECT_TIMEOUT_S: Final = 8.0
"""For the first connection: with one retry by the caller still within the 10 s after which a user
is told that no broker answers."""
FIRST_TRY_MS: Final = 1_000
"""For the first broker that is tried, and twice as long for each that follows: the library gives
all of the time to the first, although that may be on a host that is gone, and others answer."""
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
"""The same request may succeed later. All but the first may mean that the coordinator is
elsewhere."""
FOREIGN: Final = (theirs.KafkaError, OSError, RuntimeError, ValueError)
"""All that the library raises when Kafka is at fault (ValueError: a state that it does not
know)."""


class CoordinatorConnection:
    """A connection to one cluster, made at the first call.

    `deadline_s` bounds what `retried` tries, then KafkaUnavailableError. `rights` is the sentence
    that tells a principal without them what to grant. ConfigError for a security setting that
    cannot be applied is raised by the constructor.
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
        """Close the connections for good; calls that are under way, or come later, fail."""
        with self._connecting:
            self._closed = True
            if self._admin is not None:
                self._admin.close()
                self._admin = None

    def client(self) -> Any:
        """The connected client; the first caller connects, others wait for it.

        KafkaUnavailableError after `close`: a thread that comes late would leave a client that
        nobody closes.
        """
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
                reconnect_backoff_max_ms=RECONNECT_BACKOFF_MAX_MS,
                bootstrap_timeout_ms=int(CONNECT_TIMEOUT_S * 1000),
                kafka_client=attempt.client,
            )
        except FOREIGN as error:
            attempt.abandon()
            if isinstance(error, theirs.KafkaTimeoutError):
                raise KafkaUnavailableError(
                    f"No Kafka broker of {self.servers} answered within {CONNECT_TIMEOUT_S:.0f} s "
                    f"(last attempt: {attempt.failure}). Check that the brokers run, that "
                    "kafka.bootstrap names them, and that security.protocol and credentials in "
                    "kafka.properties are theirs."
                ) from None
            raise self.translated("connect", error) from None
        finally:
            attempt.done()

    def ask(self, transactional_id: TransactionalId, request: Any) -> Any:
        """Send one request to the coordinator of an id."""
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

    def retried(
        self, what: str, once: Callable[[], T], transactional_id: TransactionalId | None
    ) -> T:
        """What `once` returns, tried again while its error may pass.

        `what` completes "could not ..."; the id's coordinator is looked up again where the error
        may mean that it moved.
        """
        end = time.monotonic() + self._deadline_s
        pause, longest = RETRY_PAUSE_S
        while True:
            try:
                return once()
            except RETRY as error:
                self.forget(transactional_id, error)
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
            except FOREIGN as error:
                raise self.translated(what, error) from None

    def forget(self, transactional_id: TransactionalId | None, error: Exception) -> None:
        """Drop what the error says of the connections, and the cached coordinator of the id, unless
        the answer shows that it is the right one.
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
            # The library leaves the socket of each failed connection in a cycle. A slot collects so
            # rarely that an outage could use up its file descriptors.
            gc.collect(1)

    def translated(self, what: str, error: Exception) -> TidegateError:
        """An error of the library as one of ours; `what` completes "could not ..."."""
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
    """Have the library learn of the brokers anew: one that came back while it was connected stays
    unknown to it for five minutes, whoever else names it.
    """
    manager.cluster.request_update()


async def _close_silent(manager: Any) -> None:
    """Close the connections that wait for nothing and have had no answer for as long as the request
    that timed out: the next would wait as long on each if a firewall or a host has forgotten them.
    """
    heard_before = time.monotonic() - REQUEST_TIMEOUT_MS / 1000
    for connection in list(manager._conns.values()):
        idle = connection.connected and not connection.in_flight_requests
        if idle and connection.transport.last_read < heard_before:
            connection.close()


class _FirstConnection:
    """Listens to the library's first connection, of which it only logs why it failed.

    Refused credentials end it at once: without this they are tried until the timeout. A broker that
    says nothing leaves time for the others.
    """

    def __init__(self) -> None:
        self.failure: BaseException | None = None
        self._made: list[Any] = []

    def client(self, **settings: Any) -> Any:
        """Make what the library would make, without metrics that nobody reads (an eighth of what a
        request costs), and listen to its failures.
        """
        made = KafkaNetClient(**{**settings, "metrics": None})
        self._made.append(made)
        manager = made._manager
        back_off = manager.update_backoff

        def noted(node_id: object) -> object:
            self.failure = sys.exc_info()[1] or self.failure  # called while it is handled
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
        """Listen no more."""
        for made in self._made:
            for name in ("update_backoff", "get_connection"):
                vars(made._manager).pop(name, None)

    def abandon(self) -> None:
        """Close what the library leaves behind when it cannot connect: a thread, sockets."""
        for made in self._made:
            made.close()
            made._manager._net.stop()


def raise_for(error_code: int) -> None:
    """Raise the library's error of an answer's code, if it is one."""
    if error_code:
        error = theirs.for_code(error_code)
        raise error()


def _quiet() -> None:
    """The library logs what it raises, and each retry, as errors; what it raises is enough."""
    logger = logging.getLogger("kafka")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.CRITICAL)
