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
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import Any, Final, NoReturn

from confluent_kafka import KafkaError as Code
from confluent_kafka import KafkaException
from confluent_kafka import Producer as Client

from tidegate.drivers.kafka.settings import CLIENT_LOG, bootstrap_servers, librdkafka
from tidegate.errors import (
    KafkaError,
    KafkaNotAuthorisedError,
    KafkaUnavailableError,
    RecordTooLargeError,
    RefusedError,
    TidegateError,
    TransactionError,
)
from tidegate.ids import TransactionalId

INITIALISE_TIMEOUT_S: Final = 60.0
"""For the transactional id's first coordinator answer: 0.06 or 0.5 s; 10 to 14 s over a failover.
"""
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
MS_PER_S: Final = 1000

SETTINGS: Final[dict[str, object]] = {
    "enable.idempotence": True,
    "acks": "all",
    "delivery.report.only.error": True,
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

_DENIED: Final = frozenset(
    {
        Code.TOPIC_AUTHORIZATION_FAILED,
        Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        Code.CLUSTER_AUTHORIZATION_FAILED,
        Code._AUTHENTICATION,
    }
)
_REMEDIES: Final = {
    Code.MSG_SIZE_TOO_LARGE: "Raise message.max.bytes of the sink (kafka=) and of the topic "
    "(max.message.bytes), or write smaller records.",
    Code.UNKNOWN_TOPIC_OR_PART: "Create the topic again.",
    Code._UNKNOWN_TOPIC: "Create the topic again.",
    Code._UNKNOWN_PARTITION: "Create the topic with all of its partitions.",
    Code.TOPIC_AUTHORIZATION_FAILED: "Grant the job's principal WRITE on the topic.",
    Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Grant the job's principal WRITE on transactional "
    "ids with the prefix tidegate.",
    Code.INVALID_TRANSACTION_TIMEOUT: "Raise the broker's transaction.max.timeout.ms, or lower "
    "checkpoint.timeout, checkpoint.tolerable_failures or checkpoint.tolerated_outage.",
    Code._AUTHENTICATION: "Correct the credentials in kafka.properties.",
    Code._FENCED: "Another producer took the transactional id: a newer attempt of the job runs, or "
    "something else uses ids with the prefix tidegate.",
    Code._MSG_TIMED_OUT: "The leader of the partition did not take the record in time: check the "
    "brokers.",
}


class KafkaProducer:
    """A producer with its transactional id initialised, or an idempotent one without.

    The constructor blocks (0.06 or 0.5 s with a transactional id) and raises KafkaUnavailableError,
    KafkaNotAuthorisedError or KafkaError.
    """

    __slots__ = ("__weakref__", "_client", "_failure", "_poll", "_produce", "_servers", "_what")

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
        failures = _Failures(self._what)
        self._failure = failures
        ours = {
            **SETTINGS,
            "on_delivery": failures.delivered,
            "error_cb": failures.happened,
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
            self._initialise()

    def begin(self) -> None:
        """Begin the transaction (transactional producers only)."""
        self._failure.check()
        try:
            self._client.begin_transaction()
        except Exception as error:  # noqa: BLE001  # whatever it is, the transaction is lost
            self._fail("begin a transaction", error)

    def send(
        self,
        topic: str,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None,
    ) -> None:
        """Hand over a batch, in order, serving the queue while it is full.

        TransactionError for anything that fails, now or since the last call.
        """
        self._failure.check()
        produce = self._produce
        try:
            for value, key in zip(values, repeat(None) if keys is None else keys, strict=False):
                try:
                    produce(topic, value, key)
                except BufferError:
                    self._when_there_is_room(topic, value, key, (), 0)
            self._poll(0)
        except Exception as error:  # noqa: BLE001  # as in begin
            self._fail(f"write to topic {topic}", error)
        self._failure.check()

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
        self._failure.check()
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
            self._failure.check()
            try:
                left = self._client.flush(FLUSH_SLICE_S)
            except Exception as error:  # noqa: BLE001  # as in begin
                self._fail("flush", error)
        self._failure.check()
        if left:
            self._failure.text = (
                f"{left} records of {self._what} were not acknowledged by {self._servers} within "
                f"{timeout_s:.0f} s. Check that the leaders of the sink's partitions run and that "
                "enough replicas are in sync."
            )
            self._failure.check()

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
            self._poll(0)  # refused credentials are told to the callback only
            if self._failure.denied is not None:
                raise self._not_initialised(self._failure.denied)

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
            f"{_REMEDIES.get(code, 'Check that the brokers run and are reachable.')}"
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
            self._failure.check()
            empty = not len(self._client)
            try:
                self._send_whole(topic, value, key, headers, timestamp_ms)
                return
            except BufferError:
                if empty:
                    self._failure.larger_than_the_queue(topic, value)
                    self._failure.check()

    def _fail(self, what: str, error: Exception) -> NoReturn:
        """Note the first failure, and raise what is noted."""
        if self._failure.text is None:
            cause = error.args[0] if isinstance(error, KafkaException) else None
            said = f"{type(error).__name__}: {error}" if cause is None else cause.str()
            remedy = "" if cause is None else _REMEDIES.get(cause.code(), "")
            self._failure.too_large = cause is not None and cause.code() == Code.MSG_SIZE_TOO_LARGE
            self._failure.text = f"{self._what} could not {what}: {said}. {remedy}".rstrip()
        raise self._failure.error()


class _Failures:
    """The first failure of a producer. Apart from it, so that the client's reference to the
    callback does not keep the producer alive: dropping it must free the client at once.
    """

    __slots__ = ("denied", "text", "too_large", "what")

    def __init__(self, what: str) -> None:
        self.what = what
        self.denied: Any = None
        self.text: str | None = None
        self.too_large = False

    def check(self) -> None:
        """Raise what was noted, if anything was."""
        if self.text is not None:
            raise self.error()

    def error(self) -> TransactionError | RecordTooLargeError:
        """What was noted; of a record that is too large it is no use to try again."""
        text = self.text or f"{self.what} failed"
        kind = RecordTooLargeError if self.too_large else TransactionError
        return kind(text[0].upper() + text[1:])

    def happened(self, event: Any) -> None:
        """Called by librdkafka for errors of the client as a whole; it mends lost connections."""
        if event.code() == Code._AUTHENTICATION:
            self.denied = event

    def larger_than_the_queue(self, topic: str, value: bytes | None) -> None:
        """A record was refused by an empty queue."""
        self.too_large = True
        self.text = (
            f"{self.what} cannot take a record of {_size(value)} bytes for topic {topic}: it is "
            "larger than its whole queue. Raise queue.buffering.max.kbytes of the sink (kafka=), "
            "or write smaller records."
        )

    def delivered(self, error: Any, message: Any) -> None:
        """Called by librdkafka for records that were not delivered, and only for those."""
        if error is None or self.text is not None:
            return
        self.too_large = error.code() == Code.MSG_SIZE_TOO_LARGE
        self.text = (
            f"{self.what} could not deliver a record of {_size(message.value())} bytes to "
            f"topic {message.topic()}: {error.str()}. {_REMEDIES.get(error.code(), '')}"
        ).rstrip()


def _size(value: bytes | None) -> int:
    return 0 if value is None else len(value)
