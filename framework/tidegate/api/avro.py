"""The codec of the format `Avro`: it converts records of any kind to Avro bytes and back.

The work is done by fastavro, and the bytes have no header. The schema is derived from the type, or
comes from an `.avsc` file that `api/avro_file.py` has checked against the type. `formats` imports
this module only where Avro is used.

A Decimal is text if the file declares a string, or if no file gives a precision. Such Decimals have
our logical type "decimal-string", which this module registers with fastavro. For any other reader
they are strings.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Any, cast

import fastavro
import msgspec

from tidegate.api.avro_file import fit_file
from tidegate.api.converters import Converter, ConverterGenerator, branch_of, read
from tidegate.api.record_fields import RecordField, fields_of, type_name
from tidegate.api.types import AvroSchema, type_info
from tidegate.api.values import article, counts_as
from tidegate.errors import PipelineError

_PLAIN = (str, bytes, bool, int, float)
"""Types whose values Avro can tell apart in a union without the name of the branch."""


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
    parsed = fastavro.parse_schema(schema)
    generator = _AvroConverterGenerator(from_file=file is not None)
    converter = generator.converter(of)
    pack, _ = generator.define("pack", "value", converter.packed("value"))
    unpack, _ = generator.define("unpack", "plain", converter.unpacked("plain"))
    write, read_value = fastavro.schemaless_writer, fastavro.schemaless_reader

    def encode(value: Any) -> bytes:
        buffer = io.BytesIO()
        write(buffer, parsed, pack(value))
        return buffer.getvalue()

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


class _AvroConverterGenerator(ConverterGenerator):
    """Converters to the values that fastavro takes; fastavro converts the logical types itself.

    A record becomes a dict, and a fixed tuple becomes a dict with the fields f0, f1, … . A plain
    value is never a tuple, because fastavro reads a tuple in a union as a pair of name and value.
    """

    def __init__(self, *, from_file: bool) -> None:
        super().__init__()
        self._from_file = from_file

    def scalar(self, of: object) -> Converter:
        if of is datetime:
            aware = self.name(_aware)
            return Converter(of, lambda x: f"{aware}({x})")
        if of is Any:
            to_text, to_value = self.name(_to_json), self.name(msgspec.json.decode)
            return Converter(of, lambda x: f"{to_text}({x})", lambda x: f"{to_value}({x})")
        if of in (bool, int, float):
            # fastavro would write 5.7 as 5, and any value as a boolean.
            exact, given, checked = cast("type", of).__name__, self.variable(), self.name(_checked)
            return Converter(
                of,
                lambda x: (
                    f"({given} if ({given} := {x}).__class__ is {exact} "
                    f"else {checked}({given}, {exact}))"
                ),
            )
        return Converter(of)

    def record(self, of: object, fields: tuple[RecordField, ...]) -> Converter:
        parts = [(f, json.dumps(f.name), self.converter(f.type)) for f in fields]

        def pack(x: str) -> str:
            pairs = [f"{key}: {part.packed(read(of, x, f))}" for f, key, part in parts]
            return f"{{{', '.join(pairs)}}}"

        def unpack(x: str) -> str:
            return self.made(of, fields, [part.unpacked(f"{x}[{key}]") for _, key, part in parts])

        return Converter(dict, pack, unpack)

    def fixed_tuple(self, arguments: tuple[object, ...]) -> Converter:
        parts = [(f"[{json.dumps(f'f{i}')}]", self.converter(a)) for i, a in enumerate(arguments)]

        def pack(x: str) -> str:
            pairs = [f"{key[1:-1]}: {p.packed(f'{x}[{i}]')}" for i, (key, p) in enumerate(parts)]
            return f"{{{', '.join(pairs)}}}"

        def unpack(x: str) -> str:
            return f"({', '.join(part.unpacked(x + key) for key, part in parts)},)"

        return Converter(dict, pack, unpack)

    def container(self, origin: Any, argument: object) -> Converter:
        item, variable, made = (
            self.converter(argument),
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
            return super().mapping(key_of, value_of)
        key, value, e = self.converter(key_of), self.converter(value_of), self.variable()
        k, v = f"{e}[0]", f"{e}[1]"
        entry = f'{{"key": {key.packed(k)}, "value": {value.packed(v)}}}'
        k, v = f'{e}["key"]', f'{e}["value"]'
        return Converter(
            list,
            lambda x: f"[{entry} for {e} in {x}.items()]",
            lambda x: f"{{{key.unpacked(k)}: {value.unpacked(v)} for {e} in {x}}}",
        )

    def branches(self, branches: list[object]) -> Converter:
        """Return the converter of a union; a record is written and read as (name, fields).

        PipelineError if Avro cannot tell the branches apart.
        """
        if all(branch in _PLAIN for branch in branches):
            return Converter(object)
        if self._from_file or any(not fields_of(branch) for branch in branches):
            told = " | ".join(type_name(branch) for branch in branches)
            raise PipelineError(
                f"Avro cannot tell {told} apart; make every branch a record class of its own, and "
                "let the schema be derived from the type."
            )
        inner = [_AvroConverterGenerator(from_file=False) for _ in branches]
        generator = [made.converter(branch) for made, branch in zip(inner, branches, strict=True)]
        names = [type_info(branch).avro["name"] for branch in branches]
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

        packer, unpacker = self.name(pack), self.name(unpack)
        return Converter(object, lambda x: f"{packer}({x})", lambda x: f"{unpacker}({x})")


def _decimal(text: str, _writer: AvroSchema, _reader: AvroSchema) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:
        raise ValueError(f"{text!r} is not a decimal") from None


def _aware(moment: datetime) -> datetime:
    if moment.tzinfo is None:
        raise ValueError(f"{moment!r} has no time zone; which instant is it?")
    return moment


def _checked(value: object, of: type) -> object:
    """Return a value whose class is not exactly `of`; TypeError if it does not count as `of`."""
    if not counts_as(type(value), of):
        raise TypeError(f"{value!r} is {article(type(value).__name__)}, not {article(of.__name__)}")
    return value


def _to_json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


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
