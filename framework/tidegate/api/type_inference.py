"""What a user's function returns, found without running it on data.

In this order: `returns=`, a class used as the function, a `def`'s annotation, or a function that
only reads fields, which is tried on a probe. The answer is never a guess: a function that branches
or computes is not believed, and its type is UNKNOWN. That is refused only where the type is needed.
"""

from __future__ import annotations

import dis
import inspect
import types
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from tidegate.api.record_fields import fields_of
from tidegate.errors import PipelineError
from tidegate.graph.stream_graph import UNKNOWN


def result_type(function: Callable[..., object], of: object, returns: object = None) -> object:
    """What `function` returns for a record of type `of`, or UNKNOWN."""
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
    """What a function gives one by one: stated, or the item of its annotation `Iterable[X]`."""
    if returns is not None:
        return returns
    hint = _annotated(function)
    origin = get_origin(hint)
    iterable = isinstance(origin, type) and issubclass(origin, Iterable)
    if not iterable or (origin is tuple and get_args(hint)[1:] != (...,)):
        return UNKNOWN
    return _known(get_args(hint)[0])


def only_reads(function: Callable[..., object], of: object) -> bool:
    """Whether it is certain that a function changes nothing of a record of type `of`.

    It is certain of a function without branches that gets its result by reading fields alone.
    """
    if _branches(function):
        return False
    try:
        return _unwrap(function(_Probe(of))) is not UNKNOWN
    except Exception:  # noqa: BLE001  # a probe is no record: whatever it leads to proves nothing
        return False


def _annotated(function: Callable[..., object]) -> object:
    if not inspect.isroutine(function):
        return UNKNOWN
    try:
        return _known(get_type_hints(function).get("return", UNKNOWN))
    except NameError as error:
        raise PipelineError(
            f"{function.__qualname__}: {error} at run time; import it outside TYPE_CHECKING or "
            "give returns="
        ) from None


def _known(hint: object) -> object:
    return UNKNOWN if isinstance(hint, TypeVar) or hint is Any or _open(hint) else hint


def _open(hint: object) -> bool:
    """Whether a hint still has type variables: a generic function's."""
    return bool(getattr(hint, "__parameters__", ())) and not isinstance(hint, type)


def _branches(function: Callable[..., object]) -> bool:
    """Whether the type of the result may depend on data: then a probe would guess."""
    code = getattr(function, "__code__", None)
    if code is None:
        return False
    return any(
        op.opcode in dis.hasjrel or op.opcode in dis.hasjabs for op in dis.get_instructions(code)
    )


class _Probe:
    """Stands for a record of a known type.

    Reading a field gives a probe of the field's type; anything else is refused, so the answer is
    never a guess. Every text of it is made by `__repr__`.
    """

    __slots__ = ("_probed",)

    def __init__(self, of: object) -> None:
        object.__setattr__(self, "_probed", of)

    def __getattr__(self, name: str) -> object:
        for field in fields_of(object.__getattribute__(self, "_probed")) or ():
            if field.name == name:
                return _Probe(field.of)
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
