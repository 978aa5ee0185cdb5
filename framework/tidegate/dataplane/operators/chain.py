"""A vertex of the plan as operators: what a subtask pushes its batches through.

Steps that were chained call each other directly, a batch at a time; a run of stateless steps is one
fused loop; the leaves are sinks and outlets (edges to other subtasks). Built once per attempt, from
the leaves up. `dataplane/task.py` drives it; it knows neither channels' insides nor alignment.

Between two calls nothing is kept back inside the chain (outlets and sinks buffer, operators do
not), so a barrier that is taken between two batches cuts exactly there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tidegate.dataplane.operators.keyed import KeyedOperator, KeyedStateLike
from tidegate.dataplane.operators.process import ProcessOperator
from tidegate.dataplane.operators.stateless import STATELESS, Emit, FusedSteps
from tidegate.elements import Barrier, EndOfInput, RecordBatch
from tidegate.errors import InternalError
from tidegate.graph.logical import DEAD_LETTERS, MAIN, Graph, Node
from tidegate.graph.plan import PlanEdge, Vertex
from tidegate.ids import CheckpointId, TransactionalId
from tidegate.protocol.snapshots import PreparedTransaction


class Outlet(Protocol):
    """An edge to the subtasks of another vertex."""

    def emit(self, batch: RecordBatch) -> None: ...
    def emit_control(self, element: Barrier | EndOfInput) -> None: ...
    def writable(self) -> bool: ...
    def flush(self) -> None: ...


class Sink(Protocol):
    """A leaf that writes to the world, in transactions that checkpoints name."""

    def open(self) -> None: ...
    def write(self, batch: RecordBatch) -> None: ...
    def writable(self) -> bool: ...
    def prepare(
        self,
        checkpoint: CheckpointId,
        done: Callable[[tuple[PreparedTransaction, ...]], None],
        *,
        final: bool,
    ) -> None: ...
    def ended(
        self, ids: Sequence[TransactionalId], checkpoint: CheckpointId | None = None
    ) -> None: ...
    def freed(self, ids: Sequence[TransactionalId]) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaves:
    """What a chain needs from outside: outlets by plan edge, makers of sinks and of keyed state."""

    outlets: Sequence[tuple[PlanEdge, Outlet]]
    make_sink: Callable[[Node], Sink]
    make_state: Callable[[Node], KeyedStateLike]


class Chain:
    """The operators of one subtask."""

    def __init__(self, pipeline: str, graph: Graph, vertex: Vertex, leaves: Leaves) -> None:
        self._pipeline, self._graph, self._vertex, self._leaves = pipeline, graph, vertex, leaves
        self.sinks: dict[str, Sink] = {}
        self.keyed: dict[str, KeyedOperator] = {}
        self.fused: list[FusedSteps] = []
        self._processes: list[ProcessOperator] = []
        self.outlets = [outlet for _, outlet in leaves.outlets]
        head = graph.nodes[vertex.nodes[0]]
        self._entry: Emit | None = None if head.kind == "source" else self._operator(head)
        self._from_source: Mapping[str, Emit] = (
            {port: self._outputs(head, port) for port in (MAIN, DEAD_LETTERS)}
            if head.kind == "source"
            else {}
        )

    def entry(self) -> Emit:
        """Where batches of the input channels go in."""
        if self._entry is None:
            message = f"vertex {self._vertex.id!r} has a source and no channels"
            raise InternalError(message)
        return self._entry

    def from_source(self, port: str = MAIN) -> Emit:
        """Where a source's batches go in."""
        return self._from_source[port]

    def writable(self) -> bool:
        """Whether every leaf can take what one more batch may lead to."""
        return all(sink.writable() for sink in self.sinks.values()) and all(
            outlet.writable() for outlet in self.outlets
        )

    def open(self) -> None:
        """Open sinks and user functions, before the first record."""
        for sink in self.sinks.values():
            sink.open()
        for process in self._processes:
            process.open()
        for keyed in self.keyed.values():
            keyed.open()

    def close(self) -> None:
        """Close user functions, after the last record or when the attempt ends."""
        for process in self._processes:
            process.close()
        for keyed in self.keyed.values():
            keyed.close()

    def _operator(self, node: Node) -> Emit:
        """What takes the input of `node`."""
        if node.kind in STATELESS:
            run = [node]
            while (following := self._only_stateless_consumer(run[-1])) is not None:
                run.append(following)
            fused = FusedSteps(self._pipeline, run, self._outputs(run[-1], MAIN))
            self.fused.append(fused)
            return fused.process
        if node.kind == "sink":
            sink = self.sinks[node.id] = self._leaves.make_sink(node)
            return sink.write
        if node.kind == "process":
            process = ProcessOperator(self._pipeline, node, self._ports(node))
            self._processes.append(process)
            return process.process
        if node.kind == "keyed_process":
            state = self._leaves.make_state(node)
            keyed = self.keyed[node.id] = KeyedOperator(
                self._pipeline, node, state, self._ports(node)
            )
            return keyed.process
        message = f"step {node.id!r} is a {node.kind}, which has no input"
        raise InternalError(message)

    def _only_stateless_consumer(self, node: Node) -> Node | None:
        """The stateless step that alone reads `node`'s results in this vertex, to be fused with
        it.
        """
        chained = self._chained(node, MAIN)
        alone = len(chained) == 1 and not self._edges(node, MAIN)
        return chained[0] if alone and chained[0].kind in STATELESS else None

    def _outputs(self, node: Node, port: str) -> Emit:
        emits = [self._operator(consumer) for consumer in self._chained(node, port)]
        emits += [outlet.emit for outlet in self._edges(node, port)]
        return _fan_out(emits)

    def _ports(self, node: Node) -> dict[str, Emit]:
        """The main port, and each side output that somebody reads."""
        ports = {edge.port for _, edge in self._graph.consumers(node.id)}
        return {port: self._outputs(node, port) for port in sorted({MAIN, *ports})}

    def _chained(self, node: Node, port: str) -> list[Node]:
        return [
            consumer
            for consumer, edge in self._graph.consumers(node.id)
            if edge.port == port
            and consumer.id in self._vertex.nodes
            and consumer.id != self._vertex.nodes[0]
        ]

    def _edges(self, node: Node, port: str) -> list[Outlet]:
        return [
            outlet
            for edge, outlet in self._leaves.outlets
            if edge.source_node == node.id and edge.port == port
        ]


def _fan_out(emits: Sequence[Emit]) -> Emit:
    if len(emits) == 1:
        return emits[0]

    def emit(batch: Any) -> None:
        for each in emits:
            each(batch)

    return emit
