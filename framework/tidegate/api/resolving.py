"""Conversion of a value that was stored under an older schema to a value of the declared type.

`resolver` is called once per older schema, after `api/evolution.py` has accepted it. It returns a
function that `api/wire.py` calls for each such value. The function finds fields by name at run
time. This may be slow, because these values are rare, and each is written under the present schema
when its state changes.

Invariant: the result is a value of the declared type, or an error is raised. Schemas of earlier
versions do not list the values of a Literal, so this module checks them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Literal, get_args, get_origin

import msgspec
from typing_extensions import is_typeddict

from tidegate.api.big_ints import entries_of, unpack_int
from tidegate.api.evolution import check_evolution, pair_branches
from tidegate.api.record_fields import fields_of, is_model, record_class, type_name
from tidegate.api.stored import same_for_earlier_version, stored_schema
from tidegate.api.types import MAP, AvroSchema, is_union, literal_type
from tidegate.errors import PipelineError, check

Convert = Callable[[Any], Any]


def resolver(writer: AvroSchema, of: object) -> Callable[[bytes], Any]:
    """Return a function from msgpack bytes of schema `writer` to a value of the type `of`.

    PipelineError if a value of `writer` cannot be read as `of`.
    """
    if not same_for_earlier_version(writer, stored_schema(of)):
        check_evolution(writer, of, f"state of {type_name(of)}")
    convert = _convert(writer, of)
    decode = msgspec.msgpack.decode
    return lambda data: convert(decode(data))


def _convert(writer: AvroSchema, of: object) -> Convert:
    """Return the conversion of a plain msgpack value of the writer to a value of type `of`."""
    if isinstance(writer, list):
        return _convert_union(writer, of)
    if is_union(of):
        return _convert(writer, _branches([writer], of)[0])
    kind = writer["type"] if isinstance(writer, dict) else writer
    if kind == "record":
        return _convert_record(writer, of)
    if kind == "array" and writer.get(MAP) is None:
        item = _convert(writer["items"], get_args(of)[0])
        origin: Any = get_origin(of)
        made = list if origin is Sequence else origin
        return lambda values: made(item(value) for value in values)
    if kind in ("map", "array"):
        key_of, value_of = get_args(of)
        schema = writer["items"]["fields"] if kind == "array" else None
        key = _convert("string" if schema is None else schema[0]["type"], key_of)
        value = _convert(writer["values"] if schema is None else schema[1]["type"], value_of)
        return lambda entries: {key(k): value(v) for k, v in entries_of(entries)}
    if get_origin(of) is Literal:
        return _convert_literal(writer, of)
    if kind == "enum":
        members: Any = record_class(of)
        return lambda name: members[name]
    return _convert_scalar(kind, of)


def _convert_scalar(kind: str, of: object) -> Convert:
    if of is bytes and kind == "string":
        return str.encode
    if of is str:
        return lambda value: value
    if of is datetime:
        return lambda value: msgspec.convert(value, datetime)
    if of is int:
        return lambda value: msgspec.convert(unpack_int(value), int)
    return lambda value: msgspec.convert(value, of)


def _convert_literal(writer: AvroSchema, of: object) -> Convert:
    convert = _convert(writer, literal_type(of))
    allowed = get_args(of)

    def checked(stored: Any) -> Any:
        value = convert(stored)
        if value not in allowed:
            raise ValueError(f"{value!r} is no value of {type_name(of)}")
        return value

    return checked


def _convert_union(writer: list[AvroSchema], of: object) -> Convert:
    """Return the conversion of a union.

    A union of one type and None is stored as the value or None. A union of several types is stored
    as a pair of branch number and value.
    """
    targets = _branches(writer, of) if is_union(of) else [of] * len(writer)
    converts = [
        _convert(branch, target)
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


def _convert_record(writer: AvroSchema, of: object) -> Convert:
    """Return the conversion of a record, whose fields are found by name.

    A field that the writer did not have gets its default, because the class is called without it.
    """
    positions = {field["name"]: i for i, field in enumerate(writer["fields"])}
    if get_origin(of) is tuple:
        parts = [
            (positions[f"f{i}"], _convert(writer["fields"][positions[f"f{i}"]]["type"], part))
            for i, part in enumerate(get_args(of))
        ]
        return lambda values: tuple(convert(values[i]) for i, convert in parts)
    fields = fields_of(of)
    check(fields is not None, "a record is read as a record")
    known = [
        (
            field.name,
            positions[field.name],
            _convert(writer["fields"][positions[field.name]]["type"], field.type),
        )
        for field in fields or ()
        if field.name in positions
    ]
    found: Any = record_class(of)
    made = dict if is_typeddict(found) else found.model_construct if is_model(found) else found
    return lambda values: made(**{name: convert(values[i]) for name, i, convert in known})
