"""Why a producer failed: the first cause, and not what followed from it.

librdkafka may tell a consequence before its cause: once one record was refused, what is handed over
meets a wrong state, and what waits in its queues is purged, by threads of other brokers maybe
sooner than the refused record is reported. The cause decides whether trying again is of any use (a
record that is too large stays so), so a consequence is only a symptom here, which the producer has
explained before it raises anything.

Apart from the producer, so that the client's references to these callbacks do not keep it alive:
dropping a producer must free its client at once.
"""

from __future__ import annotations

from typing import Any, Final

from confluent_kafka import KafkaError as Code

from tidegate.errors import RecordTooLargeError, TransactionError

CONSEQUENCES: Final = frozenset({Code._STATE, Code._FATAL, Code._PURGE_QUEUE, Code._PURGE_INFLIGHT})
"""What librdkafka says of records of a producer or transaction that has failed already."""
REMEDIES: Final = {
    Code.MSG_SIZE_TOO_LARGE: "Raise message.max.bytes of the sink (kafka=) and of the topic "
    "(max.message.bytes), or write smaller records.",
    Code.UNKNOWN_TOPIC_OR_PART: "Create the topic again.",
    Code._UNKNOWN_TOPIC: "Create the topic again.",
    Code._UNKNOWN_PARTITION: "Create the topic with all of its partitions.",
    Code.TOPIC_AUTHORIZATION_FAILED: "Grant the job's principal WRITE on the topic.",
    Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Grant the job's principal WRITE on transactional "
    "ids with the prefix tidegate.",
    Code.INVALID_TRANSACTION_TIMEOUT: "Raise the broker's transaction.max.timeout.ms, or lower "
    "checkpoint.timeout, checkpoint.tolerable_failed_checkpoints or checkpoint.tolerated_outage.",
    Code._AUTHENTICATION: "Correct the credentials in kafka.properties.",
    Code._FENCED: "Another producer took the transactional id: a newer attempt of the job runs, or "
    "something else uses ids with the prefix tidegate.",
    Code._MSG_TIMED_OUT: "The leader of the partition did not take the record in time: check the "
    "brokers.",
}


class ProducerErrors:
    """What became of one producer: `text` once its failure has a cause, `symptom` before that."""

    __slots__ = ("auth_error", "symptom", "text", "too_large", "what")

    def __init__(self, what: str) -> None:
        self.what = what
        self.auth_error: Any = None
        self.symptom: tuple[str, Any] | None = None
        """What could not be done, and why: the first consequence that came before its cause."""
        self.text: str | None = None
        self.too_large = False

    def error(self) -> TransactionError | RecordTooLargeError:
        """What was noted; of a record that is too large it is no use to try again."""
        text = self.text or f"{self.what} failed"
        kind = RecordTooLargeError if self.too_large else TransactionError
        return kind(text[0].upper() + text[1:])

    def set_text(self, text: str, *, too_large: bool = False) -> None:
        """Keep a text, unless there is one."""
        if self.text is None:
            self.text, self.too_large = text, too_large

    def cause(self, what: str, error: Any) -> None:
        """Something could not be done, and this is why, unless a cause is known."""
        remedy = REMEDIES.get(error.code(), "")
        too_large = error.code() == Code.MSG_SIZE_TOO_LARGE
        self.set_text(f"{what}: {error.str()}. {remedy}".rstrip(), too_large=too_large)

    def record(self, what: str, error: Any) -> None:
        """Something could not be done, and this is why, or what followed from why."""
        if error.code() not in CONSEQUENCES:
            self.cause(what, error)
        elif self.symptom is None:
            self.symptom = what, error

    def larger_than_the_queue(self, topic: str, value: bytes | None) -> None:
        """A record was refused by an empty queue."""
        self.set_text(
            f"{self.what} cannot take a record of {_size(value)} bytes for topic {topic}: it is "
            "larger than its whole queue. Raise queue.buffering.max.kbytes of the sink (kafka=), "
            "or write smaller records.",
            too_large=True,
        )

    def on_error(self, event: Any) -> None:
        """Called by librdkafka for errors of the client as a whole. It mends lost connections;
        those that are for good are not told here, but raised by what serves the callbacks.
        """
        if event.code() == Code._AUTHENTICATION:
            self.auth_error = event

    def delivered(self, error: Any, message: Any) -> None:
        """Called by librdkafka for records that were not delivered, and only for those."""
        if error is not None and self.text is None:
            size = _size(message.value())
            self.record(
                f"{self.what} could not deliver a record of {size} bytes to topic "
                f"{message.topic()}",
                error,
            )


def _size(value: bytes | None) -> int:
    return 0 if value is None else len(value)
