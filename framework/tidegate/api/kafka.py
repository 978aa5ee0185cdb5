"""Kafka sources and sinks, declared as class attributes of a pipeline.

On the class, the attribute is the declaration (`OrderTotals.orders`: a KafkaSource[Order]), which
tests and tools use. On a pipeline object, inside `define`, a source is the stream that it starts
(`self.orders`: a Stream[Order]). A declaration holds no graph, so two builds or two pipelines in
one process do not affect each other. It opens no connection: the data plane's sources and sinks
read the declaration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Generic,
    Literal,
    Self,
    TypedDict,
    TypeVar,
    Unpack,
    get_args,
    overload,
)

import msgspec

from tidegate.api.declaration_checks import (
    RESERVED_PROPERTIES,
    ErrorOptions,
    OnError,
    check_choice,
    check_topic,
    error_policy,
    is_start,
    policy_options,
    refuse_unknown,
)
from tidegate.api.formats import Format, Raw
from tidegate.api.location import refuse_unsupported, user_location
from tidegate.api.streams import Stream
from tidegate.api.times import Duration, to_ms
from tidegate.config import foreign_code
from tidegate.errors import PipelineError
from tidegate.graph.stream_graph import DEAD_LETTERS, Edge, StreamGraph

if TYPE_CHECKING:
    from tidegate.api.pipeline import Pipeline

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

Start = Literal["earliest", "latest", "group"] | int | Mapping[int, int]
"""Start position of a source without a checkpoint. An int is a timestamp in ms since the epoch.

A mapping gives offsets by partition; other partitions begin at the earliest offset.
"""
OnBadRecord = OnError
Guarantee = Literal["exactly_once", "at_least_once", "none"]
Compression = Literal["none", "gzip", "snappy", "lz4", "zstd"]
Headers = tuple[tuple[str, bytes | None], ...]

ORIGIN_TOPIC: Final = "tidegate.source.topic"
ORIGIN_PARTITION: Final = "tidegate.source.partition"
ORIGIN_OFFSET: Final = "tidegate.source.offset"
ORIGIN_TIMESTAMP: Final = "tidegate.source.timestamp"
STEP: Final = "tidegate.step"
ERROR: Final = "tidegate.error"
LEFT_OUT_VALUE: Final = "tidegate.left-out.value"
LEFT_OUT_KEY: Final = "tidegate.left-out.key"
LEFT_OUT_HEADERS: Final = "tidegate.left-out.headers"
"""Headers that a dead letter has in addition to the record's own.

The values are UTF-8 text, numbers in decimal. The last three are present only if the dead letter
would have been larger than its topic allows: they give the numbers of bytes of the record that it
does not contain.
"""
PREFIX: Final = "tidegate."
"""Prefix of the names of these headers."""

KafkaOverrides = Mapping[str, str | int | float | bool]
"""librdkafka settings by name."""


def connect_dead_letters(
    graph: StreamGraph, name: str, topic: str, place: str, ports: Sequence[tuple[str, str]]
) -> None:
    """Add a sink that writes the dead letters of these nodes' ports to `topic`."""
    letters = KafkaSink.records(topic, key=Raw(), value=Raw())
    letters.names.append(name)
    letters.place = place
    of = letters.record_type()
    letters.connect(graph, tuple(Edge(node=node, port=at, record_type=of) for node, at in ports))


def letters_name(node: str) -> str:
    """Return the name of the sink that writes the dead letters of a source, a step or a sink."""
    return f"{node}-dead-letters"


class SourceOptions(TypedDict, total=False):
    """Keywords of a source other than its formats."""

    start: Start
    on_bad_record: OnBadRecord
    dead_letters: str | None
    kafka: KafkaOverrides
    event_time: object
    watermarks: object


class SinkOptions(TypedDict, total=False):
    """Keywords of a sink other than its formats and key."""

    guarantee: Guarantee
    compression: Compression
    linger: Duration
    kafka: KafkaOverrides
    on_error: OnError
    dead_letters: str


class ConsumerRecord(msgspec.Struct, Generic[K, V], frozen=True):
    """A record with its topic, partition and offset, from `KafkaSource.records`.

    `timestamp_ms` is the record's timestamp in Kafka, in ms since the epoch. The producer or the
    broker sets it, as the topic is configured. It is -1 if the record has no timestamp.
    """

    key: K
    value: V
    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    headers: Headers = ()


class ProducerRecord(msgspec.Struct, Generic[K, V], frozen=True):
    """A record with key and headers, for `KafkaSink.records`. A value of None is a tombstone.

    `timestamp_ms` is in ms since the epoch; None means the time at which the record is sent.
    """

    key: K | None
    value: V | None
    headers: Headers = ()
    timestamp_ms: int | None = None


