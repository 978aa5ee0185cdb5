"""Copies of records: of whatever can change in place, down to the last list.

A shallow copy would still share nested lists. What is copied depends on the class of each value and
not on the declared type, so an unknown type and a wrong value are copied just as well. Classes that
no schema describes are left to `copy.deepcopy`. `dataplane/operators` says where copies are made.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Final
from uuid import UUID

import msgspec
from msgspec.structs import force_setattr

from tidegate.api.record_fields import fields_of, is_frozen, is_model
from tidegate.api.types import type_info
from tidegate.errors import PipelineError
from tidegate.graph.stream_graph import UNKNOWN

Clone = Callable[[Any], Any]

_NEVER_CHANGE: Final = frozenset(
    {str, bytes, int, float, bool, type(None), Decimal, datetime, date, time, timedelta, UUID}
)
_CLASSES_MAX: Final = 1024
"""How many classes are remembered; a pipeline has some dozens."""


def immutable(of: object) -> bool:
    """Whether no value of a type can change in place; false for a type without a schema."""
    if of is UNKNOWN:
        return False
    try:
        return type_info(of).immutable
    except PipelineError:
        return False


def copy_values(values: list[Any]) -> list[Any]:
    """A list of copies; the list itself if no value can change."""
    if _NEVER_CHANGE.issuperset(map(type, values)):
        return values
    kinds = set(map(type, values))
    if len(kinds) == 1:
        clone = _clones[kinds.pop()]
        return values if clone is None else list(map(clone, values))
    return list(map(copy_value, values))


def copy_value(value: Any) -> Any:
    """A copy that shares nothing with the value that can change in place."""
    clone = _clones[type(value)]
    return value if clone is None else clone(value)


class _Clones(dict[type, "Clone | None"]):
    """How values of a class are copied, found out once."""

    def __missing__(self, kind: type) -> Clone | None:
        if len(self) >= _CLASSES_MAX:
            self.clear()
        clone = self[kind] = _clone_of(kind)
        return clone


def _clone_of(kind: type) -> Clone | None:
    """How values of a class are copied; None if they cannot change."""
    if kind in _NEVER_CHANGE or issubclass(kind, Enum):
        return None
    if kind in _CONTAINERS:
        return _CONTAINERS[kind]
    if issubclass(kind, tuple) and hasattr(kind, "_make"):
        return lambda value: kind._make(map(copy_value, value))
    if "__deepcopy__" in kind.__dict__:
        return _deep_copy
    if issubclass(kind, msgspec.Struct) or is_model(kind) or dataclasses.is_dataclass(kind):
        return _clone_of_record(kind)
    return _deep_copy


def _clone_of_record(kind: type) -> Clone | None:
    try:
        fields = fields_of(kind) or ()
    except PipelineError:  # an annotation that cannot be read at run time
        return _deep_copy
    nested = [field.name for field in fields if not immutable(field.of)]
    if is_frozen(kind) and not nested:
        return None
    if issubclass(kind, msgspec.Struct):
        return _clone_of_struct(kind, nested)
    if is_model(kind):
        deep = bool(nested or kind.__private_attributes__ or kind.model_config.get("extra"))
        return _clone_of_model(deep=deep)
    if all("__slots__" not in vars(base) for base in kind.__mro__[:-1]):
        return _clone_of_dataclass(kind, frozenset(field.name for field in fields) - {*nested})
    return _deep_copy


def _clone_of_struct(kind: type[msgspec.Struct], nested: Sequence[str]) -> Clone:
    shallow: Clone = kind.__copy__  # type: ignore[attr-defined]  # not in msgspec's stubs
    if not nested:
        return shallow

    def clone(value: Any) -> Any:
        copied = shallow(value)
        for name in nested:
            force_setattr(copied, name, copy_value(getattr(value, name)))
        return copied

    return clone


def _clone_of_dataclass(kind: type, plain: frozenset[str]) -> Clone:
    """Copies the attributes: the constructor may do other things, and not twice the same."""
    new = object.__new__

    def clone(value: Any) -> Any:
        copied: Any = new(kind)
        attributes = copied.__dict__
        attributes.update(value.__dict__)
        if len(attributes) != len(plain):
            for name in attributes.keys() - plain:
                attributes[name] = copy_value(attributes[name])
        return copied

    return clone


def _clone_of_model(*, deep: bool) -> Clone:
    def clone(value: Any) -> Any:
        try:
            return value.model_copy(deep=deep)
        except StopIteration as error:
            raise _stopped() from error

    return clone


def _deep_copy(value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except StopIteration as error:
        raise _stopped() from error


def _stopped() -> RuntimeError:
    """For StopIteration of a class's own `__deepcopy__`, which would end the `map` in which copies
    are made; a generator makes the same of it.
    """
    return RuntimeError("a copy raised StopIteration")


def _list(value: list[Any]) -> list[Any]:
    plain = _NEVER_CHANGE.issuperset(map(type, value))
    return value.copy() if plain else list(map(copy_value, value))


def _frozenset(value: frozenset[Any]) -> frozenset[Any]:
    return frozenset(copy_values(list(value)))


_CONTAINERS: Final[dict[type, Clone]] = {
    list: _list,
    tuple: lambda value: tuple(copy_values(list(value))),
    set: lambda value: set(copy_values(list(value))),
    frozenset: _frozenset,
    dict: lambda value: dict(zip(value, copy_values(list(value.values())), strict=True)),
}

_clones: Final = _Clones()
