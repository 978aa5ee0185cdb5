"""Kafka sources, declared as class attributes of a pipeline.

A declaration opens no connection: `dataplane/sources/kafka.py` reads the topic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypedDict, TypeVar, Unpack, get_args, overload

from tidegate.api.callable_checks import check_format
from tidegate.api.connectors.kafka_connector import KafkaConnector, KafkaProperties
from tidegate.api.connectors.kafka_records import ConsumerRecord
from tidegate.api.connectors.kafka_sink import connect_dead_letters, dead_letter_sink_name
from tidegate.api.connectors.source import Source
from tidegate.api.declarations.declaration_checks import (
    OnError,
    check_choice,
    check_topic,
    is_starting_offsets,
    refuse_unknown,
)
from tidegate.api.records.formats import Format
from tidegate.api.time.watermarks import HeaderTime, Instant, WatermarkStrategy
from tidegate.errors import PipelineError
from tidegate.graph.stream_graph import DEAD_LETTERS, StreamGraph, function_name


def _describe_event_time(event_time: Callable[[Any], Instant] | HeaderTime | None) -> object:
    """Return the event time as plain JSON, for the graph's fingerprint."""
    if event_time is None:
        return "kafka"
    if isinstance(event_time, HeaderTime):
        return {"header": event_time.name, "unit": event_time.unit}
    return function_name(event_time)


T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

StartingOffsets = Literal["earliest", "latest", "committed"] | int | Mapping[int, int]
"""Start position of a source without a checkpoint. An int is a timestamp in ms since the epoch.

A mapping gives offsets by partition; other partitions begin at the earliest offset.
"""
OnBadRecord = OnError


class SourceOptions(TypedDict, total=False):
    """Keywords of a source other than its formats."""

    starting_offsets: StartingOffsets
    on_bad_record: OnBadRecord
    dead_letter_topic: str | None
    properties: KafkaProperties
    event_time: Callable[[Any], Instant] | HeaderTime | None
    watermarks: WatermarkStrategy[Any] | None


