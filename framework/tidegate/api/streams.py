"""Streams: what `define` chains. A method adds a step to the graph and returns the typed stream of
its results.

Every step that keeps state takes `uid` as a required keyword: a checker sees a missing one before a
run does. Types at run time are carried along (`of`), and asked for only where records are stored or
sent between slots.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Never,
    TypeGuard,
    TypeVar,
    Unpack,
    get_args,
    is_typeddict,
)

from tidegate.api.declaration_checks import ErrorOptions, error_policy, policy_options
from tidegate.api.functions import Function, Process, SideOutput
from tidegate.api.location import refuse_unsupported, user_location
from tidegate.api.record_fields import type_name
from tidegate.api.type_inference import item_type, result_type
from tidegate.api.types import KeyLike
from tidegate.api.values import counts_as
from tidegate.errors import PipelineError
from tidegate.graph.stream_graph import DEAD_LETTERS, UNKNOWN, Edge, Kind, Node, StreamGraph

if TYPE_CHECKING:
    from tidegate.api.kafka import KafkaSink
    from tidegate.api.keyed import KeyedStream

T = TypeVar("T")
U = TypeVar("U")
X = TypeVar("X")
K = TypeVar("K", bound=KeyLike)


class Stream(Generic[T]):
    """Records of type T."""

    def __init__(self, graph: StreamGraph, edges: tuple[Edge, ...], of: object) -> None:
        self.graph, self.edges, self.of = graph, edges, of

    def map(
        self,
        function: Callable[[T], U],
        *,
        returns: type[U] | None = None,
        **options: Unpack[ErrorOptions],
    ) -> Stream[U]:
        """One result for each record.

        `on_error` says what becomes of a record on which the function raises, in this and every
        other step: "fail" (the default: the job restarts from its last checkpoint), "skip" (the
        record is counted and logged) or "dead_letter" (it goes to the topic `dead_letters`, with
        its topic, partition and offset). All results of such a record are left out.
        """
        return self._step("map", function, result_type(function, self.of, returns), options)

    def filter(self, predicate: Callable[[T], bool], **options: Unpack[ErrorOptions]) -> Stream[T]:
        """The records for which the predicate holds."""
        return self._step("filter", predicate, self.of, options)

    def flat_map(
        self,
        function: Callable[[T], Iterable[U]],
        *,
        returns: type[U] | None = None,
        **options: Unpack[ErrorOptions],
    ) -> Stream[U]:
        """Any number of results for each record; `returns` is the type of one."""
        return self._step("flat_map", function, item_type(function, returns), options)

    def union(self, *others: Stream[T]) -> Stream[T]:
        """The records of all, those of each in their order."""
        known = [stream.of for stream in (self, *others) if stream.of is not UNKNOWN]
        for of in known:
            if of != known[0]:
                raise PipelineError(
                    f"{user_location()}: a union of streams of {type_name(known[0])} and "
                    f"{type_name(of)}"
                    "; map them to one type first"
                )
        edges = self.edges + tuple(edge for other in others for edge in other.edges)
        return Stream(self.graph, edges, known[0] if known else UNKNOWN)

    def process(
        self, function: Process[T, U], **options: Unpack[ErrorOptions]
    ) -> ProcessedStream[U]:
        """A function object with side outputs, `open` and `close`, without key or state."""
        place = user_location()
        check_function(self.graph, function, Process, place)
        check_record_type(function, self.of, "process()", place)
        check_outputs(function, options, place)
        step: Stream[U] = self._step("process", function, function.result_type(), options)
        return ProcessedStream(self.graph, step.edges, step.of, type(function))

    def key_by(
        self,
        key: Callable[[T], K],
        *,
        returns: type[K] | None = None,
        **options: Unpack[ErrorOptions],
    ) -> KeyedStream[K, T]:
        """Records of equal keys meet in one place, in order.

        The key is a value of the record, never a position or a hash. `on_error` covers records
        whose key cannot be taken or encoded, and those that cannot be sent to another slot. Without
        it the policy of the step before (`on_bad_record` of a source) covers records that cannot be
        encoded or sent, and an exception of the function ends the attempt.
        """
        from tidegate.api.keyed import KeyedStream  # built on streams, and key_by is the way to it

        error_policy(f"{user_location()}: key_by", user_location(), options)
        of = result_type(key, self.of, returns)
        return KeyedStream(self.graph, self.edges, self.of, key, of, options)

    def to(self, sink: KafkaSink[T]) -> None:
        """End the chain. A sink may end several chains of its pipeline."""
        from tidegate.api.kafka import KafkaSink  # its sources are streams

        if not isinstance(sink, KafkaSink):
            raise PipelineError(f"{user_location()}: .to() takes a KafkaSink, not {sink!r}")
        check_sink_type(sink.record_type(), self.of, sink.topic)
        sink.connect(self.graph, self.edges)

    def map_batch(self, *_args: object, **_options: object) -> Never:
        refuse_unsupported("map_batch", "use .map()")

    def map_arrow(self, *_args: object, **_options: object) -> Never:
        refuse_unsupported("map_arrow", "use .map()")

    def map_async(self, *_args: object, **_options: object) -> Never:
        refuse_unsupported("map_async", "use .map()")

    def broadcast(self) -> Never:
        refuse_unsupported(
            "broadcast", "key both streams, and join them by union and a KeyedProcess"
        )

    def _step(self, kind: Kind, function: object, of: object, options: ErrorOptions) -> Stream[Any]:
        place = user_location()
        on_error = error_policy(f"{place}: {kind}", place, options)
        node = self.graph.add(
            kind,
            self.edges,
            place=place,
            options=policy_options(on_error),
            function=function,
            record_type=of,
        )
        connect_step_letters(self.graph, node, options)
        return Stream(self.graph, (Edge(node=node.id, record_type=of),), of)


class ProcessedStream(Stream[T]):
    """Results of a process function, which may have side outputs."""

    def __init__(
        self, graph: StreamGraph, edges: tuple[Edge, ...], of: object, function: type[Function]
    ) -> None:
        super().__init__(graph, edges, of)
        self.function = function

    def side_output(self, tag: SideOutput[X]) -> Stream[X]:
        """The stream of a tag that the function class declares:
        `checked.side_output(CheckOrder.suspicious)`.
        """
        if self.function.declared_outputs.get(tag.name) is not tag:
            raise PipelineError(
                f"{user_location()}: {self.function.__name__} declares no side output {tag.name!r}"
                "; take the tag from the function class itself"
            )
        edges = tuple(Edge(node=e.node, port=tag.name, record_type=tag.of) for e in self.edges)
        return Stream(self.graph, edges, tag.of)


def connect_step_letters(graph: StreamGraph, node: Node, options: ErrorOptions) -> None:
    """Write the dead letters of a step to its topic, where it has one."""
    from tidegate.api.kafka import connect_dead_letters, letters_name  # its sources are streams

    if "dead_letters" in options:
        name, topic = letters_name(node.id), options["dead_letters"]
        connect_dead_letters(graph, name, topic, node.place, [(node.id, DEAD_LETTERS)])


def check_outputs(function: Function, options: ErrorOptions, place: str) -> None:
    """Refuse a side output whose port the dead letters of the step would have."""
    if DEAD_LETTERS in function.declared_outputs and "dead_letters" in options:
        raise PipelineError(
            f"{place}: {type(function).__name__}.{DEAD_LETTERS} is a side output, and the step has "
            "on_error='dead_letter'; give the side output another name"
        )


def check_function(graph: StreamGraph, function: object, base: type[Function], place: str) -> None:
    """Refuse what is no function object of that kind, and one that another step has already: its
    state cells hang on the object.
    """
    if not isinstance(function, base):
        given = f"the class {function.__name__}" if isinstance(function, type) else repr(function)
        raise PipelineError(
            f"{place}: process() takes an object of a class derived from {base.__name__} here, not "
            f"{given}"
        )
    for node in graph:
        if node.function is function:
            raise PipelineError(
                f"{place}: this {type(function).__name__} object belongs to the step {node.id!r} "
                f"at {node.place}; make one for each step"
            )


def check_sink_type(declared: object, of: object, topic: str) -> None:
    """Refuse a sink of records that the stream can not have: two classes of which the stream's is
    not encoded as the sink's, nor is a base class of it. Anything less plain is left to type
    checkers.
    """
    if not (_is_plain_class(declared) and _is_plain_class(of)):
        return
    if not counts_as(of, declared) and not issubclass(declared, of):
        raise PipelineError(
            f"{user_location()}: the sink for topic {topic!r} takes records of "
            f"{type_name(declared)}"
            f", the stream has {type_name(of)}; map them"
        )


def _is_plain_class(of: object) -> TypeGuard[type]:
    """Whether `issubclass` says what of is: not of aliases, protocols and typed dictionaries."""
    special = of is Any or is_typeddict(of) or getattr(of, "_is_protocol", False)
    return isinstance(of, type) and not get_args(of) and not special


def check_record_type(function: Function, of: object, step: str, place: str) -> None:
    """Refuse a function that declares other records than the stream has, where both are known."""
    declared = function.record_type()
    narrower = _is_plain_class(of) and _is_plain_class(declared) and issubclass(of, declared)
    if UNKNOWN not in (declared, of) and declared != of and not narrower:
        raise PipelineError(
            f"{place}: {step}: {type(function).__name__} declares records of {type_name(declared)}"
            f", the stream has {type_name(of)}"
        )