class Connector:
    """The common base of sources and sinks.

    A connector has a topic, its own librdkafka settings, and the file and line of its declaration.
    Its name is the name of the class attribute. The name is its uid and part of transactional ids.
    """

    def __init__(self, topic: str, kafka: KafkaOverrides | None) -> None:
        self.topic = topic
        self.names: list[str] = []
        self.place = user_location()
        check_topic(self.place, topic)
        self.kafka = dict(kafka or {})
        for key in self.kafka.keys() & RESERVED_PROPERTIES.keys():
            raise PipelineError(
                f"{self.place}: kafka={{{key!r}: ...}} of topic {topic!r} is set by tidegate: "
                f"{RESERVED_PROPERTIES[key]}"
            )
        for key in self.kafka:
            how = foreign_code(key)
            if how is not None:
                raise PipelineError(
                    f"{self.place}: kafka={{{key!r}: ...}} of topic {topic!r} is not allowed: "
                    f"{how}. Remove it."
                )

    def __set_name__(self, owner: type, name: str) -> None:
        # An error raised here would reach the user wrapped in a RuntimeError (Python 3.11);
        # Pipeline.__init_subclass__ raises it.
        self.names.append(name)

    @property
    def name(self) -> str:
        """Name of the class attribute; PipelineError if the connector is not such an attribute."""
        if not self.names:
            raise PipelineError(
                f"{self.place}: the declaration for topic {self.topic!r} is not a class attribute "
                "of a pipeline"
            )
        return self.names[0]


class KafkaSource(Connector, Generic[T]):
    """A topic that the pipeline reads. `value` is the format, and with it the type of the stream.

    `start`: the start position without a checkpoint. It is one of these:

    - "earliest" (the default) or "latest";
    - "group": the committed offsets of the group `tidegate.<job>.<source>`, or else the earliest;
    - an int: the first record of that time or later, in ms since the epoch;
    - a dict of offsets by partition; partitions that are not in it begin at the earliest.

    `on_bad_record`: the action for a record that the format cannot decode. "fail" fails the job
    (the default), "skip" skips and counts the record, and "dead_letter" sends its raw bytes to the
    topic `dead_letters`.
    `kafka`: librdkafka settings of its consumer. Two examples are "fetch.queue.backoff.ms" (5 here;
    with the default of 1000, a full queue costs a factor 4) and "queued.min.messages" (50000
    records read ahead in each partition). Settings that tidegate sets itself are refused.

    A record without a value (a tombstone) counts as a bad record; `records` can accept it.

    The constructor raises PipelineError, with file and line, for a value that is not allowed.
    """

    def __init__(self, topic: str, *, value: Format[T], **options: Unpack[SourceOptions]) -> None:
        super().__init__(topic, options.get("kafka"))
        where = f"{self.place}: source of topic {topic!r}"
        refuse_unknown(where, options, SourceOptions.__optional_keys__)
        for keyword in ("event_time", "watermarks"):
            if options.get(keyword) is not None:
                refuse_unsupported(f"{keyword}=", "remove it")
        self.value = value
        self.key: Format[Any] | None = None
        self.full_record = False
        self.tombstones = False
        self.start: Start = options.get("start", "earliest")
        self.on_bad_record: OnBadRecord = options.get("on_bad_record", "fail")
        self.dead_letters = options.get("dead_letters")
        self._check()

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
        source.key, source.full_record, source.tombstones = key, True, tombstones
        return source

    @overload
    def __get__(self, instance: None, owner: type[Pipeline]) -> Self: ...
    @overload
    def __get__(self, instance: Pipeline, owner: type[Pipeline]) -> Stream[T]: ...
    def __get__(self, instance: Pipeline | None, owner: type[Pipeline]) -> Self | Stream[T]:
        if instance is None:
            return self
        if self.name not in instance.graph.nodes:
            self._add_to(instance.graph)
        of = self.record_type()
        return Stream(instance.graph, (Edge(node=self.name, record_type=of),), of)

    def record_type(self) -> object:
        """Return the type of the stream's records."""
        if not self.full_record:
            return self.value.of
        key: Any = bytes | None if self.key is None else self.key.of
        value: Any = self.value.of
        value = value | None if self.tombstones else value
        return ConsumerRecord[key, value]

    def _add_to(self, graph: StreamGraph) -> None:
        options = {
            "topic": self.topic,
            "key": None if self.key is None else self.key.describe(),
            "value": self.value.describe(),
            "whole": self.full_record,
            "on_bad_record": self.on_bad_record,
        }
        graph.add(
            "source",
            (),
            place=self.place,
            uid=self.name,
            options=options,
            declaration=self,
            record_type=self.record_type(),
        )
        if self.dead_letters is not None:
            name = letters_name(self.name)
            ports = [(self.name, DEAD_LETTERS)]
            connect_dead_letters(graph, name, self.dead_letters, self.place, ports)

    def _check(self) -> None:
        where = f"{self.place}: source of topic {self.topic!r}"
        start: object = self.start
        if not is_start(start):
            raise PipelineError(
                f"{where}: start={start!r} must be 'earliest', 'latest', 'group', a timestamp in "
                "ms or a dict of offsets by partition"
            )
        if isinstance(start, int) and start < 0:
            raise PipelineError(f"{where}: start={start} is no timestamp in ms since the epoch")
        if isinstance(start, Mapping) and any(n < 0 for pair in start.items() for n in pair):
            raise PipelineError(f"{where}: start={dict(start)} has a negative partition or offset")
        check_choice(where, "on_bad_record", self.on_bad_record, get_args(OnBadRecord))
        if (self.on_bad_record == "dead_letter") != (self.dead_letters is not None):
            raise PipelineError(
                f"{where}: on_bad_record='dead_letter' and dead_letters='topic' are given together "
                "or not at all"
            )
        if self.dead_letters is not None:
            check_topic(self.place, self.dead_letters)


