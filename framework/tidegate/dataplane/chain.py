"""A vertex of the plan as operators: the chain through which a subtask pushes its batches.

Chained steps call each other directly, one batch at a time. A run of stateless steps is one fused
loop. The outputs of the chain are sinks and record writers (edges to other subtasks). The chain is
built once per attempt, starting from its outputs. Its subtask drives it. The chain does not
know the internals of channels, or the alignment.

The results of a step are checked against its declared type (`operators/checking.py`). Each step
owns the records that it gets. If one object would reach two steps, `operators/fan_out.py` makes
copies.

Between two calls the chain holds back no records: its outputs buffer, operators do not. A barrier
between two batches therefore separates exactly the records before it from those after it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol, cast

from tidegate.api.connectors.sink import Sink
from tidegate.api.declarations.declaration_checks import OnError
from tidegate.api.records.copying import copy_value, copy_values
from tidegate.api.records.type_inference import only_reads
from tidegate.dataplane.columns import with_values
from tidegate.dataplane.counters import Counters
from tidegate.dataplane.keying import KeyExtractor
from tidegate.dataplane.operator_registry import (
    Operator,
    OwnTimeOperator,
    StatefulOperator,
    TwoInputOperator,
    operator_entry,
)
from tidegate.dataplane.operators.checking import Checks
from tidegate.dataplane.operators.event_time import Advance
from tidegate.dataplane.operators.fan_out import CopyBatch, Target, fan_out
from tidegate.dataplane.operators.keyed import KeyedStateLike
from tidegate.dataplane.operators.stateless import Emit, FusedSteps
from tidegate.dataplane.refusals import Refusals
from tidegate.dataplane.sink_writer import SinkWriter
from tidegate.dataplane.sizes import DEFAULT_MAX_BYTES
from tidegate.dataplane.user_errors import result_error
from tidegate.errors import InternalError, UserCodeError
from tidegate.graph.operator_kinds import operator_kind
from tidegate.graph.plan import PlanEdge, Vertex
from tidegate.graph.stream_graph import (
    DEAD_LETTERS,
    MAIN,
    UNKNOWN,
    Edge,
    Node,
    StreamGraph,
    policy_of,
)
from tidegate.protocol.subtask_snapshot import StepWatermark
from tidegate.stream_elements import MIN_MS, NEVER, Control, RecordBatch, Watermark
from tidegate.user_exceptions import described, process_ends


class RecordWriterLike(Protocol):
    """An edge to the subtasks of another vertex."""

    def emit(self, batch: RecordBatch) -> None: ...
    def emit_control(self, element: Control) -> None: ...
    def writable(self) -> bool: ...
    def flush(self) -> None: ...
    def set_refusals(self, refusals: Refusals) -> None:
        """Apply this policy to records that cannot be sent."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainOutputs:
    """The outside parts of a chain: record writers by plan edge, makers of sinks and state."""

    record_writers: Sequence[tuple[PlanEdge, RecordWriterLike]]
    make_sink: Callable[[Node, Refusals], SinkWriter]
    make_state: Callable[[Node], KeyedStateLike]
    counters: Counters = field(default_factory=Counters)
    dead_letter_bytes_max: Callable[[Node], int] = lambda _: DEFAULT_MAX_BYTES
    """Function that returns the size in bytes of the largest record that a dead-letter sink may
    write.
    """
    now_ms: Callable[[], int] = lambda: 0
    """Function that returns the time of the slot's clock."""
    restored_watermark_ms: Callable[[Node], int] = lambda _: MIN_MS
    """Function that returns the restored watermark of a step with its own time."""
    watermark_interval_ms: int = 0
    """The least time between two watermarks of such a step."""


_ENTRY: Final = ""
"""The key of the functions that take the watermark of the whole chain."""


