"""The decoding of messages of one partition into a batch of values, and the policy for bad records.

The loop over a batch is `list.extend` over `map`, so no Python code runs per record except that of
the format. If a decoder raises, the list holds the values before the error. Its length identifies
the failing record, without a counter that would cost time for every record. The source's policy
handles this record, and the loop continues after it.

`sources/kafka.py` calls this module in the mailbox thread. It does not know the offsets of splits
or checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, cast

from tidegate.api.connectors.kafka_records import (
    ERROR,
    ORIGIN_OFFSET,
    ORIGIN_PARTITION,
    ORIGIN_TIMESTAMP,
    ORIGIN_TOPIC,
    ConsumerRecord,
    ProducerRecord,
)
from tidegate.api.connectors.kafka_source import KafkaSource
from tidegate.api.records.formats import Raw
from tidegate.api.time.watermarks import UnusableTimeError
from tidegate.dataplane.counters import Counters
from tidegate.dataplane.sizes import DEFAULT_MAX_BYTES, shorten_dead_letter
from tidegate.dataplane.time.event_times import EventTimes
from tidegate.errors import BadRecordError, check_complete, refused_resource
from tidegate.ids import Uid
from tidegate.ports.kafka import RawRecord
from tidegate.stream_elements import RecordBatch, TopicPartition
from tidegate.user_exceptions import described, process_ends, text_of

NO_TIMESTAMP: Final = -1

Decode = Callable[[Any], Any]


class _MissingPartError(ValueError):
    """A record without a key or a value where its type needs one."""


class BatchDecoder:
    """The decoder of one source's messages. `dead_letters` grows until it is taken."""

    def __init__(
        self,
        source: KafkaSource[Any],
        uid: Uid,
        counters: Counters,
        *,
        keep_keys: bool,
        dead_letter_bytes_max: int = DEFAULT_MAX_BYTES,
    ) -> None:
        self._source, self._uid, self._counters = source, uid, counters
        self._keep_keys = keep_keys
        self._dead_letter_bytes_max = dead_letter_bytes_max
        self._decode_value: Decode = source.value.decoder()
        self._decode_key: Decode | None = None if source.key is None else source.key.decoder()
        self._event_times = (
            None
            if not source.has_event_time
            else EventTimes(
                source.event_time,
                None if source.watermarks is None else source.watermarks.max_ahead_ms,
            )
        )
        self.dead_letters: list[RecordBatch] = []

    def decode(self, topic_partition: TopicPartition, messages: Sequence[RawRecord]) -> RecordBatch:
        """Return a batch of the messages that can be decoded. Raise BadRecordError under the policy
        "fail".
        """
        values: list[Any] = []
        bad: list[int] = []
        decoded = self._decoder_for(topic_partition, messages[0])
        while True:
            start = len(values) + len(bad)
            try:
                values.extend(decoded(messages[start:] if start else messages))
                check_complete(len(values) + len(bad), len(messages))
                break
            except process_ends():
                raise
            except BaseException as error:
                if refused_resource(error) is not None:
                    raise  # a problem of the process, not of the record
                index = len(values) + len(bad)
                self._apply_policy(topic_partition, messages[index], error)
                bad.append(index)
        good = messages
        if bad:
            refused = frozenset(bad)
            good = [message for index, message in enumerate(messages) if index not in refused]
        times_ms: list[int] | None = None
        if self._event_times is not None:
            times_ms = self._event_times.column(good, values)
            if times_ms is None:
                good, values, times_ms = self._timed(topic_partition, good, values)
        of_message = type(messages[0])
        return RecordBatch(
            values=values,
            offsets=_offsets(good),
            topic_partition=topic_partition,
            keys=list(map(of_message.key, good)) if self._keep_keys else None,
            timestamps_ms=times_ms,
        )

    def _timed(
        self, topic_partition: TopicPartition, messages: Sequence[RawRecord], values: list[Any]
    ) -> tuple[list[RawRecord], list[Any], list[int]]:
        """Return the records that have a usable event time, their values and times. The policy
        decides about the others.
        """
        timed: list[RawRecord] = []
        kept: list[Any] = []
        times_ms: list[int] = []
        for message, value in zip(messages, values, strict=True):
            try:
                times_ms.append(cast("EventTimes", self._event_times).of(message, value))
            except process_ends():
                raise
            except BaseException as error:
                if refused_resource(error) is not None:
                    raise
                self._apply_policy(topic_partition, message, _unusable_time(error))
                continue
            timed.append(message)
            kept.append(value)
        return timed, kept, times_ms

    def _decoder_for(
        self, topic_partition: TopicPartition, sample: RawRecord
    ) -> Callable[[Sequence[RawRecord]], Any]:
        if self._source.full_record:
            return self._full_records(topic_partition)
        # The method of the type is used and not that of each object, so that `map` stays inside the
        # interpreter.
        decode, value = self._decode_value, type(sample).value
        if isinstance(self._source.value, Raw):
            return lambda messages: _all_bytes(list(map(value, messages)), decode)
        return lambda messages: map(decode, map(value, messages))

    def _full_records(
        self, topic_partition: TopicPartition
    ) -> Callable[[Sequence[RawRecord]], Any]:
        decode_value, decode_key = self._decode_value, self._decode_key
        tombstones = self._source.tombstones
        topic, partition = topic_partition

        def record(message: RawRecord) -> ConsumerRecord[Any, Any]:
            key, value = message.key(), message.value()
            if decode_key is not None:
                if key is None:
                    raise _MissingPartError(_NO_KEY)
                key = decode_key(key)
            if value is not None:
                value = decode_value(value)
            elif not tombstones:
                raise _MissingPartError(_NO_VALUE_OF_RECORD)
            return ConsumerRecord(
                key,
                value,
                topic,
                partition,
                message.offset(),
                timestamp_ms(message),
                tuple(message.headers() or ()),
            )

        return lambda messages: map(record, messages)

    def _apply_policy(
        self, topic_partition: TopicPartition, message: RawRecord, error: BaseException
    ) -> None:
        """Apply the policy to one record. Raise BadRecordError if the policy is to fail."""
        reason = self._reason(message, error)
        policy = self._source.on_bad_record
        if policy == "skip":
            self._counters.skipped += 1
        elif policy == "dead_letter":
            self._counters.dead_letters += 1
            self._add_dead_letter(topic_partition, message, reason)
        else:
            where = f"{topic_partition.topic}-{topic_partition.partition}"
            if isinstance(error, UnusableTimeError):
                verb, how, part = "use the event time of", "", "event_time"
            else:
                verb, how, part = "decode", f" as {type(self._source.value).__name__}", "format"
            raise BadRecordError(
                f"Source {self._uid!r} ({self._source.location}) cannot {verb} the record of "
                f"{where} at offset {message.offset()}{how}: {reason}. Correct the source's "
                f"{part}, or let the job continue without such records by on_bad_record='skip' "
                "(they are counted) or on_bad_record='dead_letter' with dead_letter_topic='TOPIC' "
                "(they are kept)."
            ) from (None if isinstance(error, (_MissingPartError, UnusableTimeError)) else error)

    def _reason(self, message: RawRecord, error: BaseException) -> str:
        if isinstance(error, (_MissingPartError, UnusableTimeError)):
            return text_of(error)
        if message.value() is None and not self._source.full_record:
            return _NO_VALUE
        return described(error)

    def _add_dead_letter(
        self, topic_partition: TopicPartition, message: RawRecord, reason: str
    ) -> None:
        provenance = (
            (ORIGIN_TOPIC, topic_partition.topic),
            (ORIGIN_PARTITION, str(topic_partition.partition)),
            (ORIGIN_OFFSET, str(message.offset())),
            (ORIGIN_TIMESTAMP, str(timestamp_ms(message))),
            (ERROR, reason),
        )
        letter: ProducerRecord[Any, Any] = ProducerRecord(
            key=message.key(),
            value=message.value(),
            headers=(
                *(message.headers() or ()),
                *((name, text.encode()) for name, text in provenance),
            ),
        )
        letter = shorten_dead_letter(letter, self._dead_letter_bytes_max)
        self.dead_letters.append(
            RecordBatch(
                values=[letter], offsets=[message.offset()], topic_partition=topic_partition
            )
        )


