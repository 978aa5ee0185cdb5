"""The codec of the format `Avro`: it converts records of any kind to Avro bytes and back.

The work is done by fastavro, and the bytes have no header. The schema is derived from the type, or
comes from an `.avsc` file that `api/records/avro_file.py` has checked against the type. `formats`
imports this module only where Avro is used.

A value that its schema cannot hold exactly is refused, and the error names the field
(`api/records/avro_values.py`, `_Blame`).

A Decimal is text if the file declares a string, or if no file gives a precision. Such Decimals have
our logical type "decimal-string", which this module registers with fastavro. For any other reader
they are strings.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Final, get_args

import fastavro
import msgspec

from tidegate.api.records.avro_file import fit_file
from tidegate.api.records.avro_values import (
    FLOAT_MAX,
    INT_MAX,
    aware,
    aware_ms,
    checked,
    checked_float,
    checked_int,
    decimal_bytes,
    default_of,
)
from tidegate.api.records.converters import Converter, ConverterGenerator, branch_of, read
from tidegate.api.records.finite import check_finite, suspicious
from tidegate.api.records.record_fields import RecordField, fields_of, type_name
from tidegate.api.records.types import AvroSchema, is_union, type_info
from tidegate.api.records.values import article, counts_as
from tidegate.errors import PipelineError

_PLAIN: Final[dict[object, str]] = {
    str: "string",
    bytes: "bytes",
    bool: "boolean",
    int: "long",
    float: "double",
}
"""Types that one union of Avro can have together, with the names of their branches."""


@dataclass(frozen=True, slots=True)
class AvroCodec:
    """The schema under which values are written, and the functions that encode and decode."""

    schema: AvroSchema
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]


def avro_codec(of: object, file: str | None) -> AvroCodec:
    """Return the codec of a type; the schema is derived from the type if `file` is None.

    PipelineError if the schema file cannot be used or does not fit the type, or if two types of the
    schema have one name. PipelineError also if Avro cannot tell the branches of a union apart.
    """
    whole = type_info(of).avro if file is None else fit_file(of, file)
    schema = _named_once(whole, {}, file or type_name(of))
    parsed = fastavro.parse_schema(_without_decimals(schema))
    generator = _AvroConverterGenerator(whole, from_file=file is not None)
    converter = generator.converter(of)
    unpack, _ = generator.define("unpack", "plain", converter.unpacked("plain"))
    read_value = fastavro.schemaless_reader
    write_alone = _encoder(generator, converter, parsed)
    blame = _Blame(of, whole, from_file=file is not None)

    def encode(value: Any) -> bytes:
        try:
            return write_alone(value)
        except (ValueError, TypeError, ArithmeticError, LookupError, AttributeError) as error:
            # A lack of memory or files is no error of the value, and passes.
            if at := blame.path(value):
                kind = TypeError if isinstance(error, TypeError) else ValueError
                raise kind(f"{at}: {error}") from error
            raise

    def decode(data: bytes) -> Any:
        buffer = io.BytesIO(data)
        try:
            plain = read_value(
                buffer, parsed, None, return_record_name=True, return_record_name_override=True
            )
        except EOFError as error:
            raise ValueError("the bytes end within the value: another schema wrote it") from error
        left = len(data) - buffer.tell()
        if left:
            raise ValueError(f"{left} bytes are left after the value: another schema wrote it")
        return unpack(plain)

    return AvroCodec(schema, encode, decode)


def _encoder(
    generator: _AvroConverterGenerator, converter: Converter, parsed: AvroSchema
) -> Callable[[Any], bytes]:
    """Return the encoder of a value; its errors name no field."""
    pack, _ = generator.define("pack", "value", converter.packed("value"))
    write = fastavro.schemaless_writer

    def encode(value: Any) -> bytes:
        buffer = io.BytesIO()
        write(buffer, parsed, pack(value))
        return buffer.getvalue()

    return encode


class _AvroConverterGenerator(ConverterGenerator):
    """Converters to the values that fastavro takes; fastavro converts times and UUIDs itself.

    A record becomes a dict, and a fixed tuple becomes a dict with the fields f0, f1, … . A plain
    value is never a tuple, because fastavro reads a tuple in a union as a pair of name and value.
    """

    def __init__(self, schema: AvroSchema, *, from_file: bool) -> None:
        super().__init__()
        self._schema = schema
        """The schema of the type whose converter is made; named types are written out in full."""
        self._from_file = from_file

    def scalar(self, of: object) -> Converter:
        kind = self._schema["type"] if isinstance(self._schema, dict) else self._schema
        if of is datetime:
            millis = self._schema["logicalType"] == "timestamp-millis"
            return Converter(of, self._call(aware_ms if millis else aware))
        if of is Decimal and kind in ("bytes", "fixed"):
            pack, unpack = map(self._call, decimal_bytes(self._schema))
            return Converter(bytes, pack, unpack)
        if of is Any:
            return Converter(of, self._call(_to_json), self._call(msgspec.json.decode))
        if of is int and kind == "int":
            return self._exactly(int, checked_int, f"-{INT_MAX + 1} <= {{}} <= {INT_MAX}")
        if of is float and kind == "float":
            return self._exactly(float, checked_float, f"-{FLOAT_MAX} < {{}} < {FLOAT_MAX}")
        if of in (bool, int, float, date):
            # fastavro would write 5.7 as 5, any value as a boolean, and a datetime as its day.
            return self._exactly(of, checked)
        return Converter(of)

    def _call(self, function: Callable[[Any], Any]) -> Callable[[str], str]:
        name = self.name(function)
        return lambda x: f"{name}({x})"

    def _exactly(self, of: Any, check: Callable[..., Any], within: str = "") -> Converter:
        """Return the converter of a value of exactly one class; `check` decides about others."""
        kind, given, other = self.name(of), self.variable(), self.name(check)
        more = f" and {within.format(given)}" if within else ""
        call = f"{other}({given}, {kind})" if check is checked else f"{other}({given})"
        return Converter(
            of, lambda x: f"({given} if ({given} := {x}).__class__ is {kind}{more} else {call})"
        )

    def _inside(self, of: object, schema: AvroSchema) -> Converter:
        """Return the converter of a part, which has its own part of the schema."""
        outer, self._schema = self._schema, schema
        try:
            return self.converter(of)
        finally:
            self._schema = outer

    def _fields(self) -> dict[str, AvroSchema]:
        return {field["name"]: field["type"] for field in self._schema["fields"]}

    def _defaults(self, names: Iterable[str]) -> list[str]:
        """Return the entries for fields that the type does not have: their defaults."""
        own = set(names)
        theirs = [field for field in self._schema["fields"] if field["name"] not in own]
        defaults = [default_of(field["type"], field["default"]) for field in theirs]
        return [
            f"{json.dumps(field['name'])}: {self.name(default)}"
            for field, default in zip(theirs, defaults, strict=True)
        ]

    def record(self, of: object, fields: tuple[RecordField, ...]) -> Converter:
        of_fields = self._fields()
        parts = [(f, json.dumps(f.name), self._inside(f.type, of_fields[f.name])) for f in fields]
        defaults = self._defaults(field.name for field in fields)

        def pack(x: str) -> str:
            pairs = [f"{key}: {part.packed(read(of, x, f))}" for f, key, part in parts]
            return f"{{{', '.join([*pairs, *defaults])}}}"

        def unpack(x: str) -> str:
            return self.made(of, fields, [part.unpacked(f"{x}[{key}]") for _, key, part in parts])

        return Converter(dict, pack, unpack)

    def fixed_tuple(self, arguments: tuple[object, ...]) -> Converter:
        of_fields = self._fields()
        parts = [
            (f'["f{i}"]', self._inside(argument, of_fields[f"f{i}"]))
            for i, argument in enumerate(arguments)
        ]
        defaults = self._defaults(f"f{i}" for i in range(len(arguments)))

        def pack(x: str) -> str:
            pairs = [f"{key[1:-1]}: {p.packed(f'{x}[{i}]')}" for i, (key, p) in enumerate(parts)]
            return f"{{{', '.join([*pairs, *defaults])}}}"

        def unpack(x: str) -> str:
            return f"({', '.join(part.unpacked(x + key) for key, part in parts)},)"

        return Converter(dict, pack, unpack)

    def container(self, origin: Any, argument: object) -> Converter:
        item, variable, made = (
            self._inside(argument, self._schema["items"]),
            self.variable(),
            self.container_name(origin),
        )
        return Converter(
            list,
            lambda x: f"[{item.packed(variable)} for {variable} in {x}]",
            lambda x: f"{made}([{item.unpacked(variable)} for {variable} in {x}])",
        )

    def mapping(self, key_of: object, value_of: object) -> Converter:
        if key_of is str:
            return self._str_mapping(self._inside(value_of, self._schema["values"]))
        of_fields = {field["name"]: field["type"] for field in self._schema["items"]["fields"]}
        key = self._inside(key_of, of_fields["key"])
        value, e = self._inside(value_of, of_fields["value"]), self.variable()
        k, v = f"{e}[0]", f"{e}[1]"
        entry = f'{{"key": {key.packed(k)}, "value": {value.packed(v)}}}'
        k, v = f'{e}["key"]', f'{e}["value"]'
        return Converter(
            list,
            lambda x: f"[{entry} for {e} in {x}.items()]",
            lambda x: f"{{{key.unpacked(k)}: {value.unpacked(v)} for {e} in {x}}}",
        )

    def _str_mapping(self, value: Converter) -> Converter:
        if value.plain:
            return Converter(dict)
        k, v = self.variable(), self.variable()
        return Converter(
            dict,
            lambda x: f"{{{k}: {value.packed(v)} for {k}, {v} in {x}.items()}}",
            lambda x: f"{{{k}: {value.unpacked(v)} for {k}, {v} in {x}.items()}}",
        )

    def union(self, of: object) -> Converter:
        """Return the converter of a union. A single type with None has the single other schema."""
        branches = [branch for branch in self._schema if branch != "null"]
        outer, self._schema = self._schema, branches[0] if len(branches) == 1 else branches
        try:
            return super().union(of)
        finally:
            self._schema = outer

    def branches(self, branches: list[object]) -> Converter:
        """Return the converter of a union; a value is written as (name of the branch, value).

        fastavro alone would take the first branch that fits, so an int could become a float.
        PipelineError if Avro cannot tell the branches apart.
        """
        if all(branch in _PLAIN for branch in branches):
            return Converter(object, self._call(_plain_branch(branches)))
        if self._from_file or any(not fields_of(branch) for branch in branches):
            told = " | ".join(type_name(branch) for branch in branches)
            raise PipelineError(
                f"Avro cannot tell {told} apart; make every branch a record class of its own, and "
                "let the schema be derived from the type."
            )
        inner = [_AvroConverterGenerator(part, from_file=False) for part in self._schema]
        generator = [made.converter(branch) for made, branch in zip(inner, branches, strict=True)]
        names = [part["name"] for part in self._schema]
        packs = [
            made.define("pack", "value", converter.packed("value"))[0]
            for made, converter in zip(inner, generator, strict=True)
        ]
        unpacks = {
            name: made.define("unpack", "plain", converter.unpacked("plain"))[0]
            for name, made, converter in zip(names, inner, generator, strict=True)
        }
        which = branch_of(branches)

        def pack(value: Any) -> tuple[str, Any]:
            branch = which(value)
            return names[branch], packs[branch](value)

        def unpack(pair: tuple[str, Any]) -> Any:
            return unpacks[pair[0]](pair[1])

        return Converter(object, self._call(pack), self._call(unpack))


def _plain_branch(branches: list[object]) -> Callable[[Any], tuple[str, Any]]:
    """Return the function that names the branch of a value in a union of plain types."""
    names = {branch: _PLAIN[branch] for branch in branches}

    def pack(value: Any) -> tuple[str, Any]:
        name = names.get(type(value))
        if name is None:
            of: Any = next((each for each in branches if counts_as(type(value), each)), None)
            if of is None:
                known = " | ".join(type_name(branch) for branch in branches)
                raise TypeError(f"{value!r} is {article(type(value).__name__)}, not {known}")
            name, value = names[of], checked(value, of)
        return name, value

    return pack


class _Blame:
    """The search for the part of a value that cannot be encoded: it encodes each part alone."""

    def __init__(self, of: object, schema: AvroSchema, *, from_file: bool) -> None:
        self._of, self._schema, self._from_file = of, schema, from_file
        self._encoders: dict[str, Callable[[Any], bytes]] = {}
        """The encoders of parts, by the path of the type."""

    def path(self, value: Any) -> str:
        """Return the path of the part; empty if the value as a whole is wrong."""
        return self._path(self._of, self._schema, value, "").removeprefix(".")

    def _path(self, of: Any, schema: AvroSchema, value: Any, at: str) -> str:
        try:
            parts = _parts_of(of, schema, value)
        except Exception:  # noqa: BLE001  # the value is not of the type
            return ""
        for part in parts:
            inside = at + part.step
            if inside not in self._encoders:
                self._encoders[inside] = self._encoder(part)
            try:
                self._encoders[inside](part.value)
            except Exception:  # noqa: BLE001  # the caller raises the error of the whole value
                return part.name + self._path(part.of, part.schema, part.value, inside)
        return ""

    def _encoder(self, part: _Part) -> Callable[[Any], bytes]:
        schema = _named_once(part.schema, {}, "a part")
        parsed = fastavro.parse_schema(_without_decimals(schema))
        generator = _AvroConverterGenerator(part.schema, from_file=self._from_file)
        return _encoder(generator, generator.converter(part.of), parsed)


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a value. `name` is its step of the path, and `step` the step of its type."""

    name: str
    step: str
    value: Any
    of: Any
    schema: AvroSchema