class KafkaSource(KafkaConnector, Source[T]):
    """A topic that the pipeline reads. `value` is the format, and with it the type of the stream.

    `starting_offsets`: the start position without a checkpoint. It is one of these:

    - "earliest" (the default) or "latest";
    - "committed": the committed offsets of the group `tidegate.<job>.<source>`, or else the
      earliest;
    - an int: the first record of that time or later, in ms since the epoch;
    - a dict of offsets by partition; partitions that are not in it begin at the earliest.

    `on_bad_record`: the action for a record that the format cannot decode. "fail" fails the job
    (the default), "skip" skips and counts the record, and "dead_letter" sends its raw bytes to the
    topic `dead_letter_topic`.
    `properties`: librdkafka settings of its consumer. Two examples are "fetch.queue.backoff.ms" (5
    here; with the default of 1000, a full queue costs a factor 4) and "queued.min.messages" (50000
    records read ahead in each partition). Settings that tidegate sets itself are refused.

    A record without a value (a tombstone) counts as a bad record; `records` can accept it.

    The constructor raises PipelineError, with file and line, for a value that is not allowed.
    """

    def __init__(self, topic: str, *, value: Format[T], **options: Unpack[SourceOptions]) -> None:
        super().__init__(topic, options.get("properties"))
        where = f"{self.location}: source of topic {topic!r}"
        refuse_unknown(where, options, SourceOptions.__optional_keys__)
        check_format(where, "value", value, Format)
        self.value = value
        self.key: Format[Any] | None = None
        self.full_record = False
        self.tombstones = False
        self.starting_offsets: StartingOffsets = options.get("starting_offsets", "earliest")
        self.on_bad_record: OnBadRecord = options.get("on_bad_record", "fail")
        self.dead_letter_topic = options.get("dead_letter_topic")
        self.event_time = options.get("event_time")
        self.watermarks = options.get("watermarks")
        self._check()
        self._check_time()

    @overload
    @staticmethod
    def records(
        topic: str,
        *,
        key: Format[K],
        value: Format[V],
        tombstones: Literal[False] = False,
        **options: Unpack[SourceOptions],
    ) -> KafkaSource[ConsumerRecord[K, V]]: ...
    @overload
    @staticmethod
    def records(
        topic: str,
        *,
        key: Format[K],
        value: Format[V],
        tombstones: Literal[True],
        **options: Unpack[SourceOptions],
    ) -> KafkaSource[ConsumerRecord[K, V | None]]: ...
    @overload
    @staticmethod
    def records(
        topic: str,
        *,
        value: Format[V],
        tombstones: Literal[False] = False,
        **options: Unpack[SourceOptions],
    ) -> KafkaSource[ConsumerRecord[bytes | None, V]]: ...
    @overload
    @staticmethod
    def records(
        topic: str,
        *,
        value: Format[V],
        tombstones: Literal[True],
        **options: Unpack[SourceOptions],
    ) -> KafkaSource[ConsumerRecord[bytes | None, V | None]]: ...
    @staticmethod
    def records(
        topic: str,
        *,
        value: Format[Any],
        key: Format[Any] | None = None,
        tombstones: bool = False,
        **options: Unpack[SourceOptions],
    ) -> KafkaSource[Any]:
        """Declare a source whose records have their key, headers, topic, partition and offset.

        Without `key`, keys are raw bytes or None. With `key`, a record without a key is a bad
        record. With `tombstones=True`, a record without a value has the value None.
        """
        source: KafkaSource[Any] = KafkaSource(topic, value=value, **options)
        if key is not None:
            check_format(f"{source.location}: source of topic {topic!r}", "key", key, Format)
        source.key, source.full_record, source.tombstones = key, True, tombstones
        return source

    @property
    def has_event_time(self) -> bool:
        """Whether the records of the source have event times."""
        return self.event_time is not None or self.watermarks is not None

    def record_type(self) -> object:
        """Return the type of the stream's records."""
        if not self.full_record:
            return self.value.value_type
        key: Any = bytes | None if self.key is None else self.key.value_type
        value: Any = self.value.value_type
        value = value | None if self.tombstones else value
        return ConsumerRecord[key, value]

    def connect(self, graph: StreamGraph) -> None:
        """Add the source to the graph, and a sink for its dead letters if it has one."""
        options: dict[str, object] = {
            "topic": self.topic,
            "key": None if self.key is None else self.key.describe(),
            "value": self.value.describe(),
            "whole": self.full_record,
            "on_bad_record": self.on_bad_record,
        }
        if self.has_event_time:  # a source without keeps its fingerprint
            options["event_time"] = _describe_event_time(self.event_time)
            options["watermarks"] = type(self.watermarks).__name__ if self.watermarks else None
        graph.add(
            "source",
            (),
            location=self.location,
            uid=self.name,
            options=options,
            declaration=self,
            record_type=self.record_type(),
            watermarks=self.watermarks is not None,
            event_time=self.has_event_time,
        )
        if self.dead_letter_topic is not None:
            name = dead_letter_sink_name(self.name)
            ports = [(self.name, DEAD_LETTERS)]
            connect_dead_letters(graph, name, self.dead_letter_topic, self.location, ports)

    def _check_time(self) -> None:
        where = f"{self.location}: source of topic {self.topic!r}"
        event_time: object = self.event_time
        if not (event_time is None or isinstance(event_time, HeaderTime) or callable(event_time)):
            raise PipelineError(
                f"{where}: event_time={event_time!r} must be a function from a record to its time, "
                "as in event_time=lambda sale: sale.sold_at_ms, or HeaderTime('name')."
            )
        watermarks: object = self.watermarks
        if watermarks is not None and not isinstance(watermarks, WatermarkStrategy):
            raise PipelineError(
                f"{where}: watermarks={watermarks!r} must be a strategy, as in "
                "watermarks=BoundedOutOfOrderness('10 s')."
            )
        if watermarks is not None and event_time is None and watermarks.max_ahead_ms is not None:
            raise PipelineError(
                f"{where}: max_ahead compares event_time with Kafka's timestamp, and the source "
                "has no event_time. Add event_time=, or remove max_ahead."
            )

    def _check(self) -> None:
        where = f"{self.location}: source of topic {self.topic!r}"
        start: object = self.starting_offsets
        if not is_starting_offsets(start):
            raise PipelineError(
                f"{where}: starting_offsets={start!r} must be 'earliest', 'latest', 'committed', a "
                "timestamp in ms or a dict of offsets by partition."
            )
        if isinstance(start, int) and start < 0:
            raise PipelineError(
                f"{where}: starting_offsets={start} is no timestamp in ms since the epoch."
            )
        if isinstance(start, Mapping) and any(n < 0 for pair in start.items() for n in pair):
            raise PipelineError(
                f"{where}: starting_offsets={dict(start)} has a negative partition or offset."
            )
        check_choice(where, "on_bad_record", self.on_bad_record, get_args(OnBadRecord))
        if (self.on_bad_record == "dead_letter") != (self.dead_letter_topic is not None):
            raise PipelineError(
                f"{where}: on_bad_record='dead_letter' and dead_letter_topic='topic' are given "
                "together or not at all."
            )
        if self.dead_letter_topic is not None:
            check_topic(self.location, self.dead_letter_topic)
