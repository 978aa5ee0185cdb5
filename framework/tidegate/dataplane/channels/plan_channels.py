"""The input gates and record writers of one subtask of each vertex, made from the plan.

A subclass decides what a channel is. `slot_channels` connects slots. `waves/level_task` writes
and reads the rows of a backfill. Both ends compute the same channels from the same plan, without
negotiation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tidegate.api.state import keys, wire
from tidegate.api.state.keys import KeyEncoder
from tidegate.dataplane.channels.frames import ColumnCodec, FrameCodec
from tidegate.dataplane.channels.input_gate import InputChannel, InputGate
from tidegate.dataplane.channels.record_writer import (
    ForwardWriter,
    KeyGroupWriter,
    OutputChannel,
    RecordWriter,
)
from tidegate.errors import InternalError, check
from tidegate.graph.plan import PhysicalPlan, PlanEdge, Vertex
from tidegate.graph.stream_graph import Edge, StreamGraph
from tidegate.ids import SubtaskIndex, VertexId


class PlanChannels:
    """The input gates and record writers of the subtasks with index `ordinal`.

    `vertices` are the vertices that run here; None means all vertices of the plan. `column_codec`
    and `key_encoder` are called at most once per edge, with its record type and its key type.
    """

    def __init__(
        self,
        plan: PhysicalPlan,
        graph: StreamGraph,
        *,
        ordinal: int,
        vertices: Sequence[Vertex] | None = None,
        column_codec: Callable[[object], ColumnCodec] = wire.column_codec,
        key_encoder: Callable[[object], KeyEncoder] = keys.key_encoder,
    ) -> None:
        self._plan = plan
        self._graph = graph
        self._here = SubtaskIndex(ordinal)
        self._column_codec = column_codec
        self._key_encoder = key_encoder
        self._codecs: dict[int, FrameCodec] = {}
        run_here = plan.vertices if vertices is None else vertices
        # Make all inputs first, because the local channels of record writers end in them.
        self._gates = {
            vertex.id: InputGate(
                [
                    self._input(edge, sender)
                    for edge in plan.inputs_of(vertex.id)
                    for sender in self._senders(edge)
                ]
            )
            for vertex in run_here
        }
        self._record_writers = {
            vertex.id: [(edge, self._record_writer(edge)) for edge in plan.outputs_of(vertex.id)]
            for vertex in run_here
        }

    def gate(self, vertex_id: VertexId) -> InputGate:
        """Return the input gate of a vertex's subtask. The gate of a source has no channels."""
        return self._gates[vertex_id]

    def record_writers(self, vertex_id: VertexId) -> list[tuple[PlanEdge, RecordWriter]]:
        """Return the outgoing edges of a vertex's subtask, each with its record writer, by edge
        index.
        """
        return self._record_writers[vertex_id]

    def _input(self, edge: PlanEdge, sender: SubtaskIndex) -> InputChannel:
        """Make the channel from a subtask to the subtask here."""
        raise NotImplementedError

    def _channel(self, edge: PlanEdge, receiver: SubtaskIndex) -> OutputChannel:
        """Make the channel from the subtask here to another subtask."""
        raise NotImplementedError

    def _senders(self, edge: PlanEdge) -> list[SubtaskIndex]:
        return self._plan.senders(edge, self._here)

    def _receivers(self, edge: PlanEdge) -> list[SubtaskIndex]:
        return self._plan.receivers(edge, self._here)

    def _record_writer(self, edge: PlanEdge) -> RecordWriter:
        receivers = self._receivers(edge)
        channels = [self._channel(edge, receiver) for receiver in receivers]
        if len(channels) == 1:
            return ForwardWriter(channels[0])
        declared = self._declared(edge)
        check(receivers == list(range(len(receivers))), "receivers are not in order")
        if edge.partitioning != "key" or declared.key is None:
            raise InternalError(f"the edge {_name(edge)} has many receivers and no key")
        return KeyGroupWriter(
            declared.key,
            self._key_encoder(declared.key_type),
            self._plan.max_parallelism,
            channels,
            step=edge.source_node,
        )

    def _codec(self, edge: PlanEdge) -> FrameCodec:
        codec = self._codecs.get(edge.index)
        if codec is None:
            column = self._column_codec(self._declared(edge).record_type)
            codec = self._codecs[edge.index] = FrameCodec(_name(edge), edge.source_node, column)
        return codec

    def _declared(self, edge: PlanEdge) -> Edge:
        return self._graph.nodes[edge.target_node].inputs[edge.input]


def _name(edge: PlanEdge) -> str:
    return f"{edge.source_node} -> {edge.target_node}"
