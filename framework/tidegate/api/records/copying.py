"""Copies of records. A copy includes every part that can change in place, at any depth.

A shallow copy would still share nested lists. The class of each value decides how it is copied, and
not the declared type. So values of an unknown type or of a wrong type are copied correctly too.
Values of classes that no schema describes are copied by `copy.deepcopy`. `dataplane/operators`
decides where copies are made.
"""

from __future__ import annotations

import copy
import dataclasses
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Final
from uuid import UUID

import msgspec
from msgspec.structs import force_setattr

from tidegate.api.records.record_fields import allocator, fields_of, is_frozen, is_model
from tidegate.api.records.record_objects import attributes_of, copy_model
from tidegate.api.records.types import can_change_besides, type_info
from tidegate.errors import PipelineError
from tidegate.graph.stream_graph import UNKNOWN

Clone = Callable[[Any], Any]

_NEVER_CHANGE: Final = frozenset(
    {str, bytes, int, float, bool, type(None), Decimal, datetime, date, time, timedelta, UUID}
)
_CLASSES_MAX: Final = 1024
"""Maximum number of classes that are cached; a pipeline has some dozens."""


def immutable(of: object) -> bool:
    """Check that no value of a type can change in place; false for a type without a schema."""
    if of is UNKNOWN:
        return False
    try:
        return type_info(of).immutable
    except PipelineError:
        return False


def copy_values(values: list[Any]) -> list[Any]:
    """Return a list of copies, or the list itself if none of its values can change in place."""
    if _NEVER_CHANGE.issuperset(map(type, values)):
        return values
    kinds = set(map(type, values))
    if len(kinds) == 1:
        clone = _clones[kinds.pop()]
        return values if clone is None else list(map(clone, values))
    return list(map(copy_value, values))


def copy_value(value: Any) -> Any:
    """Return a copy that shares no part with the value that can change in place."""
    clone = _clones[type(value)]
    return value if clone is None else clone(value)


class _Clones(dict[type, "Clone | None"]):
    """A cache of the functions that copy values of a class; None if they cannot change."""

    def __missing__(self, kind: type) -> Clone | None:
        if len(self) >= _CLASSES_MAX:
            self.clear()
        clone = self[kind] = _clone_of(kind)
        return clone


def _clone_of(kind: type) -> Clone | None:
    """Return the function that copies values of a class; None if they cannot change."""
    if kind in _NEVER_CHANGE or issubclass(kind, Enum):
        return None
    if kind in _CONTAINERS:
        return _CONTAINERS[kind]
    if issubclass(kind, tuple) and hasattr(kind, "_make"):
        return lambda value: kind._make(map(copy_value, value))
    if "__deepcopy__" in kind.__dict__:
        return _deep_copy
    if kind in _DICTS:
        return _clone_of_dict
    if issubclass(kind, msgspec.Struct) or is_model(kind) or dataclasses.is_dataclass(kind):
        return _clone_of_record(kind)
    return _deep_copy


def _clone_of_record(kind: type) -> Clone | None:
    try:
        fields = fields_of(kind) or ()
        changes_besides = can_change_besides(kind)
    except PipelineError:  # an annotation that cannot be read at run time
        return _deep_copy
    nested = [field.name for field in fields if not immutable(field.type)]
    if is_frozen(kind) and not nested and not changes_besides:
        return None
    if issubclass(kind, msgspec.Struct):
        return _clone_of_struct(kind, nested)
    plain = frozenset(field.name for field in fields) - {*nested}
    if is_model(kind):
        return _clone_of_model(kind, plain)
    if all("__slots__" not in vars(base) for base in kind.__mro__[:-1]):
        return _clone_of_dataclass(kind, plain)
    return _clone_of_slots(kind)


def _clone_of_struct(kind: type[msgspec.Struct], nested: Sequence[str]) -> Clone:
    shallow: Clone = kind.__copy__  # type: ignore[attr-defined]  # not in msgspec's stubs
    if kind.__dictoffset__:
        return lambda value: _with_attributes(_nested_copied(shallow(value), value, nested), value)
    if not nested:
        return shallow

    def clone(value: Any) -> Any:
        copied = shallow(value)
        for name in nested:
            force_setattr(copied, name, copy_value(getattr(value, name)))
        return copied

    return clone


def _clone_of_dataclass(kind: type, plain: frozenset[str]) -> Clone:
    """Return a function that copies the attributes and does not call the constructor.

    The constructor may have other effects, or a different result in a second call.
    """
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


def _clone_of_slots(kind: type) -> Clone:
    allocate, set_attribute = allocator(kind), object.__setattr__

    def clone(value: Any) -> Any:
        copied = allocate(kind)
        for name, part in attributes_of(value):
            set_attribute(copied, name, copy_value(part))
        return copied

    return clone


def _clone_of_model(kind: type, plain: frozenset[str]) -> Clone:
    """Return a function that copies a model without its initialisers, and with all its parts."""
    allocate = allocator(kind)

    def clone(value: Any) -> Any:
        copied = allocate(kind)
        values = value.__dict__.copy()
        if values.keys() != plain:
            for name in values.keys() - plain:
                values[name] = copy_value(values[name])
        copy_model(value, copied, values)
        for part in (copied.__pydantic_extra__, copied.__pydantic_private__):
            for name in part or ():
                part[name] = copy_value(part[name])
        return copied

    return clone


def _nested_copied(copied: Any, value: Any, nested: Sequence[str]) -> Any:
    for name in nested:
        force_setattr(copied, name, copy_value(getattr(value, name)))
    return copied


def _with_attributes(copied: Any, value: Any) -> Any:
    for name, part in value.__dict__.items():
        copied.__dict__[name] = copy_value(part)
    return copied


def _clone_of_dict(value: Any) -> Any:
    copied = copy.copy(value)
    for name in value:
        copied[name] = copy_value(value[name])
    return copied


def _deep_copy(value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except StopIteration as error:
        raise _stopped() from error


def _stopped() -> RuntimeError:
    """Return the error that replaces a StopIteration of a class's own `__deepcopy__`.

    A StopIteration would silently end the `map` that makes the copies. Python replaces a
    StopIteration inside a generator by a RuntimeError too.
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

_DICTS: Final = frozenset({Counter, OrderedDict, defaultdict})

_clones: Final = _Clones()
