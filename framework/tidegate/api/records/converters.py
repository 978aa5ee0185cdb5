"""Conversions between a user's values and plain ones, generated once per type as Python source.

A record becomes a tuple (`api/state/wire.py`) or a dict (`api/records/avro.py`) of its fields, and
back. One expression does it, such as `(r.a, r.b.name, [(i.x,) for i in r.items])`, because a walk
over the type at run time would cost ten times as much per record. The source can be printed
(`Codec.source`). It consists of field names and numbered names only, and holds no data of a record.

This module has the part that both conversions share: containers, and the nesting of expressions.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args, get_origin

from typing_extensions import is_typeddict

from tidegate.api.records.record_fields import (
    RecordField,
    fields_of,
    initialised_model_maker,
    is_model,
    plain_type,
    record_class,
    takes_positions,
    type_name,
)
from tidegate.api.records.types import is_union, literal_type
from tidegate.errors import PipelineError, check

Expression = Callable[[str], str]
"""Function from the source of an expression to the source of its conversion."""


@dataclass(frozen=True, slots=True)
class Converter:
    """The conversion of one type.

    `wire` is the plain type. `pack` or `unpack` is None if the value needs no conversion in that
    direction.
    """

    wire: Any
    pack: Expression | None = None
    unpack: Expression | None = None

    def packed(self, source: str) -> str:
        """Return the source that converts the user's value `source` to a plain one."""
        return source if self.pack is None else self.pack(source)

    def unpacked(self, source: str) -> str:
        """Return the source that converts the plain value `source` to the user's value."""
        return source if self.unpack is None else self.unpack(source)

    @property
    def plain(self) -> bool:
        """Whether values need no conversion in either direction."""
        return self.pack is None and self.unpack is None


class ConverterGenerator:
    """The generator of conversions.

    `converter` gives the converter of a type. `names` maps the names in the generated source to
    their objects.
    """

    def __init__(self) -> None:
        self.names: dict[str, object] = {}

    def converter(self, of: object) -> Converter:
        """Return the converter of a type that has a schema."""
        of = type(None) if of is None else plain_type(of)
        if isinstance(of, type) and issubclass(of, enum.Enum):
            known = self.name(of)
            return Converter(str, lambda x: f"{x}.name", lambda x: f"{known}[{x}]")
        origin, arguments = get_origin(of), get_args(of)
        if origin is Literal:
            return self.converter(literal_type(of))
        if is_union(of):
            return self.union(of)
        if origin is tuple and ... not in arguments:
            return self.fixed_tuple(arguments)
        if origin in _CONTAINERS:
            return self.container(origin, arguments[0])
        if origin in (dict, Mapping):
            return self.mapping(*arguments)
        fields = fields_of(of)
        return self.scalar(of) if fields is None else self.record(of, fields)

    def scalar(self, of: object) -> Converter:
        """Return the converter of a type that is neither a container nor a record class."""
        return Converter(of)

    def record(self, of: object, fields: tuple[RecordField, ...]) -> Converter:
        """Return the converter of a record class; each subclass defines its plain form."""
        raise NotImplementedError

    def branches(self, branches: list[object]) -> Converter:
        """Return the converter of a union of several types, None not included."""
        raise NotImplementedError

    def union(self, of: object) -> Converter:
        """Return the converter of a union; None stays None."""
        branches = [branch for branch in get_args(of) if branch is not type(None)]
        inner = self.converter(branches[0]) if len(branches) == 1 else self.branches(branches)
        if len(branches) == len(get_args(of)):
            return inner
        return Converter(inner.wire | None, _or_none(inner.pack), _or_none(inner.unpack))

    def fixed_tuple(self, arguments: tuple[object, ...]) -> Converter:
        """Return the converter of a tuple with a type for each part."""
        parts = [self.converter(argument) for argument in arguments]
        wire = generic(tuple, *(part.wire for part in parts))
        if all(part.plain for part in parts):
            return Converter(wire)
        return Converter(
            wire,
            lambda x: _tuple([part.packed(f"{x}[{i}]") for i, part in enumerate(parts)]),
            lambda x: _tuple([part.unpacked(f"{x}[{i}]") for i, part in enumerate(parts)]),
        )

    def container(self, origin: Any, argument: object) -> Converter:
        """Return the converter of a list, set, frozenset, Sequence or tuple of one item type."""
        item = self.converter(argument)
        variable, made = self.variable(), self.container_name(origin)
        wire = (
            generic(tuple, item.wire, ...) if made == "tuple" else generic(_WIRES[made], item.wire)
        )
        if item.plain:
            return Converter(wire)
        opened, closed = ("", "") if made == "list" else (f"{made}(", ")")
        return Converter(
            generic(list, item.wire),
            lambda x: f"[{item.packed(variable)} for {variable} in {x}]",
            lambda x: f"{opened}[{item.unpacked(variable)} for {variable} in {x}]{closed}",
        )

    def mapping(self, key_of: object, value_of: object) -> Converter:
        """Return the converter of a dict or Mapping."""
        key, value = self.key_converter(key_of), self.converter(value_of)
        k, v = self.variable(), self.variable()
        if key.plain and value.plain:
            return Converter(generic(dict, key.wire, value.wire))
        return Converter(
            generic(dict, key.wire, value.wire),
            lambda x: f"{{{key.packed(k)}: {value.packed(v)} for {k}, {v} in {x}.items()}}",
            lambda x: f"{{{key.unpacked(k)}: {value.unpacked(v)} for {k}, {v} in {x}.items()}}",
        )

    def key_converter(self, of: object) -> Converter:
        """Return the converter of the keys of a dict."""
        return self.converter(of)

    @staticmethod
    def container_name(origin: Any) -> str:
        """Return the name of the function that makes such a container from a list."""
        return _CONTAINERS[origin]

    def name(self, known: object) -> str:
        """Add an object for the generated source, and return its name there."""
        stem = getattr(known, "__name__", "f")
        name = f"{stem if stem.isidentifier() else 'f'}_{len(self.names)}"
        self.names[name] = known
        return name

    def variable(self) -> str:
        """Return a new name for a comprehension's variable."""
        name = f"i{len(self.names)}"
        self.names[name] = None
        return name

    def made(self, of: object, fields: tuple[RecordField, ...], values: list[str]) -> str:
        """Return the source that makes a record from its fields' values."""
        if is_typeddict(record_class(of)):
            pairs = [f"{json.dumps(f.name)}: {v}" for f, v in zip(fields, values, strict=True)]
            return f"{{{', '.join(pairs)}}}"
        known = self.name(record_constructor(of))
        if takes_positions(of):
            return f"{known}({', '.join(values)})"
        named = [f"{field.name}={value}" for field, value in zip(fields, values, strict=True)]
        return f"{known}({', '.join(named)})"

    def define(
        self, name: str, argument: str, result: str, on_overflow: str | None = None
    ) -> tuple[Any, str]:
        """Compile `def name(argument): return result`, and return the function and its source.

        `on_overflow` names the function that is called after an OverflowError. The `try` costs
        nothing if no such error is raised.
        """
        source = f"def {name}({argument}):\n    return {result}\n"
        if on_overflow is not None:
            source = (
                f"def {name}({argument}):\n    try:\n        return {result}\n"
                f"    except OverflowError:\n        return {on_overflow}({argument})\n"
            )
        scope = dict(self.names)
        code = compile(source, f"<generated {name}>", "exec")
        exec(code, scope)  # noqa: S102 - our template, filled with names of fields
        return scope[name], source


