"""Checks that values are of the type that a step, an edge or a sink declares.

Python checks no annotation, and an encoder such as msgspec's writes any value that a record holds.
This module has two checks, and `api/state/field_check.py` has a third one for the fields of a
batch:

- `ClassCheck` checks the class of each value of a batch: one pass in C, about 10 ns per value. The
  cluster makes this check. It finds a dict, a text or None where a record class is declared, and
  does not look into a record.
- `fault` checks every field at any depth and says which one is wrong. It costs microseconds, so
  `PipelineTest` calls it for each record, and the cluster only for wrong ones.

A subclass counts as its base class only if it is encoded in the same way. Such subclasses are a
record class that adds no fields, any list, dict or tuple class, and an Enum of the declared text or
number. An int counts as a float, as for type checkers, but `fault` refuses an int that a float
cannot hold exactly: it would be read back as another number. A bool is not an int, and a datetime
is not a date. Values of a type without a schema (`Path`, an exception, an abstract class) are never
encoded, so there every subclass counts.

Keys have their own check, `KeyCheck`. It accepts a class only if a key's bytes and Python's `==`
agree for it.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, Literal, cast, get_args, get_origin

import msgspec
from typing_extensions import is_typeddict

from tidegate.api.records.record_fields import (
    MISSING,
    RecordField,
    fields_of,
    plain_type,
    record_class,
    type_name,
)
from tidegate.api.records.types import is_union, literal_type, type_info
from tidegate.errors import PipelineError
from tidegate.graph.stream_graph import UNKNOWN
from tidegate.message_text import counted

CONTAINERS: Final[dict[object, tuple[type, ...]]] = {
    list: (list,),
    Sequence: (list, tuple),
    set: (set,),
    frozenset: (frozenset,),
    tuple: (tuple,),
    dict: (dict,),
    Mapping: (dict,),
}
"""The classes whose objects have the type of a container."""
_WITH_VALUE: Final = (str, int)
"""Types that an Enum may have as a base class: its members are encoded as their values."""
_PLAIN_KEYS: Final = (str, bytes, int)
"""Types of keys whose subclasses may be keys too."""
_CLASSES_MAX: Final = 1024
"""Maximum number of classes that a check caches; a pipeline has some dozens."""


class ClassCheck:
    """The check of the values' own classes. It caches which ones count as the declared type."""

    def __init__(self, of: object) -> None:
        self.type = of
        self.usual = _usual_class(of)
        """Class that most values have."""
        self._counted: dict[type, bool] = {}

    def first_wrong(self, values: list[Any]) -> int | None:
        """Return the index of the first value that is not of the type; None if all are."""
        kinds = list(map(type, values))
        if kinds.count(self.usual) == len(kinds):  # compares by identity: faster than a set
            return None
        wrong = [kind for kind in set(kinds) if not self.counts(kind)]
        return min(map(kinds.index, wrong)) if wrong else None

    def counts(self, kind: type) -> bool:
        """Check whether a class counts as the declared type."""
        known = self._counted.get(kind)
        if known is None:
            if len(self._counted) >= _CLASSES_MAX:
                self._counted.clear()
            known = self._counted[kind] = self._rule(kind)
        return known

    def _rule(self, kind: type) -> bool:
        return counts_as(kind, self.type)


class KeyCheck(ClassCheck):
    """The check of keys.

    A bool counts as an int, and an object of a subclass of str counts as a str. Such a key equals
    the int or str that has the same bytes.
    """

    def _rule(self, kind: type) -> bool:
        of: Any = plain_type(self.type)
        of = literal_type(of) if get_origin(of) is Literal else of
        if of in _PLAIN_KEYS and issubclass(kind, of):
            return kind.__eq__ is of.__eq__ and kind.__hash__ is of.__hash__
        return counts_as(kind, self.type)


def class_check(of: object) -> ClassCheck | None:
    """Return the check for a declared type; None for a type that accepts every value."""
    return None if of in (UNKNOWN, Any, object) else ClassCheck(of)


def key_check(of: object) -> KeyCheck | None:
    """Return the check for a declared type of keys; None if the type is UNKNOWN."""
    return None if of is UNKNOWN else KeyCheck(of)


def counts_as(kind: type, of: object) -> bool:
    """Check whether values of a class are of a declared type, as far as the class shows."""
    of = plain_type(of)
    if of is Any or of is UNKNOWN:
        return True
    if of is None:
        return kind is type(None)
    if is_union(of):
        return any(counts_as(kind, branch) for branch in get_args(of))
    origin = get_origin(of)
    if origin is Literal:
        return kind in {type(value) for value in get_args(of)}
    if origin in CONTAINERS:
        return issubclass(kind, CONTAINERS[origin])
    if is_typeddict(record_class(of)):
        return issubclass(kind, dict)
    known = record_class(of)
    if kind is known or (of is float and kind is int):
        return True
    return _counts_as_class(kind, known) if has_schema(of) else _is_subclass(kind, known)


