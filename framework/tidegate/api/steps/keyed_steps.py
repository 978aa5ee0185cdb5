"""Keyed steps: how `define` adds a step with state behind one or two keyed streams.

A keyed step has one function, one key type, and one `Side` for each of its inputs. Its edges carry
the key function of their side. This module checks what all keyed steps have in common, and adds the
node with its dead letters. `streams.py` has the methods that users call.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tidegate.api.connectors.kafka_sink import connect_dead_letters, connect_step_dead_letters
from tidegate.api.declarations.declaration_checks import ErrorOptions, error_policy, policy_options
from tidegate.api.functions import Function
from tidegate.api.records.record_fields import plain_type, type_name
from tidegate.api.records.types import type_info
from tidegate.api.state.keys import normalised_key
from tidegate.api.steps.step_checks import check_event_timers, check_outputs
from tidegate.api.time.timers import has_timers
from tidegate.errors import PipelineError
from tidegate.graph.stream_graph import DEAD_LETTERS, KEY_DEAD_LETTERS, UNKNOWN, Edge, Node

if TYPE_CHECKING:
    from tidegate.api.steps.streams import KeyedStream


@dataclasses.dataclass(frozen=True, slots=True)
class Side:
    """One input of a keyed step: the stream, and the type of its records."""

    stream: KeyedStream[Any, Any]
    record_type: object


def add_keyed_step(
    kind: str,
    function: Function,
    declared_key: object,
    sides: Sequence[Side],
    uid: str,
    location: str,
    options: ErrorOptions,
) -> Node:
    """Add a keyed step, with its dead letters, and return it. PipelineError for a mistake."""
    graph = sides[0].stream.graph
    keys = [_key_type(side.stream, declared_key, uid, location) for side in sides]
    key_of = next((key for key in keys if key is not UNKNOWN), UNKNOWN)
    on_error = error_policy(f"{location}: step {uid!r}", location, options)
    check_outputs(function, options, location)
    records = [
        known_schema(
            side.record_type, f"step {uid!r} sends its records to other slots", "map", location
        )
        for side in sides
    ]
    described = {
        "key": known_schema(key_of, f"step {uid!r} keeps state by key", "key_by", location),
        "record": records[0] if len(records) == 1 else records,
        "state": {name: s.describe() for name, s in function.declared_states.items()},
        **policy_options(on_error),
    }
    check_key_type(key_of, uid, location)
    inputs = [edge for side in sides for edge in side.stream.edges]
    check_event_timers(graph, inputs, function, uid, location)
    edges = [edges_by_key(side, number, key_of, uid) for number, side in enumerate(sides)]
    node = graph.add(
        kind,
        tuple(edge for of_side in edges for edge in of_side),
        location=location,
        uid=uid,
        options=described,
        function=function,
        record_type=function.result_type(),
        fires=has_timers(function.declared_states, "event"),
        uses_clock=has_timers(function.declared_states, "processing"),
    )
    connect_step_dead_letters(graph, node, options)
    connect_key_dead_letters(sides, uid, location)
    return node


def connect_key_dead_letters(sides: Sequence[Side], uid: str, location: str) -> None:
    """Connect the dead letters of each key_by in front of step `uid`."""
    for number, side in enumerate(sides):
        if "dead_letter_topic" in side.stream.key_options:
            name, topic = _letters(uid, number), side.stream.key_options["dead_letter_topic"]
            ports = [(edge.node, name) for edge in side.stream.edges]
            connect_dead_letters(side.stream.graph, name, topic, location, ports)


def check_key_type(key_of: object, uid: str, location: str) -> None:
    """Refuse a type that cannot be a key. The PipelineError names the step."""
    why_not = type_info(key_of).why_not_key
    if why_not:
        raise PipelineError(f"{location}: step {uid!r}: {why_not}")


def edges_by_key(side: Side, number: int, key_of: object, uid: str) -> list[Edge]:
    """Return the edges of a stream, keyed for a step."""
    key = normalised_key(side.stream.key, key_of)
    options = side.stream.key_options
    return [
        dataclasses.replace(
            edge,
            partitioning="key",
            key=key,
            key_type=key_of,
            record_type=side.record_type,
            on_error=options.get("on_error"),
            dead_letter_port=_letters(uid, number) if "on_error" in options else DEAD_LETTERS,
            side=number,
        )
        for edge in side.stream.edges
    ]


def _letters(uid: str, side: int) -> str:
    """Return the port for the dead letters of the key_by of one side."""
    return f"{uid}{'-right' if side else ''}{KEY_DEAD_LETTERS}"


def _key_type(stream: KeyedStream[Any, Any], declared: object, uid: str, location: str) -> object:
    """Return the key's type, from `key_by` or else from the function class.

    PipelineError if the two types differ.
    """
    declared, given = plain_type(declared), plain_type(stream.key_type)
    of: object = declared if given is UNKNOWN else given
    if declared not in (UNKNOWN, of):
        raise PipelineError(
            f"{location}: step {uid!r} declares keys of {type_name(declared)}, key_by gives "
            f"{type_name(of)}."
        )
    return of


def known_schema(of: object, why: str, step: str, location: str) -> object:
    """Return the schema of a type. PipelineError if the type is not known. `step` is the method
    that can state it.
    """
    if of is UNKNOWN:
        raise PipelineError(
            f"{location}: {why}, and the type is not known: say it with .{step}(..., "
            "returns=Type), or give a def with a return annotation instead of the lambda."
        )
    return type_info(of).avro
