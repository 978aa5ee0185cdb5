"""Streams, which `define` chains into a graph.

A method adds a step to the graph and returns the typed stream of the step's results. Every step
that keeps state takes `uid` as a required keyword, so a type checker finds a missing one before the
first run. A stream also has its record type at run time (`of`). The type must be known only where
records are stored or sent between slots.

A `KeyedStream` is not a `Stream`: a step that uses the key must follow `key_by`. So the question
whether a map keeps the key does not arise. The records and keys of its steps are sent between slots
and stored, so both types must be known there. Otherwise the build fails, and the error says how to
state them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, Never, TypeVar, Unpack

from tidegate.api.callable_checks import EXAMPLES, check_callable
from tidegate.api.connectors.kafka_sink import connect_step_dead_letters
from tidegate.api.connectors.sink import Sink
from tidegate.api.declarations.declaration_checks import ErrorOptions, error_policy, policy_options
from tidegate.api.declarations.location import refuse_unsupported, user_location
from tidegate.api.functions import CoProcess, Function, KeyedProcess, Process, SideOutput
from tidegate.api.records.record_fields import type_name
from tidegate.api.records.type_inference import item_type, result_type
from tidegate.api.records.types import KeyLike
from tidegate.api.steps.keyed_steps import Side, add_keyed_step
from tidegate.api.steps.step_checks import (
    check_function,
    check_outputs,
    check_record_type,
    check_side,
    check_sink_type,
    check_timestamps,
)
from tidegate.api.steps.windowed_streams import WindowedStream
from tidegate.api.time.times import Duration
from tidegate.api.time.watermarks import Instant, WatermarkStrategy
from tidegate.api.windows.triggers import Trigger
from tidegate.api.windows.window_step import LATE
from tidegate.api.windows.windows import Assigner
from tidegate.errors import PipelineError
from tidegate.graph.stream_graph import REJECTED, UNKNOWN, Edge, Node, StreamGraph, stored_as

T = TypeVar("T")
U = TypeVar("U")
X = TypeVar("X")
L = TypeVar("L")
R = TypeVar("R")
K = TypeVar("K", bound=KeyLike)


class Stream(Generic[T]):
    """Records of type T."""

    def __init__(self, graph: StreamGraph, edges: tuple[Edge, ...], of: object) -> None:
        self.graph, self.edges, self.record_type = graph, edges, of

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
        logs the record. "dead_letter" sends the record to the topic `dead_letter_topic`, with its
        topic, partition and offset. All results of a skipped or dead-lettered record are dropped.

        PipelineError, with file and line, for a wrong keyword.
        """
        return self._step(
            "map", function, result_type(function, self.record_type, returns), options
        )

    def filter(self, predicate: Callable[[T], bool], **options: Unpack[ErrorOptions]) -> Stream[T]:
        """Add a step that keeps the records for which the predicate is true."""
        return self._step("filter", predicate, self.record_type, options)

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
        known = [
            stream.record_type for stream in (self, *others) if stream.record_type is not UNKNOWN
        ]
        for of in known:
            if of != known[0]:
                raise PipelineError(
                    f"{user_location()}: a union of streams of {type_name(known[0])} and "
                    f"{type_name(of)}"
                    "; map them to one type first."
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
        location = user_location()
        check_function(self.graph, function, Process, location)
        check_record_type(function, self.record_type, "process()", location)
        check_outputs(function, options, location)
        step: Stream[U] = self._step("process", function, function.result_type(), options)
        return ProcessedStream(self.graph, step.edges, step.record_type, type(function))

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
        check_callable("key_by", key, user_location())
        error_policy(f"{user_location()}: key_by", user_location(), options)
        of = result_type(key, self.record_type, returns)
        return KeyedStream(self.graph, self.edges, self.record_type, key, of, options)

    def window_all(
        self,
        assigner: Assigner[T],
        *,
        trigger: Trigger[T] | None = None,
        allowed_lateness: Duration = "0 s",
    ) -> WindowedStream[None, T]:
        """Group all records by time, as `KeyedStream.window` does for each key.

        One subtask gets all records, at any parallelism. If the result has parts that can be
        combined, such as sums, prefer windows by key and a second window of their results.
        """
        keyed: KeyedStream[int, T] = KeyedStream(
            self.graph, self.edges, self.record_type, _one_key, int, ErrorOptions()
        )
        return WindowedStream(
            keyed, assigner, trigger, allowed_lateness, by_key=False, output=WindowOutput
        )

    def with_timestamps(
        self,
        event_time: Callable[[T], Instant],
        *,
        watermarks: WatermarkStrategy[T],
        uid: str,
    ) -> Stamped[T]:
        """Give the records event times here, in place of those of their source.

        `event_time` returns the time of a record: milliseconds since the Unix epoch, or a datetime
        with a zone. `watermarks` is as for a source, without `max_ahead`. Watermarks from in front
        of the step are ignored. `uid` names the watermark of the step in checkpoints.

        Each subtask has one watermark for all of its records. Records of several partitions are
        mixed there, so the delay of the strategy must cover how far partitions may be behind one
        another. Prefer `event_time=` and `watermarks=` of the source, if the time can be found
        there.

        PipelineError, with file and line, for a wrong argument.
        """
        location = user_location()
        check_timestamps(event_time, watermarks, uid, location)
        node = self.graph.add(
            "with_timestamps",
            self.edges,
            location=location,
            uid=uid,
            options={"watermarks": type(watermarks).__name__},
            function=event_time,
            declaration=watermarks,
            record_type=self.record_type,
            watermarks=True,
            event_time=True,
        )
        return Stamped(self.graph, (Edge(node=node.id, record_type=self.record_type),), node)

    def to(self, sink: Sink[T]) -> None:
        """Write the records to a sink, which ends the chain.

        Several chains of a pipeline may end at one sink. PipelineError if the object is not a
        sink, or if the record types do not fit.
        """
        if not isinstance(sink, Sink):
            raise PipelineError(f"{user_location()}: .to() takes a KafkaSink, not {sink!r}.")
        check_sink_type(sink.record_type(), self.record_type, sink.target)
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
        location = user_location()
        if kind in EXAMPLES:
            check_callable(kind, function, location)
        on_error = error_policy(f"{location}: {kind}", location, options)
        node = self.graph.add(
            kind,
            self.edges,
            location=location,
            options=policy_options(on_error),
            function=function,
            record_type=of,
        )
        connect_step_dead_letters(self.graph, node, options)
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
                "; take the tag from the function class itself."
            )
        edges = tuple(
            Edge(node=e.node, port=tag.name, record_type=tag.record_type) for e in self.edges
        )
        return Stream(self.graph, edges, tag.record_type)