def generic(container: Any, *arguments: object) -> Any:
    """Return `container[arguments]`, for types that are made at run time."""
    return container[arguments]


def read(of: object, source: str, field: RecordField) -> str:
    """Return the source that reads a field of a record."""
    if is_typeddict(record_class(of)):
        return f"{source}[{json.dumps(field.name)}]"
    return f"{source}.{field.name}"


def record_constructor(of: object) -> Callable[..., object]:
    """Return the callable that makes a new record from its fields.

    A pydantic model gets them by their names, whatever its aliases are, and without validation.
    """
    known: Any = record_class(of)
    if not is_model(known):
        return known  # type: ignore[no-any-return]
    make = initialised_model_maker(known)
    return lambda **values: make(values)


def branch_of(branches: Sequence[object]) -> Callable[[object], int]:
    """Return a function that gives the index of the union's branch to which a value belongs.

    An int belongs to the branch of a float, if the union has no int. PipelineError if two
    branches have the same class, or if one is Any. The function raises TypeError for a value that
    belongs to no branch.
    """
    if Any in branches:
        names = " | ".join(map(type_name, branches))
        raise PipelineError(
            f"In {names}, values of Any cannot be distinguished from the others. Declare Any alone."
        )
    by_class: dict[type, int] = {}
    for index, of in enumerate(branches):
        known = dict if is_typeddict(get_origin(of) or of) else record_class(_plain_class(of))
        if known in by_class:
            names = f"{type_name(branches[by_class[known]])} and {type_name(of)}"
            raise PipelineError(
                f"The values of a union of {names} cannot be distinguished. Give each branch a "
                "class of its own."
            )
        by_class[known] = index
    if float in by_class and int not in by_class and bool not in by_class:
        by_class[int] = by_class[float]

    def which(value: object) -> int:
        for known in type(value).__mro__:
            if known in by_class:
                return by_class[known]
        names = ", ".join(type_name(known) for known in branches)
        raise TypeError(f"{type(value).__name__} is not one of {names}")

    return which


def _plain_class(branch: object) -> object:
    if get_origin(branch) is Literal:
        return literal_type(branch)
    abstract: dict[object, object] = {Mapping: dict, Sequence: list}
    return abstract.get(get_origin(branch), branch)


def _or_none(convert: Expression | None) -> Expression | None:
    return None if convert is None else lambda x: f"(None if {x} is None else {convert(x)})"


def _tuple(parts: list[str]) -> str:
    check(parts, "a tuple of no parts has no schema")
    return f"({', '.join(parts)},)"


_CONTAINERS: Final[dict[Any, str]] = {
    list: "list",
    Sequence: "list",
    set: "set",
    frozenset: "frozenset",
    tuple: "tuple",
}
_WIRES: Final[dict[str, Any]] = {"list": list, "set": set, "frozenset": frozenset}
