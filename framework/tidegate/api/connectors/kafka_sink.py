"""Kafka sinks, declared as class attributes of a pipeline, and the sinks of dead letters.

A declaration opens no connection: `dataplane/sinks/kafka.py` writes the topic. Sources, steps and
sinks with `on_error="dead_letter"` add a sink for their dead letters to the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypedDict, TypeVar, Unpack, get_args, overload

from tidegate.api.callable_checks import check_callable, check_format
from tidegate.api.connectors.kafka_connector import KafkaConnector, KafkaProperties
from tidegate.api.connectors.kafka_records import ProducerRecord
from tidegate.api.connectors.sink import Guarantee, Sink
from tidegate.api.declarations.declaration_checks import (
    ErrorOptions,
    OnError,
    check_choice,
    error_policy,
    policy_options,
    refuse_unknown,
)
from tidegate.api.records.formats import Format, Raw
from tidegate.api.time.times import Duration, to_ms
from tidegate.errors import PipelineError
from tidegate.graph.stream_graph import DEAD_LETTERS, Edge, Node, StreamGraph
from tidegate.ids import KAFKA

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

Compression = Literal["none", "gzip", "snappy", "lz4", "zstd"]
Timestamps = Literal["send", "event_time"]


def connect_dead_letters(
    graph: StreamGraph, name: str, topic: str, location: str, ports: Sequence[tuple[str, str]]
) -> None:
    """Add a sink that writes the dead letters of these nodes' ports to `topic`."""
    letters = KafkaSink.records(topic, key=Raw(), value=Raw())
    letters.names.append(name)
    letters.location = location
    of = letters.record_type()
    letters.connect(graph, tuple(Edge(node=node, port=at, record_type=of) for node, at in ports))


def connect_step_dead_letters(graph: StreamGraph, node: Node, options: ErrorOptions) -> None:
    """Write the dead letters of a step to its dead-letter topic, if it has one."""
    if "dead_letter_topic" in options:
        name, topic = dead_letter_sink_name(node.id), options["dead_letter_topic"]
        connect_dead_letters(graph, name, topic, node.location, [(node.id, DEAD_LETTERS)])


def dead_letter_sink_name(node: str) -> str:
    """Return the name of the sink that writes the dead letters of a source, a step or a sink."""
    return f"{node}-dead-letters"


class SinkOptions(TypedDict, total=False):
    """Keywords of a sink other than its formats and key."""

    guarantee: Guarantee
    compression: Compression
    linger: Duration
    properties: KafkaProperties
    timestamps: Timestamps
    on_error: OnError
    dead_letter_topic: str


