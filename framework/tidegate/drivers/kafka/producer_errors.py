"""The reason why a producer failed: the first cause, and not a consequence of it.

librdkafka may report a consequence before its cause. After the broker refused one record, further
records meet a wrong state, and the records in the queues are purged. Threads of other brokers may
report the purged records before the refused record is reported. The cause decides whether a retry
can help: a record that is too large stays too large. So a consequence is only a symptom here, and
the producer looks for the cause before it raises an error.

This class is separate from the producer, because the client refers to its callbacks. Those
references must not keep the producer alive: dropping a producer must free its client at once.
"""

from __future__ import annotations

from typing import Any, Final

from confluent_kafka import KafkaError as Code

from tidegate.errors import RecordTooLargeError, TransactionError

CONSEQUENCES: Final = frozenset({Code._STATE, Code._FATAL, Code._PURGE_QUEUE, Code._PURGE_INFLIGHT})
"""The errors of records whose producer or transaction has already failed."""
REMEDIES: Final = {
    Code.MSG_SIZE_TOO_LARGE: "Raise message.max.bytes of the sink (properties=) and of the topic "
    "(max.message.bytes), or write smaller records.",
    Code.INVALID_TIMESTAMP: "Raise message.timestamp.before.max.ms or "
    "message.timestamp.after.max.ms of the topic, or write the time of the write "
    "(timestamps='send').",
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
    """The failure of one producer: `text` if its cause is known, `symptom` before that."""

    __slots__ = ("auth_error", "symptom", "text", "too_large", "what")

    def __init__(self, what: str) -> None:
        self.what = what
        self.auth_error: Any = None
        self.symptom: tuple[str, Any] | None = None
        """The first consequence that came before its cause: the failed action, and its error."""
        self.text: str | None = None
        self.too_large = False

    def error(self) -> TransactionError | RecordTooLargeError:
        """Return the recorded failure. RecordTooLargeError means that a retry cannot help."""
        text = self.text or f"{self.what} failed"
        kind = RecordTooLargeError if self.too_large else TransactionError
        return kind(text[0].upper() + text[1:])

    def set_text(self, text: str, *, too_large: bool = False) -> None:
        """Set the text, unless it is already set."""
        if self.text is None:
            self.text, self.too_large = text, too_large

    def cause(self, what: str, error: Any) -> None:
        """Record `error` as the cause of a failed action, unless a cause is already known. `what`
        describes the action as a sentence without its reason.
        """
        remedy = REMEDIES.get(error.code(), "")
        too_large = error.code() == Code.MSG_SIZE_TOO_LARGE
        self.set_text(f"{what}: {error.str()}. {remedy}".rstrip(), too_large=too_large)

    def record(self, what: str, error: Any) -> None:
        """Record the error of a failed action: as the cause, or as a symptom if it is a known
        consequence of other errors.
        """
        if error.code() not in CONSEQUENCES:
            self.cause(what, error)
        elif self.symptom is None:
            self.symptom = what, error

    def larger_than_the_queue(self, topic: str, value: bytes | None) -> None:
        """Record that an empty queue refused a record, because the record is larger than the whole
        queue.
        """
        self.set_text(
            f"{self.what} cannot take a record of {_size(value)} bytes for topic {topic}: it is "
            "larger than its whole queue. Raise queue.buffering.max.kbytes of the sink "
            "(properties=), or write smaller records.",
            too_large=True,
        )

    def on_error(self, event: Any) -> None:
        """Handle an error of the client as a whole; librdkafka calls this. librdkafka repairs lost
        connections itself. Fatal errors do not come here: the call that serves the callbacks raises
        them.
        """
        if event.code() == Code._AUTHENTICATION:
            self.auth_error = event

    def on_delivery(self, error: Any, message: Any) -> None:
        """Record a failed delivery. librdkafka calls this only for records that it could not
        deliver.
        """
        if error is not None and self.text is None:
            size = _size(message.value())
            self.record(
                f"{self.what} could not deliver a record of {size} bytes to topic "
                f"{message.topic()}",
                error,
            )


def _size(value: bytes | None) -> int:
    return 0 if value is None else len(value)
