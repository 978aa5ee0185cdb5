"""One librdkafka producer, for one transaction or for none: `Producer` of `ports/kafka.py`.

Called by the sinks: made and flushed in I/O threads, sent to by the mailbox thread, never by two
threads at once.

What makes it exact is what it does not have. There is no `close` and it is no context manager: both
abort the transaction in librdkafka's binding, and a prepared one must outlive its producer.
Dropping the last reference leaves the transaction Ongoing. There is no commit either: only the
transaction committer ends what a publication names.

After a fatal error librdkafka's flush raises once and then reports success for ever; and one record
that was refused leaves a transaction that the broker would still commit. So a producer that has
seen any exception or any failed delivery has failed for good, and every further call says so.

What it says is the cause (`producer_errors.py`), and it waits for that where librdkafka told a
consequence first: whether trying again is of any use hangs on it.
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
from tidegate.errors import (
    KafkaError,
    KafkaNotAuthorisedError,
    KafkaUnavailableError,
    RefusedError,
    TidegateError,
)
from tidegate.ids import TransactionalId

INITIALISE_TIMEOUT_S: Final = 60.0
"""For the transactional id's first coordinator answer: 0.06 s; 10 to 14 s over a failover."""
CONNECT_TIMEOUT_S: Final = 0.5
"""For the first connection to a broker. A producer that is initialised without one waits as long
before it asks for its coordinator: 14 of 40 took 0.5 s to initialise, and with this none of 20."""
NO_TOPIC: Final = "?"
"""A name that no topic can have: to ask for it creates none."""
INITIALISE_SLICE_S: Final = 2.0
"""After so long without an answer it is asked for again, and looked at why there was none."""
PLAIN_MESSAGE_TIMEOUT_MS: Final = 300_000
"""For records outside transactions, librdkafka's own default; in one it is the transaction's
timeout.
"""
FLUSH_SLICE_S: Final = 0.1
"""After a failed delivery a flush would wait for the other records until their timeout, 11 minutes
by default, although the transaction is lost: so it looks for failures in between.
"""
ROOM_PAUSE_S: Final = 0.005
"""Between tries while the queue is full: successful deliveries wake nobody, so this is the wait."""
CAUSE_WAIT_S: Final = 1.0
"""For the report of the record that made the transaction fail, after a consequence was told. It is
microseconds behind, or on its way from another broker's thread.
"""
CAUSE_SLICE_S: Final = 0.05

