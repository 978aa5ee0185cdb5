"""Facts about a user's type: its Avro schema, and whether it is a key type and immutable.

One function, `type_info`, gives the facts for every kind of type. State, the exchange, formats and
the schema check at submit all use it. `api/records/type_inference.py` finds the return type of a
user's function.

Schemas are written out in full at each place, so a record that is used twice is in the schema
twice. This makes schemas easy to compare and to fingerprint. `api/records/avro.py` replaces the
repetitions by names where Avro's own rules require it.
"""

from __future__ import annotations

import dataclasses
import enum
import re
import types
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, ClassVar, Literal, Protocol, Union, get_args, get_origin
from uuid import UUID

import msgspec

from tidegate.api.records.record_fields import (
    MISSING,
    RecordField,
    compares_fields,
    compares_otherwise,
    fields_of,
    is_frozen,
    is_model,
    plain_type,
    record_class,
    type_name,
)
from tidegate.errors import PipelineError

AvroSchema = Any
"""An Avro schema as JSON: a name, a list (a union) or a dict."""

FACTORY = "tidegate.factory"
"""Mark of a field whose default is made by a function, so that no schema can state it."""


MAP = "tidegate.map"
"""Mark of an array of entries for a dict whose keys are not text. Avro has no such type."""


class DataclassLike(Protocol):
    """Any dataclass.

    A dataclass must be frozen to be a key, but no type can express this for a type checker.
    `type_info` reports it when the graph is built.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]


KeyLike = Union[
    str,
    bytes,
    int,
    Decimal,
    date,
    UUID,
    enum.Enum,
    DataclassLike,
    msgspec.Struct,
    "tuple[KeyLike, ...]",
]
"""Types that a type checker accepts as keys (bool is an int, datetime is a date)."""

_SCALARS: dict[object, AvroSchema] = {
    str: "string",
    bytes: "bytes",
    bool: "boolean",
    int: "long",
    float: "double",
    type(None): "null",
    None: "null",
    Decimal: {"type": "string", "logicalType": "decimal-string"},
    datetime: {"type": "long", "logicalType": "timestamp-micros"},
    date: {"type": "int", "logicalType": "date"},
    UUID: {"type": "string", "logicalType": "uuid"},
}
_NEVER_KEYS = (float, type(None), None)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NOT_A_NAME = re.compile(r"[^A-Za-z0-9_]+")


@dataclasses.dataclass(frozen=True, slots=True)
class TypeInfo:
    """The facts about one type.

    `why_not_key` is empty for a type whose canonical key bytes are defined. `immutable` says that
    no value of the type can change in place.
    """

    python: object
    avro: AvroSchema
    immutable: bool
    why_not_key: str


def type_info(of: object) -> TypeInfo:
    """Return the facts about `of`; PipelineError, naming the field, if a type has no schema."""
    return _info(plain_type(of), ())


def can_change_besides(kind: Any) -> bool:
    """Check whether an object of a frozen record class may have parts that can change in place, and
    that are no fields.
    """
    if is_model(kind):
        return bool(kind.__private_attributes__) or kind.model_config.get("extra") == "allow"
    if not dataclasses.is_dataclass(kind):
        return bool(getattr(kind, "__struct_config__", None)) and bool(kind.__dictoffset__)
    return any(not field.init for field in dataclasses.fields(kind))


def is_union(of: object) -> bool:
    """Check whether a type is a union, written as `A | B` or `Union[A, B]`."""
    return get_origin(of) in (Union, types.UnionType)


def literal_type(of: object) -> type:
    """Return the common type of a Literal's values; PipelineError if they have several types."""
    kinds = {type(value) for value in get_args(of)}
    if len(kinds) != 1:
        raise PipelineError(f"{type_name(of)} mixes types; use values of one type, or an Enum.")
    return kinds.pop()


def _info(of: object, inside: tuple[object, ...]) -> TypeInfo:
    try:
        scalar = of in _SCALARS
    except TypeError:  # not hashable, so `of` is not a type
        raise PipelineError(f"{of!r} is not a type.") from None
    if scalar:
        never = of in _NEVER_KEYS
        why_not = f"{type_name(of)} is not a key: it has no canonical bytes" if never else ""
        return TypeInfo(of, _SCALARS[of], immutable=True, why_not_key=why_not)
    if isinstance(of, type) and issubclass(of, enum.Enum):
        return _enum(of)
    if of is Any:
        return _compound(of, {"type": "string", "logicalType": "json"}, "the type is not known")
    if get_origin(of) is Literal:
        return dataclasses.replace(_info(literal_type(of), inside), python=of)
    generic = _generic(of, inside)
    return _record(of, inside) if generic is None else generic


def _generic(of: object, inside: tuple[object, ...]) -> TypeInfo | None:
    """Return the facts about a union or a container; None for any other type."""
    origin, arguments = get_origin(of), get_args(of)
    if is_union(of):
        branches = [_info(argument, inside) for argument in arguments]
        union = [branch.avro for branch in branches]
        immutable = all(branch.immutable for branch in branches)
        return TypeInfo(of, union, immutable, "a union is not a key; give the key one type")
    if origin is tuple:
        return _tuple(of, arguments, inside)
    if origin in (list, set, frozenset, Sequence):
        avro = {"type": "array", "items": _info(arguments[0], inside).avro}
        return _compound(of, avro, f"a {type_name(origin)} is not a key; use a tuple")
    if origin in (dict, Mapping):
        return _mapping(of, arguments, inside)
    if of in (list, set, frozenset, tuple, dict):
        raise PipelineError(f"{type_name(of)} does not say of what: write {type_name(of)}[...].")
    return None


