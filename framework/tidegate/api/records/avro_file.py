"""The check of a type against its `.avsc` file, field by field.

The check compares names, types, and whether a field may be null. The result is the file's schema
with changes that the type asks for. A string that the type declares as a Decimal or a UUID gets the
logical type for it. A timestamp that the type declares as an int becomes a plain number. The bytes
are the same under both schemas. Every error names the file, the field, and what each side says.
"""

from __future__ import annotations

import enum
import json
import sys
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args, get_origin
from uuid import UUID

import fastavro

from tidegate.api.records.avro_values import default_of
from tidegate.api.records.record_fields import fields_of, type_name
from tidegate.api.records.types import AvroSchema, is_union, literal_type
from tidegate.errors import PipelineError

_ACCEPTED: dict[object, tuple[tuple[str, str | None], ...]] = {
    str: (("string", None),),
    bytes: (("bytes", None), ("fixed", None)),
    bool: (("boolean", None),),
    int: (("long", "*"), ("int", "*")),
    float: (("double", None), ("float", None)),
    Decimal: (("bytes", "decimal"), ("fixed", "decimal"), ("string", "*")),
    datetime: (("long", "timestamp-micros"), ("long", "timestamp-millis")),
    date: (("int", "date"),),
    UUID: (("string", "*"),),
}
"""Avro and logical types that a scalar may have in a file; "*" is any or no logical type."""

_READ_AS: dict[object, AvroSchema] = {
    Decimal: {"type": "string", "logicalType": "decimal-string"},
    UUID: {"type": "string", "logicalType": "uuid"},
}


def fit_file(of: object, file: str) -> AvroSchema:
    """Return the schema of a file, written out in full, as values of type `of` are read with it.

    PipelineError if the file does not exist or holds no schema, or if the type does not fit it.
    """
    path = find_schema_file(file)
    try:
        schema = json.loads(path.read_text(encoding="utf-8-sig"))  # a BOM is possible
        whole: AvroSchema = fastavro.schema.expand_schema(schema)
    except (fastavro.schema.SchemaParseException, fastavro.schema.UnknownType) as error:
        raise PipelineError(f"Avro schema file {file} is no schema: {error!r}") from None
    except ValueError as error:
        raise PipelineError(f"Avro schema file {file} is not JSON: {error}") from None
    return _Fit(file).fit(of, whole, type_name(of))


def find_schema_file(file: str) -> Path:
    """Find the file on the module search path (`sys.path`), and then in the working folder.

    The first folder on the path holds the job's code. At a submit, this is the working folder. In
    the processes of the job, it is the unpacked archive, because the file in their working folder
    may have been edited since.
    """
    for folder in (*sys.path, ""):
        path = Path(folder, file)
        if path.is_file():
            return path
    raise PipelineError(
        f"Avro schema file {file} does not exist; it is looked for from the working folder "
        f"{Path.cwd()}."
    )


