"""The operator of a step with windows: the layout of its state decides the class."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

from tidegate.api.windows.window_step import WindowStep
from tidegate.api.windows.windows import Session, Sliding
from tidegate.dataplane.counters import Counters
from tidegate.dataplane.operators.stateless import Emit
from tidegate.dataplane.refusals import Refusals
from tidegate.dataplane.windows.aligned import AlignedWindows
from tidegate.dataplane.windows.operator import WindowOperator, WindowState
from tidegate.dataplane.windows.session_operator import SessionWindows
from tidegate.dataplane.windows.session_tables import TableSessions
from tidegate.dataplane.windows.sliding_operator import SlidingWindows
from tidegate.dataplane.windows.table_operator import TableWindows
from tidegate.graph.stream_graph import Node


def make_window_operator(
    pipeline: str,
    node: Node,
    state: WindowState,
    emits: Mapping[str, Emit],
    counters: Counters,
    now_ms: Callable[[], int],
    key_refusals: Refusals | None,
) -> WindowOperator:
    """Return the operator of a node."""
    step = cast("WindowStep", node.function)
    kind: type[WindowOperator] = TableWindows if step.in_tables else AlignedWindows
    if isinstance(step.assigner, Session):
        kind = TableSessions if step.in_tables else SessionWindows
    elif isinstance(step.assigner, Sliding):
        kind = SlidingWindows
    return kind(pipeline, node, state, emits, counters, now_ms, key_refusals)