def fault(value: object, of: object, path: str = "") -> str:
    """Describe the first wrong field of a value; empty if the value is of the type."""
    if of is Any or of is UNKNOWN:
        return ""
    of, kind = plain_type(of), type(value)
    if not counts_as(kind, of):
        return f"{path or 'it'} is {article(kind.__name__)}, not {declared_name(of)}"
    if of is float and kind is int and not _is_exact(cast("int", value)):
        return f"{path or 'it'} is {value}, an int that a float cannot hold exactly"
    if is_union(of):
        faults = [fault(value, b, path) for b in get_args(of) if counts_as(kind, b)]
        return "" if "" in faults else faults[0]
    origin, arguments = get_origin(of), get_args(of)
    if origin is Literal:
        known = any(value == each and kind is type(each) for each in arguments)
        return "" if known else f"{path or 'it'} is {value!r}, not {type_name(of)}"
    parts = _parts(value, of, origin, arguments)
    if isinstance(parts, str):
        return f"{path or 'it'} {parts}"
    return next((f for at, part, inner in parts if (f := fault(part, inner, path + at))), "")


def _is_exact(value: int) -> bool:
    try:
        return float(value) == value
    except OverflowError:
        return False


def declared_name(of: object) -> str:
    """Return the name of a type in the form for a sentence, with "a" or "an"."""
    return article(type_name(of).replace("| NoneType", "| None"))


def article(name: str) -> str:
    """Return a name with "a" or "an" in front, for a sentence."""
    return f"an {name}" if name[:1].lower() in {*"aeio"} else f"a {name}"


def _usual_class(of: object) -> type:
    """Return the class that most values of a type have."""
    of = plain_type(of)
    if is_union(of):
        of = next((branch for branch in get_args(of) if branch is not type(None)), type(None))
    if of is None:
        return type(None)
    origin = get_origin(of)
    if origin is Literal:
        return type(get_args(of)[0])
    if origin in CONTAINERS:
        return CONTAINERS[origin][0]
    return dict if is_typeddict(record_class(of)) else record_class(of)


@lru_cache(maxsize=_CLASSES_MAX)
def has_schema(of: Hashable) -> bool:
    """Check whether values of a type can be encoded."""
    if isinstance(of, type) and issubclass(of, enum.Enum) and not len(of):
        return False  # an Enum without members is only a base class
    try:
        type_info(of)
    except PipelineError:
        return False
    return True


def _is_subclass(kind: type, of: object) -> bool:
    """Check whether a class is a subclass of `of`, which has no schema; true if it is unknown."""
    try:
        return issubclass(kind, cast("type", of))
    except TypeError:  # a NewType, or a Protocol without `runtime_checkable`
        return True


def _counts_as_class(kind: type, of: type) -> bool:
    if not issubclass(kind, of):
        return False
    if issubclass(kind, enum.Enum):
        return of in _WITH_VALUE
    try:
        fields, theirs = fields_of(of), fields_of(kind)
    except PipelineError:  # no schema describes the subclass
        return False
    if fields is None or theirs is None or [f.name for f in fields] != [f.name for f in theirs]:
        return False
    return not issubclass(kind, msgspec.Struct) or _encoded_alike(kind, of)


def _encoded_alike(kind: Any, of: Any) -> bool:
    def form(struct: Any) -> tuple[object, ...]:
        config = struct.__struct_config__
        named = (config.tag, config.tag_field, config.array_like, config.omit_defaults)
        return (*named, struct.__struct_encode_fields__)

    return form(kind) == form(of)


@lru_cache(maxsize=_CLASSES_MAX)
def _fields(of: Hashable) -> tuple[RecordField, ...]:
    return fields_of(of) or ()  # cached, because `fields_of` fills in a generic's arguments


_Part = tuple[str, object, object]
"""Path of a part within its value, the part, and its declared type."""


def parts_of(value: Any, of: object) -> list[_Part]:
    """Return the parts of a value that is of its type."""
    parts = _parts(value, of, get_origin(of), get_args(of))
    return [] if isinstance(parts, str) else parts


def _parts(value: Any, of: object, origin: object, arguments: tuple[Any, ...]) -> str | list[_Part]:
    """Return the parts of a value, or a text if a part is missing or there are too many."""
    if origin is tuple and ... not in arguments:
        if len(value) != len(arguments):
            return f"has {counted(len(value), 'part')}, not {len(arguments)}"
        return [(f"[{i}]", p, a) for i, (p, a) in enumerate(zip(value, arguments, strict=True))]
    if origin in (dict, Mapping):
        keys = [(f" key {key!r}", key, arguments[0]) for key in value]
        return keys + [(f"[{key!r}]", inner, arguments[1]) for key, inner in value.items()]
    if origin in CONTAINERS:
        return [(f"[{i}]", part, arguments[0]) for i, part in enumerate(value)]
    parts: list[_Part] = []
    known: Any = of
    for field in _fields(known):
        inside = isinstance(value, dict)
        part = value.get(field.name, MISSING) if inside else getattr(value, field.name, MISSING)
        if part is MISSING:
            return f"has no {field.name!r}"
        parts.append((f".{field.name}", part, field.type))
    return parts
