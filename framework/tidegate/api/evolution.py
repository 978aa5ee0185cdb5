"""State that was written under an older schema: may it be read, and how.

Avro's rules of resolution: a field that the reader has and the writer had not takes its default,
one that only the writer had is skipped, an int may be read as a float, text as bytes and back.
`None` may be added to a type, not taken away; symbols may be added to an enum. The names of record
classes do not count, so that renaming a class is free. `check_evolution` is asked at submit, with
schemas alone; `resolver` by state backends, when a value of an older schema is first met.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Literal, get_args, get_origin, is_typeddict

import msgspec

from tidegate.api.fields import class_of, fields_of, is_model
from tidegate.api.types import FACTORY, MAP, AvroSchema, is_union, type_info
from tidegate.errors import PipelineError, check

_INSIDE = {"array": ("items", "[]"), "map": ("values", "{}")}
_PROMOTIONS = {("long", "double"), ("string", "bytes"), ("bytes", "string")}


def check_evolution(writer: AvroSchema, reader: AvroSchema, where: str) -> None:
    """Refuse, with a PipelineError that names the field, a reader that cannot read what was
    written.

    `where` names the state: "state 'total' of step 'running-total'".
    """
    why_not = mismatch(writer, reader)
    if why_not is not None:
        raise PipelineError(
            f"{where} cannot be read from the checkpoint: {why_not}. Restore its type, or start "
            "without this state under a new uid"
        )


def mismatch(writer: AvroSchema, reader: AvroSchema) -> str | None:
    """Why what was written as `writer` cannot be read as `reader`; None where it can."""
    return _mismatch(writer, reader, "")


def resolver(writer: AvroSchema, of: object) -> Callable[[bytes], Any]:
    """A function from the msgpack bytes of an older schema to a value of the type of today.

    PipelineError if they do not resolve.
    """
    check_evolution(writer, type_info(of).avro, f"state of {class_name(of)}")
    convert = _convert(writer, of)
    decode = msgspec.msgpack.decode
    return lambda data: convert(decode(data))


def class_name(of: object) -> str:
    """A type's name for a message."""
    return getattr(of, "__name__", str(of))


def _mismatch(writer: AvroSchema, reader: AvroSchema, path: str) -> str | None:
    """Why it does not resolve, with the field's path; None if it does."""
    at = f"field {path!r}: " if path else ""
    if isinstance(writer, list):
        reasons = [_mismatch(branch, reader, path) for branch in writer]
        return next((reason for reason in reasons if reason is not None), None)
    if isinstance(reader, list):
        if any(_mismatch(writer, branch, path) is None for branch in reader):
            return None
        return f"{at}{_say(writer)} was written and is none of {', '.join(map(_say, reader))}"
    kind = _kind(writer)
    if kind != _kind(reader):
        known = (kind, _kind(reader)) in _PROMOTIONS and not _logical(reader)
        return None if known else f"{at}{_say(writer)} was written, {_say(reader)} is declared"
    if kind == "record":
        return _record_mismatch(writer, reader, path)
    if kind == "array" and bool(writer.get(MAP)) != bool(reader.get(MAP)):
        return f"{at}a list was written and a dict is declared, or the other way"
    if kind in _INSIDE:
        inside, mark = _INSIDE[kind]
        return _mismatch(writer[inside], reader[inside], path + mark)
    if kind == "enum":
        gone = [symbol for symbol in writer["symbols"] if symbol not in reader["symbols"]]
        return f"{at}the enum {reader['name']} has no {gone[0]} any more" if gone else None
    if _logical(reader) not in ("", _logical(writer)):
        return f"{at}{_say(writer)} was written, {_say(reader)} is declared"
    return None


def _record_mismatch(writer: AvroSchema, reader: AvroSchema, path: str) -> str | None:
    written = {field["name"]: field for field in writer["fields"]}
    for field in reader["fields"]:
        name = f"{path}.{field['name']}" if path else field["name"]
        theirs = written.get(field["name"])
        if theirs is not None:
            why_not = _mismatch(theirs["type"], field["type"], name)
            if why_not is not None:
                return why_not
        elif "default" not in field and FACTORY not in field:
            return f"field {name!r} was added to {reader['name']} without a default"
    return None


def _kind(schema: AvroSchema) -> str:
    return str(schema["type"] if isinstance(schema, dict) else schema)


def _logical(schema: AvroSchema) -> str:
    return str(schema.get("logicalType", "")) if isinstance(schema, dict) else ""


def _say(schema: AvroSchema) -> str:
    if isinstance(schema, dict) and "name" in schema:
        return f"{schema['type']} {schema['name']}"
    return _logical(schema) or _kind(schema)


def _convert(writer: AvroSchema, of: object) -> Callable[[Any], Any]:
    """From the plain msgpack value of the writer's layout to a value of type `of`."""
    if isinstance(writer, list):
        return _convert_union(writer, of)
    if is_union(of):
        return _convert(writer, _branch(writer, of))
    kind = _kind(writer)
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
        return lambda entries: {key(k): value(v) for k, v in entries.items()}
    if kind == "enum":
        members: Any = class_of(of)
        return lambda name: members[name]
    return _convert_scalar(writer, of)


def _convert_scalar(writer: AvroSchema, of: object) -> Callable[[Any], Any]:
    if of is bytes and _kind(writer) == "string":
        return str.encode
    if of is str and _kind(writer) == "bytes":
        return bytes.decode
    if of is str or get_origin(of) is Literal:
        return lambda value: value
    if of is datetime:
        return lambda value: msgspec.convert(value, datetime)
    return lambda value: msgspec.convert(value, of)


def _convert_union(writer: list[AvroSchema], of: object) -> Callable[[Any], Any]:
    """A union of one type and None is written bare, of several as branch number and value."""
    branches = [branch for branch in writer if branch != "null"]
    converts = [_convert(branch, of) for branch in branches]
    if len(converts) == 1:
        single = converts[0]
        return lambda value: None if value is None else single(value)
    return lambda pair: None if pair is None else converts[pair[0]](pair[1])


def _branch(writer: AvroSchema, of: object) -> object:
    """The reader's branch for what was written: the same schema if there is one, else the first
    that resolves.
    """
    infos = [type_info(branch) for branch in get_args(of)]
    for info in infos:
        if info.avro == writer:
            return info.python
    fitting = [info.python for info in infos if _mismatch(writer, info.avro, "") is None]
    check(fitting, "a union that resolves has a branch for what was written")
    return fitting[0]


def _convert_record(writer: AvroSchema, of: object) -> Callable[[Any], Any]:
    """By field name; what is missing takes its default because the class is not given it."""
    if get_origin(of) is tuple:
        parts = [
            _convert(f["type"], a) for f, a in zip(writer["fields"], get_args(of), strict=False)
        ]
        return lambda values: tuple(part(value) for part, value in zip(parts, values, strict=False))
    positions = {field["name"]: i for i, field in enumerate(writer["fields"])}
    known = [
        (
            field.name,
            positions[field.name],
            _convert(writer["fields"][positions[field.name]]["type"], field.of),
        )
        for field in fields_of(of) or ()
        if field.name in positions
    ]
    found: Any = class_of(of)
    made = dict if is_typeddict(found) else found.model_construct if is_model(found) else found
    return lambda values: made(**{name: convert(values[i]) for name, i, convert in known})
