"""Conversion of a value that was stored under an older schema to a value of the declared type.

`resolver` is called once per older schema, after `api/state/evolution.py` has accepted it. It
returns a function that `api/state/wire.py` calls for each such value. The function finds fields by
name at run time. This may be slow, because these values are rare, and each is written under the
present schema when its state changes.

Invariant: the result is a value of the declared type, or an error is raised. Schemas of earlier
versions do not list the values of a Literal, so this module checks them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Literal, get_args, get_origin

import msgspec

from tidegate.api.records.big_ints import entries_of, unpack_int
from tidegate.api.records.free_values import TUPLE, unpack_free
from tidegate.api.records.moments import as_moment
from tidegate.api.records.record_fields import (
    MISSING,
    RecordField,
    fields_of,
    is_model,
    record_class,
    type_name,
)
from tidegate.api.records.record_objects import Shape
from tidegate.api.records.types import MAP, AvroSchema, is_union, literal_type
from tidegate.api.state.evolution import check_evolution, pair_branches
from tidegate.api.state.stored import same_for_earlier_version, stored_schema
from tidegate.errors import PipelineError, check

Convert = Callable[[Any], Any]
ShapeOf = Callable[[object, tuple[RecordField, ...]], Shape]


def resolver(writer: AvroSchema, of: object, shape_of: ShapeOf) -> Callable[[bytes], Any]:
    """Return a function from msgpack bytes of schema `writer` to a value of the type `of`.

    `shape_of` returns the shape of a record class with its fields. PipelineError if a value of
    `writer` cannot be read as `of`.
    """
    if not same_for_earlier_version(writer, stored_schema(of)):
        check_evolution(writer, of, f"state of {type_name(of)}")
    convert = _convert(writer, of, shape_of)
    decode = msgspec.msgpack.decode
    return lambda data: convert(decode(data))


def _convert(writer: AvroSchema, of: object, shape_of: ShapeOf) -> Convert:
    """Return the conversion of a plain msgpack value of the writer to a value of type `of`."""
    if isinstance(writer, list):
        return _convert_union(writer, of, shape_of)
    if is_union(of):
        return _convert(writer, _branches([writer], of)[0], shape_of)
    kind = writer["type"] if isinstance(writer, dict) else writer
    if kind == "record":
        return _convert_record(writer, of, shape_of)
    if kind == "array" and writer.get(MAP) is None:
        item = _convert(writer["items"], get_args(of)[0], shape_of)
        origin: Any = get_origin(of)
        if origin is Sequence:
            return lambda values: _sequence(item, values)
        return lambda values: origin(map(item, _plain_items(values)))
    if kind in ("map", "array"):
        key_of, value_of = get_args(of)
        schema = writer["items"]["fields"] if kind == "array" else None
        key = _convert("string" if schema is None else schema[0]["type"], key_of, shape_of)
        value = _convert(
            writer["values"] if schema is None else schema[1]["type"], value_of, shape_of
        )
        return lambda entries: {key(k): value(v) for k, v in entries_of(entries)}
    if get_origin(of) is Literal:
        return _convert_literal(writer, of, shape_of)
    if kind == "enum":
        members: Any = record_class(of)
        return lambda name: members[name]
    return _convert_scalar(kind, of)


def _sequence(item: Convert, values: Any) -> Any:
    found = list(map(item, _plain_items(values)))
    return tuple(found) if isinstance(values, msgspec.msgpack.Ext) else found


def _plain_items(values: Any) -> Any:
    """Return the items of a list, or of a tuple in a Sequence, which is an extension."""
    if isinstance(values, msgspec.msgpack.Ext):
        check(values.code == TUPLE, f"an extension of type {values.code} is no Sequence")
        return msgspec.msgpack.decode(values.data)
    return values


def _convert_scalar(kind: str, of: object) -> Convert:
    if of is bytes and kind == "string":
        return str.encode
    if of is str:
        return lambda value: value
    if of is datetime:
        return lambda value: msgspec.convert(as_moment(value), datetime)
    if of is Any:
        return lambda value: unpack_free(msgspec.msgpack.encode(value))
    if of is float:
        return lambda value: msgspec.convert(unpack_int(value), float | int)
    if of is int:
        return lambda value: msgspec.convert(unpack_int(value), int)
    return lambda value: msgspec.convert(value, of)


def _convert_literal(writer: AvroSchema, of: object, shape_of: ShapeOf) -> Convert:
    convert = _convert(writer, literal_type(of), shape_of)
    allowed = get_args(of)

    def checked(stored: Any) -> Any:
        value = convert(stored)
        if value not in allowed:
            raise ValueError(f"{value!r} is no value of {type_name(of)}")
        return value

    return checked


def _convert_union(writer: list[AvroSchema], of: object, shape_of: ShapeOf) -> Convert:
    """Return the conversion of a union.

    A union of one type and None is stored as the value or None. A union of several types is stored
    as a pair of branch number and value.
    """
    targets = _branches(writer, of) if is_union(of) else [of] * len(writer)
    converts = [
        _convert(branch, target, shape_of)
        for branch, target in zip(writer, targets, strict=True)
        if branch != "null"
    ]
    if len(converts) == 1:
        single = converts[0]
        return lambda value: None if value is None else single(value)
    return lambda pair: None if pair is None else converts[pair[0]](pair[1])


def _branches(writer: list[AvroSchema], of: object) -> list[object]:
    """Return the branch of the union `of` for each branch of the writer."""
    branches = get_args(of)
    pairs = pair_branches(writer, [stored_schema(branch) for branch in branches])
    if isinstance(pairs, str):
        raise PipelineError(f"{pairs}.")
    return [branches[position] for position in pairs]


def _convert_record(writer: AvroSchema, of: object, shape_of: ShapeOf) -> Convert:
    """Return the conversion of a record, whose fields are found by name.

    A field that the writer did not have gets its default.
    """
    positions = {field["name"]: i for i, field in enumerate(writer["fields"])}
    if get_origin(of) is tuple:
        parts = [
            (
                positions[f"f{i}"],
                _convert(writer["fields"][positions[f"f{i}"]]["type"], part, shape_of),
            )
            for i, part in enumerate(get_args(of))
        ]
        return lambda values: tuple(convert(values[i]) for i, convert in parts)
    fields = fields_of(of)
    check(fields is not None, "a record is read as a record")
    return _convert_fields(of, fields or (), positions, writer, shape_of)


def _convert_fields(
    of: object,
    fields: Sequence[RecordField],
    positions: dict[str, int],
    writer: AvroSchema,
    shape_of: ShapeOf,
) -> Convert:
    known = {
        field.name: (
            positions[field.name],
            _convert(writer["fields"][positions[field.name]]["type"], field.type, shape_of),
        )
        for field in fields
        if field.name in positions
    }
    shape, size = shape_of(of, tuple(fields)), len(positions)
    added = {field.name for field in fields} - known.keys()

    default_of = _model_default if is_model(shape.kind) else _default

    def converted(values: Any) -> Any:
        made: dict[str, Any] = {}
        for field in fields:
            if field.name in known:
                position, convert = known[field.name]
                made[field.name] = convert(values[position])
            else:
                made[field.name] = default_of(shape.kind, field, made)
        rest = msgspec.msgpack.encode(values[size]) if len(values) > size else msgspec.UNSET
        record = shape.record_of_raw(rest, *made.values())
        if is_model(shape.kind):
            record.__pydantic_fields_set__.difference_update(added)
        return record

    return converted


def _default(_: Any, field: RecordField, __: dict[str, Any]) -> object:
    return field.default if field.factory is MISSING else field.factory()


def _model_default(kind: Any, field: RecordField, made: dict[str, Any]) -> object:
    """Return the default of a pydantic field: a copy, or made from the values of earlier fields."""
    info = kind.model_fields[field.name]
    if getattr(info, "default_factory_takes_validated_data", False):  # from pydantic 2.10 on
        return info.get_default(call_default_factory=True, validated_data=made)
    return info.get_default(call_default_factory=True)
