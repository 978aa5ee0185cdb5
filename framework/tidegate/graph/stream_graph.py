"""The logical graph: the steps that a pipeline's `define` declares, as data.

It is not the plan: `graph/plan.py` lays the graph out on subtasks. It runs nothing. `api` adds each
step with its location in the user's code. Every process of a job builds the same graph, and the
data plane runs the functions, declarations and types of its nodes.

Invariants: nodes are in topological order, because a step is added after its inputs. Ids are unique
and the same in every process. The fingerprint is the SHA-256 of the graph as canonical JSON. That
JSON has names, kinds, uids, edges, options, schemas and the *qualified names* of functions. It has
no addresses, line numbers or code; `api.code.code.code_digest` compares code.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeVar

from tidegate.errors import PipelineError
from tidegate.graph.operator_kinds import operator_kind

Exchange = Literal["forward", "key"]

MAIN: Final = "main"
"""The port of a step's main results. Each side output has a port with its name."""

DEAD_LETTERS: Final = "dead_letters"
"""The port of a source's undecodable records, if its policy sends them to a topic."""

KEY_DEAD_LETTERS: Final = "-key-dead-letters"
"""The suffix of ports for the dead letters of a key_by. No side output can have such a name."""

REJECTED: Final = "rejected"
"""The port of the records to which a step with its own time can give no event time."""

N = TypeVar("N")
_STORED_NAME: Final = "_tidegate_stored_name"
_UID = re.compile(r"[a-z0-9][a-z0-9_-]{0,79}")
_NUMBERED = re.compile(r"(?:map|flat_map|filter|process)-\d+")


class _Unknown:
    """The type of `UNKNOWN`."""

    def __repr__(self) -> str:
        return "unknown"