def _parts_of(of: Any, schema: AvroSchema, value: Any) -> list[_Part]:
    """Return the parts of a value; an exception if the value is not of the type."""
    if is_union(of):
        branches = [each for each in get_args(of) if each is not type(None)]
        schemas = [each for each in schema if each != "null"]
        if value is None or any(each in _PLAIN for each in branches[1:]):
            return []
        index = branch_of(branches)(value) if len(branches) > 1 else 0
        found = _parts_of(branches[index], schemas[index], value)
        return [replace(part, step=f"|{index}{part.step}") for part in found]
    fields, arguments = fields_of(of), get_args(of)
    kind = schema["type"] if isinstance(schema, dict) else schema
    if kind == "record":
        inside = {field["name"]: field["type"] for field in schema["fields"]}
        if fields is None:
            tuples = enumerate(zip(value, arguments, strict=True))
            return [_Part(f"[{i}]", f".{i}", v, a, inside[f"f{i}"]) for i, (v, a) in tuples]
        get = value.__getitem__ if isinstance(value, dict) else lambda name: getattr(value, name)
        paths = [(f".{field.name}", field) for field in fields]
        return [_Part(at, at, get(f.name), f.type, inside[f.name]) for at, f in paths]
    if kind == "map":
        of, schema = arguments[1], schema["values"]
        return [_Part(f"[{key!r}]", "{}", part, of, schema) for key, part in value.items()]
    if kind == "array" and not isinstance(value, dict):
        of, schema = arguments[0], schema["items"]
        return [_Part(f"[{index}]", "[]", part, of, schema) for index, part in enumerate(value)]
    return []


