"""One librdkafka producer, for one transaction or for none: `Producer` of `ports/kafka.py`.

The sinks call it. I/O threads make and flush a producer, the mailbox thread sends records, and
never two threads call it at once.

Exactly-once depends on methods that this class does not have. It has no `close` and is not a
context manager, because both abort the transaction in librdkafka's binding. A prepared transaction
must outlive its producer: dropping the last reference leaves the transaction Ongoing. The class
also has no commit: only the transaction committer ends the transactions that a publication lists.

After a fatal error, librdkafka's flush raises once and then reports success forever. A refused
record leaves a transaction that the broker would still commit. So after any exception or any failed
delivery, a producer has failed permanently, and every further call raises the error.

The error has the first cause (`producer_errors.py`). If librdkafka reports a consequence first, the
producer waits for the cause, because the cause decides whether a retry can help.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import Any, Final, NoReturn

from confluent_kafka import KafkaError as Code
from confluent_kafka import KafkaException
from confluent_kafka import Producer as Client

from tidegate.drivers.kafka.producer_errors import REMEDIES, ProducerErrors
from tidegate.drivers.kafka.settings import CLIENT_LOG, bootstrap_servers, librdkafka
from tidegate.drivers.process.user_forks import end_if_forked
from tidegate.errors import (
    KafkaError,
    KafkaNotAuthorisedError,
    KafkaUnavailableError,
    RefusedError,
    TidegateError,
)
from tidegate.ids import TransactionalId
from tidegate.message_text import counted

INITIALISE_TIMEOUT_S: Final = 60.0
"""The maximum time to initialise the transactional id at its coordinator, in seconds. It takes
0.06 s, and 10 to 14 s during a failover.
"""
POLL_INTERVAL_S: Final = 0.02
"""The minimum time between two polls for failed deliveries while records are sent, in seconds. A
poll gives the interpreter's lock away. One after each batch was a twentieth of the cost of a
shuffle.
"""
CONNECT_TIMEOUT_S: Final = 0.5
"""The maximum time to wait for the first connection to a broker, in seconds. A producer that is
initialised without a connection waits as long before it looks for its coordinator. Without this
wait, 14 of 40 producers took 0.5 s to initialise; with it, 0 of 20 did.
"""
NO_TOPIC: Final = "?"
"""A name that no topic can have, so a request for it creates no topic."""
INITIALISE_SLICE_S: Final = 2.0
"""The time without an answer after which the request is repeated, in seconds. Before that, the
producer checks whether its credentials were refused.
"""
PLAIN_MESSAGE_TIMEOUT_MS: Final = 300_000
"""The message timeout of records outside transactions, in milliseconds: librdkafka's own default.
In a transaction, it is the transaction's timeout.
"""
FLUSH_SLICE_S: Final = 0.1
"""The time in seconds after which a flush checks for failures. After a failed delivery the
transaction is lost, but a flush would wait for the other records until their timeout, 11 minutes by
default.
"""
ROOM_PAUSE_S: Final = 0.005
"""The pause in seconds between tries while the queue is full. Successful deliveries wake no thread,
so the producer polls.
"""
CAUSE_WAIT_S: Final = 1.0
"""The maximum time in seconds to wait for the report of the record that made the transaction fail,
after a consequence was reported. The report follows after microseconds, or comes from the thread of
another broker.
"""
CAUSE_SLICE_S: Final = 0.05

SETTINGS: Final[dict[str, object]] = {
    "enable.idempotence": True,
    "acks": "all",
    "delivery.report.only.error": True,
    # No second request before the first is answered. A leader accepts any first sequence number of
    # a producer that it does not know (KAFKA-15591), so it could accept the second request although
    # it refused the first. librdkafka then counts all records before an acknowledged one as written
    "max.in.flight.requests.per.connection": 1,
}
DEFAULTS: Final[dict[str, str]] = {
    "linger.ms": "5",
    "batch.size": "1000000",
    # The queue is short on purpose: its records must be flushed at the barrier.
    "queue.buffering.max.messages": "100000",
    "queue.buffering.max.kbytes": "65536",
    # The Java producer's partitioner, so that both assign the same partition to a key.
    "partitioner": "murmur2_random",
    "reconnect.backoff.max.ms": "1000",
}
"""The settings that a user may override, unlike SETTINGS."""
TRANSACTIONAL_DEFAULTS: Final[dict[str, str]] = {
    **DEFAULTS,
    # Readers with read_committed see the records only after the commit, and `flush` ends the wait.
    # So the wait makes no record visible later, and larger batches cost the broker less.
    "linger.ms": "25",
}

_log = logging.getLogger(__name__)

_DENIED: Final = frozenset(
    {
        Code.TOPIC_AUTHORIZATION_FAILED,
        Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        Code.CLUSTER_AUTHORIZATION_FAILED,
        Code._AUTHENTICATION,
    }
)


class KafkaProducer:
    """A producer with an initialised transactional id, or an idempotent producer without one.

    The constructor blocks (0.06 s with a transactional id, longer if the brokers are slow to
    connect) and raises KafkaUnavailableError, KafkaNotAuthorisedError or KafkaError.
    """

    __slots__ = (
        "__weakref__",
        "_begun",
        "_client",
        "_failure",
        "_poll",
        "_poll_at_s",
        "_produce",
        "_servers",
        "_what",
    )

    def __init__(
        self,
        settings: Mapping[str, str],
        transactional_id: TransactionalId | None,
        transaction_timeout_ms: int,
    ) -> None:
        self._servers = bootstrap_servers(settings)
        self._what = (
            "a producer" if transactional_id is None else f"the producer of {transactional_id}"
        )
        self._begun = False
        self._poll_at_s = 0.0
        failures = ProducerErrors(self._what)
        self._failure = failures
        ours = {
            **SETTINGS,
            "on_delivery": failures.on_delivery,
            "error_cb": failures.on_error,
            "logger": CLIENT_LOG,
        }
        defaults = DEFAULTS if transactional_id is None else TRANSACTIONAL_DEFAULTS
        if transactional_id is None:
            ours["message.timeout.ms"] = PLAIN_MESSAGE_TIMEOUT_MS
        else:
            ours["transactional.id"] = transactional_id
            ours["transaction.timeout.ms"] = transaction_timeout_ms
            ours["message.timeout.ms"] = transaction_timeout_ms
        try:
            self._client = Client(librdkafka({**defaults, **settings}, ours))
        except KafkaException as error:
            raise KafkaError(
                f"A Kafka producer cannot be made: {error.args[0].str()}. Check kafka.properties "
                "and the sink's own settings."
            ) from None
        self._produce, self._poll = self._client.produce, self._client.poll
        if transactional_id is not None:
            self._connect()
            self._initialise()

    def begin(self) -> None:
        """Begin the transaction (transactional producers only). TransactionError if that fails."""
        end_if_forked()
        self._check()
        try:
            self._client.begin_transaction()
        except Exception as error:  # noqa: BLE001  # whatever it is, the transaction is lost
            self._fail("begin a transaction", error)
        self._begun = True

    def send(
        self,
        topic: str,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None,
    ) -> None:
        """Pass a batch of records to the client, in order. While the queue is full, wait and serve
        its callbacks.

        TransactionError for any failure in this call, and for an earlier one that the client has
        reported. The client is asked at most every `POLL_INTERVAL_S`, and by `flush`.
        RecordTooLargeError if the cause is a record that is too large.
        """
        end_if_forked()
        self._check()
        produce = self._produce
        try:
            own = repeat(None, len(values)) if keys is None else keys
            for value, key in zip(values, own, strict=True):
                # The `try` is inside the loop, to continue with the same record. To enter it costs
                # nothing: since Python 3.11, only a raised exception searches the handler table.
                try:
                    produce(topic, value, key)
                except BufferError:
                    self._produce_when_queue_has_space(topic, value, key, (), 0)
            now_s = time.monotonic()
            if now_s >= self._poll_at_s:
                self._poll_at_s = now_s + POLL_INTERVAL_S
                self._poll(0)
        except Exception as error:  # noqa: BLE001  # as in begin
            self._fail(f"write to topic {topic}", error)
        self._check()

    def send_one(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
        timestamp_ms: int | None,
    ) -> None:
        """Pass one record with headers or a timestamp (None: the time of sending) to the client.

        A later call raises the error of a failed delivery, and ends a fork (`user_forks`): this one
        is called for each record.
        """
        self._check()
        try:
            try:
                self._produce_with_headers(topic, value, key, headers, timestamp_ms or 0)
            except BufferError:
                self._produce_when_queue_has_space(topic, value, key, headers, timestamp_ms or 0)
        except Exception as error:  # noqa: BLE001  # as in begin
            self._fail(f"write to topic {topic}", error)

    def flush(self, timeout_s: float) -> None:
        """Return when all records are acknowledged. TransactionError if they are not acknowledged
        within `timeout_s` seconds or anything failed.

        No other thread may send meanwhile: `flush` would wait for its records too.
        """
        end_if_forked()
        end = time.monotonic() + timeout_s
        left = 1
        while left and time.monotonic() < end:
            self._check()
            try:
                left = self._client.flush(FLUSH_SLICE_S)
            except Exception as error:  # noqa: BLE001  # as in begin
                self._fail("flush", error)
        self._check()
        if left:
            self._failure.set_text(
                f"{self._servers} did not acknowledge {counted(left, 'record')} of {self._what} "
                f"within {timeout_s:.0f} s. Check that the leaders of the sink's partitions run "
                "and that enough replicas are in sync."
            )
            self._check()

    def _connect(self) -> None:
        """Return when a broker is connected, or after `CONNECT_TIMEOUT_S`."""
        try:
            self._client.list_topics(NO_TOPIC, CONNECT_TIMEOUT_S)
        except KafkaException as error:
            # Whatever the reason is, `_initialise` will meet it too and report it.
            _log.debug("no broker is connected yet", extra={"error": str(error)})

    def _initialise(self) -> None:
        end = time.monotonic() + INITIALISE_TIMEOUT_S
        while True:
            try:
                self._client.init_transactions(INITIALISE_SLICE_S)
                return
            except KafkaException as error:
                cause = error.args[0]
            if not cause.retriable() or time.monotonic() >= end:
                raise self._not_initialised(cause)
            try:
                self._poll(0)  # refused credentials are reported only to the callback
            except KafkaException as error:
                raise self._not_initialised(error.args[0]) from None
            if self._failure.auth_error is not None:
                raise self._not_initialised(self._failure.auth_error)

    def _not_initialised(self, cause: Any) -> TidegateError:
        code = cause.code()
        if code in _DENIED:
            kind: type[TidegateError] = KafkaNotAuthorisedError
        elif code == Code.INVALID_TRANSACTION_TIMEOUT:
            kind = RefusedError  # the submit check finds this if it may read the brokers' maximum
        elif cause.retriable():
            kind = KafkaUnavailableError
        else:
            kind = KafkaError
        return kind(
            f"Kafka at {self._servers} did not initialise {self._what}: {cause.str()}. "
            f"{REMEDIES.get(code, 'Check that the brokers run and are reachable.')}"
        )

    def _produce_with_headers(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
        timestamp_ms: int,
    ) -> None:
        if headers:
            self._produce(topic, value, key, timestamp=timestamp_ms, headers=list[Any](headers))
        else:
            self._produce(topic, value, key, timestamp=timestamp_ms)

    def _produce_when_queue_has_space(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
        timestamp_ms: int,
    ) -> None:
        """Try the same record until the queue accepts it, because no record may be reordered or
        dropped.

        The message timeout bounds the wait: records in the queue then fail, and so does this call.
        If an empty queue refuses the record, the record is larger than the whole queue.
        """
        while True:
            self._poll(ROOM_PAUSE_S)
            end_if_forked()
            self._check()
            empty = not len(self._client)
            try:
                self._produce_with_headers(topic, value, key, headers, timestamp_ms)
                return
            except BufferError:
                if empty:
                    self._failure.larger_than_the_queue(topic, value)
                    self._check()

    def _check(self) -> None:
        """Raise the failure, if one was recorded."""
        if self._failure.text is not None or self._failure.symptom is not None:
            self._raise()

    def _fail(self, what: str, error: Exception) -> NoReturn:
        """Record a failure, unless one is recorded, and raise the recorded one."""
        self._note(f"{self._what} could not {what}", error)
        self._raise()

    def _note(self, what: str, error: Exception) -> None:
        if isinstance(error, KafkaException):
            self._failure.record(what, error.args[0])
        else:
            self._failure.set_text(f"{what}: {type(error).__name__}: {error}.")

    def _raise(self) -> NoReturn:
        symptom = self._failure.symptom
        if self._failure.text is None and symptom is not None:
            self._find_cause(*symptom)
        raise self._failure.error()

    def _find_cause(self, what: str, error: Any) -> None:
        """Find the cause of a failure of which only a consequence is known. Wait while deliveries
        are unreported; after that, ask the client why the transaction failed.

        librdkafka answers any transactional call with that reason. `begin_transaction` is the call
        that changes nothing, neither on the broker nor in a client with an open transaction. An
        error that made the client fail as a whole (a fence, for example) is not passed to a
        callback; the call that serves the callbacks raises it. If no cause is found, record the
        consequence as the cause.
        """
        failure = self._failure
        end = time.monotonic() + CAUSE_WAIT_S
        try:
            while failure.text is None and len(self._client) and time.monotonic() < end:
                self._poll(CAUSE_SLICE_S)
            if failure.text is None and self._begun:
                self._client.begin_transaction()
        except Exception as told:  # noqa: BLE001  # as in begin
            self._note(what, told)
        failure.cause(what, error)