SETTINGS: Final[dict[str, object]] = {
    "enable.idempotence": True,
    "acks": "all",
    "delivery.report.only.error": True,
    # No second request before the first is answered. A leader takes any first sequence number of a
    # producer that it does not know (KAFKA-15591), so the second would be taken while the first is
    # refused; and librdkafka counts all before an acknowledged record as written.
    "max.in.flight.requests.per.connection": 1,
}
DEFAULTS: Final[dict[str, str]] = {
    "linger.ms": "5",
    "batch.size": "1000000",
    # The queue is short on purpose: what it holds must be flushed at the barrier.
    "queue.buffering.max.messages": "100000",
    "queue.buffering.max.kbytes": "65536",
    # As the Java producer partitions, so that topics of both are partitioned alike.
    "partitioner": "murmur2_random",
    "reconnect.backoff.max.ms": "1000",
}
"""What a user may override, unlike SETTINGS."""

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
    """A producer with its transactional id initialised, or an idempotent one without.

    The constructor blocks (0.06 s with a transactional id, longer if the brokers are slow to
    connect) and raises KafkaUnavailableError, KafkaNotAuthorisedError or KafkaError.
    """

    __slots__ = (
        "__weakref__",
        "_begun",
        "_client",
        "_failure",
        "_poll",
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
        failures = ProducerErrors(self._what)
        self._failure = failures
        ours = {
            **SETTINGS,
            "on_delivery": failures.delivered,
            "error_cb": failures.on_error,
            "logger": CLIENT_LOG,
        }
        if transactional_id is None:
            ours["message.timeout.ms"] = PLAIN_MESSAGE_TIMEOUT_MS
        else:
            ours["transactional.id"] = transactional_id
            ours["transaction.timeout.ms"] = transaction_timeout_ms
            ours["message.timeout.ms"] = transaction_timeout_ms
        try:
            self._client = Client(librdkafka({**DEFAULTS, **settings}, ours))
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
        """Begin the transaction (transactional producers only)."""
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
        """Hand over a batch, in order, serving the queue while it is full.

        TransactionError for anything that fails, now or since the last call.
        """
        self._check()
        produce = self._produce
        try:
            own = repeat(None, len(values)) if keys is None else keys
            for value, key in zip(values, own, strict=True):
                # Inside of the loop, to go on with this very record: to enter it costs nothing, as
                # since Python 3.11 only what is raised is looked up in the table of handlers.
                try:
                    produce(topic, value, key)
                except BufferError:
                    self._when_there_is_room(topic, value, key, (), 0)
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
        """Hand over one record with headers or a timestamp (None: the time of sending).

        Failed deliveries are noticed by `flush` or `send`.
        """
        self._check()
        try:
            try:
                self._send_whole(topic, value, key, headers, timestamp_ms or 0)
            except BufferError:
                self._when_there_is_room(topic, value, key, headers, timestamp_ms or 0)
        except Exception as error:  # noqa: BLE001  # as in begin
            self._fail(f"write to topic {topic}", error)

    def flush(self, timeout_s: float) -> None:
        """Return when everything is acknowledged; TransactionError if it is not, or anything
        failed.

        Not to be called while another thread sends: it would wait for that, too.
        """
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
                f"{left} records of {self._what} were not acknowledged by {self._servers} within "
                f"{timeout_s:.0f} s. Check that the leaders of the sink's partitions run and that "
                "enough replicas are in sync."
            )
            self._check()

    def _connect(self) -> None:
        """Return when a broker is connected, or when it is too late to be of use."""
        try:
            self._client.list_topics(NO_TOPIC, CONNECT_TIMEOUT_S)
        except KafkaException as error:
            # Whatever keeps the brokers away, `_initialise` meets it too, and says what it is.
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
                self._poll(0)  # refused credentials are told to the callback only
            except KafkaException as error:
                raise self._not_initialised(error.args[0]) from None
            if self._failure.auth_error is not None:
                raise self._not_initialised(self._failure.auth_error)

    def _not_initialised(self, cause: Any) -> TidegateError:
        code = cause.code()
        if code in _DENIED:
            kind: type[TidegateError] = KafkaNotAuthorisedError
        elif code == Code.INVALID_TRANSACTION_TIMEOUT:
            kind = RefusedError  # found at submit, where the brokers' maximum may be read
        elif cause.retriable():
            kind = KafkaUnavailableError
        else:
            kind = KafkaError
        return kind(
            f"Kafka at {self._servers} did not initialise {self._what}: {cause.str()}. "
            f"{REMEDIES.get(code, 'Check that the brokers run and are reachable.')}"
        )

    def _send_whole(
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

    def _when_there_is_room(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
        timestamp_ms: int,
    ) -> None:
        """The same record until it is taken: order and completeness allow nothing else.

        Bounded by the message timeout: records in the queue then fail, and so does this. With
        nothing in the queue no room will come: the record is larger than all of it.
        """
        while True:
            self._poll(ROOM_PAUSE_S)
            self._check()
            empty = not len(self._client)
            try:
                self._send_whole(topic, value, key, headers, timestamp_ms)
                return
            except BufferError:
                if empty:
                    self._failure.larger_than_the_queue(topic, value)
                    self._check()

    def _check(self) -> None:
        """Raise the failure, if there was one."""
        if self._failure.text is not None or self._failure.symptom is not None:
            self._raise()

    def _fail(self, what: str, error: Exception) -> NoReturn:
        """Note the first failure, and raise what is noted."""
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
        """Wait while records are unreported; else ask what the transaction failed of.

        librdkafka tells that in answer to any transactional call, and to begin again is the one
        that changes nothing on the broker, nor here while the transaction is open. What made the
        client fail as a whole (a fence, say) is told to no callback, but raised when it is served.
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
