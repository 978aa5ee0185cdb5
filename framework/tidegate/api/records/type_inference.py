"""Inference of the return type of a user's function, without running it on data.

The type comes from the first of these that exists: `returns=`, a class used as the function, the
annotation of a `def`. A function that only reads fields is called with a probe instead of a record.
The answer is never a guess: the type is UNKNOWN for a function that branches, which is not called,
and for a function that computes, which the probe refuses. An unknown type is refused only where the
type is needed.
"""

from __future__ import annotations

import dis
import inspect
import types
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar, get_args, get_origin, get_type_hints

from tidegate.api.records.record_fields import fields_of, plain_type
from tidegate.errors import PipelineError
from tidegate.graph.stream_graph import UNKNOWN
from tidegate.user_exceptions import process_ends

_READ_STEPS: Final = 3
"""Number of instructions of a function that reads one attribute: load, read, return."""


def result_type(function: Callable[..., object], of: object, returns: object = None) -> object:
    """Return the type of the function's result for a record of type `of`, or UNKNOWN."""
    if returns is not None:
        return returns
    if isinstance(function, type):
        return function
    hint = _annotated(function)
    if hint is not UNKNOWN or of is UNKNOWN or _branches(function):
        return hint
    try:
        return _unwrap(function(_Probe(of)))
    except (TypeError, AttributeError):
        return UNKNOWN


def item_type(function: Callable[..., object], returns: object = None) -> object:
    """Return the type of one result of a function that returns an iterable, or UNKNOWN.

    The type is `returns`, or `X` of the function's annotation `Iterable[X]`.
    """
    if returns is not None:
        return returns
    hint = _annotated(function)
    origin = get_origin(hint)
    iterable = isinstance(origin, type) and issubclass(origin, Iterable)
    if not iterable or (origin is tuple and get_args(hint)[1:] != (...,)):
        return UNKNOWN
    return _known(get_args(hint)[0])


def only_reads(function: Callable[..., object], of: object) -> bool:
    """Check that a function certainly does not change a record of type `of`.

    This is certain only for a function without branches whose result is made of fields that it
    reads.
    """
    if _branches(function):
        return False
    try:
        return _unwrap(function(_Probe(of))) is not UNKNOWN
    except process_ends():
        raise
    except BaseException:  # noqa: BLE001  # a probe is not a record, so an error proves nothing
        return False


def field_path(function: Callable[..., object]) -> tuple[str, ...] | None:
    """Return the attributes that a function reads of its record, one of the other, if it does
    nothing else: `("address", "city")` for `lambda order: order.address.city`. Otherwise None.
    """
    if not isinstance(function, types.FunctionType) or function.__code__.co_argcount != 1:
        return None
    found = [(op.opname, op.argval) for op in dis.get_instructions(function)]
    steps = [step for step in found if step[0] not in ("RESUME", "CACHE")]
    if len(steps) < _READ_STEPS or not steps[0][0].startswith("LOAD_FAST"):
        return None
    path = steps[1:-1]
    if steps[-1][0] != "RETURN_VALUE" or any(name != "LOAD_ATTR" for name, _ in path):
        return None
    return tuple(name for _, name in path)


def _annotated(function: Callable[..., object]) -> object:
    if not inspect.isroutine(function):
        return UNKNOWN
    try:
        return _known(get_type_hints(function).get("return", UNKNOWN))
    except NameError as error:
        raise PipelineError(
            f"{function.__qualname__}: {error} at run time; import it outside TYPE_CHECKING or "
            "give returns=Type."
        ) from None


def _known(hint: object) -> object:
    unknown = isinstance(hint, TypeVar) or hint is Any or _open(hint)
    return UNKNOWN if unknown else plain_type(hint)


def _open(hint: object) -> bool:
    """Check whether a hint still has type variables, as that of a generic function has."""
    return bool(getattr(hint, "__parameters__", ())) and not isinstance(hint, type)


def _branches(function: Callable[..., object]) -> bool:
    """Check whether the function has branches.

    The type of its result may then depend on data, and a probe would give a guess.
    """
    code = getattr(function, "__code__", None)
    if code is None:
        return False
    return any(
        op.opcode in dis.hasjrel or op.opcode in dis.hasjabs for op in dis.get_instructions(code)
    )


class _Probe:
    """A stand-in for a record of a known type.

    Reading a field returns a probe of the field's type. Every other operation raises TypeError, so
    the answer is never a guess. `__repr__` also covers `str` and formatting.
    """

    __slots__ = ("_probed",)

    def __init__(self, of: object) -> None:
        object.__setattr__(self, "_probed", of)

    def __getattr__(self, name: str) -> object:
        for field in fields_of(object.__getattribute__(self, "_probed")) or ():
            if field.name == name:
                return _Probe(field.type)
        raise TypeError(name)

    def __bool__(self) -> bool:
        raise TypeError

    def __eq__(self, other: object) -> bool:
        raise TypeError

    def __hash__(self) -> int:
        raise TypeError

    def __repr__(self) -> str:
        raise TypeError


def _unwrap(result: object) -> object:
    if type(result) is _Probe:
        return object.__getattribute__(result, "_probed")
    if type(result) is tuple and result:
        parts = tuple(_unwrap(part) for part in result)
        return UNKNOWN if UNKNOWN in parts else types.GenericAlias(tuple, parts)
    return UNKNOWN