class KafkaSink(Connector, Generic[T]):
    """A topic that the pipeline writes.

    `key_by` takes the record's key from the value. The key is text or bytes, or any other type with
    its format in `key`. Without `key_by`, a record keeps its source key if only map, filter and
    flat_map are between source and sink. After other steps it has no key.
    `guarantee` is one of these:

    - "exactly_once" (the default): records become visible to read_committed readers together with
      their checkpoint;
    - "at_least_once": records become visible at once, and those since the last checkpoint are
      repeated after a failure;
    - "none": the sink does not wait for acknowledgements of the brokers at a barrier, so records
      may be lost or repeated.

    `compression`: "none", "gzip", "snappy", "lz4" or "zstd". `linger`: how long a batch may wait
    for more records, as "5 ms" or a timedelta. If they are not given, compression.type and
    linger.ms of [kafka.properties] apply, or else "none" and "5 ms".
    `kafka`: librdkafka settings of its producers. Two examples are the limits of the records that
    wait in one producer, "queue.buffering.max.messages" (100000) and "queue.buffering.max.kbytes"
    (65536). Settings that tidegate sets itself are refused.
    `on_error`: the action for a record that cannot be encoded or is larger than the topic allows.
    It is "fail" (the default), "skip", or "dead_letter" with the topic `dead_letters`, as in a
    step.

    The constructor raises PipelineError, with file and line, for a value that is not allowed.
    """

    @overload
    def __init__(self, topic: str, *, value: Format[T], **options: Unpack[SinkOptions]) -> None: ...
    @overload
    def __init__(
        self,
        topic: str,
        *,
        value: Format[T],
        key_by: Callable[[T], str | bytes],
        **options: Unpack[SinkOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        topic: str,
        *,
        value: Format[T],
        key: Format[K],
        key_by: Callable[[T], K],
        **options: Unpack[SinkOptions],
    ) -> None: ...
    def __init__(
        self,
        topic: str,
        *,
        value: Format[T],
        key: Format[Any] | None = None,
        key_by: Callable[[T], Any] | None = None,
        **options: Unpack[SinkOptions],
    ) -> None:
        super().__init__(topic, options.get("kafka"))
        where = f"{self.place}: sink for topic {topic!r}"
        refuse_unknown(where, options, SinkOptions.__optional_keys__)
        if key is not None and key_by is None:
            raise PipelineError(f"{where}: key is a format; key_by must say what the key is")
        if key_by is not None and not callable(key_by):
            raise PipelineError(
                f"{where}: key_by={key_by!r} must be a function of the value, as in "
                "key_by=lambda total: total.customer"
            )
        self.value, self.key, self.key_by = value, key, key_by
        self.full_record = False
        self.guarantee: Guarantee = options.get("guarantee", "exactly_once")
        check_choice(where, "guarantee", self.guarantee, get_args(Guarantee))
        self.errors: ErrorOptions = {}
        if "on_error" in options:
            self.errors["on_error"] = options["on_error"]
        if "dead_letters" in options:
            self.errors["dead_letters"] = options["dead_letters"]
        self.on_error = error_policy(where, self.place, self.errors)
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
        sink.key, sink.full_record = key, True
        return sink

    def _set(self, where: str, keyword: str, setting: str, value: str | int) -> None:
        """Apply a keyword that is also a setting of librdkafka; PipelineError if both are given."""
        if setting in self.kafka:
            raise PipelineError(
                f"{where}: {keyword}= and kafka={{{setting!r}: ...}} say the same; write one only"
            )
        self.kafka[setting] = value

    def record_type(self) -> object:
        """Return the type of the records that the sink takes."""
        if not self.full_record or self.key is None:
            return self.value.of
        key: Any = self.key.of
        value: Any = self.value.of
        return ProducerRecord[key, value]

    def connect(self, graph: StreamGraph, edges: tuple[Edge, ...]) -> None:
        """End a chain at this sink; a second chain adds its edges to the same node."""
        before = graph.nodes.get(self.name)
        if before is not None and before.declaration is self:
            graph.remove(self.name)
            graph.remove(letters_name(self.name))
            edges = before.inputs + edges
        options = {
            "topic": self.topic,
            "key": None if self.key is None else self.key.describe(),
            "value": self.value.describe(),
            "whole": self.full_record,
            "guarantee": self.guarantee,
            **policy_options(self.on_error),
        }
        graph.add(
            "sink",
            edges,
            place=self.place,
            uid=self.name,
            options=options,
            function=self.key_by,
            declaration=self,
            record_type=self.record_type(),
        )
        if "dead_letters" in self.errors:
            name, topic = letters_name(self.name), self.errors["dead_letters"]
            connect_dead_letters(graph, name, topic, self.place, [(self.name, DEAD_LETTERS)])
