"""A driver for a whole pipeline class: push records into its sources and read its sinks.

The driver runs the chains and operators of the data plane in the calling thread, at parallelism 1,
over state in memory. A method call passes each batch from one vertex to the next. Records are
encoded and decoded with the formats of their source and sink, so a record that cannot be read or
written fails in the test. There is no Kafka, no checkpoint and no clock.

A test names a source or a sink by its class attribute (`test.source(OrderTotals.orders)`), because
the attribute carries the record type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar, cast

from tidegate.api.connector import Connector
from tidegate.api.copying import copy_value
from tidegate.api.formats import Raw
from tidegate.api.functions import KeyedProcess
from tidegate.api.kafka_records import Headers, ProducerRecord
from tidegate.api.kafka_sink import KafkaSink, dead_letter_sink_name
from tidegate.api.kafka_source import KafkaSource
from tidegate.api.pipeline import Pipeline, build
from tidegate.api.sink import Sink
from tidegate.api.watermarks import HeaderTime, WatermarkStrategy, instant_ms
from tidegate.dataplane.counters import Counters
from tidegate.dataplane.operators.chain import ChainOutputs, OperatorChain
from tidegate.dataplane.refusals import Refusals, reason_of
from tidegate.dataplane.sources.decoding import BatchDecoder
from tidegate.dataplane.sources.watermarks import SourceWatermarks
from tidegate.dataplane.time.valve import WatermarkValve
from tidegate.errors import InternalError, PipelineError
from tidegate.graph.key_groups import DEFAULT_MAX_PARALLELISM
from tidegate.graph.plan import PlanEdge, plan
from tidegate.graph.stream_graph import DEAD_LETTERS, Node
from tidegate.ids import CheckpointId, TransactionalId, Uid, VertexId
from tidegate.ports.kafka import RawRecord
from tidegate.protocol.subtask_snapshot import PreparedTransaction, SourceSplit
from tidegate.stream_elements import MIN_MS, Control, RecordBatch, TopicPartition, Watermark
from tidegate.testing.cells import CellsByKey

T = TypeVar("T")

_CREATE_TIME: Final = 1
"""The number with which the client library marks a timestamp that the producer has set."""


class PipelineTest:
    """A driver for one pipeline: `with PipelineTest(OrderTotals, minimum=5) as test:`.

    The constructor builds the pipeline with the keywords as its parameters, and opens all its
    functions. The end of the `with` block closes them.
    """

    def __init__(self, pipeline: type[Pipeline], **params: object) -> None:
        self._pipeline = pipeline
        self._graph = build(pipeline, params)
        self.counters = Counters()
        """Counters of the whole pipeline. `skipped` and `dead_letters` count the records that the
        policies of the pipeline have skipped or written as dead letters.
        """
        self._written: dict[str, list[Any]] = {}
        self._states: list[CellsByKey] = []
        self._chains: dict[VertexId, OperatorChain] = {}
        self._offsets: dict[str, int] = {}
        self._decoders: dict[str, BatchDecoder] = {}
        self._watermarks: dict[str, SourceWatermarks] = {}
        self._splits: dict[str, dict[TopicPartition, SourceSplit]] = {}
        self._valves: dict[VertexId, WatermarkValve] = {}
        self._layout = layout = plan(self._graph, 1, DEFAULT_MAX_PARALLELISM)
        for vertex in layout.vertices:
            chain_outputs = ChainOutputs(
                record_writers=[
                    (edge, _DirectRecordWriter(self, edge)) for edge in layout.outputs_of(vertex.id)
                ],
                make_sink=self._make_sink,
                make_state=self._make_state,
                counters=self.counters,
            )
            self._chains[vertex.id] = OperatorChain(
                pipeline.__name__, self._graph, vertex, chain_outputs, every_field=True
            )
        for chain in self._chains.values():
            chain.open()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for chain in self._chains.values():
            chain.close()

    def source(self, source: KafkaSource[T]) -> PipelineSource[T]:
        """Return the object that pushes records into a source.

        Raise PipelineError if the source does not belong to the pipeline.
        """
        self._check_ours(source)
        return PipelineSource(self, source)

    def sink(self, sink: Sink[T]) -> PipelineSink[T]:
        """Return the object that reads the records written to a sink.

        Raise PipelineError if the sink does not belong to the pipeline.
        """
        self._check_ours(sink)
        return PipelineSink(self._written[sink.name])

    def dead_letters(self, of: Connector | str) -> list[ProducerRecord[bytes, bytes]]:
        """Return the dead letters written since they were last read.

        `of` is a source or a sink. If it is the name of a topic, return the dead letters of all
        sources, steps and sinks that write them to this topic. Raise PipelineError for a source or
        a sink that does not belong to the pipeline.
        """
        if isinstance(of, str):
            names = [node.id for node in self._graph if self._writes_letters_to(node, of)]
        else:
            self._check_ours(of)
            names = [dead_letter_sink_name(of.name)]
        read = []
        for name in names:
            written = self._written.get(name, [])
            read += written
            written.clear()
        return read

    def _writes_letters_to(self, node: Node, topic: str) -> bool:
        letters = any(map(self._graph.carries_dead_letters, node.inputs))
        return letters and cast("KafkaSink[Any]", node.declaration).topic == topic

    def deliver(
        self, source: KafkaSource[Any], topic_partition: TopicPartition, messages: list[RawRecord]
    ) -> None:
        """Run messages of one partition through the pipeline as one batch. `PipelineSource` calls
        it.
        """
        decoder = self._decoders.get(source.name)
        if decoder is None:
            decoder = BatchDecoder(source, Uid(source.name), self.counters, keep_keys=False)
            self._decoders[source.name] = decoder
        chain = self._chains[VertexId(source.name)]
        batch = decoder.decode(topic_partition, messages)
        if batch.values:
            if source.watermarks is None:
                chain.from_source()(batch)
            else:
                watermarks = self._watermarks_of(source, topic_partition)
                watermarks.observe(batch)
                chain.from_source()(batch)
                chain.advance(watermarks.current())
        for letters in decoder.dead_letters:
            chain.from_source(DEAD_LETTERS)(letters)
        decoder.dead_letters.clear()
        for state in self._states:
            state.check_storable()

    def next_offset(self, source: KafkaSource[Any]) -> int:
        """Return the next offset for a pushed record without its own offset, counted from 0."""
        offset = self._offsets.get(source.name, 0)
        self._offsets[source.name] = offset + 1
        return offset

    def emit_to_vertex(self, edge: PlanEdge, batch: RecordBatch) -> None:
        """Hand a batch to the vertex that an edge leads to. The edges' `_DirectRecordWriter` calls
        it.
        """
        side = self._graph.nodes[edge.target_node].inputs[edge.input].side
        self._chains[edge.target].entry(side)(batch)

    def advance_vertex(self, edge: PlanEdge, watermark: Watermark) -> None:
        """Hand a watermark to the vertex that an edge leads to. The edges' `_DirectRecordWriter`
        calls it.
        """
        edges = self._layout.inputs_of(edge.target)
        valve = self._valves.get(edge.target)
        if valve is None:
            has = [self._graph.nodes[each.source_node].watermarks for each in edges]
            valve = WatermarkValve([Watermark(MIN_MS, idle=not each) for each in has])
            self._valves[edge.target] = valve
        combined = valve.offer(edges.index(edge), watermark)
        if combined is not None:
            self._chains[edge.target].advance(combined)

    def _watermarks_of(
        self, source: KafkaSource[Any], topic_partition: TopicPartition
    ) -> SourceWatermarks:
        """Return the watermarks of a source. A partition takes part from its first record on."""
        splits = self._splits.setdefault(source.name, {})
        known = self._watermarks.get(source.name)
        if known is not None and topic_partition in splits:
            return known
        before = () if known is None else known.in_splits(tuple(splits.values()))
        splits |= {split.topic_partition: split for split in before}
        topic, partition = topic_partition
        splits[topic_partition] = SourceSplit(
            source=Uid(source.name), topic=topic, partition=partition, offset=0
        )
        strategy = cast("WatermarkStrategy[Any]", source.watermarks)
        made = SourceWatermarks(strategy, Uid(source.name), tuple(splits.values()), self.counters)
        self._watermarks[source.name] = made
        return made

    def _check_ours(self, connector: Connector) -> None:
        if self._pipeline.connectors.get(connector.name) is not connector:
            raise PipelineError(f"{connector.name!r} is not of {self._pipeline.__name__}")

    def _make_sink(self, node: Node, refusals: Refusals) -> _Sink:
        sink = cast("Sink[Any]", node.declaration)
        return _Sink(sink, self._written.setdefault(node.id, []), refusals)

    def _make_state(self, node: Node) -> CellsByKey:
        function = cast("KeyedProcess[Any, Any, Any]", node.function)
        state = CellsByKey(function, node.inputs[0].key_type, f"step {node.id!r} ({node.location})")
        self._states.append(state)
        return state


class PipelineSource(Generic[T]):
    """A source of the pipeline under test, made by `PipelineTest.source`."""

    __test__ = False  # not a test class of pytest's

    def __init__(self, test: PipelineTest, source: KafkaSource[T]) -> None:
        self._test, self._source = test, source
        value: Any = source.value
        self._encode_value: Callable[[Any], bytes] = value.encoder()
        self._encode_key: Callable[[Any], bytes] = (
            Raw() if source.key is None else source.key
        ).encoder()

    def push(self, *records: T) -> Self:
        """Encode records with the formats of the source, then decode and process them.

        Consecutive records of one partition form one batch. A ConsumerRecord keeps its topic,
        partition, offset and timestamp. Other records come from partition 0 of the topic of the
        source, with offsets counted from 0. Their timestamp is their event time, or 0.

        If the source has watermarks, the one that follows comes directly after the records. A
        partition takes part from its first record on.
        """
        messages = [self._message(record) for record in records]
        for topic_partition, run in groupby(messages, key=lambda message: message.topic_partition):
            self._test.deliver(self._source, topic_partition, list(run))
        return self

    def push_bytes(
        self, value: bytes | None, *, key: bytes | None = None, headers: Headers = ()
    ) -> Self:
        """Process one record given as the bytes that Kafka would store.

        If the source cannot decode the record, its `on_bad_record` policy applies. The policy
        "fail" raises BadRecordError.
        """
        message = self._plain(value, key=key, headers=headers)
        self._test.deliver(self._source, message.topic_partition, [message])
        return self

    def _message(self, record: Any) -> _Message:
        if not self._source.full_record:
            return self._plain(self._encode_value(record), timestamp_ms=self._time_ms(record))
        return _Message(
            topic_partition=TopicPartition(record.topic, record.partition),
            of_value=None if record.value is None else self._encode_value(record.value),
            of_key=None if record.key is None else self._encode_key(record.key),
            of_headers=record.headers,
            at_offset=record.offset,
            timestamp_ms=record.timestamp_ms,
        )

    def _plain(
        self,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        timestamp_ms: int = 0,
    ) -> _Message:
        return _Message(
            topic_partition=TopicPartition(self._source.topic, 0),
            of_value=value,
            of_key=key,
            of_headers=headers,
            at_offset=self._test.next_offset(self._source),
            timestamp_ms=timestamp_ms,
        )

    def _time_ms(self, record: Any) -> int:
        """Return Kafka's timestamp of a pushed record: its event time, if it has a usable one."""
        event_time = self._source.event_time
        if event_time is None or isinstance(event_time, HeaderTime):
            return 0
        try:
            return instant_ms(event_time(record))
        except Exception:  # noqa: BLE001 - the source's policy decides about it
            return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Message:
    """A record with the interface of the client library's messages."""

    topic_partition: TopicPartition
    of_value: bytes | None
    of_key: bytes | None
    of_headers: Headers
    at_offset: int
    timestamp_ms: int

    def value(self) -> bytes | None:
        return self.of_value

    def key(self) -> bytes | None:
        return self.of_key

    def offset(self) -> int:
        return self.at_offset

    def timestamp(self) -> tuple[int, int]:
        return _CREATE_TIME, self.timestamp_ms

    def headers(self) -> Any:
        return list(self.of_headers) or None


