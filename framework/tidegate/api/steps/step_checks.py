"""Checks that `streams.py` makes when `define` adds a step or a sink.

Each raises PipelineError with the user's file and line.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any, TypeGuard, get_args

from typing_extensions import is_typeddict

from tidegate.api.callable_checks import check_methods
from tidegate.api.declarations.declaration_checks import ErrorOptions
from tidegate.api.declarations.location import user_location
from tidegate.api.functions import Function, Process
from tidegate.api.records.record_fields import plain_type, type_name
from tidegate.api.records.values import counts_as
from tidegate.api.time.timers import has_timers
from tidegate.api.time.watermarks import HeaderTime, WatermarkStrategy
from tidegate.errors import PipelineError
from tidegate.graph.stream_graph import DEAD_LETTERS, UNKNOWN, Edge, StreamGraph


def check_outputs(function: Function, options: ErrorOptions, location: str) -> None:
    """Refuse a side output whose port the step needs for its dead letters."""
    if DEAD_LETTERS in function.declared_outputs and "dead_letter_topic" in options:
        raise PipelineError(
            f"{location}: {type(function).__name__}.{DEAD_LETTERS} is a side output, and the step "
            "has on_error='dead_letter'; give the side output another name."
        )


def check_function(
    graph: StreamGraph, function: object, base: type[Function], location: str
) -> None:
    """Refuse an object that is not a `base`, or that already belongs to another step.

    Two steps cannot share an object, because its state cells are attributes of the object.
    """
    if not isinstance(function, base):
        given = _named(function)
        raise PipelineError(
            f"{location}: process() takes an object of a class derived from {base.__name__} here, "
            f"not {given}.{_instead(function, base)}"
        )
    check_methods(function, location)
    for node in graph:
        if node.function is function:
            raise PipelineError(
                f"{location}: this {type(function).__name__} object belongs to the step "
                f"{node.id!r} at {node.location}; make one for each step."
            )


def _named(given: object) -> str:
    """Return a name of an object for a message, without its address."""
    if isinstance(given, type):
        return f"the class {given.__name__}"
    if isinstance(given, Function):
        return f"a {type(given).__name__}"
    return f"the function {given.__qualname__}" if inspect.isfunction(given) else repr(given)


def _instead(given: object, base: type[Function]) -> str:
    """Return the remedy for an object that is not of the class that a step takes."""
    if isinstance(given, type) and issubclass(given, base):
        return f" Write {given.__name__}()."
    if isinstance(given, Function) and base is Process:
        return " State belongs to a key: call key_by(...) before process(...)."
    if isinstance(given, Process):
        return " A function without state comes before key_by(...), or derives from KeyedProcess."
    return ""


def check_sink_type(declared: object, of: object, target: str) -> None:
    """Refuse a sink whose records the stream cannot have.

    This is so if the stream's class is neither encoded as the sink's class nor a base class of it.
    Types that are not plain classes are left to type checkers.
    """
    if not (_is_plain_class(declared) and _is_plain_class(of)):
        return
    if not counts_as(of, declared) and not issubclass(declared, of):
        raise PipelineError(
            f"{user_location()}: the sink for {target} takes records of "
            f"{type_name(declared)}"
            f", the stream has {type_name(of)}; map them."
        )


def _is_plain_class(of: object) -> TypeGuard[type]:
    """Check that `issubclass` can decide: false for aliases, protocols and TypedDicts."""
    special = of is Any or is_typeddict(of) or getattr(of, "_is_protocol", False)
    return isinstance(of, type) and not get_args(of) and not special


def check_record_type(function: Function, of: object, step: str, location: str) -> None:
    """Refuse a function with another record type than the stream's, if both types are known."""
    _check_type(function, function.record_type(), of, step, location)


def check_side(function: Function, declared: object, of: object, uid: str, location: str) -> None:
    """Refuse a function that declares another record type for a side than its stream has."""
    _check_type(function, declared, of, f"step {uid!r}", location)


def _check_type(function: Function, declared: object, of: object, step: str, location: str) -> None:
    declared, of = plain_type(declared), plain_type(of)
    narrower: bool = _is_plain_class(of) and _is_plain_class(declared) and issubclass(of, declared)
    if UNKNOWN not in (declared, of) and declared != of and not narrower:
        raise PipelineError(
            f"{location}: {step}: {type(function).__name__} declares records of "
            f"{type_name(declared)}, the stream has {type_name(of)}."
        )


def check_timestamps(event_time: object, watermarks: object, uid: object, location: str) -> None:
    """Refuse what `with_timestamps` cannot use. It sees records, and no records of Kafka."""
    where = f"{location}: with_timestamps"
    if not isinstance(uid, str):
        raise PipelineError(
            f"{where}: uid={uid!r} must be a name, as in uid='event-time': it names the watermark "
            "of the step in checkpoints."
        )
    if isinstance(event_time, HeaderTime) or not callable(event_time):
        raise PipelineError(
            f"{where}: event_time={event_time!r} must be a function from a record to its time, as "
            "in with_timestamps(lambda sale: sale.sold_at_ms, ...). HeaderTime is for event_time= "
            "of a source."
        )
    if not isinstance(watermarks, WatermarkStrategy):
        raise PipelineError(
            f"{where}: watermarks={watermarks!r} must be a strategy, as in "
            "watermarks=BoundedOutOfOrderness('10 s')."
        )
    if watermarks.max_ahead_ms is not None:
        raise PipelineError(
            f"{where}: max_ahead compares event_time with Kafka's timestamp, and the records of a "
            "step have none. Remove max_ahead, or check the time in event_time: a record for which "
            "it raises is rejected."
        )


def check_event_timers(
    graph: StreamGraph, edges: Iterable[Edge], function: Function, uid: str, location: str
) -> None:
    """Refuse a timer of event time if no source in front of the step has watermarks."""
    timers = [n for n, s in function.declared_states.items() if has_timers({n: s}, "event")]
    if timers and not any(graph.nodes[edge.node].watermarks for edge in edges):
        raise PipelineError(
            f"{location}: step {uid!r}: {type(function).__name__}.{timers[0]} is a timer of event "
            "time, and no source in front of the step has watermarks. Give a source watermarks=, "
            "for example BoundedOutOfOrderness('10 s'), or declare a ProcessingTimer."
        )
