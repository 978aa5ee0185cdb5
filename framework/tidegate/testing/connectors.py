"""The sources and sinks of a pipeline under test, as a test uses them.

`PipelineTest.source` and `PipelineTest.sink` make these objects. A source encodes records with its
formats, and gives them to the run (`run.py`). A sink reads what was written (`kept_records.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from typing import Any, Generic, Self, TypeVar, cast

from tidegate.api.connectors.kafka_records import Headers
from tidegate.api.connectors.kafka_source import KafkaSource
from tidegate.api.records.formats import Raw
from tidegate.api.time.watermarks import HeaderTime, Instant, UnusableTimeError, instant_ms
from tidegate.errors import PipelineError
from tidegate.ids import Uid
from tidegate.stream_elements import MIN_MS, TopicPartition, Watermark
from tidegate.testing.kept_records import KeptRecords
from tidegate.testing.pushed_records import PushedRecord
from tidegate.testing.run import PipelineRun
from tidegate.user_exceptions import process_ends

T = TypeVar("T")


class PipelineSource(Generic[T]):
    """A partition of a source of the pipeline under test, made by `PipelineTest.source`."""

    __test__ = False  # not a test class of pytest's

    def __init__(self, run: PipelineRun, source: KafkaSource[T], partition: int) -> None:
        self._run, self._source = run, source
        self._uid = Uid(source.name)
        self._of = TopicPartition(source.topic, partition)
        if not source.full_record:  # else each record names its partition
            run.name(self._uid, self._of)
        value: Any = source.value
        self._encode_value: Callable[[Any], bytes] = value.encoder()
        self._encode_key: Callable[[Any], bytes] = (
            Raw() if source.key is None else source.key
        ).encoder()

    def push(self, *records: T) -> Self:
        """Encode records with the formats of the source, then decode and process them.

        A ConsumerRecord keeps its topic, partition, offset and timestamp. Other records come from
        this partition, with offsets counted from 0. Their timestamp is their event time, or 0.

        If the source has watermarks, the one that follows comes directly after the records, or
        after consecutive ConsumerRecords of one partition.
        """
        encode = self._whole if self._source.full_record else self._value
        pushed = [encode(record, number) for number, record in enumerate(records)]
        for of, run in groupby(pushed, key=lambda record: record.topic_partition):
            self._run.push(self._uid, of, list(run))
        return self

    def push_bytes(
        self, value: bytes | None, *, key: bytes | None = None, headers: Headers = ()
    ) -> Self:
        """Process one record given as the bytes that Kafka would store.

        If the source cannot decode the record, its `on_bad_record` policy applies. The policy
        "fail" raises BadRecordError.
        """
        self._run.push(self._uid, self._of, [self._plain(value, key=key, headers=headers)])
        return self

    def watermark(self, at: Instant) -> Self:
        """Set the watermark of this partition: no record with an event time of `at` or earlier is
        expected in it. An idle partition is active again.

        Raise PipelineError if the source has no watermarks, or if this one would go back.
        """
        self._check_has_watermarks()
        at_ms = watermark_instant_ms(at)
        check_not_back(self._run, self._uid, self._of, at_ms)
        self._run.set_watermark(self._uid, self._of, Watermark(at_ms))
        return self

    def idle(self) -> Self:
        """Make this partition idle, as if nothing had come for `idle_after`. It does not hold back
        the others until its next record.

        Raise PipelineError if the partitions of the source never become idle in a job.
        """
        self._check_has_watermarks()
        if cast("Any", self._source.watermarks).idle_after_ms is None:
            raise PipelineError(
                f"Source {self._source.name!r} has no idle_after, so none of its partitions "
                "becomes idle in a job. Give its strategy one: idle_after='1 min', for example."
            )
        self._run.set_watermark(self._uid, self._of, Watermark(MIN_MS, idle=True))
        return self

    def end(self) -> Self:
        """End this partition, as a bounded run does. It keeps its watermark, and holds back the
        others. With its last partition, the input of the source ends, and event timers fire.
        """
        self._run.end(self._uid, self._of)
        return self

    def _check_has_watermarks(self) -> None:
        if self._source.watermarks is None:
            raise PipelineError(
                f"Source {self._source.name!r} declares no watermarks=, so it takes no part in "
                "event time. Give it watermarks=BoundedOutOfOrderness('10 s'), for example."
            )

    def _whole(self, record: Any, _number: int) -> PushedRecord:
        return PushedRecord(
            topic_partition=TopicPartition(record.topic, record.partition),
            of_value=None if record.value is None else self._encode_value(record.value),
            of_key=None if record.key is None else self._encode_key(record.key),
            of_headers=record.headers,
            at_offset=record.offset,
            timestamp_ms=record.timestamp_ms,
        )

    def _value(self, record: Any, number: int) -> PushedRecord:
        timestamp_ms = self._time_ms(record)
        return self._plain(self._encode_value(record), timestamp_ms=timestamp_ms, number=number)

    def _plain(
        self,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        timestamp_ms: int = 0,
        number: int = 0,
    ) -> PushedRecord:
        """Return a record of this partition. `number` counts the records of one push."""
        return PushedRecord(
            topic_partition=self._of,
            of_value=value,
            of_key=key,
            of_headers=headers,
            at_offset=self._run.next_position(self._uid, self._of) + number,
            timestamp_ms=timestamp_ms,
        )

    def _time_ms(self, record: Any) -> int:
        """Return Kafka's timestamp of a pushed record: its event time, if Kafka can have it."""
        event_time = self._source.event_time
        if event_time is None or isinstance(event_time, HeaderTime):
            return 0
        try:
            return max(0, instant_ms(event_time(record)))
        except process_ends():
            raise
        except BaseException:  # noqa: BLE001 - the source's policy decides about it
            return 0


class PipelineSink(Generic[T]):
    """A sink of the pipeline under test, made by `PipelineTest.sink`."""

    __test__ = False

    def __init__(self, kept: KeptRecords) -> None:
        self._kept = kept

    def read(self) -> list[T]:
        """Return the records written since the last read, in the order of writing.

        The records are here at once, and not only after a checkpoint. `PipelineTest.crash` says
        which of them a crash withdraws.
        """
        return self._kept.take()


def watermark_instant_ms(at: Instant) -> int:
    """Return a watermark that a test sets, in milliseconds. PipelineError for another type."""
    try:
        return instant_ms(at)
    except UnusableTimeError as error:
        raise PipelineError(f"watermark({at!r}) is no instant: {error}") from error


def check_not_back(run: PipelineRun, uid: Uid, of: TopicPartition, at_ms: int) -> None:
    """Raise PipelineError if the watermark of a partition would go back."""
    now_ms = run.watermark_of(uid, of).timestamp_ms
    if at_ms < now_ms:
        raise PipelineError(
            f"watermark({at_ms}): partition {of.partition} of source {uid!r} is at {now_ms} "
            "already, and a watermark never goes back. Set it before you push later records, or "
            "give the strategy a longer delay."
        )
