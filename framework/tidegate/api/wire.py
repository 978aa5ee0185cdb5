"""Codecs of values of a declared type, for the exchange between slots and for state.

A record is a msgpack array of its fields. `value_codec` is for one value. `column_codec` is for a
batch of one type: a list, or for records one column per field. `state_codec` is for one value that
may have been written under an older schema. The exchange and the state backends of the data plane
make a codec once and call it for each value or batch. State holds ints of any size, the exchange
only ints of 64 bits (`big_ints.py`).

Pickle is never used, and field names are never written. A Decimal is a string. A datetime is a
timestamp that is read back in UTC. An enum's member is its name. A value of a union of several
types is the pair of branch number and value.

Layout of a stored value: its schema's number as LEB128, then msgpack.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import msgspec

from tidegate.api.big_ints import (
    dict_or_pairs,
    entries_of,
    int_converter,
    pack_int,
    pairs_converter,
    unpack_int,
)
from tidegate.api.converters import (
    Converter,
    ConverterGenerator,
    branch_of,
    generic,
    read,
    record_constructor,
    takes_positions,
)
from tidegate.api.record_fields import RecordField, fields_of
from tidegate.api.resolving import resolver
from tidegate.api.types import AvroSchema, type_info
from tidegate.errors import CorruptCheckpointError


@dataclass(frozen=True, slots=True)
class Codec:
    """The functions that encode and decode; `source` is their generated source, for display.

    A decoded value keeps no reference to the buffer: strings and bytes are copied out of it.
    """

    encode: Callable[[Any], bytes]
    decode: Callable[[bytes | memoryview], Any]
    source: str = ""


class WrongColumnError(ValueError):
    """A value in an undamaged column is not of the column's type.

    The sender encoded the value that its user code had put there. `row` is the value's index, or
    None if it is not known. `field` is its wrong field, or empty if it is not known.
    """

    def __init__(self, said: str, fields: tuple[RecordField, ...]) -> None:
        super().__init__(said.partition(" - at ")[0])
        steps = [int(step) for step in _STEP.findall(said)]
        self.field = fields[steps[0]].name if fields and steps else ""
        own = steps[1:] if fields else steps
        self.row = own[0] if own else None


_STEP: Final = re.compile(r"\[(\d+)\]")


@dataclass(frozen=True, slots=True)
class StateCodec:
    """A codec of stored values. It decodes bytes only, and no memoryview."""

    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
    source: str


def value_codec(of: object) -> Codec:
    """Return the codec of one value; PipelineError if the type has no schema."""
    type_info(of)
    return _value_codec(of, _WireConverterGenerator)


def column_codec(of: object) -> Codec:
    """Return the codec of a list of values; PipelineError if the type has no schema.

    Its decoder raises WrongColumnError if a value is not of the type.
    """
    type_info(of)
    generator = _WireConverterGenerator()
    fields = fields_of(of) or ()
    converter = _columns(generator, of, fields) if fields else generator.container(list, of)
    codec = _codec(generator, converter, "values")
    decode_column = codec.decode

    def decode(data: bytes | memoryview) -> Any:
        try:
            return decode_column(data)
        except msgspec.ValidationError as error:
            raise WrongColumnError(str(error), fields) from error

    return Codec(codec.encode, decode, codec.source)


def state_codec(of: object, number: int, written: Mapping[int, AvroSchema]) -> StateCodec:
    """Return the codec of a stored value.

    It writes under schema `number`, and reads under that schema or any of `written` (numbers to
    Avro schemas, from the manifest). PipelineError if one of these cannot be read as the type.
    """
    type_info(of)
    generator = _WireConverterGenerator()
    prefix = _leb128(number)

    @lru_cache(maxsize=1)
    def big() -> Codec:  # made for the first such value, which rarely exists
        return _value_codec(of, _BigIntConverterGenerator)

    def encode_big(value: Any) -> bytes:
        return prefix + big().encode(value)

    inner = _codec(generator, generator.converter(of), "value", prefix, encode_big)
    decode_value, skip = inner.decode, len(prefix)
    first_byte = number if skip == 1 else -1  # comparing one byte is faster, if that is enough
    older = {
        _leb128(other): resolver(schema, of) for other, schema in written.items() if other != number
    }

    def decode(data: bytes) -> Any:
        if data[0] == first_byte or data.startswith(prefix):
            try:
                return decode_value(data[skip:])
            except msgspec.ValidationError as error:
                try:
                    return big().decode(data[skip:])
                except Exception:  # noqa: BLE001  # the bytes are not a value of the type
                    raise error from None
        for their_prefix, resolve in older.items():
            if data.startswith(their_prefix):
                return resolve(data[len(their_prefix) :])
        raise CorruptCheckpointError(
            f"A stored value begins with {data[:3].hex()!r}, a schema number that the manifest "
            "does not list; the checkpoint's files and its manifest do not belong together."
        )

    return StateCodec(inner.encode, decode, inner.source)


class _WireConverterGenerator(ConverterGenerator):
    """Converters to the values that msgspec takes: records are tuples, plain types stay."""

    def record(self, of: object, fields: tuple[RecordField, ...]) -> Converter:
        parts = [self.converter(field.type) for field in fields]
        if parts and _is_array(of) and all(part.plain for part in parts):
            return Converter(of)  # msgspec's own form of the record is the same array
        if not parts:
            return Converter(list[Any], lambda _: "()", lambda _: self.made(of, fields, []))
        pairs = list(zip(fields, parts, strict=True))
        return Converter(
            generic(tuple, *(part.wire for part in parts)),
            lambda x: f"({', '.join(p.packed(read(of, x, f)) for f, p in pairs)},)",
            lambda x: self.made(of, fields, [p.unpacked(f"{x}[{i}]") for i, p in enumerate(parts)]),
        )

    def branches(self, branches: list[object]) -> Converter:
        kind = type(self)
        codecs = [_value_codec(branch, kind) for branch in branches]
        generator = [kind() for _ in branches]
        packs = [
            inner.define("pack", "x", inner.converter(branch).packed("x"))[0]
            for inner, branch in zip(generator, branches, strict=True)
        ]
        which = branch_of(branches)

        def pack(value: Any) -> tuple[int, Any]:
            branch = which(value)
            return branch, packs[branch](value)

        # Raw is a view of the buffer that is being decoded, and is used only during this call.
        def unpack(pair: tuple[int, msgspec.Raw]) -> Any:
            try:
                return codecs[pair[0]].decode(pair[1])
            except msgspec.ValidationError as error:  # its path starts here, not at the column
                raise msgspec.ValidationError(str(error).partition(" - at ")[0]) from error

        packer, unpacker = self.name(pack), self.name(unpack)
        return Converter(
            tuple[int, msgspec.Raw], lambda x: f"{packer}({x})", lambda x: f"{unpacker}({x})"
        )


class _BigIntConverterGenerator(_WireConverterGenerator):
    """The same converters, with ints of any size (`big_ints.py`)."""

    def scalar(self, of: object) -> Converter:
        if of is not int:
            return super().scalar(of)
        return int_converter(self.name(pack_int), self.name(unpack_int))

    def mapping(self, key_of: object, value_of: object) -> Converter:
        if key_of is not int:
            return super().mapping(key_of, value_of)
        key, value = self.converter(key_of), self.converter(value_of)
        functions = self.name(dict_or_pairs), self.name(entries_of)
        return pairs_converter(key, value, (*functions, self.variable(), self.variable()))


def _is_array(of: object) -> bool:
    """Check whether msgspec encodes a record of this class as the array of its fields."""
    if not (isinstance(of, type) and issubclass(of, msgspec.Struct)):
        return False
    config = of.__struct_config__
    return config.array_like and config.tag is None


def _value_codec(of: object, kind: type[_WireConverterGenerator]) -> Codec:
    generator = kind()
    return _codec(generator, generator.converter(of), "value")


def _codec(
    generator: _WireConverterGenerator,
    converter: Converter,
    argument: str,
    prefix: bytes = b"",
    on_overflow: Callable[[Any], bytes] | None = None,
) -> Codec:
    """Return the codec of a converter.

    The encoder writes `prefix` first. It does so in the same function, because a call costs half as
    much as encoding a small value. The decoder needs bytes without the prefix. A value with an int
    beyond 64 bits is passed to `on_overflow`.
    """
    encode, decode = (
        msgspec.msgpack.Encoder().encode,
        msgspec.msgpack.Decoder(converter.wire).decode,
    )
    to_bytes, front = generator.name(encode), f"{prefix!r} + " if prefix else ""
    if converter.plain and not prefix:
        return Codec(encode, decode)
    otherwise = None if on_overflow is None else generator.name(on_overflow)
    encoder, of_encoder = generator.define(
        "encode", argument, f"{front}{to_bytes}({converter.packed(argument)})", otherwise
    )
    if converter.plain:
        return Codec(encoder, decode, of_encoder)
    from_bytes = generator.name(decode)
    convert, of_plain = generator.define("convert", "plain", converter.unpacked("plain"))
    call = generator.name(convert)
    decoder, of_decoder = generator.define("decode", "data", f"{call}({from_bytes}(data))")
    return Codec(encoder, decoder, of_encoder + of_plain + of_decoder)


def _columns(
    generator: _WireConverterGenerator, of: object, fields: tuple[RecordField, ...]
) -> Converter:
    """Return the converter of a list of records to one list for each field."""
    parts = [generator.converter(field.type) for field in fields]
    pairs = list(zip(fields, parts, strict=True))

    def pack(x: str) -> str:
        columns = [f"[{part.packed(read(of, 'r', field))} for r in {x}]" for field, part in pairs]
        return f"({', '.join(columns)},)"

    def unpack(x: str) -> str:
        columns = [
            f"{x}[{i}]" if part.unpack is None else f"[{part.unpacked('c')} for c in {x}[{i}]]"
            for i, part in enumerate(parts)
        ]
        if takes_positions(of):
            return f"list(map({generator.name(record_constructor(of))}, {', '.join(columns)}))"
        names = [f"c{i}" for i in range(len(parts))]
        zipped = f"zip({', '.join(columns)}, strict=True)"
        return f"[{generator.made(of, fields, names)} for {', '.join(names)}, in {zipped}]"

    wire = generic(tuple, *(generic(list, part.wire) for part in parts))
    return Converter(wire, pack, unpack)


def _leb128(number: int) -> bytes:
    data = bytearray()
    while number > 0x7F:  # noqa: PLR2004 - seven bits a byte, the eighth says that more follow
        data.append(number & 0x7F | 0x80)
        number >>= 7
    data.append(number)
    return bytes(data)
