"""The methods that add a step with windows.

`KeyedStream.window` and `Stream.window_all` return a `WindowedStream`. Each of its methods says
what becomes of the records of a window, and adds the step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Generic, Never, TypeVar, cast, overload

from tidegate.api.declarations.location import refuse_unsupported, user_location
from tidegate.api.functions import Function
from tidegate.api.records.type_inference import result_type
from tidegate.api.steps.keyed_steps import (
    Side,
    check_key_type,
    connect_key_dead_letters,
    edges_by_key,
    known_schema,
)
from tidegate.api.steps.step_checks import check_function, check_record_type
from tidegate.api.time.times import Duration, to_ms
from tidegate.api.windows.aggregates import Aggregate
from tidegate.api.windows.triggers import AfterWatermark, Every, Trigger
from tidegate.api.windows.window_step import LATE, Records, Reduced, WindowStep, check_into
from tidegate.api.windows.windows import Assigner, Global, Sliding, Window, WindowProcess
from tidegate.errors import PipelineError
from tidegate.graph.stream_graph import MAIN, UNKNOWN, Node, StreamGraph

if TYPE_CHECKING:
    from tidegate.api.steps.streams import KeyedStream, WindowOutput

W = TypeVar("W")
T = TypeVar("T")
U = TypeVar("U")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
E = TypeVar("E")

AGGREGATES_MAX: Final = 5


class WindowedStream(Generic[W, T]):
    """The windows of a stream: `window` and `window_all` make it."""

    def __init__(
        self,
        keyed: KeyedStream[Any, T],
        assigner: Assigner[T],
        trigger: Trigger[T] | None,
        allowed_lateness: Duration,
        *,
        by_key: bool,
        output: Callable[..., WindowOutput[Any, T]],
    ) -> None:
        """Check the arguments. PipelineError for those that do not fit together. `output` makes the
        stream of the results.
        """
        self._output = output
        self._location = user_location()
        where = f"{self._location}: {'window' if by_key else 'window_all'}"
        self._keyed, self._by_key = keyed, by_key
        self._assigner: Assigner[Any] = _checked_assigner(assigner, where)
        self._trigger: Trigger[Any] = _checked_trigger(assigner, trigger, where)
        self._lateness_ms = to_ms(allowed_lateness, f"{where}, allowed_lateness")
        if self._lateness_ms and assigner.time == "processing":
            raise PipelineError(
                f"{where}: a record is never late for a window of processing time, so "
                "allowed_lateness has no meaning there. Remove it."
            )

    def reduce(self, function: Callable[[T, T], T], *, uid: str) -> WindowOutput[T, T]:
        """Add a step whose result is all records of a window, combined two by two.

        `function(a, b)` returns the combination of two records; `a` came before `b`. It must be
        associative. It may change `a` and return it. The result of a window with one record is this
        record. `uid` is as in `aggregate`.
        """
        where = f"{user_location()}: step {uid!r}"
        if not callable(cast("object", function)):
            raise PipelineError(f"{where}: reduce takes a function of two records.")
        of = self._keyed.record_type
        return self._add([Reduced(function)], of, uid, where, into=_only_value)

    @overload
    def aggregate(
        self,
        a: Aggregate[T, Any, A],
        /,
        *,
        into: Callable[[Window[W], A], U],
        uid: str,
        returns: type[U] | None = None,
    ) -> WindowOutput[U, T]: ...
    @overload
    def aggregate(
        self,
        a: Aggregate[T, Any, A],
        b: Aggregate[T, Any, B],
        /,
        *,
        into: Callable[[Window[W], A, B], U],
        uid: str,
        returns: type[U] | None = None,
    ) -> WindowOutput[U, T]: ...
    @overload
    def aggregate(
        self,
        a: Aggregate[T, Any, A],
        b: Aggregate[T, Any, B],
        c: Aggregate[T, Any, C],
        /,
        *,
        into: Callable[[Window[W], A, B, C], U],
        uid: str,
        returns: type[U] | None = None,
    ) -> WindowOutput[U, T]: ...
    @overload
    def aggregate(
        self,
        a: Aggregate[T, Any, A],
        b: Aggregate[T, Any, B],
        c: Aggregate[T, Any, C],
        d: Aggregate[T, Any, D],
        /,
        *,
        into: Callable[[Window[W], A, B, C, D], U],
        uid: str,
        returns: type[U] | None = None,
    ) -> WindowOutput[U, T]: ...
    @overload
    def aggregate(
        self,
        a: Aggregate[T, Any, A],
        b: Aggregate[T, Any, B],
        c: Aggregate[T, Any, C],
        d: Aggregate[T, Any, D],
        e: Aggregate[T, Any, E],
        /,
        *,
        into: Callable[[Window[W], A, B, C, D, E], U],
        uid: str,
        returns: type[U] | None = None,
    ) -> WindowOutput[U, T]: ...
    def aggregate(
        self,
        *aggregates: Aggregate[T, Any, Any],
        into: Callable[..., Any],
        uid: str,
        returns: type[Any] | None = None,
    ) -> WindowOutput[Any, T]:
        """Add a step whose result is made of up to five aggregates of each window.

        `into` takes the window and the results of the aggregates, and returns the record. `returns`
        is its type, if it is not known from the function. `uid` names the windows in checkpoints
        and must never change.

        PipelineError, with file and line, if a source of the records declares no watermarks, or if
        a type is not known or has no schema.
        """
        where = f"{user_location()}: step {uid!r}"
        if not 1 <= len(aggregates) <= AGGREGATES_MAX:
            raise PipelineError(f"{where}: aggregate takes 1 to {AGGREGATES_MAX} aggregates.")
        for each in aggregates:
            given: object = each
            if not isinstance(given, Aggregate):
                given = given.__name__ if isinstance(given, type) else repr(given)
                raise PipelineError(
                    f"{where}: {given} is not an aggregate, such as Count() or "
                    "Sum(lambda sale: sale.amount)."
                )
        check_into(into, len(aggregates), where)
        return self._add(aggregates, result_type(into, UNKNOWN, returns), uid, where, into=into)

    def process(
        self, function: WindowProcess[W, T, U], *, uid: str, keep: object = None
    ) -> WindowOutput[U, T]:
        """Add a step that calls a function object with all records of each window.

        `uid` is as in `aggregate`. PipelineError as there.
        """
        if keep is not None:
            refuse_unsupported("keep=", "select the records in the function")
        location = user_location()
        where = f"{location}: step {uid!r}"
        check_function(self._keyed.graph, function, WindowProcess, location)
        check_record_type(function, self._keyed.record_type, f"step {uid!r}", location)
        for name in (LATE, MAIN):
            if name in function.declared_outputs:
                raise PipelineError(
                    f"{where}: {type(function).__name__}.{name} is a side output, and {name!r} is "
                    "a name of an output of windows. Give it another name."
                )
        return self._add([Records()], function.result_type(), uid, where, function=function)

    def with_retractions(self) -> Never:
        """Send changes of results. This version does not support it: PipelineError."""
        refuse_unsupported("with_retractions", "send each result with its window and its number")

    def _uses_clock(self) -> bool:
        repeats = (self._trigger.early, self._trigger.late)
        of_clock = any(isinstance(one, Every) and one.time == "processing" for one in repeats)
        return of_clock or self._assigner.time == "processing"

    def _add(
        self,
        aggregates: Any,
        result: object,
        uid: str,
        where: str,
        *,
        into: Callable[..., Any] | None = None,
        function: WindowProcess[Any, Any, Any] | None = None,
    ) -> WindowOutput[Any, T]:
        keyed, location = self._keyed, where.partition(": ")[0]
        if self._assigner.time == "event":
            _check_event_time(keyed, where)
        of, key_of = keyed.record_type, keyed.key_type
        if of is UNKNOWN and function is not None:
            of = function.record_type()
        described = {
            "key": known_schema(key_of, f"step {uid!r} keeps windows by key", "key_by", location),
            "record": known_schema(
                of, f"step {uid!r} sends its records to other slots", "map", location
            ),
        }
        check_key_type(key_of, uid, location)
        step = WindowStep(
            self._assigner,
            self._trigger,
            self._lateness_ms,
            aggregates,
            into=into,
            function=function,
            key_type=key_of,
            record_type=of,
            by_key=self._by_key,
            where=where,
        )
        side = Side(keyed, of)
        node = keyed.graph.add(
            "window",
            tuple(edges_by_key(side, 0, key_of, uid)),
            location=location,
            uid=uid,
            options=described | step.describe(),
            function=step,
            record_type=of if isinstance(aggregates[0], Reduced) else result,
            fires=True,
            uses_clock=self._uses_clock(),
        )
        connect_key_dead_letters([side], uid, location)
        kind = Function if function is None else type(function)
        return self._output(keyed.graph, node, of, kind)


def _only_value(_window: Window[Any], value: Any) -> Any:
    return value


def _checked_assigner(assigner: object, where: str) -> Assigner[Any]:
    if not isinstance(assigner, Assigner):
        given = assigner.__name__ if isinstance(assigner, type) else repr(assigner)
        raise PipelineError(f"{where}: {given} is not an assigner, such as Tumbling('1 h').")
    if not hasattr(type(assigner), "kind"):
        raise PipelineError(
            f"{where}: {type(assigner).__name__} is an assigner of your own, which is not "
            "supported. Use Tumbling, Sliding, Session, Calendar or Global."
        )
    return assigner


def _checked_trigger(assigner: Assigner[Any], trigger: object, where: str) -> Trigger[Any]:
    if trigger is not None and not isinstance(trigger, Trigger):
        raise PipelineError(
            f"{where}: trigger={trigger!r} is not a trigger, such as AfterWatermark() or "
            "Repeatedly(EveryCount(100))."
        )
    if trigger is not None and not hasattr(trigger, "on_time"):
        raise PipelineError(
            f"{where}: {type(trigger).__name__} is a trigger of your own, which is not "
            "supported. Use AfterWatermark or Repeatedly."
        )
    repeats = () if trigger is None else (trigger.early, trigger.late)
    if assigner.time == "processing" and any(
        isinstance(one, Every) and one.time == "event" for one in repeats
    ):
        raise PipelineError(
            f"{where}: windows of processing time have no event time, so Every(..., time='event') "
            "never fires. Use time='processing'."
        )
    if isinstance(assigner, Global) and (trigger is None or trigger.on_time):
        raise PipelineError(
            f"{where}: the window of Global never ends, so it needs trigger=Repeatedly(...), for "
            "example Repeatedly(EveryCount(100))."
        )
    found = AfterWatermark() if trigger is None else trigger
    described = {**found.describe(), "on_time": True}  # at its end, each of them fires
    if isinstance(assigner, Sliding) and described != AfterWatermark().describe():
        raise PipelineError(
            f"{where}: sliding windows share their records, so they fire at their end and for each "
            "record that comes later. Other triggers of sliding windows are not "
            "supported. Remove trigger=."
        )
    return found


def _check_event_time(keyed: KeyedStream[Any, Any], where: str) -> None:
    """Refuse windows of event time behind a source without watermarks."""
    nodes = keyed.graph.nodes
    for edge in keyed.edges:
        node = nodes[edge.node]
        if node.watermarks and keyed.graph.has_event_time(edge):
            continue
        if node.watermarks and node.event_time:
            raise PipelineError(
                f"{where}: windows need event time, and the rejected records of step {node.id!r} "
                f"({node.location}) have none. Use windows with time='processing'."
            )
        source = _source_without(keyed.graph, node)
        raise PipelineError(
            f"{where}: windows need event time, and source {source.id!r} ({source.location}) "
            "declares no watermarks. Give it watermarks=BoundedOutOfOrderness('10 s'), or use "
            "windows with time='processing'."
        )


def _source_without(graph: StreamGraph, node: Node) -> Node:
    """Return the first source before a node, itself included, that declares no watermarks."""
    while node.inputs:
        inputs = [graph.nodes[edge.node] for edge in node.inputs]
        node = next((one for one in inputs if not (one.watermarks and one.event_time)), inputs[0])
    return node