class KafkaSink(KafkaConnector, Sink[T]):
    """A topic that the pipeline writes.

    `record_key` takes the record's key from the value. The key is text or bytes, or any other type
    with its format in `key`. Without `record_key`, a record keeps its source key if only map,
    filter and flat_map are between source and sink. After other steps it has no key.
    `guarantee` is one of these:

    - "exactly_once" (the default): records become visible to read_committed readers together with
      their checkpoint;
    - "at_least_once": records become visible at once, and those since the last checkpoint are
      repeated after a failure;
    - "none": the sink does not wait for acknowledgements of the brokers at a barrier, so records
      may be lost or repeated.

    `compression`: "none", "gzip", "snappy", "lz4" or "zstd". `linger`: how long a batch may wait
    for more records, as "5 ms" or a timedelta. If they are not given, compression.type and
    linger.ms of [kafka.properties] apply, or else "none", and "25 ms" for an exactly-once sink or
    "5 ms" for another one. A barrier sends what waits at once.
    `timestamps`: the timestamp of a record in Kafka. "send" (the default) is the time of the write.
    "event_time" is the event time of the record. Old times are subject to the retention of the
    topic at once.
    `properties`: librdkafka settings of its producers. Two examples are the limits of the records
    that wait in one producer, "queue.buffering.max.messages" (100000) and
    "queue.buffering.max.kbytes" (65536). Settings that tidegate sets itself are refused.
    `on_error`: the action for a record that cannot be encoded or is larger than the topic allows.
    It is "fail" (the default), "skip", or "dead_letter" with the topic `dead_letter_topic`, as in a
    step.

    The constructor raises PipelineError, with file and line, for a value that is not allowed.
    """

    transaction_system = KAFKA

    @overload
    def __init__(self, topic: str, *, value: Format[T], **options: Unpack[SinkOptions]) -> None: ...
    @overload
    def __init__(
        self,
        topic: str,
        *,
        value: Format[T],
        record_key: Callable[[T], str | bytes],
        **options: Unpack[SinkOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        topic: str,
        *,
        value: Format[T],
        key: Format[K],
        record_key: Callable[[T], K],
        **options: Unpack[SinkOptions],
    ) -> None: ...
    def __init__(
        self,
        topic: str,
        *,
        value: Format[T],
        key: Format[Any] | None = None,
        record_key: Callable[[T], Any] | None = None,
        **options: Unpack[SinkOptions],
    ) -> None:
        super().__init__(topic, options.get("properties"))
        where = f"{self.location}: sink for topic {topic!r}"
        refuse_unknown(where, options, {"record_key", *SinkOptions.__optional_keys__})
        if key is not None and record_key is None:
            raise PipelineError(f"{where}: key is a format; record_key must say what the key is.")
        if record_key is not None and not callable(record_key):
            raise PipelineError(
                f"{where}: record_key={record_key!r} must be a function of the value, as in "
                "`record_key=lambda total: total.customer`."
            )
        if record_key is not None:
            check_callable("record_key=", record_key, where)
        check_format(where, "value", value, Format)
        if key is not None:
            check_format(where, "key", key, Format)
        self.value, self.key, self.record_key = value, key, record_key
        self.full_record = False
        self.guarantee: Guarantee = options.get("guarantee", "exactly_once")
        check_choice(where, "guarantee", self.guarantee, get_args(Guarantee))
        self.timestamps: Timestamps = options.get("timestamps", "send")
        check_choice(where, "timestamps", self.timestamps, get_args(Timestamps))
        self.errors: ErrorOptions = {}
        if "on_error" in options:
            self.errors["on_error"] = options["on_error"]
        if "dead_letter_topic" in options:
            self.errors["dead_letter_topic"] = options["dead_letter_topic"]
        self.on_error = error_policy(where, self.location, self.errors)
        if "compression" in options:
            check_choice(where, "compression", options["compression"], get_args(Compression))
            self._set(where, "compression", "compression.type", options["compression"])
        if "linger" in options:
            self._set(where, "linger", "linger.ms", to_ms(options["linger"], f"{where}: linger"))

    @staticmethod
    def records(
        topic: str, *, key: Format[K], value: Format[V], **options: Unpack[SinkOptions]
    ) -> KafkaSink[ProducerRecord[K, V]]:
        """Declare a sink for records with key, headers, timestamp, or no value (a tombstone)."""
        whole: Format[Any] = value
        sink: KafkaSink[ProducerRecord[K, V]] = KafkaSink(topic, value=whole, **options)
        check_format(f"{sink.location}: sink for topic {topic!r}", "key", key, Format)
        sink.key, sink.full_record = key, True
        return sink

    def _set(self, where: str, keyword: str, setting: str, value: str | int) -> None:
        """Apply a keyword that is also a setting of librdkafka; PipelineError if both are given."""
        if setting in self.properties:
            raise PipelineError(
                f"{where}: {keyword}= and properties={{{setting!r}: ...}} say the same; "
                "write one only."
            )
        self.properties[setting] = value

    def record_type(self) -> object:
        """Return the type of the records that the sink takes."""
        if not self.full_record or self.key is None:
            return self.value.value_type
        key: Any = self.key.value_type
        value: Any = self.value.value_type
        return ProducerRecord[key, value]

    @property
    def checks_all_fields(self) -> bool:
        """Whether the format of the values has `validate="all"`."""
        return self.value.validate == "all"

    def describe(self) -> dict[str, object]:
        """Return the options of the sink, for the graph's fingerprint."""
        event_time = {} if self.timestamps == "send" else {"timestamps": self.timestamps}
        return {
            "topic": self.topic,
            "key": None if self.key is None else self.key.describe(),
            "value": self.value.describe(),
            "whole": self.full_record,
            "guarantee": self.guarantee,
            **policy_options(self.on_error),
            **event_time,
        }

    def connect(self, graph: StreamGraph, edges: tuple[Edge, ...]) -> None:
        """End a chain at this sink, and add the sink of its dead letters if it has one."""
        if self.name in graph.nodes and graph.nodes[self.name].declaration is self:
            graph.remove(dead_letter_sink_name(self.name))
        timeless = next((edge.node for edge in edges if not graph.has_event_time(edge)), None)
        if self.timestamps == "event_time" and timeless is not None:
            raise PipelineError(
                f"{self.location}: sink {self.name!r} has timestamps='event_time', and the records "
                f"of {timeless!r} have no event time. Give each source in front of it event_time= "
                "or watermarks=, or remove timestamps=."
            )
        super().connect(graph, edges)
        if "dead_letter_topic" in self.errors:
            name, topic = dead_letter_sink_name(self.name), self.errors["dead_letter_topic"]
            connect_dead_letters(graph, name, topic, self.location, [(self.name, DEAD_LETTERS)])