UNKNOWN: Final[object] = _Unknown()
"""The type of records whose type is not declared. It is not None and not Any: both are types."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """An input of a step: the port of a node, and the partitioning of its records.

    `key` and `key_type` exist if `partitioning` is "key". `record_type` is the type of the records
    on the edge. It may be UNKNOWN only if they are never stored or sent.
    """

    node: str
    port: str = MAIN
    partitioning: Exchange = "forward"
    key: Callable[[Any], Any] | None = None
    key_type: object = UNKNOWN
    record_type: object = UNKNOWN
    on_error: str | None = None
    """The policy for a record that cannot be sent along the edge. None is the policy of the node
    from which it comes.
    """
    side: int = 0
    """The input of the step to which the edge leads: 0, or 1 for the right input of two."""
    dead_letter_port: str = DEAD_LETTERS
    """The port of that node to which the dead letters of the edge go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One declared step.

    `uid` names its state for ever, and is None for a stateless step. `options` are plain JSON and
    part of the fingerprint. The process that runs the step uses the other fields: `function` is
    the user's callable or function object. `declaration` is the source or sink of the class.
    `record_type` is the type of the records on its main port.
    """

    id: str
    kind: str
    inputs: tuple[Edge, ...]
    uid: str | None
    options: Mapping[str, object]
    location: str
    function: object = None
    declaration: object = None
    record_type: object = UNKNOWN
    watermarks: bool = False
    """Whether watermarks come along the step's outputs: a source in front of it declares them, or
    the step itself.
    """
    event_time: bool = False
    """Whether the records have event times: all sources in front of the step declare them, or the
    step itself.
    """
    mixed_time: bool = False
    """Whether only some of the sources in front of the step declare watermarks. What comes from in
    front then does not say whether all inputs are idle.
    """
    fires: bool = False
    """Whether a watermark can make results of the step due: those of its timers or windows."""
    uses_clock: bool = False
    """Whether the clock of the slot can make results of the step due."""


@dataclass(slots=True)
class StreamGraph:
    """The steps of one pipeline, by id, in topological order."""

    name: str
    nodes: dict[str, Node] = field(default_factory=dict)

    def add(
        self,
        kind: str,
        inputs: tuple[Edge, ...],
        *,
        location: str,
        uid: str | None = None,
        options: Mapping[str, object] | None = None,
        function: object = None,
        declaration: object = None,
        record_type: object = UNKNOWN,
        watermarks: bool = False,
        event_time: bool = False,
        fires: bool = False,
        uses_clock: bool = False,
    ) -> Node:
        """Add a step and return it. The id is the uid, or the kind and a number for a stateless
        step.

        `kind` is one of `OPERATOR_KINDS`, and `location` is the user's file and line. PipelineError
        if the uid is malformed or used already.
        """
        operator_kind(kind)
        if uid is not None:
            self._check_uid(uid, location)
        number = 1 + sum(node.kind == kind for node in self.nodes.values())
        node = Node(
            id=uid or f"{kind}-{number}",
            kind=kind,
            inputs=inputs,
            uid=uid,
            options={} if options is None else dict(options),
            location=location,
            function=function,
            declaration=declaration,
            record_type=record_type,
            watermarks=watermarks or any(self.nodes[edge.node].watermarks for edge in inputs),
            event_time=event_time or (bool(inputs) and all(map(self.has_event_time, inputs))),
            mixed_time=self._mixed_time(inputs),
            fires=fires,
            uses_clock=uses_clock,
        )
        self.nodes[node.id] = node
        return node

    def has_event_time(self, edge: Edge) -> bool:
        """Return whether the records of an edge have event times."""
        node = self.nodes[edge.node]
        return node.event_time and not (operator_kind(node.kind).own_time and edge.port == REJECTED)

    def tells_time(self, node_id: str) -> bool:
        """Return whether a step tells its readers that it is idle, and that time ends.

        It does so if it has watermarks, or if a step behind it has a time of its own: that step
        needs to know both, also if no source declares watermarks.
        """
        return self.nodes[node_id].watermarks or node_id in self._in_front_of_own_time()

    def _in_front_of_own_time(self) -> set[str]:
        found: set[str] = set()
        for node in reversed(self.nodes.values()):
            if operator_kind(node.kind).own_time or node.id in found:
                found |= {edge.node for edge in node.inputs}
        return found

    def _mixed_time(self, inputs: tuple[Edge, ...]) -> bool:
        nodes = [self.nodes[edge.node] for edge in inputs]
        marks = [node.watermarks for node in nodes]
        mixed = (node.mixed_time and not operator_kind(node.kind).own_time for node in nodes)
        return len(set(marks)) > 1 or any(mixed)

    def remove(self, node_id: str) -> Node | None:
        """Remove and return a node, or None if it does not exist. `add` may add it with more
        inputs.
        """
        return self.nodes.pop(node_id, None)

    def check(self) -> None:
        """Refuse a graph without a sink, or with a chain that ends nowhere."""
        edges = [edge for node in self.nodes.values() for edge in node.inputs]
        read = {edge.node for edge in edges if not self.carries_dead_letters(edge)}
        for node in self.nodes.values():
            if node.kind != "sink" and node.id not in read:
                message = (
                    f"{node.location}: the results of {node.id!r} go nowhere; end the chain with "
                    ".to(sink), or remove the step."
                )
                raise PipelineError(message)
        if not any(node.kind == "sink" for node in self.nodes.values()):
            message = f"Pipeline {self.name!r} writes to no sink; end a chain with .to(sink)."
            raise PipelineError(message)

    def describe(self) -> dict[str, object]:
        """Return the graph as plain JSON. The fingerprint is made of it, and a stored copy shows
        what differs.
        """
        return {"name": self.name, "nodes": [_describe(node) for node in self.nodes.values()]}

    def fingerprint(self) -> str:
        """Return the SHA-256 of the description in hex. It is equal in all processes of a job."""
        text = json.dumps(self.describe(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def consumers(self, node_id: str) -> tuple[tuple[Node, Edge], ...]:
        """Return each edge that reads from a node, with the node that it feeds, in graph order."""
        return tuple(
            (node, edge)
            for node in self.nodes.values()
            for edge in node.inputs
            if edge.node == node_id
        )

    def carries_dead_letters(self, edge: Edge) -> bool:
        """Return whether an edge carries dead letters."""
        if edge.port == DEAD_LETTERS:
            return policy_of(self.nodes[edge.node]) == "dead_letter"
        return edge.port.endswith(KEY_DEAD_LETTERS)

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes.values())

    def _check_uid(self, uid: str, location: str) -> None:
        if _UID.fullmatch(uid) is None:
            message = (
                f"{location}: uid={uid!r} must be 1 to 80 lower-case letters, digits, hyphens and "
                "underscores, and begin with a letter or digit: it names files and state."
            )
            raise PipelineError(message)
        if _NUMBERED.fullmatch(uid) is not None:
            message = (
                f"{location}: uid={uid!r} is how tidegate numbers steps that have no uid; "
                "choose a name that says what the step does."
            )
            raise PipelineError(message)
        taken = self.nodes.get(uid)
        if taken is not None:
            message = (
                f"{location}: uid {uid!r} is already used by the step at {taken.location}; a uid "
                "names one step's state, and sources and sinks take theirs from the attribute's "
                "name."
            )
            raise PipelineError(message)


def policy_of(node: Node) -> str:
    """Return the policy for records that a source, a step or a sink cannot process."""
    keyword = "on_bad_record" if node.kind == "source" else "on_error"
    return str(node.options.get(keyword, "fail"))


def stored_as(name: str) -> Callable[[N], N]:
    """Fix the name under which checkpoints know a function or a class, so that it may move."""

    def fix(named: N) -> N:
        setattr(named, _STORED_NAME, name)
        return named

    return fix


def function_name(function: object) -> str | None:
    """Return the module and the qualified name of a function, or of an object's class. The name is
    the same in every process. Return None for None.
    """
    if function is None:
        return None
    if isinstance(function, functools.partial):
        return function_name(function.func)
    plain = inspect.isroutine(function) or isinstance(function, type)
    named = function if plain else type(function)
    stored: str | None = getattr(named, "__dict__", {}).get(_STORED_NAME)
    return stored or f"{getattr(named, '__module__', '')}:{getattr(named, '__qualname__', '')}"


def _describe(node: Node) -> dict[str, object]:
    inputs = [
        [edge.node, edge.port, edge.partitioning, function_name(edge.key)]
        + ([] if edge.on_error is None else [edge.on_error])
        + ([] if edge.side == 0 else [edge.side])
        for edge in node.inputs
    ]
    return {
        "id": node.id,
        "kind": node.kind,
        "inputs": inputs,
        "function": function_name(node.function),
        "options": node.options,
    }
