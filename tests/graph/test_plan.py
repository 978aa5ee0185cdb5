"""The plan: what is chained, what is exchanged, and that both are the same in every process.

Method: small graphs, each with the layout that the rules of `graph/plan.py` give it; every record's
way is one vertex or one edge; the pipelines of the tree at several parallelisms.
"""

from __future__ import annotations

from typing import Any

import pytest

from pipelines.click_dedup import ClickDedup
from pipelines.order_totals import OrderTotals
from pipelines.payments_enriched import PaymentsEnriched
from tidegate import build
from tidegate.errors import InternalError, PipelineError
from tidegate.graph.plan import PhysicalPlan, plan
from tidegate.graph.stream_graph import Edge, StreamGraph
from tidegate.ids import ChannelId, SubtaskIndex, VertexId


def graph(**inputs: str) -> StreamGraph:
    """Steps by name; inputs as "a", "a:port", "a*" (by key), joined by "+"."""
    made = StreamGraph("test")
    for name, text in inputs.items():
        edges = []
        for part in filter(None, text.split("+")):
            node, _, port = part.removesuffix("*").partition(":")
            keyed = part.endswith("*")
            edges.append(
                Edge(node=node, port=port or "main", partitioning="key" if keyed else "forward")
            )
        kind: Any = "map" if edges else "source"
        made.add(kind, tuple(edges), location="test.py:1", uid=name)
    return made


def layout(made: PhysicalPlan) -> tuple[list[tuple[str, ...]], list[tuple[str, str, str]]]:
    return (
        [vertex.nodes for vertex in made.vertices],
        [(edge.source_node, edge.target_node, edge.partitioning) for edge in made.edges],
    )


def test_a_line_of_forward_steps_is_one_vertex() -> None:
    line = graph(a="", b="a", c="b")
    assert layout(plan(line, 4, 128)) == ([("a", "b", "c")], [])


def test_step_may_feed_several_steps_of_its_vertex() -> None:
    tree = graph(a="", b="a", c="a:late", d="b")
    assert layout(plan(tree, 4, 128)) == ([("a", "b", "c", "d")], [])


def test_key_by_needs_an_exchange_only_above_parallelism_one() -> None:
    keyed = graph(a="", b="a*", c="b")
    assert layout(plan(keyed, 4, 128)) == ([("a",), ("b", "c")], [("a", "b", "key")])
    assert layout(plan(keyed, 1, 128)) == ([("a", "b", "c")], [])


def test_a_step_with_several_inputs_starts_a_vertex_of_its_own() -> None:
    union = graph(a="", b="", c="a+b", d="a*+b*", e="c")
    vertices = [("a",), ("b",), ("c", "e"), ("d",)]
    edges = [("a", "c", "forward"), ("b", "c", "forward"), ("a", "d", "key"), ("b", "d", "key")]
    assert layout(plan(union, 4, 128)) == (vertices, edges)
    assert layout(plan(union, 1, 128)) == (vertices, edges)


def test_a_stream_united_with_itself_has_two_edges() -> None:
    twice = plan(graph(a="", b="a+a"), 2, 128)
    assert [(edge.index, edge.input) for edge in twice.edges] == [(0, 0), (1, 1)]


def test_channels_of_an_edge_are_one_to_one_or_all_to_all() -> None:
    made = plan(graph(a="", b="a", c="a*", d="b+c"), 2, 128)
    key, straight, _ = made.edges
    zero, one = SubtaskIndex(0), SubtaskIndex(1)
    assert made.channels(key) == tuple(
        ChannelId(0, sender, receiver) for sender in (zero, one) for receiver in (zero, one)
    )
    assert made.channels(straight) == (ChannelId(1, zero, zero), ChannelId(1, one, one))
    assert made.receivers(key, one) == made.senders(key, one) == [zero, one]
    assert made.receivers(straight, one) == made.senders(straight, one) == [one]


@pytest.mark.parametrize("pipeline", [OrderTotals, ClickDedup, PaymentsEnriched])
@pytest.mark.parametrize("parallelism", [1, 2, 128])
def test_every_edge_of_a_pipeline_is_in_one_vertex_or_one_edge_of_the_plan(
    pipeline: Any, parallelism: int
) -> None:
    built = build(pipeline)
    made = plan(built, parallelism, 128)
    assert sorted(n for v in made.vertices for n in v.nodes) == sorted(n.id for n in built)
    for node in built:
        for position, edge in enumerate(node.inputs):
            chained = edge.node in made.vertex_of(node.id).nodes
            crossing = [e for e in made.edges if (e.target_node, e.input) == (node.id, position)]
            assert len(crossing) == (0 if chained else 1)
            assert not chained or edge.partitioning == "forward" or parallelism == 1
    assert plan(build(pipeline), parallelism, 128) == made


def test_edges_are_found_by_vertex() -> None:
    made = plan(build(OrderTotals), 4, 128)
    (edge,) = made.edges
    assert (
        made.outputs_of(VertexId("orders")) == made.inputs_of(VertexId("running-total")) == (edge,)
    )
    assert made.vertex_of("totals") == made.vertex(VertexId("running-total"))
    with pytest.raises(InternalError):
        made.vertex(VertexId("totals"))
    with pytest.raises(InternalError):
        made.vertex_of("nothing")


@pytest.mark.parametrize(("parallelism", "most"), [(0, 128), (129, 128), (1, 40_000)])
def test_a_parallelism_out_of_bounds_is_refused(parallelism: int, most: int) -> None:
    with pytest.raises(PipelineError, match="1 <= parallelism"):
        plan(graph(a=""), parallelism, most)


def test_dead_letter_sink_is_in_the_vertex_of_its_source() -> None:
    made = plan(build(ClickDedup), 4, 128)
    assert "clicks-dead-letters" in made.vertex(VertexId("clicks")).nodes
