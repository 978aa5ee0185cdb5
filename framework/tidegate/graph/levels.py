"""The levels of a plan: which vertices can run in one pass over rows, one pass after the other.

A wave of a backfill runs the plan level by level: a vertex runs when all that it reads has been
written. So sources are level 0, and every other vertex is one level below the deepest vertex that
it reads from. No edge stays within a level.
"""

from __future__ import annotations

from tidegate.graph.plan import PhysicalPlan, Vertex
from tidegate.ids import VertexId


def level_of(plan: PhysicalPlan) -> dict[VertexId, int]:
    """The level of each vertex."""
    levels: dict[VertexId, int] = {}
    for vertex in plan.vertices:  # in topological order
        above = [levels[edge.source] for edge in plan.inputs_of(vertex.id)]
        levels[vertex.id] = 1 + max(above, default=-1)
    return levels


def levels(plan: PhysicalPlan) -> tuple[tuple[Vertex, ...], ...]:
    """The vertices of each level, from level 0 on."""
    level = level_of(plan)
    return tuple(
        tuple(vertex for vertex in plan.vertices if level[vertex.id] == number)
        for number in range(1 + max(level.values()))
    )
