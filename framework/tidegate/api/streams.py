"""Streams, which `define` chains into a graph.

A method adds a step to the graph and returns the typed stream of the step's results. Every step
that keeps state takes `uid` as a required keyword, so a type checker finds a missing one before the
first run. A stream also has its record type at run time (`of`). The type must be known only where
records are stored or sent between slots.
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
from tidegate.graph.stream_graph import DEAD_LETTERS, UNKNOWN, Edge, Node, StreamGraph

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
        """Add a step that returns one result for each record.

        `returns` is the type of the results, if it is not known from the function.

        `on_error`, in this and every other step, is the action for a record on which the function
        raises. "fail" (the default) restarts the job from its last checkpoint. "skip" counts and
        logs the record. "dead_letter" sends the record to the topic `dead_letters`, with its topic,
        partition and offset. All results of a skipped or dead-lettered record are dropped.

        PipelineError, with file and line, for a wrong keyword.
        """
        return self._step("map", function, result_type(function, self.of, returns), options)

    def filter(self, predicate: Callable[[T], bool], **options: Unpack[ErrorOptions]) -> Stream[T]:
        """Add a step that keeps the records for which the predicate is true."""
        return self._step("filter", predicate, self.of, options)

    def flat_map(
        self,
        function: Callable[[T], Iterable[U]],
        *,
        returns: type[U] | None = None,
        **options: Unpack[ErrorOptions],
    ) -> Stream[U]:
        """Add a step that returns any number of results for each record.

        `returns` is the type of one result.
        """
        return self._step("flat_map", function, item_type(function, returns), options)

    def union(self, *others: Stream[T]) -> Stream[T]:
        """Return a stream of the records of all streams.

        The records of each stream keep their order. PipelineError if the streams have different
        record types.
        """
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
        """Add a step that calls a function object, without key or state.

        The function may have side outputs, `open` and `close`. PipelineError, with file and line,
        if it is not a `Process` object or already belongs to a step, or if its record type does not
        fit.
        """
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
        """Partition the records by key: one subtask gets all records of a key, in order.

        The key is a value of the record, never a position or a hash. `returns` is the type of the
        key, if it is not known from the function. `on_error` covers records whose key function
        raises, whose key cannot be encoded, or that cannot be sent to another slot. Without it, the
        policy of the previous step (`on_bad_record` of a source) covers records that cannot be
        encoded or sent, and an exception of the key function ends the attempt.
        """
        from tidegate.api.keyed import KeyedStream  # built on streams, and key_by is the way to it

        error_policy(f"{user_location()}: key_by", user_location(), options)
        of = result_type(key, self.of, returns)
        return KeyedStream(self.graph, self.edges, self.of, key, of, options)

    def to(self, sink: KafkaSink[T]) -> None:
        """Write the records to a sink, which ends the chain.

        Several chains of a pipeline may end at one sink. PipelineError if the object is not a
        KafkaSink, or if the record types do not fit.
        """
        from tidegate.api.kafka import KafkaSink  # its sources are streams

        if not isinstance(sink, KafkaSink):
            raise PipelineError(f"{user_location()}: .to() takes a KafkaSink, not {sink!r}")
        check_sink_type(sink.record_type(), self.of, sink.topic)
        sink.connect(self.graph, self.edges)

    def map_batch(self, *_args: object, **_options: object) -> Never:
        """Map batches of records. Not supported in this version: PipelineError."""
        refuse_unsupported("map_batch", "use .map()")

    def map_arrow(self, *_args: object, **_options: object) -> Never:
        """Map Arrow batches. Not supported in this version: PipelineError."""
        refuse_unsupported("map_arrow", "use .map()")

    def map_async(self, *_args: object, **_options: object) -> Never:
        """Map with an async function. Not supported in this version: PipelineError."""
        refuse_unsupported("map_async", "use .map()")

    def broadcast(self) -> Never:
        """Send every record to all subtasks. Not supported in this version: PipelineError."""
        refuse_unsupported(
            "broadcast", "key both streams, and join them by union and a KeyedProcess"
        )

    def _step(self, kind: str, function: object, of: object, options: ErrorOptions) -> Stream[Any]:
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
    """The stream of the results of a process function, which may have side outputs."""

    def __init__(
        self, graph: StreamGraph, edges: tuple[Edge, ...], of: object, function: type[Function]
    ) -> None:
        super().__init__(graph, edges, of)
        self.function = function

    def side_output(self, tag: SideOutput[X]) -> Stream[X]:
        """Return the stream of a side output that the function class declares.

        Example: `checked.side_output(CheckOrder.suspicious)`. PipelineError for any other tag.
        """
        if self.function.declared_outputs.get(tag.name) is not tag:
            raise PipelineError(
                f"{user_location()}: {self.function.__name__} declares no side output {tag.name!r}"
                "; take the tag from the function class itself"
            )
        edges = tuple(Edge(node=e.node, port=tag.name, record_type=tag.of) for e in self.edges)
        return Stream(self.graph, edges, tag.of)


def connect_step_letters(graph: StreamGraph, node: Node, options: ErrorOptions) -> None:
    """Write the dead letters of a step to its dead-letter topic, if it has one."""
    from tidegate.api.kafka import connect_dead_letters, letters_name  # its sources are streams

    if "dead_letters" in options:
        name, topic = letters_name(node.id), options["dead_letters"]
        connect_dead_letters(graph, name, topic, node.place, [(node.id, DEAD_LETTERS)])


def check_outputs(function: Function, options: ErrorOptions, place: str) -> None:
    """Refuse a side output whose port the step needs for its dead letters."""
    if DEAD_LETTERS in function.declared_outputs and "dead_letters" in options:
        raise PipelineError(
            f"{place}: {type(function).__name__}.{DEAD_LETTERS} is a side output, and the step has "
            "on_error='dead_letter'; give the side output another name"
        )


def check_function(graph: StreamGraph, function: object, base: type[Function], place: str) -> None:
    """Refuse an object that is not a `base`, or that already belongs to another step.

    Two steps cannot share an object, because its state cells are attributes of the object.
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
    """Refuse a sink whose records the stream cannot have.

    This is so if the stream's class is neither encoded as the sink's class nor a base class of it.
    Types that are not plain classes are left to type checkers.
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
    """Check that `issubclass` can decide: false for aliases, protocols and TypedDicts."""
    special = of is Any or is_typeddict(of) or getattr(of, "_is_protocol", False)
    return isinstance(of, type) and not get_args(of) and not special


def check_record_type(function: Function, of: object, step: str, place: str) -> None:
    """Refuse a function with another record type than the stream's, if both types are known."""
    declared = function.record_type()
    narrower = _is_plain_class(of) and _is_plain_class(declared) and issubclass(of, declared)
    if UNKNOWN not in (declared, of) and declared != of and not narrower:
        raise PipelineError(
            f"{place}: {step}: {type(function).__name__} declares records of {type_name(declared)}"
            f", the stream has {type_name(of)}"
        )