class WindowOutput(ProcessedStream[U], Generic[U, T]):
    """The stream of the results of windows."""

    def __init__(
        self, graph: StreamGraph, node: Node, late: object, function: type[Function]
    ) -> None:
        edge = Edge(node=node.id, record_type=node.record_type)
        super().__init__(graph, (edge,), node.record_type, function)
        self._late = Edge(node=node.id, port=LATE, record_type=late)

    @property
    def late(self) -> Stream[T]:
        """The records that came too late for each of their windows.

        The status counts them by uid, also if no step reads them.
        """
        return Stream(self.graph, (self._late,), self._late.record_type)


class Stamped(Stream[T]):
    """The records of `with_timestamps` that have an event time."""

    def __init__(self, graph: StreamGraph, edges: tuple[Edge, ...], node: Node) -> None:
        super().__init__(graph, edges, node.record_type)
        self._node = node

    @property
    def rejected(self) -> Stream[T]:
        """The records without a usable time. They have no event time, and move no watermark. If
        no step reads them, they are counted as skipped and logged.
        """
        of = self.record_type
        edge = Edge(node=self._node.id, port=REJECTED, record_type=of)
        return Stream(self.graph, (edge,), of)


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
        self.graph, self.edges, self.record_type, self.key, self.key_type = (
            graph,
            edges,
            of,
            key,
            key_of,
        )
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
        location = user_location()
        check_function(self.graph, function, KeyedProcess, location)
        check_record_type(function, self.record_type, f"step {uid!r}", location)
        of = function.record_type() if self.record_type is UNKNOWN else self.record_type
        side = Side(self, of)
        node = add_keyed_step(
            "keyed_process", function, function.key_type(), (side,), uid, location, options
        )
        return _results(self.graph, node, function)

    def connect(self, other: KeyedStream[K, R]) -> Connected[K, T, R]:
        """Return both streams for one function, which has one set of states and timers for a key.

        Example: `orders.connect(payments).process(Match(), uid="match")`.
        """
        return Connected(self, other)

    def reduce(self, *_args: object, **_options: object) -> Never:
        """Reduce the records of a key. Not supported in this version: PipelineError."""
        refuse_unsupported("reduce", "use .process() with a KeyedProcess and a ValueState")

    def window(
        self,
        assigner: Assigner[T],
        *,
        trigger: Trigger[T] | None = None,
        allowed_lateness: Duration = "0 s",
    ) -> WindowedStream[K, T]:
        """Group the records of each key by time.

        The methods of the result say what becomes of the records of a window. `trigger` says when a
        window gives a result; by default, when the watermark passes its end. A window that has
        ended takes records for `allowed_lateness` longer. A record that is too late for each of its
        windows goes to `late` of the results.

        PipelineError for a malformed duration, and for a trigger that does not fit the windows.
        """
        return WindowedStream(
            self, assigner, trigger, allowed_lateness, by_key=True, output=WindowOutput
        )

    def interval_join(self, *_args: object, **_options: object) -> Never:
        """Join records by key and time interval. Not supported in this version: PipelineError."""
        refuse_unsupported("interval_join", _JOIN)

    def as_of_join(self, *_args: object, **_options: object) -> Never:
        """Join with the latest earlier record. Not supported in this version: PipelineError."""
        refuse_unsupported("as_of_join", _JOIN)

    def connect_broadcast(self, *_args: object, **_options: object) -> Never:
        """Process with a broadcast stream. Not supported in this version: PipelineError."""
        refuse_unsupported("connect_broadcast", _JOIN)