def _decimal(text: str, _writer: AvroSchema, _reader: AvroSchema) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:
        raise ValueError(f"{text!r} is not a decimal") from None


def _to_json(value: Any) -> str:
    data = msgspec.json.encode(value)
    if suspicious(data):
        check_finite(value)
    return data.decode()


def _without_decimals(schema: AvroSchema) -> AvroSchema:
    """Return the schema with the bytes of decimals, which the generated code converts itself."""
    if isinstance(schema, list):
        return [_without_decimals(branch) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    known = {key: part for key, part in schema.items() if part != "decimal" or key == "type"}
    for key in ("type", "items", "values"):
        if isinstance(known.get(key), dict | list):
            known[key] = _without_decimals(known[key])
    if "fields" in known:
        known["fields"] = [
            {**field, "type": _without_decimals(field["type"])} for field in known["fields"]
        ]
    return known


def _named_once(schema: AvroSchema, seen: dict[str, AvroSchema], where: str) -> AvroSchema:
    """Return the schema with each named type written out once; later places use its name."""
    if isinstance(schema, list):
        return [_named_once(branch, seen, where) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    kind = schema["type"]
    if kind in ("array", "map"):
        inside = "items" if kind == "array" else "values"
        return {**schema, inside: _named_once(schema[inside], seen, where)}
    if "name" not in schema:
        return schema
    name = schema["name"]
    if name in ("tuple", "entry"):
        name += "_" + hashlib.sha256(json.dumps(schema["fields"]).encode()).hexdigest()[:8]
    if name in seen:
        if seen[name] != schema:
            raise PipelineError(
                f"{where}: two different types are named {name} in one Avro schema; rename one."
            )
        return name
    seen[name] = schema
    if kind != "record":
        return schema
    fields = [{**f, "type": _named_once(f["type"], seen, where)} for f in schema["fields"]]
    return {**schema, "name": name, "fields": fields}


fastavro.write.LOGICAL_WRITERS["string-decimal-string"] = lambda value, _schema: str(value)
fastavro.read.LOGICAL_READERS["string-decimal-string"] = _decimal