class PipelineSink(Generic[T]):
    """A sink of the pipeline under test, made by `PipelineTest.sink`."""

    __test__ = False

    def __init__(self, records: list[T]) -> None:
        self._records = records

    def read(self) -> list[T]:
        """Return the records written since the last read, in the order of writing."""
        read, self._records[:] = list(self._records), []
        return read


class _DirectRecordWriter:
    """An edge to another vertex. It passes each batch on by a method call."""

    def __init__(self, test: PipelineTest, edge: PlanEdge) -> None:
        self._test, self._edge = test, edge

    def emit(self, batch: RecordBatch) -> None:
        self._test.emit_to_vertex(self._edge, batch)

    def emit_control(self, element: Control) -> None:
        if not isinstance(element, Watermark):
            raise InternalError(f"a pipeline test sends no {element}")
        self._test.advance_vertex(self._edge, element)

    def writable(self) -> bool:
        return True

    def flush(self) -> None:
        """Do nothing: no batch is buffered."""

    def set_refusals(self, refusals: Refusals) -> None:
        """Do nothing: a method call can hand over every record, so none is refused here."""


class _Sink:
    """A sink that encodes each record as the real sink would, and keeps a copy of it.

    Because it keeps copies, a later change of a record by another step does not change the output.
    """

    def __init__(self, sink: Sink[Any], written: list[Any], refusals: Refusals) -> None:
        self._written, self._refusals = written, refusals
        self._encode = sink.encoder()

    def open(self) -> None:
        """Do nothing: there is no producer to open."""

    def write(self, batch: RecordBatch) -> None:
        for index, value in enumerate(batch.values):
            written = copy_value(value)  # before `key_by`, as the real sink encodes it
            try:
                self._encode(value)
            except Exception as error:
                if not (self._refusals.covers(error) or self._refuses(error)):
                    raise
                self._refusals.refuse(batch, index, reason_of(error))
            else:
                self._written.append(written)

    def _refuses(self, error: Exception) -> bool:
        """Return whether the policy covers an error that tidegate itself raises for a key."""
        return self._refusals.tolerant and isinstance(error, PipelineError)

    def writable(self) -> bool:
        return True

    def prepare(
        self,
        checkpoint: CheckpointId,
        done: Callable[[tuple[PreparedTransaction, ...]], None],
        *,
        final: bool,
    ) -> None:
        raise InternalError(f"checkpoint {checkpoint} in a pipeline test, for {done}, {final=}")

    def ended(self, ids: Sequence[TransactionalId], checkpoint: CheckpointId | None = None) -> None:
        """Do nothing: a pipeline test prepares no transaction."""

    def freed(self, ids: Sequence[TransactionalId]) -> None:
        """Do nothing: a pipeline test prepares no transaction."""
