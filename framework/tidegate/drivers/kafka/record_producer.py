"""A producer for records by hand (`tidegate kafka produce`), which reports each failed delivery
with the line that the record came from.

It is not the producer of sinks (`producer.py`): it has no transactions, and it takes a partition.
It has the same limit of a record's size, that of the topic. It stops at the first failure, so that
the records after a refused one are not written.

Invariant: after `finish` has returned, Kafka has acknowledged every record that was sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from confluent_kafka import KafkaError as Code
from confluent_kafka import KafkaException, Message
from confluent_kafka import Producer as Client

from tidegate.dataplane.sizes import record_bytes, size_settings
from tidegate.drivers.kafka.producer_errors import REMEDIES
from tidegate.drivers.kafka.settings import CLIENT_LOG, bootstrap_servers, librdkafka
from tidegate.errors import ConfigError, KafkaError
from tidegate.message_text import counted

ROOM_PAUSE_S: Final = 0.05
"""The pause in seconds between tries while the queue of the client is full."""
FINISH_SLICE_S: Final = 0.2
"""The time in seconds after which `finish` checks for a failure."""
ANY_PARTITION: Final = -1
"""The partition with which librdkafka chooses one by the key."""

LARGER_THAN_THE_QUEUE: Final = (
    "it is larger than the whole queue of the client. Raise queue.buffering.max.kbytes in "
    "kafka.properties."
)
SETTINGS: Final[dict[str, object]] = {"enable.idempotence": True, "acks": "all"}
DEFAULTS: Final[dict[str, str]] = {
    "linger.ms": "5",
    # The Java producer's partitioner, so that both assign the same partition to a key.
    "partitioner": "murmur2_random",
    # A person waits for the command. The default of librdkafka is five minutes.
    "message.timeout.ms": "30000",
}
"""The settings that a user may override, unlike SETTINGS."""


class RecordProducer:
    """An idempotent producer to one topic. One thread uses it.

    `bytes_max` is the topic's `max.message.bytes`, None if it is not known.
    """

    def __init__(self, settings: Mapping[str, str], topic: str, bytes_max: int | None) -> None:
        self._servers, self._topic, self._bytes_max = bootstrap_servers(settings), topic, bytes_max
        self._failures: list[tuple[int, str]] = []
        self._client_error = ""
        self.delivered: dict[int, int] = {}
        """The number of acknowledged records, by partition."""
        ours = {**SETTINGS, "error_cb": self._on_error, "logger": CLIENT_LOG}
        try:
            sized = size_settings({**DEFAULTS, **settings}, bytes_max)
            self._client_max = int(
                sized.get("message.max.bytes", sized.get("message.bytes.max", 0))
            )
            self._client = Client(librdkafka(sized, ours))
        except KafkaException as error:
            raise ConfigError(
                f"A Kafka producer cannot be made: {error.args[0].str()}. Check kafka.properties."
            ) from None

    @property
    def has_failed(self) -> bool:
        """Whether Kafka has refused a record."""
        return bool(self._failures)

    def send(
        self,
        line: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        *,
        partition: int = ANY_PARTITION,
        timestamp_ms: int = 0,
    ) -> None:
        """Pass the record of a line to the client, and wait while its queue is full.

        KafkaError, which names the line, if this record or an earlier one has failed.
        """

        def on_delivery(error: Any, message: Message) -> None:
            if error is not None:
                self._fail(line, error, message.key(), message.value(), message.headers())
            else:
                where = message.partition() or 0
                self.delivered[where] = self.delivered.get(where, 0) + 1

        while not self.has_failed:
            try:
                self._client.produce(
                    self._topic,
                    value,
                    key,
                    partition,
                    on_delivery=on_delivery,
                    timestamp=timestamp_ms,
                    headers=list(headers),
                )
                break
            except BufferError:
                if not len(self._client):
                    self._failures.append((line, LARGER_THAN_THE_QUEUE))
                self._client.poll(ROOM_PAUSE_S)
            except KafkaException as error:
                self._fail(line, error.args[0], key, value, headers)
        self._client.poll(0)
        if self.has_failed:
            self.finish()

    def finish(self) -> None:
        """Return when Kafka has acknowledged all records. KafkaError, which names the line, if a
        record has failed.
        """
        while self._client.flush(FINISH_SLICE_S) and not self.has_failed:
            continue
        if not self.has_failed:
            return
        self._client.flush(1.0)  # the answers for records that are on the way
        line, why = min(self._failures)
        count = sum(self.delivered.values())
        raise KafkaError(
            f"Line {line}: Kafka at {self._servers} did not take the record for topic "
            f"{self._topic}: {why} It took {counted(count, 'record')} of other lines."
        )

    def _fail(
        self,
        line: int,
        error: Any,
        key: Any,
        value: Any,
        headers: Any,
    ) -> None:
        if error.code() == Code.MSG_SIZE_TOO_LARGE:
            why = self._too_large(record_bytes(key, value, tuple(headers or ())))
        else:
            cause = f" ({self._client_error})" if self._client_error else ""
            why = f"{error.str()}{cause}. {REMEDIES.get(error.code(), '')}".rstrip()
        self._failures.append((line, why))

    def _too_large(self, size: int) -> str:
        """Return why a record of `size` bytes was refused, and the remedy."""
        limit = self._bytes_max
        if self._client_max and self._client_max < min(size, limit or size):
            return (
                f"it has {size:,} bytes, and kafka.properties limits records to "
                f"{self._client_max:,} bytes (message.max.bytes). Raise that setting."
            )
        known = "a limit that the brokers do not tell" if limit is None else f"{limit:,} bytes"
        return (
            f"it has {size:,} bytes, and the limit of the topic (max.message.bytes) is {known}. "
            "Raise that setting of the topic, or create a topic that has it: tidegate kafka topics "
            f"create {self._topic} --topic-config max.message.bytes={2 * size}. Or write smaller "
            "records."
        )

    def _on_error(self, event: Any) -> None:
        # The record of a broker that is away fails with a timeout; this text has the reason.
        self._client_error = str(event.str())
