"""The levels of a plan: the vertices that run in one pass over rows, one pass after the other.

A wave of a backfill runs the plan level by level. A vertex runs after all of its input is written.
So sources are level 0, and every other vertex is one level below the deepest vertex that it reads.
No edge stays within a level.
"""

from __future__ import annotations

from tidegate.graph.plan import PhysicalPlan, Vertex
from tidegate.ids import VertexId


def level_of(plan: PhysicalPlan) -> dict[VertexId, int]:
    """Return the level of each vertex."""
    levels: dict[VertexId, int] = {}
    for vertex in plan.vertices:  # in topological order
        above = [levels[edge.source] for edge in plan.inputs_of(vertex.id)]
        levels[vertex.id] = 1 + max(above, default=-1)
    return levels


def levels(plan: PhysicalPlan) -> tuple[tuple[Vertex, ...], ...]:
    """Return the vertices of each level, from level 0 on."""
    level = level_of(plan)
    return tuple(
        tuple(vertex for vertex in plan.vertices if level[vertex.id] == number)
        for number in range(1 + max(level.values()))
    )
