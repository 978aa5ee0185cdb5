"""The keyed state of a step, as its node declares it: the one answer for every kind of step.

The data plane opens the state from it, and the JobMaster stores it as metadata of a checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from tidegate.api.functions import KeyedProcess
from tidegate.api.state.state import State
from tidegate.api.windows.window_step import WindowStep
from tidegate.graph.stream_graph import Node


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDeclarations:
    """The declared states of a step, and the type of the keys of its rows."""

    states: Mapping[str, State]
    key_type: object
    dropped: tuple[str, ...] = ()
    """Names of states whose values the code declares as deleted."""
    group_bytes: Callable[[Any], bytes] | None = None
    """Function from a key of a row to the bytes that decide its key group. None: the bytes of the
    key itself.
    """
    fixed: Mapping[str, str] = field(default_factory=dict)
    """Facts about the step that cannot change while a checkpoint has its state."""


def step_state(node: Node) -> StepDeclarations:
    """Return the state of a keyed step."""
    if isinstance(node.function, WindowStep):
        step = node.function
        return StepDeclarations(
            states=step.declared_states,
            key_type=step.state_key_type,
            dropped=step.dropped_states,
            group_bytes=step.group_bytes(),
            fixed=step.fixed,
        )
    function = type(cast("KeyedProcess[Any, Any, Any]", node.function))
    return StepDeclarations(
        states=function.declared_states,
        key_type=node.inputs[0].key_type,
        dropped=function.dropped_states,
    )