class OperatorChain:
    """The operators of one subtask."""

    def __init__(
        self,
        pipeline: str,
        graph: StreamGraph,
        vertex: Vertex,
        chain_outputs: ChainOutputs,
        *,
        every_field: bool = False,
    ) -> None:
        """Build the chain. With `every_field`, all fields of every result are checked, not only a
        sample.
        """
        self._checks = Checks(pipeline, every_field)
        self.pipeline, self._graph, self._vertex, self._chain_outputs = (
            pipeline,
            graph,
            vertex,
            chain_outputs,
        )
        self.sinks: dict[str, SinkWriter] = {}
        self.keyed: dict[str, KeyedStateLike] = {}
        """The state of each keyed step. A checkpoint of the subtask has a snapshot of each."""
        self._operators: list[Operator] = []
        """The operators, those behind a step before that step."""
        self._timed: list[Operator] = []
        """Those of them that may have something due while no record comes."""
        self._own_time: list[OwnTimeOperator] = []
        """Those of them that have a time of their own."""
        self.reading = True
        """Whether the task asks for records now. It sets this; time in which it does not ask makes
        no step idle.
        """
        self._letters: dict[tuple[str, str], Emit] = {}
        self._advances: dict[str, list[Advance]] = {}
        """The functions that take the watermark of each step: its readers and its edges."""
        self.record_writers = [record_writer for _, record_writer in chain_outputs.record_writers]
        self._head = head = graph.nodes[vertex.nodes[0]]
        self._sides: list[Emit] = []
        """The functions that take the batches of each input, if the first step has two."""
        self._entry: Emit | None = None if head.kind == "source" else self._operator(head)
        self._from_source: Mapping[str, Emit] = (
            {
                MAIN: self.outputs(head, MAIN, maker=None),
                DEAD_LETTERS: self._dead_letter_emit(head, DEAD_LETTERS),
            }
            if head.kind == "source"
            else {}
        )

    def entry(self, side: int = 0) -> Emit:
        """Return the function that takes the batches of the input channels. `side` is the input of
        the first step to which a channel leads.
        """
        if self._sides:
            return self._sides[side]
        if self._entry is None:
            message = f"vertex {self._vertex.id!r} has a source and no channels"
            raise InternalError(message)
        return self._entry

    def from_source(self, port: str = MAIN) -> Emit:
        """Return the function that takes a source's batches of a port."""
        return self._from_source[port]

    def advance(self, watermark: Watermark) -> None:
        """Advance the event time of the whole chain: of each step, before the steps behind it."""
        if self._head.kind == "source":
            self._forward((self._head.id,), watermark)
        else:
            for advance in self._advances.get(_ENTRY, ()):
                advance(watermark)

    def _forward(self, node_ids: tuple[str, ...], watermark: Watermark) -> None:
        for node_id in node_ids:
            for advance in self._advances.get(node_id, ()):
                advance(watermark)

    @property
    def firing(self) -> bool:
        """Whether results of timers or windows are due. The chain takes no records and no watermark
        until `fire` has emitted them all. A barrier may pass.
        """
        return bool(self._timed) and any(operator.firing for operator in self._timed)

    def fire(self) -> None:
        """Emit a piece of what is due: of the last steps first, so that a step has nothing due when
        the results of a step in front of it come.
        """
        for operator in self._timed:
            if operator.firing:
                operator.fire()
                return

    def set_piece(self, count: int) -> None:
        """Set the number of keys or windows that fire together."""
        for operator in self._timed:
            operator.set_piece(count)

    @property
    def next_processing_ms(self) -> int:
        """The time of the slot's clock at which a step has something to do."""
        return min((operator.next_processing_ms for operator in self._timed), default=NEVER)

    def due_in_s(self) -> float:
        """Return the seconds until the clock gives a step something to do; infinity if it gives it
        nothing.
        """
        due_ms = self.next_processing_ms
        return math.inf if due_ms == NEVER else (due_ms - self.now_ms()) / 1000

    def advance_processing_time(self) -> bool:
        """Emit a piece of what is due by the slot's clock. Return whether anything was due."""
        if not self._timed or self.next_processing_ms == NEVER:
            return False
        now_ms = self.now_ms()
        for operator in self._timed:
            if operator.next_processing_ms <= now_ms:
                operator.advance_processing_time(now_ms)
                return True
        return False

    def emit_watermarks(self) -> None:
        """Let the steps with their own time emit their watermarks now, as far as the chain can take
        them. Otherwise a snapshot has them, and they are emitted later.
        """
        for operator in reversed(self._own_time):
            if not self.firing and self.writable():
                operator.emit_watermark()

    def step_watermarks(self) -> tuple[StepWatermark, ...]:
        """Return the watermarks of the steps with their own time, for a checkpoint."""
        return tuple(operator.snapshot() for operator in self._own_time)

    @property
    def counters(self) -> Counters:
        """The counters of the slot."""
        return self._chain_outputs.counters

    @property
    def watermark_interval_ms(self) -> int:
        """The least time between two watermarks of a step with its own time."""
        return self._chain_outputs.watermark_interval_ms

    def asks_for_records(self) -> bool:
        """Return whether the task asks for records now."""
        return self.reading

    def restored_watermark_ms(self, node: Node) -> int:
        """Return the restored watermark of a step with its own time; MIN_MS if it has none."""
        return self._chain_outputs.restored_watermark_ms(node)

    def now_ms(self) -> int:
        """Return the time of the slot's clock in milliseconds since the Unix epoch."""
        return self._chain_outputs.now_ms()

    def writable(self) -> bool:
        """Return whether every output can take the records that one more batch may produce."""
        return all(sink.writable() for sink in self.sinks.values()) and all(
            record_writer.writable() for record_writer in self.record_writers
        )

    def open(self) -> None:
        """Open sinks and user functions, before the first record. A step opens after the steps
        behind it.
        """
        for sink in self.sinks.values():
            sink.open()
        for operator in self._operators:
            operator.open()

    def close(self) -> None:
        """Close user functions, after the last record or when the attempt ends.

        If one function raises, the other functions and the state are closed nevertheless.
        """
        with ExitStack() as closing:  # calls in reverse order, and raises at the end
            for operator in self._operators:
                closing.callback(operator.close)

    @property
    def fused(self) -> list[FusedSteps]:
        """The runs of fused steps."""
        return [each for each in self._operators if isinstance(each, FusedSteps)]

    def _operator(self, node: Node) -> Emit:
        """Return the function that takes the input of `node`, and build the operators behind it."""
        # A chained step takes the watermark of its producer, and the first step that of the task.
        producer = node.inputs[0].node if self._is_chained(node) else _ENTRY
        if node.kind == "sink":
            sink = self.sinks[node.id] = self._chain_outputs.make_sink(node, self.refusals(node))
            return sink.write
        operator = operator_entry(node).build(self, node)
        self._operators.append(operator)
        if operator.has_timers:
            self._timed.append(operator)
        run = self.fused_run(node) if operator_kind(node.kind).fused else [node]
        operator.forward = partial(self._forward, tuple(each.id for each in run))
        self._advances.setdefault(producer, []).append(operator.advance)
        if operator_kind(node.kind).two_inputs:
            process_side = cast("TwoInputOperator", operator).process_side
            self._sides = [partial(process_side, side) for side in (0, 1)]
        if operator_kind(node.kind).own_time:
            self._own_time.append(cast("OwnTimeOperator", operator))
        if operator_kind(node.kind).keyed:
            self.keyed[node.id] = cast("StatefulOperator", operator).state
        return operator.process

    def state(self, node: Node) -> KeyedStateLike:
        """Return the restored state of a keyed step."""
        return self._chain_outputs.make_state(node)

    def key_refusals(self, node: Node) -> Refusals | None:
        """Return the policy of the step's key_by, if a call hands the records to the step.

        None if a record that has no key ends the attempt, or if a record writer in front of the
        step applies the policy.
        """
        return self._key_refusals(node, node.inputs[0]) if self._is_chained(node) else None

    def fused_run(self, node: Node) -> list[Node]:
        """Return the node and the fused steps behind it, as far as each is the only reader of the
        results before it.
        """
        run = [node]
        while (following := self._only_fused_consumer(run[-1])) is not None:
            run.append(following)
        return run

    def _only_fused_consumer(self, node: Node) -> Node | None:
        chained = self._chained(node, MAIN)
        alone = len(chained) == 1 and not self._edges(node, MAIN)
        return chained[0][0] if alone and operator_kind(chained[0][0].kind).fused else None

    def outputs(self, node: Node, port: str, *, maker: Node | None) -> Emit:
        """Return the function that takes the records of a port.

        `maker` is the step whose code made the records. It is None if they only come from the
        source, whose format made them for one owner.
        """
        chained = [
            (self._operator(reader), reader, edge) for reader, edge in self._chained(node, port)
        ]
        record_writers = [
            (self._make_edge_emit(reader, edge, record_writer), reader, edge)
            for record_writer, reader, edge in self._edges(node, port)
        ]
        self._advances.setdefault(node.id, []).extend(
            record_writer.emit_control for record_writer, _, _ in self._edges(node, port)
        )
        readers = [*chained, *record_writers]
        given = node.record_type if port == MAIN or not readers else readers[0][2].record_type
        targets = [
            Target(
                self._checked_for(reader, edge, given, maker, node, emit),
                reads_only=number < len(chained) and _reads_only(reader, edge),
            )
            for number, (emit, reader, edge) in enumerate(readers)
        ]
        # A key edge passes records by reference or encoded, depending on the parallelism. The
        # function before it may keep a result, or give it twice. Records that go to another slot
        # are copies already.
        shared = maker is not None and any(edge.partitioning == "key" for _, _, edge in readers)
        if shared and node.kind != "source":
            shared = port not in operator_entry(node).copied_ports(node)
        # A type that only the single reader declares is sufficient: the reader's check refuses
        # other types.
        of = readers[0][2].record_type if given is UNKNOWN and len(readers) == 1 else given
        emit = fan_out(targets, of, shared=shared, copies=self._copies(maker or node))
        if maker is None:
            return emit
        validate_all = any(self._validates_all(reader) for _, reader, _ in readers)
        # A record that stays in its slot must be the one that another slot would get.
        exact = any(edge.partitioning == "key" for _, _, edge in readers)
        return self._checks.of_step(
            maker, given, self.refusals(maker), emit, validate_all=validate_all, exact=exact
        )

    def _checked_for(
        self, reader: Node, edge: Edge, given: object, maker: Node | None, node: Node, emit: Emit
    ) -> Emit:
        """Return `emit`, with a check if the reader declares another type than the step, or if no
        step has made the records and a `key_by` takes them.
        """
        if isinstance(reader.declaration, Sink):
            wanted = reader.declaration.record_type()
        else:
            wanted = edge.record_type if edge.partitioning == "key" else UNKNOWN
        by_key = edge.partitioning == "key"
        refusals = self._key_refusals(reader, edge) if by_key else self.refusals(reader)
        if wanted == given or wanted is UNKNOWN:
            if maker is None and by_key:
                return self._checks.of_source(node, reader, given, refusals, emit)
            return emit
        return self._checks.for_reader(
            maker or node,
            reader,
            wanted,
            refusals,
            emit,
            validate_all=self._validates_all(reader),
            exact=by_key,
        )

    def _validates_all(self, reader: Node) -> bool:
        """Return whether a sink wants every field of each record checked.

        Filters make no records, so a sink behind filters counts too.
        """
        if not operator_kind(reader.kind).makes_records:
            return any(self._validates_all(node) for node, _ in self._graph.consumers(reader.id))
        return isinstance(reader.declaration, Sink) and reader.declaration.checks_all_fields

    def _copies(self, node: Node) -> CopyBatch:
        def copies(batch: RecordBatch) -> RecordBatch:
            try:
                values = copy_values(batch.values)
            except process_ends():
                raise
            except BaseException as error:
                raise self._copy_error(node, batch, error) from error
            if values is batch.values:
                return batch
            return with_values(batch, values)

        return copies

    def _copy_error(self, node: Node, batch: RecordBatch, error: BaseException) -> UserCodeError:
        index = 0
        for index, value in enumerate(batch.values):  # noqa: B007  # read after the loop
            try:
                copy_value(value)
            except process_ends():
                raise
            except BaseException as single:  # noqa: BLE001  # the error of this value
                error = single
                break
        what = (
            f"gave a {type(batch.values[index]).__name__} that cannot be copied "
            f"({described(error)}), and several steps read it"
        )
        remedy = "Give each of them a type that cannot change (frozen), or map it to plain values."
        return result_error(self.pipeline, node, batch, index, what, remedy)

    def _make_edge_emit(self, target: Node, edge: Edge, record_writer: RecordWriterLike) -> Emit:
        """Return the function that sends a batch along an edge."""
        refusals = self._key_refusals(target, edge) if edge.partitioning == "key" else None
        if refusals is None:
            return record_writer.emit
        record_writer.set_refusals(refusals)
        keying = KeyExtractor(self.pipeline, target, edge, refusals)
        return lambda batch: record_writer.emit(keying.keys(batch)[0])

    def refusals(self, node: Node) -> Refusals:
        """Return the policy of a step or a sink."""
        where = f"{node.id} ({node.location})"
        return self._policy(where, policy_of(node), node, DEAD_LETTERS)

    def skipping(self, node: Node) -> Refusals:
        """Return a policy that counts and logs the records that a step refuses."""
        return self._policy(f"{node.id} ({node.location})", "skip", node, DEAD_LETTERS)

    def _key_refusals(self, target: Node, edge: Edge) -> Refusals | None:
        """Return the policy of a key edge; None if a record that cannot be sent ends the attempt.

        An edge without its own policy has the policy of the step that made the record. A filter
        makes no records, so the search continues in front of a filter without a policy.
        """
        maker = self._graph.nodes[edge.node]
        if edge.on_error is not None:
            policy = edge.on_error
        else:
            while (
                not operator_kind(maker.kind).makes_records
                and policy_of(maker) == "fail"
                and _one_input(maker)
            ):
                maker = self._graph.nodes[maker.inputs[0].node]
            policy = policy_of(maker)
        if policy == "fail":
            return None
        where = f"key_by before {target.id} ({target.location})"
        return self._policy(where, policy, maker, edge.dead_letter_port)

    def _policy(self, where: str, policy: str, node: Node, port: str) -> Refusals:
        emit, bytes_max = None, DEFAULT_MAX_BYTES
        if policy == "dead_letter":
            emit = self._dead_letter_emit(node, port)
            sinks = [sink for sink, edge in self._graph.consumers(node.id) if edge.port == port]
            bytes_max = min(map(self._chain_outputs.dead_letter_bytes_max, sinks))
        return Refusals(
            where, cast("OnError", policy), self._chain_outputs.counters, emit, bytes_max
        )

    def _dead_letter_emit(self, node: Node, port: str) -> Emit:
        """Return the function that takes the dead letters of a port. Several places may write to
        one port.
        """
        if (node.id, port) not in self._letters:
            self._letters[node.id, port] = self.outputs(node, port, maker=None)
        return self._letters[node.id, port]

    def ports(self, node: Node) -> dict[str, Emit]:
        """Return the outputs of the main port and of each side output that has a reader."""
        consumers = self._graph.consumers(node.id)
        ports = {edge.port for _, edge in consumers if not self._graph.carries_dead_letters(edge)}
        return {port: self.outputs(node, port, maker=node) for port in sorted({MAIN, *ports})}

    def _chained(self, node: Node, port: str) -> list[tuple[Node, Edge]]:
        return [
            (consumer, edge)
            for consumer, edge in self._graph.consumers(node.id)
            if edge.port == port and self._is_chained(consumer)
        ]

    def _is_chained(self, node: Node) -> bool:
        """Return whether a step gets its records by a call from another step of this vertex."""
        return node.id in self._vertex.nodes and node.id != self._vertex.nodes[0]

    def _edges(self, node: Node, port: str) -> list[tuple[RecordWriterLike, Node, Edge]]:
        """Return the record writers, each with the step that it leads to and the input there."""
        targets = self._graph.nodes
        return [
            (record_writer, targets[edge.target_node], targets[edge.target_node].inputs[edge.input])
            for edge, record_writer in self._chain_outputs.record_writers
            if edge.source_node == node.id and edge.port == port
        ]


def _reads_only(consumer: Node, edge: Edge) -> bool:
    """Return whether a step encodes its records at once, and user code can only read them."""
    if consumer.kind != "sink":
        return False
    key_by = cast("Callable[..., object] | None", consumer.function)
    return key_by is None or only_reads(key_by, edge.record_type)


def _one_input(node: Node) -> bool:
    return len(node.inputs) == 1 and node.inputs[0].partitioning == "forward"