class _Fit:
    """The recursive comparison of type and schema; `at` is the field's path, for messages."""

    def __init__(self, file: str) -> None:
        self._file = file

    def fit(self, of: object, schema: AvroSchema, at: str) -> AvroSchema:
        if is_union(of) or isinstance(schema, list):
            return self._nullable(of, schema, at)
        if get_origin(of) is Literal:
            of = literal_type(of)
        kind = schema["type"] if isinstance(schema, dict) else schema
        if isinstance(of, type) and issubclass(of, enum.Enum):
            return self._enum(of, schema, kind, at)
        fields = fields_of(of)
        if fields is not None or (get_origin(of) is tuple and ... not in get_args(of)):
            return self._record(of, schema, kind, at)
        if get_origin(of) in (list, tuple, set, frozenset, Sequence):
            self._expect(kind == "array", of, schema, at)
            items = self.fit(get_args(of)[0], schema["items"], f"{at}[]")
            return {**schema, "items": items}
        if get_origin(of) in (dict, Mapping):
            self._expect(kind == "map" and get_args(of)[0] is str, of, schema, at)
            return {**schema, "values": self.fit(get_args(of)[1], schema["values"], f"{at}{{}}")}
        return self._scalar(of, schema, kind, at)

    def _nullable(self, of: object, schema: AvroSchema, at: str) -> AvroSchema:
        types = [part for part in get_args(of) if part is not type(None)] if is_union(of) else [of]
        schemas = (
            [part for part in schema if part != "null"] if isinstance(schema, list) else [schema]
        )
        if len(types) != 1 or len(schemas) != 1:
            self._refuse(
                f"{at}: only T | None against a union with null can be checked; give each "
                "record its own topic, or derive the schema from the type"
            )
        may_be_none = is_union(of) and type(None) in get_args(of)
        may_be_null = isinstance(schema, list) and "null" in schema
        if may_be_none != may_be_null:
            theirs = (
                "may be null in the file and not"
                if may_be_null
                else "may not be null in the file and may be None"
            )
            self._refuse(f"{at} {theirs} in the type")
        inner = self.fit(types[0], schemas[0], at)
        return (
            [part if part == "null" else inner for part in schema]
            if isinstance(schema, list)
            else inner
        )

    def _enum(self, of: type[enum.Enum], schema: AvroSchema, kind: object, at: str) -> AvroSchema:
        self._expect(kind == "enum", of, schema, at)
        names = {member.name for member in of}
        if names != set(schema["symbols"]):
            odd = ", ".join(sorted(names ^ set(schema["symbols"])))
            self._refuse(f"{at}: enum {of.__name__} and the file differ in {odd}")
        return schema

    def _record(self, of: Any, schema: AvroSchema, kind: object, at: str) -> AvroSchema:
        self._expect(kind == "record", of, schema, at)
        known = fields_of(of)
        types: dict[str, object] = (
            {f"f{i}": part for i, part in enumerate(get_args(of))}
            if known is None
            else {field.name: field.type for field in known}
        )
        theirs = {field["name"]: field for field in schema["fields"]}
        for name in sorted(types.keys() - theirs.keys()):
            self._refuse(f"{at}.{name} is not in the file")
        for name, field in theirs.items():
            if name not in types:
                self._default(field, f"{at}.{name}")
        fields = [
            {**field, "type": self.fit(types[name], field["type"], f"{at}.{name}")}
            if name in types
            else field
            for name, field in theirs.items()
        ]
        return {**schema, "fields": fields}

    def _default(self, field: AvroSchema, at: str) -> None:
        """Check the default of a field that only the file has, so that every record gets it."""
        if "default" not in field:
            self._refuse(f"{at} is in the file, without a default, and not in the type")
        try:
            default_of(field["type"], field["default"])
        except ValueError as error:
            self._refuse(f"{at} is in the file only, and {error}")

    def _scalar(self, of: object, schema: AvroSchema, kind: object, at: str) -> AvroSchema:
        logical = schema.get("logicalType") if isinstance(schema, dict) else None
        fitting = any(
            kind == accepted and wanted in ("*", logical)
            for accepted, wanted in _ACCEPTED.get(of, ())
        )
        self._expect(fitting, of, schema, at)
        if kind == "string" and of in _READ_AS:
            return _READ_AS[of]
        return kind if of is int else schema

    def _expect(self, fits: object, of: object, schema: AvroSchema, at: str) -> None:
        if not fits:
            self._refuse(f"{at} is {type_name(of)} in the type and {_describe(schema)} in the file")

    def _refuse(self, why: str) -> NoReturn:
        raise PipelineError(f"Avro schema file {self._file} does not fit: {why}")


def _describe(schema: AvroSchema) -> str:
    if not isinstance(schema, dict):
        return str(schema)
    logical = schema.get("logicalType")
    kind = schema["type"] if logical is None else f"{schema['type']} ({logical})"
    return f"{kind} {schema['name']}" if "name" in schema else str(kind)
