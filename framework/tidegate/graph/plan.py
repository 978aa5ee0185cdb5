"""The physical plan: which steps run together in one subtask, and which edges are exchanges.

The plan is a pure function of the graph and two numbers. The JobMaster, which deploys it, and every
slot, which runs a part of it, compute the same plan. The plan does not assign slots. The JobMaster
does: subtask i of every vertex runs in the job's i-th slot.

Chaining: a step joins its producer's vertex if it has exactly one input edge, and if that edge
moves no record to another subtask: it is forward, or it is by key at parallelism 1. So a vertex is
a small tree, because one producer may feed several steps. A step with several inputs starts a
vertex, which aligns barriers. A source always starts a vertex. The place of state does not depend
on chaining, because its name has the uid and the key group. In this version, every vertex has the
job's parallelism.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tidegate.errors import InternalError, PipelineError
from tidegate.graph.key_groups import MAX_PARALLELISM_LIMIT
from tidegate.graph.stream_graph import Edge, Node, StreamGraph
from tidegate.ids import ChannelId, SubtaskIndex, VertexId

PlanPartitioning = Literal["forward", "key"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Vertex:
    """Steps that one subtask runs. `nodes` are their ids, producers before consumers."""

    id: VertexId
    nodes: tuple[str, ...]
    parallelism: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanEdge:
    """An edge between vertices. `input` is its position among the target node's inputs, at which
    the graph keeps the key function and the record type.
    """

    index: int
    source: VertexId
    source_node: str
    port: str
    target: VertexId
    target_node: str
    input: int
    partitioning: PlanPartitioning


@dataclass(frozen=True, slots=True, kw_only=True)
class PhysicalPlan:
    """Vertices in topological order, and the edges between them by index."""

    vertices: tuple[Vertex, ...]
    edges: tuple[PlanEdge, ...]
    parallelism: int
    max_parallelism: int

    def vertex(self, vertex_id: VertexId) -> Vertex:
        """Return the vertex with this id. InternalError if it does not exist."""
        for vertex in self.vertices:
            if vertex.id == vertex_id:
                return vertex
        message = f"the plan has no vertex {vertex_id!r}"
        raise InternalError(message)

    def vertex_of(self, node_id: str) -> Vertex:
        """Return the vertex that runs a step. InternalError if it does not exist."""
        for vertex in self.vertices:
            if node_id in vertex.nodes:
                return vertex
        message = f"no vertex of the plan runs step {node_id!r}"
        raise InternalError(message)

    def inputs_of(self, vertex_id: VertexId) -> tuple[PlanEdge, ...]:
        """Return the edges into a vertex, by index."""
        return tuple(edge for edge in self.edges if edge.target == vertex_id)

    def outputs_of(self, vertex_id: VertexId) -> tuple[PlanEdge, ...]:
        """Return the edges out of a vertex, by index."""
        return tuple(edge for edge in self.edges if edge.source == vertex_id)

    def channels(self, edge: PlanEdge) -> tuple[ChannelId, ...]:
        """Return every channel of an edge, ordered by sender and receiver. A forward edge connects
        i to i; a key edge connects all to all.
        """
        senders = map(SubtaskIndex, range(self.vertex(edge.source).parallelism))
        return tuple(
            ChannelId(edge.index, sender, receiver)
            for sender in senders
            for receiver in self.receivers(edge, sender)
        )

    def receivers(self, edge: PlanEdge, sender: SubtaskIndex) -> list[SubtaskIndex]:
        """Return the receivers of one sender of an edge, in order."""
        if edge.partitioning == "forward":
            return [sender]
        return [SubtaskIndex(index) for index in range(self.vertex(edge.target).parallelism)]

    def senders(self, edge: PlanEdge, receiver: SubtaskIndex) -> list[SubtaskIndex]:
        """Return the senders to one receiver of an edge, in order."""
        if edge.partitioning == "forward":
            return [receiver]
        return [SubtaskIndex(index) for index in range(self.vertex(edge.source).parallelism)]


def plan(graph: StreamGraph, parallelism: int, max_parallelism: int) -> PhysicalPlan:
    """Lay out a graph on subtasks. PipelineError if the parallelism is out of bounds."""
    if not 1 <= parallelism <= max_parallelism <= MAX_PARALLELISM_LIMIT:
        message = (
            f"Pipeline {graph.name!r}: 1 <= parallelism ({parallelism}) <= max_parallelism "
            f"({max_parallelism}) <= {MAX_PARALLELISM_LIMIT} must hold; max_parallelism is the "
            "number of key groups, fixed for the life of the state."
        )
        raise PipelineError(message)
    heads: dict[str, str] = {}
    for node in graph:
        chained = len(node.inputs) == 1 and _is_chainable(node.inputs[0], parallelism)
        heads[node.id] = heads[node.inputs[0].node] if chained else node.id
    return PhysicalPlan(
        vertices=tuple(
            Vertex(
                id=VertexId(head),
                nodes=tuple(node.id for node in graph if heads[node.id] == head),
                parallelism=parallelism,
            )
            for head in dict.fromkeys(heads.values())
        ),
        edges=tuple(
            PlanEdge(
                index=index,
                source=VertexId(heads[edge.node]),
                source_node=edge.node,
                port=edge.port,
                target=VertexId(heads[node.id]),
                target_node=node.id,
                input=position,
                partitioning=edge.partitioning,
            )
            for index, (node, position, edge) in enumerate(_edges_between_vertices(graph, heads))
        ),
        parallelism=parallelism,
        max_parallelism=max_parallelism,
    )


def _is_chainable(edge: Edge, parallelism: int) -> bool:
    return edge.partitioning == "forward" or parallelism == 1


def _edges_between_vertices(
    graph: StreamGraph, heads: dict[str, str]
) -> list[tuple[Node, int, Edge]]:
    """Return the input edges that are not chained: all inputs of nodes that start a vertex."""
    return [
        (node, position, edge)
        for node in graph
        if heads[node.id] == node.id
        for position, edge in enumerate(node.inputs)
    ]
