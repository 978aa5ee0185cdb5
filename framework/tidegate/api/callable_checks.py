"""Checks of the functions and formats that a pipeline gives to sources, sinks and steps.

Each mistake here would otherwise fail at the first record, in a process of the cluster, or with an
AttributeError inside of tidegate. Every error is a PipelineError that shows the correct form.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final, get_origin

from tidegate.api.records.record_fields import type_name
from tidegate.api.state.state import State
from tidegate.errors import PipelineError

if TYPE_CHECKING:
    from tidegate.api.functions import Function

EXAMPLES: Final = {
    "map": ".map(to_total), or .map(lambda order: order.amount)",
    "filter": ".filter(is_paid), or .filter(lambda order: order.amount > 0)",
    "flat_map": ".flat_map(lines_of), or .flat_map(lambda order: order.lines)",
    "key_by": ".key_by(lambda order: order.customer)",
    "record_key=": "record_key=lambda total: total.customer",
}


def check_callable(what: str, function: object, location: str) -> None:
    """Refuse anything except a plain function of one record. `what` is a key of `EXAMPLES`."""
    example = EXAMPLES[what]
    if not callable(function):
        raise PipelineError(
            f"{location}: {what} takes a function of a record, not {function!r}. Write {example}."
        )
    refuse_async(what, function, location)
    if not takes_one(function):
        raise PipelineError(
            f"{location}: {what} calls its function with one argument, the record. "
            f"{_shown(function)} cannot be called so. Write {example}."
        )


def refuse_async(what: str, function: object, location: str) -> None:
    """Refuse an async function: the call gives a coroutine, and no step runs it."""
    plain = function.func if isinstance(function, functools.partial) else function
    if not inspect.isroutine(plain) and not inspect.isclass(plain):
        plain = getattr(plain, "__call__", plain)  # noqa: B004 - the method, not the test
    if inspect.iscoroutinefunction(plain) or inspect.isasyncgenfunction(plain):
        raise PipelineError(
            f"{location}: {what}: {_shown(plain)} is an async function, and steps call plain "
            "functions. Write def in place of async def, and use clients that block. More "
            "parallelism (-p) makes several calls at a time."
        )


def takes_one(function: Callable[..., Any]) -> bool:
    """Return whether the function can be called with one argument. True if this is not known."""
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        return False
    except ValueError:  # a function in C without a signature
        return True
    return True


def check_format(where: str, keyword: str, given: object, format_class: type) -> None:
    """Refuse a type, or the class of a format, in place of a format such as `Json(Order)`."""
    if isinstance(given, format_class):
        return
    origin = get_origin(given)
    if isinstance(given, type) and issubclass(given, format_class):
        raise PipelineError(
            f"{where}: {keyword}={given.__name__} is the class of a format. Write the type of the "
            f"records, as in {keyword}={given.__name__}(Order)."
        )
    if isinstance(given, type) or origin is not None:
        name = type_name(given)
        raise PipelineError(
            f"{where}: {keyword}={name} is a type, and not a format. Write {keyword}=Json({name}), "
            f"or Avro({name})."
        )
    raise PipelineError(
        f"{where}: {keyword}={given!r} is not a format. Write, for example, {keyword}=Json(Order)."
    )


def check_methods(function: Function, location: str) -> None:
    """Refuse async methods of a function object, and states that its class does not declare."""
    of = type(function)
    for name in ("process", "process_left", "process_right", "on_timer", "open", "close"):
        refuse_async("process()", getattr(function, name, None), location)
    for name, value in getattr(function, "__dict__", {}).items():
        if isinstance(value, State):
            raise PipelineError(
                f"{location}: {of.__name__} makes the state self.{name} in __init__. Declare it in "
                f"the class: {name} = {type(value).__name__}(...)."
            )
    _refuse_assignments(of, location)
    for base in of.__mro__:
        for name, declared in vars(base).get("__annotations__", {}).items():
            if name not in of.declared_states and _is_state(declared):
                raise PipelineError(
                    f"{location}: {of.__name__}.{name} has only the annotation of a state. Assign "
                    f"it: {name} = ValueState(int, default=0)."
                )


def _refuse_assignments(of: type[Function], location: str) -> None:
    """Refuse `self.total = x` and `self.total += x`, where `total` is a state.

    Python would put the value in place of the cell until the next key, and it would be lost.
    """
    for method in vars(of).values() if of.declared_states else ():
        if not inspect.isfunction(method):
            continue
        for name, line in _assigned(method):
            state = of.declared_states.get(name)
            if state is not None:
                raise PipelineError(
                    f"{location}: {method.__qualname__} assigns to self.{name} in line {line}, and "
                    f"{name!r} is a state. {_CHANGES.get(state.kind, '').format(name=name)}"
                )


_CHANGES: Final = {
    "value": "Write .value behind it, as in self.{name}.value += 1.",
    "list": "Write self.{name}.append(item), or self.{name}.replace(items).",
    "map": "Write self.{name}[key] = value, or self.{name}.clear().",
}
"""The correct form by the kind of a state."""


def _assigned(method: FunctionType) -> Iterator[tuple[str, int]]:
    """Return the attributes of `self` to which a method assigns, with their lines.

    Without the source text, the result is empty.
    """
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(method)))
    except (OSError, SyntaxError):
        return
    this = next(iter(method.__code__.co_varnames), "self")
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or not isinstance(node.ctx, ast.Store):
            continue
        if isinstance(node.value, ast.Name) and node.value.id == this:
            yield node.attr, node.lineno + method.__code__.co_firstlineno - 1


def _is_state(declared: object) -> bool:
    if isinstance(declared, str):  # from __future__ import annotations
        return declared.partition("[")[0].rpartition(".")[2] in {
            "ValueState",
            "ListState",
            "MapState",
        }
    origin = get_origin(declared) or declared
    return isinstance(origin, type) and issubclass(origin, State)


def _shown(function: object) -> str:
    return str(getattr(function, "__qualname__", None) or repr(function))
