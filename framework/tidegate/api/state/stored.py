"""The schema of a stored value in checkpoints: Avro, with marks for facts that Avro cannot express.

Avro describes a `Literal` as its base type and a set as an array. A check of the two schemas would
then accept changes that fail for some stored values. The marks add the missing facts:

- `tidegate.values` on a scalar or an enum: the values of a Literal, or the members of the enum;
- `tidegate.container` on an array: list, tuple, set or frozenset;
- `tidegate.state` on the whole schema: list or map state (nothing for a value state).

Checkpoints of earlier versions have no marks. A scalar is `"long"` in them and `{"type": "long"}`
in checkpoints of this version. So the check can see for every part of a schema whether it could
have marks.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, get_args, get_origin

from tidegate.api.records.record_fields import fields_of
from tidegate.api.records.types import AvroSchema, is_union, type_info
from tidegate.api.state.state import State

VALUES: Final = "tidegate.values"
CONTAINER: Final = "tidegate.container"
KIND: Final = "tidegate.state"

_MARKS: Final = {VALUES, CONTAINER}
_CONTAINERS: Final[dict[Any, str]] = {
    list: "list",
    Sequence: "list",
    tuple: "tuple",
    set: "set",
    frozenset: "frozenset",
}


def stored_schema(of: object) -> AvroSchema:
    """Return the schema of a type with its marks; PipelineError if the type has no schema."""
    marked: AvroSchema = json.loads(json.dumps(_marked(of, type_info(of).avro)))
    return marked


def state_schema(state: State) -> AvroSchema:
    """Return the schema of one stored value of a state."""
    schema = stored_schema(state.stored_type)
    return schema if state.kind == "value" else {**schema, KIND: state.kind}


def state_text(state: State) -> str:
    """Return the schema of one stored value of a state, as text."""
    return schema_text(state_schema(state))


def key_text(key_type: object) -> str:
    """Return the schema of a step's keys as text, without marks.

    The canonical bytes of keys do not depend on the marks.
    """
    return schema_text(type_info(key_type).avro)


def schema_text(schema: AvroSchema) -> str:
    """Return a schema as text, in the form that checkpoints store."""
    return json.dumps(schema, separators=(",", ":"))


def kind_of(schema: AvroSchema) -> str:
    """Return the kind of state to which a stored schema belongs: value, list or map."""
    return str(schema.get(KIND, "value")) if isinstance(schema, dict) else "value"


def without_marks(schema: AvroSchema) -> AvroSchema:
    """Return the schema in the form that earlier versions wrote."""
    if isinstance(schema, list):
        return [without_marks(branch) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    plain = {name: part for name, part in schema.items() if name not in _MARKS}
    if plain.keys() == {"type"} and isinstance(plain["type"], str):
        return plain["type"]
    for inside in ("items", "values"):
        if inside in plain:
            plain[inside] = without_marks(plain[inside])
    if "fields" in plain:
        plain["fields"] = [
            {**field, "type": without_marks(field["type"])} for field in plain["fields"]
        ]
    return plain


def same_for_earlier_version(old: AvroSchema, new: AvroSchema) -> bool:
    """Check that `old` has no marks, and that `new` without marks is equal to it.

    As far as its schema says, an earlier version then wrote `old` for this type.
    """
    plain = without_marks(new)
    return bool(old == plain) and bool(without_marks(old) == old)


def _marked(of: object, avro: AvroSchema) -> AvroSchema:
    """Add the marks to `avro`, the schema of `of` without marks.

    In the schema of a record's field, null may come first.
    """
    if get_origin(of) is Literal:
        allowed = sorted((_plain_value(value) for value in get_args(of)), key=repr)
        return avro if avro == "null" else {**_long_form(avro), VALUES: allowed}
    if isinstance(of, type) and issubclass(of, enum.Enum):
        return {**avro, VALUES: avro["symbols"]}
    if is_union(of):
        branches = [_marked(branch, type_info(branch).avro) for branch in get_args(of)]
        if avro[0] == "null":
            branches = ["null", *(branch for branch in branches if branch != "null")]
        return branches
    if isinstance(avro, str):
        return avro if avro == "null" else _long_form(avro)
    origin, arguments = get_origin(of), get_args(of)
    if origin in _CONTAINERS and avro["type"] == "array":
        items = _marked(arguments[0], avro["items"])
        return {**avro, "items": items, CONTAINER: _CONTAINERS[origin]}
    if origin in (dict, Mapping):
        return _marked_mapping(arguments, avro)
    if origin is tuple:
        return _with_fields(avro, arguments)
    fields = fields_of(of)
    return avro if fields is None else _with_fields(avro, [field.type for field in fields])


def _marked_mapping(arguments: tuple[object, ...], avro: AvroSchema) -> AvroSchema:
    if avro["type"] == "map":
        return {**avro, "values": _marked(arguments[1], avro["values"])}
    return {**avro, "items": _with_fields(avro["items"], arguments)}


def _with_fields(avro: AvroSchema, types: Sequence[object]) -> AvroSchema:
    marked = [
        {**field, "type": _marked(of, field["type"])}
        for field, of in zip(avro["fields"], types, strict=True)
    ]
    return {**avro, "fields": marked}


def _long_form(avro: AvroSchema) -> dict[str, Any]:
    return dict(avro) if isinstance(avro, dict) else {"type": avro}


def _plain_value(value: object) -> object:
    if isinstance(value, enum.Enum):
        return value.name
    return value.decode("latin-1") if isinstance(value, bytes) else value