def _compound(of: object, avro: AvroSchema, why_not_key: str) -> TypeInfo:
    return TypeInfo(of, avro, immutable=False, why_not_key=why_not_key)


def _enum(of: type[enum.Enum]) -> TypeInfo:
    if issubclass(of, enum.Flag):
        raise PipelineError(f"{of.__name__} is a Flag, which has no schema; keep it as an int.")
    symbols = [member.name for member in of]
    avro = {"type": "enum", "name": of.__name__, "symbols": symbols}
    return TypeInfo(of, avro, immutable=True, why_not_key="")


def _mapping(of: object, arguments: tuple[Any, ...], inside: tuple[object, ...]) -> TypeInfo:
    key, value = (_info(argument, inside).avro for argument in arguments)
    why_not = "a dict is not a key; use a frozen dataclass"
    if arguments[0] is str:
        return _compound(of, {"type": "map", "values": value}, why_not)
    if arguments[0] not in _SCALARS and not isinstance(arguments[0], type(enum.Enum)):
        raise PipelineError(
            f"{type_name(of)}: the keys of a dict must be of a plain type to be stored."
        )
    entry = [{"name": "key", "type": key}, {"name": "value", "type": value}]
    items = {"type": "record", "name": "entry", "fields": entry}
    return _compound(of, {"type": "array", "items": items, MAP: True}, why_not)


def _tuple(of: object, arguments: tuple[object, ...], inside: tuple[object, ...]) -> TypeInfo:
    parts = [_info(a, inside) for a in arguments if a is not ...]
    if not parts:
        raise PipelineError(f"{type_name(of)} has no parts and so no schema.")
    why_not = next((part.why_not_key for part in parts if part.why_not_key), "")
    avro: AvroSchema = {"type": "array", "items": parts[0].avro}
    if ... not in arguments:
        fields = [{"name": f"f{i}", "type": part.avro} for i, part in enumerate(parts)]
        avro = {"type": "record", "name": "tuple", "fields": fields}
    return TypeInfo(of, avro, all(part.immutable for part in parts), why_not)


def _record(of: object, inside: tuple[object, ...]) -> TypeInfo:
    fields = fields_of(of)
    if fields is None and getattr(of, "__module__", "").startswith("pydantic."):
        raise PipelineError(
            f"{type_name(of)} of pydantic has no schema; declare a plain type (str, AwareDatetime) "
            "and check its values in a validator."
        )
    if fields is None:
        raise PipelineError(
            f"{type_name(of)} has no schema; use a dataclass, a msgspec Struct, a pydantic model, "
            "a TypedDict or a plain type."
        )
    if of in inside:
        raise PipelineError(f"{type_name(of)} contains itself. Recursive types are not supported.")
    avro_fields, why_not = [], ""
    immutable = is_frozen(of) and not can_change_besides(record_class(of))
    for field in fields:
        try:
            info = _info(field.type, (*inside, of))
        except PipelineError as error:
            raise PipelineError(f"{type_name(of)}.{field.name}: {error}") from None
        avro_fields.append(_avro_field(field, info.avro))
        immutable = immutable and info.immutable
        if field.in_key and info.why_not_key and not why_not:
            why_not = f"{type_name(of)}.{field.name}: {info.why_not_key}"
    if not compares_fields(of):
        why_not = f"{type_name(of)} compares by identity (eq=False), so no two keys would be equal"
    elif how := compares_otherwise(of):
        why_not = f"{type_name(of)} {how}, so equal keys could have different bytes"
    elif not is_frozen(of):
        why_not = f"{type_name(of)} can change; make it frozen (frozen=True) to use it as a key"
    name = _NOT_A_NAME.sub("_", type_name(of)).strip("_")
    return TypeInfo(of, {"type": "record", "name": name, "fields": avro_fields}, immutable, why_not)


def _avro_field(field: RecordField, avro: AvroSchema) -> dict[str, Any]:
    """Return a field's schema with its default, if a schema can state it.

    Avro requires the default to be of the union's first branch, so null comes first if the default
    is None.
    """
    described: dict[str, Any] = {"name": field.name, "type": avro}
    if field.default is None and isinstance(avro, list) and "null" in avro:
        described["type"] = ["null", *(branch for branch in avro if branch != "null")]
    if field.default is not MISSING:
        described["default"] = _plain(field.default)
    elif field.factory in (list, set, frozenset, tuple):
        described["default"] = []
    elif field.factory is dict:
        described["default"] = {} if isinstance(avro, dict) and avro["type"] == "map" else []
    elif field.factory is not MISSING:
        described[FACTORY] = True
    return described


def _plain(value: object) -> object:
    """Return a default as JSON, in the form of the field's own schema.

    An enum is its name, a date its day number, a datetime its microseconds, a record its fields.
    """
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, datetime):
        moment = value.replace(tzinfo=UTC) if value.tzinfo is None else value
        return (moment - _EPOCH) // timedelta(microseconds=1)
    if isinstance(value, date):
        return value.toordinal() - date(1970, 1, 1).toordinal()
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if (
        is_model(type(value))
        or dataclasses.is_dataclass(value)
        or isinstance(value, msgspec.Struct)
    ):
        fields: Iterable[RecordField] = fields_of(type(value)) or ()
        return {field.name: _plain(getattr(value, field.name)) for field in fields}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item) for item in value]
    return msgspec.to_builtins(value)
