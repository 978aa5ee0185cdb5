"""Keyed streams: the steps that keep state per key.

A `KeyedStream` is not a `Stream`: a step that uses the key must follow `key_by`. So the question
whether a map keeps the key does not arise. Every step here keeps state and takes `uid` as a
required keyword. Its records and keys are sent between slots and stored, so both types must be
known here. Otherwise the build fails, and the error says how to state them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Generic, Never, TypeVar, Unpack

from tidegate.api.declaration_checks import ErrorOptions, error_policy, policy_options
from tidegate.api.functions import KeyedProcess
from tidegate.api.kafka import connect_dead_letters
from tidegate.api.keys import normalised_key
from tidegate.api.location import refuse_unsupported, user_location
from tidegate.api.record_fields import type_name
from tidegate.api.streams import (
    ProcessedStream,
    check_function,
    check_outputs,
    check_record_type,
    connect_step_letters,
)
from tidegate.api.types import KeyLike, type_info
from tidegate.errors import PipelineError
from tidegate.graph.stream_graph import DEAD_LETTERS, KEY_LETTERS, UNKNOWN, Edge, StreamGraph

K = TypeVar("K", bound=KeyLike)
T = TypeVar("T")
U = TypeVar("U")


class KeyedStream(Generic[K, T]):
    """Records of type T, partitioned by a key of type K."""

    def __init__(
        self,
        graph: StreamGraph,
        edges: tuple[Edge, ...],
        of: object,
        key: Callable[[T], K],
        key_of: object,
        key_options: ErrorOptions,
    ) -> None:
        self.graph, self.edges, self.of, self.key, self.key_of = graph, edges, of, key, key_of
        self.key_options = key_options

    def process(
        self, function: KeyedProcess[K, T, U], *, uid: str, **options: Unpack[ErrorOptions]
    ) -> ProcessedStream[U]:
        """Add a step that calls a function object with state per key.

        `uid` names the state in checkpoints and must never change. `on_error` is as in
        `Stream.map`. If it skips or dead-letters a record, the failed call's changes to the key's
        state are undone and its results are dropped.

        PipelineError, with file and line, if the types do not fit or are not known, if the key's
        type cannot be a key, or if a keyword is wrong.
        """
        place = user_location()
        check_function(self.graph, function, KeyedProcess, place)
        check_record_type(function, self.of, f"step {uid!r}", place)
        of = function.record_type() if self.of is UNKNOWN else self.of
        key_of = self._key_type(function, uid, place)
        on_error = error_policy(f"{place}: step {uid!r}", place, options)
        check_outputs(function, options, place)
        described = {
            "key": _schema(key_of, f"step {uid!r} keeps state by key", "key_by", place),
            "record": _schema(of, f"step {uid!r} sends its records to other slots", "map", place),
            "state": {name: s.describe() for name, s in function.declared_states.items()},
            **policy_options(on_error),
        }
        why_not = type_info(key_of).why_not_key
        if why_not:
            raise PipelineError(f"{place}: step {uid!r}: {why_not}")
        key = normalised_key(self.key, key_of)
        edges = tuple(
            dataclasses.replace(
                edge,
                partitioning="key",
                key=key,
                key_type=key_of,
                record_type=of,
                on_error=self.key_options.get("on_error"),
                letters=f"{uid}{KEY_LETTERS}" if "on_error" in self.key_options else DEAD_LETTERS,
            )
            for edge in self.edges
        )
        result = function.result_type()
        node = self.graph.add(
            "keyed_process",
            edges,
            place=place,
            uid=uid,
            options=described,
            function=function,
            record_type=result,
        )
        connect_step_letters(self.graph, node, options)
        if "dead_letters" in self.key_options:
            name, topic = f"{uid}{KEY_LETTERS}", self.key_options["dead_letters"]
            ports = [(edge.node, name) for edge in self.edges]
            connect_dead_letters(self.graph, name, topic, place, ports)
        return ProcessedStream(
            self.graph, (Edge(node=node.id, record_type=result),), result, type(function)
        )

    def reduce(self, *_args: object, **_options: object) -> Never:
        """Reduce the records of a key. Not supported in this version: PipelineError."""
        refuse_unsupported("reduce", "use .process() with a KeyedProcess and a ValueState")

    def window(self, *_args: object, **_options: object) -> Never:
        """Group the records of a key by time. Not supported in this version: PipelineError."""
        refuse_unsupported(
            "window", "use .process() with a KeyedProcess and a MapState by window start"
        )

    def interval_join(self, *_args: object, **_options: object) -> Never:
        """Join records by key and time interval. Not supported in this version: PipelineError."""
        refuse_unsupported("interval_join", _JOIN)

    def as_of_join(self, *_args: object, **_options: object) -> Never:
        """Join with the latest earlier record. Not supported in this version: PipelineError."""
        refuse_unsupported("as_of_join", _JOIN)

    def connect(self, *_args: object, **_options: object) -> Never:
        """Process two keyed streams together. Not supported in this version: PipelineError."""
        refuse_unsupported("connect", _JOIN)

    def connect_broadcast(self, *_args: object, **_options: object) -> Never:
        """Process with a broadcast stream. Not supported in this version: PipelineError."""
        refuse_unsupported("connect_broadcast", _JOIN)

    def _key_type(self, function: KeyedProcess[K, T, U], uid: str, place: str) -> object:
        """Return the key's type, from `key_by` or else from the function class.

        PipelineError if the two types differ.
        """
        declared = function.key_type()
        of = declared if self.key_of is UNKNOWN else self.key_of
        if declared not in (UNKNOWN, of):
            raise PipelineError(
                f"{place}: step {uid!r} declares keys of {type_name(declared)}, key_by gives "
                f"{type_name(of)}"
            )
        return of


_JOIN = (
    "map both streams to one union type, unite them, and key them by the same key into a "
    "KeyedProcess "
    "that keeps what waits for its partner in state"
)


def _schema(of: object, why: str, step: str, place: str) -> object:
    if of is UNKNOWN:
        raise PipelineError(
            f"{place}: {why}, and the type is not known: say it with .{step}(..., returns=Type), "
            "or give a def with a return annotation instead of the lambda"
        )
    return type_info(of).avro