class Connected(Generic[K, L, R]):
    """Two streams with keys of one type, which one function processes."""

    def __init__(self, left: KeyedStream[K, L], right: KeyedStream[K, R]) -> None:
        self._left, self._right = left, right
        if left.graph is not right.graph:
            raise PipelineError(
                f"{user_location()}: connect() takes a stream of the same pipeline."
            )
        known = [of for of in (left.key_type, right.key_type) if of is not UNKNOWN]
        if len(known) > 1 and known[0] != known[1]:
            raise PipelineError(
                f"{user_location()}: connect(): the left stream has keys of {type_name(known[0])}, "
                f"the right one of {type_name(known[1])}; equal keys would not meet."
            )

    def process(
        self, function: CoProcess[K, L, R, U], *, uid: str, **options: Unpack[ErrorOptions]
    ) -> ProcessedStream[U]:
        """Add a step that calls a function object with one set of states and timers for each key.

        `uid` and `on_error` are as in `KeyedStream.process`. If only one of the streams has
        watermarks, the event time of the step follows that stream alone.

        PipelineError, with file and line, as `KeyedStream.process` raises it.
        """
        location = user_location()
        check_function(self._left.graph, function, CoProcess, location)
        sides: list[Side] = []
        streams: tuple[KeyedStream[Any, Any], ...] = (self._left, self._right)
        for number, stream in enumerate(streams):
            declared = function.side_type(number)
            check_side(function, declared, stream.record_type, uid, location)
            of = declared if stream.record_type is UNKNOWN else stream.record_type
            sides.append(Side(stream, of))
        node = add_keyed_step(
            "co_process", function, function.key_type(), sides, uid, location, options
        )
        return _results(self._left.graph, node, function)


def _results(graph: StreamGraph, node: Node, function: Function) -> ProcessedStream[Any]:
    edge = Edge(node=node.id, record_type=node.record_type)
    return ProcessedStream(graph, (edge,), node.record_type, type(function))


@stored_as("tidegate.api.streams:_one_key")
def _one_key(_record: object) -> int:
    """Return the key of all records of `window_all`."""
    return 0


_JOIN = (
    "map both streams to one union type, unite them, and key them by the same key into a "
    "KeyedProcess "
    "that keeps what waits for its partner in state"
)