_NO_VALUE: Final = (
    "it has no value (a tombstone); KafkaSource.records(..., tombstones=True) lets those through"
)
_NO_VALUE_OF_RECORD: Final = "it has no value (a tombstone); tombstones=True lets those through"
_NO_KEY: Final = "it has no key; KafkaSource.records without key= lets those through as None"


def _unusable_time(error: BaseException) -> UnusableTimeError:
    """Return the error for a record whose event time could not be found."""
    if isinstance(error, UnusableTimeError):
        return error
    return UnusableTimeError(f"its event_time raised {described(error)}")


def _all_bytes(values: list[Any], decode: Decode) -> Iterable[Any]:
    """Return bytes as they are, without decoding. Call the decoder if there is a tombstone among
    them.
    """
    return values if set(map(type, values)) == {bytes} else map(decode, values)


def _offsets(messages: Sequence[RawRecord]) -> Sequence[int]:
    """Return the offsets of messages of one partition.

    Offsets of a partition only grow. If the first and the last offset are as far apart as there are
    messages, there is no gap, and the offsets between them need not be read. Control records and
    compaction leave gaps.
    """
    if not messages:
        return ()
    first, last = messages[0].offset(), messages[-1].offset()
    if last - first + 1 == len(messages):
        return range(first, last + 1)
    return list(map(type(messages[0]).offset, messages))


def timestamp_ms(message: RawRecord) -> int:
    """Return Kafka's timestamp of a record, in ms; NO_TIMESTAMP if the record has no timestamp."""
    kind, time_ms = message.timestamp()
    return time_ms if kind else NO_TIMESTAMP
