"""Where the user code of a slot's steps is, for the report of a call that does not return.

The places come from the code objects of the functions that a pipeline declares: functions of steps,
methods of function classes, key functions, watermark strategies and formats. A function that one of
these calls needs no place, because the first user frame of a stack is always one of these.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from functools import partial
from types import CodeType
from typing import Final

from tidegate.dataplane.operators.stateless import FusedSteps
from tidegate.dataplane.task import Task
from tidegate.frames import is_own_file
from tidegate.graph.plan import PhysicalPlan
from tidegate.graph.stream_graph import Node, StreamGraph
from tidegate.protocol.code_places import CodePlace

_DEPTH_MAX: Final = 4
"""The depth to which declarations are searched. A source holds a format, which may hold a decoder
of the user.
"""


def places_of(
    tasks: Sequence[Task], graph: StreamGraph, plan: PhysicalPlan, ordinal: int
) -> tuple[CodePlace, ...]:
    """Return the places of all user code that the tasks of a slot run."""
    found: dict[CodePlace, None] = {}
    for task in tasks:
        for fused in task.chain.fused:
            found.update(dict.fromkeys(_lines(fused, str(task.subtask))))
    for node in graph:
        subtask = f"{plan.vertex_of(node.id).id}#{ordinal}"
        for code in _codes_of_node(node):
            first, last = _lines_of(code)
            step = node.uid or node.id
            place = CodePlace(code.co_filename, first, last, code.co_name, step, subtask)
            found[place] = None
    return tuple(found)


def _lines(fused: FusedSteps, subtask: str) -> Iterator[CodePlace]:
    for line, node in fused.steps_by_line().items():
        yield CodePlace(fused.file, line, line, "", node.uid or node.id, subtask)


def _codes_of_node(node: Node) -> Iterator[CodeType]:
    yield from _codes(node.function, 0)
    yield from _codes(node.declaration, 0)
    for edge in node.inputs:
        yield from _codes(edge.key, 0)


def _codes(value: object, depth: int) -> Iterator[CodeType]:
    """Return the code of a function, or of all methods of an object and of what it holds."""
    if depth > _DEPTH_MAX or value is None or isinstance(value, str | bytes | int | float | type):
        return
    if isinstance(value, partial):
        yield from _codes(value.func, depth + 1)
    elif inspect.ismethod(value):
        yield from _codes(value.__self__, depth + 1)
        yield from _code_of_function(value.__func__)
    elif inspect.isfunction(value):
        yield from _code_of_function(value)
    else:
        for base in type(value).__mro__:
            for member in vars(base).values():
                yield from _code_of_function(member)
        for held in vars(value).values() if hasattr(value, "__dict__") else ():
            yield from _codes(held, depth + 1)


def _code_of_function(value: object) -> Iterator[CodeType]:
    function = inspect.unwrap(value) if callable(value) else value
    if inspect.isfunction(function) and not is_own_file(function.__code__.co_filename):
        yield function.__code__


def _lines_of(code: CodeType) -> tuple[int, int]:
    lines = [line for _, _, line in code.co_lines() if line]
    return min(lines, default=code.co_firstlineno), max(lines, default=code.co_firstlineno)
