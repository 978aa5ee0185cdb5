"""A driver for a whole pipeline class: push records into its sources, read what its sinks got.

It runs the data plane's own chains and operators in this thread, at parallelism 1, over state in
memory; between vertices batches go by call. Records pass the formats of their source and sink, so
that what could not be read or written fails here. There is no Kafka, no checkpoint and no clock.

Sources and sinks are named by the class attribute (`test.source(OrderTotals.orders)`), which
carries the type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, cast

from tidegate.api.functions import KeyedProcess
from tidegate.api.kafka import Connector, KafkaRecord, KafkaSink, KafkaSource
from tidegate.api.pipeline import Pipeline, build
from tidegate.dataplane.operators.chain import Chain, Leaves
from tidegate.elements import Barrier, EndOfInput, Origin, RecordBatch
from tidegate.errors import InternalError, PipelineError
from tidegate.graph.key_groups import DEFAULT_MAX_PARALLELISM
from tidegate.graph.logical import Node
from tidegate.graph.plan import PlanEdge, plan
from tidegate.ids import CheckpointId, TransactionalId, VertexId
from tidegate.protocol.snapshots import PreparedTransaction
from tidegate.testing.cells import CellsByKey

T = TypeVar("T")


class PipelineTest:
    """`with PipelineTest(OrderTotals, minimum=5) as test:` builds and opens the pipeline; keywords
    are its parameters.
    """

    def __init__(self, pipeline: type[Pipeline], **params: object) -> None:
        self._pipeline = pipeline
        self._graph = build(pipeline, params)
        self._written: dict[str, list[Any]] = {}
        self._states: list[CellsByKey] = []
        self._chains: dict[VertexId, Chain] = {}
        self._offsets: dict[str, int] = {}
        layout = plan(self._graph, 1, DEFAULT_MAX_PARALLELISM)
        for vertex in layout.vertices:
            leaves = Leaves(
                outlets=[(edge, _Outlet(self, edge)) for edge in layout.outputs_of(vertex.id)],
                make_sink=self._make_sink,
                make_state=self._make_state,
            )
            self._chains[vertex.id] = Chain(pipeline.__name__, self._graph, vertex, leaves)
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

    def source(self, source: KafkaSource[T]) -> TestSource[T]:
        """Where records of a source are pushed."""
        self._check_ours(source)
        return TestSource(self, source)

    def sink(self, sink: KafkaSink[T]) -> TestSink[T]:
        """What a sink got."""
        self._check_ours(sink)
        return TestSink(self._written[sink.name])

    def deliver(self, source: KafkaSource[Any], records: Sequence[Any]) -> None:
        """Run records of a source through the pipeline, as one batch; for `TestSource`."""
        first = self._offsets.get(source.name, 0)
        self._offsets[source.name] = first + len(records)
        offsets = list(range(first, first + len(records)))
        batch = RecordBatch(list(records), offsets, Origin(source.topic, 0))
        self._chains[VertexId(source.name)].from_source()(batch)
        for state in self._states:
            state.encode_touched()

    def pass_on(self, edge: PlanEdge, batch: RecordBatch) -> None:
        """Hand a batch to the vertex that an edge leads to; outlets call it."""
        self._chains[edge.target].entry()(batch)

    def _check_ours(self, connector: Connector) -> None:
        if self._pipeline.connectors.get(connector.name) is not connector:
            raise PipelineError(f"{connector.name!r} is not of {self._pipeline.__name__}")

    def _make_sink(self, node: Node) -> _Sink:
        return _Sink(
            cast("KafkaSink[Any]", node.declaration), self._written.setdefault(node.id, [])
        )

    def _make_state(self, node: Node) -> CellsByKey:
        function = cast("KeyedProcess[Any, Any, Any]", node.function)
        state = CellsByKey(function, node.inputs[0].key_type, f"step {node.id!r} ({node.place})")
        self._states.append(state)
        return state


class TestSource(Generic[T]):
    """A source of the pipeline under test."""

    __test__ = False  # not a test class of pytest's

    def __init__(self, test: PipelineTest, source: KafkaSource[T]) -> None:
        self._test, self._source = test, source
        value: Any = source.value
        self._read_value = _both_ways(value)
        self._read_key = _both_ways(source.key) if source.key is not None else None

    def push(self, *records: T) -> Self:
        """Records arrive, as one batch, having passed the source's format."""
        self._test.deliver(self._source, [self._through(record) for record in records])
        return self

    def _through(self, record: Any) -> Any:
        if not isinstance(record, KafkaRecord) or not self._source.whole:
            return self._read_value(record)
        return KafkaRecord(
            key=record.key if self._read_key is None else self._read_key(record.key),
            value=None if record.value is None else self._read_value(record.value),
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            timestamp_ms=record.timestamp_ms,
            headers=record.headers,
        )


class TestSink(Generic[T]):
    """A sink of the pipeline under test."""

    __test__ = False

    def __init__(self, records: list[T]) -> None:
        self._records = records

    def read(self) -> list[T]:
        """What was written since the last read, in order."""
        read, self._records[:] = list(self._records), []
        return read


class _Outlet:
    """An edge to another vertex: a call."""

    def __init__(self, test: PipelineTest, edge: PlanEdge) -> None:
        self._test, self._edge = test, edge

    def emit(self, batch: RecordBatch) -> None:
        self._test.pass_on(self._edge, batch)

    def emit_control(self, element: Barrier | EndOfInput) -> None:
        raise InternalError(f"a pipeline test sends no {element}")

    def writable(self) -> bool:
        return True

    def flush(self) -> None:
        """Nothing is held back."""


class _Sink:
    """Keeps records, having encoded each as the real sink would."""

    def __init__(self, sink: KafkaSink[Any], written: list[Any]) -> None:
        self._written = written
        self._encode = _encoder(sink)

    def open(self) -> None:
        """Nothing to open."""

    def write(self, batch: RecordBatch) -> None:
        for value in batch.values:
            self._encode(value)
        self._written.extend(batch.values)

    def writable(self) -> bool:
        return True

    def prepare(
        self,
        checkpoint: CheckpointId,
        done: Callable[[tuple[PreparedTransaction, ...]], None],
    ) -> None:
        raise InternalError(f"checkpoint {checkpoint} in a pipeline test, for {done}")

    def ended(self, ids: Sequence[TransactionalId], checkpoint: CheckpointId | None = None) -> None:
        """No transaction is ever prepared."""

    def freed(self, ids: Sequence[TransactionalId]) -> None:
        """No transaction is ever prepared."""


def _both_ways(form: Any) -> Callable[[Any], Any]:
    encode, decode = form.encoder(), form.decoder()
    return lambda value: decode(encode(value))


def _encoder(sink: KafkaSink[Any]) -> Callable[[Any], None]:
    """Encodes value and key, and throws the bytes away."""
    encode = sink.value.encoder()
    encode_key = None if sink.key is None else sink.key.encoder()
    key_by = sink.key_by

    def whole(record: Any) -> None:
        if record.value is not None:
            encode(record.value)
        if record.key is not None and encode_key is not None:
            encode_key(record.key)

    def plain(record: Any) -> None:
        encode(record)
        if key_by is not None and encode_key is not None:
            encode_key(key_by(record))
        elif key_by is not None:
            key = key_by(record)
            if not isinstance(key, str | bytes):
                raise PipelineError(
                    f"sink {sink.name!r} ({sink.place}): key_by gave {key!r}; a key is text or "
                    "bytes, or "
                    "has its format in key="
                )

    return whole if sink.whole else plain
