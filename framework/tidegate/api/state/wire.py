"""Codecs of values of a declared type, for the exchange between slots and for state.

A record is a msgpack array of its fields, and of what it has in addition
(`api/records/record_objects.py`). `value_codec` is for one value. `column_codec` is for a batch of
one type: a list, or for records one column per field. `state_codec` is for one value that may have
been written under an older schema. The exchange and the state backends of the data plane make a
codec once and call it for each value or batch.

A value is read back exactly as it was, or it is refused. Most values have the narrow form, which
msgspec reads without help. Ints beyond 64 bits (`api/records/big_ints.py`), datetimes in other
zones than UTC (`api/records/moments.py`) and tuples in a Sequence have a wide form, which contains
extensions of msgpack. The narrow decoder refuses it, and the wide one then reads it.

Pickle is never used, and names of fields are never written. A Decimal is a string. An enum's member
is its name. A value of a union of several types is the pair of branch number and value. A value of
`Any` says itself what it is (`api/records/free_values.py`).

Layout of a stored value: its schema's number as LEB128, then msgpack.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import Any, Final, get_args

import msgspec
from typing_extensions import is_typeddict

from tidegate.api.records.big_ints import (
    dict_or_pairs,
    entries_of,
    int_converter,
    pack_int,
    pairs_converter,
    unpack_int,
)
from tidegate.api.records.converters import (
    Converter,
    ConverterGenerator,
    branch_of,
    generic,
    read,
)
from tidegate.api.records.free_values import TUPLE, pack_free, read_extension
from tidegate.api.records.moments import as_moment, pack_key, pack_moment
from tidegate.api.records.record_fields import (
    RecordField,
    fields_of,
    plain_type,
    record_class,
    takes_positions,
)
from tidegate.api.records.record_objects import Shape, shape_of
from tidegate.api.records.types import AvroSchema, type_info
from tidegate.api.records.values import article
from tidegate.api.state.resolving import resolver
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
    generator = _WireConverterGenerator()
    of = plain_type(of)
    wide = _wide_value_codec(of)
    encode_wide = _encode_wide(wide)
    narrow = _codec(generator, generator.converter(of), "value", on_overflow=encode_wide)
    return Codec(narrow.encode, _decode_either(narrow.decode, wide), narrow.source)


def column_codec(of: object) -> Codec:
    """Return the codec of a list of values; PipelineError if the type has no schema.

    Its decoder raises WrongColumnError if a value is not of the type.
    """
    type_info(of)
    of = plain_type(of)
    fields = fields_of(of) or ()
    generator = _WireConverterGenerator()

    @lru_cache(maxsize=1)
    def wide() -> Codec:
        wide_generator = _WideConverterGenerator()
        return _codec(wide_generator, _column(wide_generator, of, fields), "values")

    narrow = _codec(
        generator, _column(generator, of, fields), "values", on_overflow=_encode_wide(wide)
    )
    decode_column = _decode_either(narrow.decode, wide)

    def decode(data: bytes | memoryview) -> Any:
        try:
            return decode_column(data)
        except msgspec.ValidationError as error:
            raise WrongColumnError(str(error), fields) from error

    return Codec(narrow.encode, decode, narrow.source)


def state_codec(of: object, number: int, written: Mapping[int, AvroSchema]) -> StateCodec:
    """Return the codec of a stored value.

    It writes under schema `number`, and reads under that schema or any of `written` (numbers to
    Avro schemas, from the manifest). PipelineError if one of these cannot be read as the type.
    """
    type_info(of)
    generator = _WireConverterGenerator()
    prefix = _leb128(number)
    wide = _wide_value_codec(of)
    encode_wide = _encode_wide(wide, prefix)
    inner = _codec(generator, generator.converter(of), "value", prefix, encode_wide)
    decode_narrow, decode_value = inner.decode, _decode_either(inner.decode, wide)
    skip, finds_wide = len(prefix), False
    first_byte = number if skip == 1 else -1  # comparing one byte is faster, if that is enough
    older = {
        _leb128(other): resolver(schema, of, shape_of_stored)
        for other, schema in written.items()
        if other != number
    }

    def decode(data: bytes) -> Any:
        nonlocal finds_wide
        if data[0] == first_byte or data.startswith(prefix):
            if finds_wide:
                return decode_value(data[skip:])
            try:
                return decode_narrow(data[skip:])
            except msgspec.ValidationError:
                value = decode_value(data[skip:])
                finds_wide = True
                return value
        for their_prefix, resolve in older.items():
            if data.startswith(their_prefix):
                return resolve(data[len(their_prefix) :])
        raise CorruptCheckpointError(
            f"A stored value begins with {data[:3].hex()!r}, a schema number that the manifest "
            "does not list; the checkpoint's files and its manifest do not belong together."
        )

    return StateCodec(inner.encode, decode, inner.source)


def shape_of_stored(of: object, fields: tuple[RecordField, ...]) -> Shape:
    """Return the shape of a record class whose attributes are encoded as in state."""
    return shape_of(of, fields, _codec_of_attribute)


@lru_cache(maxsize=1024)
def _codec_of_attribute(of: object) -> Codec:
    return _value_codec(of, _WideConverterGenerator)


def _wide_value_codec(of: object) -> Callable[[], Codec]:
    """Return a function that makes the wide codec of a type once. Most types never need it."""
    return lru_cache(maxsize=1)(lambda: _value_codec(of, _WideConverterGenerator))


def _encode_wide(wide: Callable[[], Codec], prefix: bytes = b"") -> Callable[[Any], bytes]:
    return lambda value: prefix + wide().encode(value)


def _decode_either(
    narrow: Callable[[bytes | memoryview], Any], wide: Callable[[], Codec]
) -> Callable[[bytes | memoryview], Any]:
    """Return a decoder that reads both forms.

    The narrow decoder is faster and refuses the wide form. After the first value in the wide form,
    the wide decoder comes first, because a column or a state often has more of them.
    """
    found_wide = False

    def decode(data: bytes | memoryview) -> Any:
        nonlocal found_wide
        if not found_wide:
            try:
                return narrow(data)
            except msgspec.ValidationError as error:
                try:
                    value = wide().decode(data)
                except Exception:  # noqa: BLE001  # the bytes are not a value of the type
                    raise error from None
                found_wide = True
                return value
        try:
            return wide().decode(data)
        except msgspec.ValidationError:
            return narrow(data)  # it raises the error that a reader understands

    return decode


class _WireConverterGenerator(ConverterGenerator):
    """Converters to the values that msgspec takes: records are tuples, plain types stay.

    A value that needs the wide form is packed into an extension at once, except for ints. The
    decoder of this generator refuses extensions.
    """

    wide = False

    def scalar(self, of: object) -> Converter:
        if of is datetime:
            return self._moment(pack_moment)
        if of is float:  # an int counts as a float, and stays an int
            return Converter(float | int)
        if of is Any:
            pack = self.name(pack_free)
            return Converter(of, lambda x: f"{pack}({x})")
        return Converter(of)

    def _moment(self, pack_other: Callable[[Any], Any]) -> Converter:
        value, utc, pack = self.variable(), self.name(UTC), self.name(pack_other)
        bare = f"({value} := {{}}).tzinfo is {utc} and not {value}.fold"
        return Converter(datetime, lambda x: f"({value} if {bare.format(x)} else {pack}({value}))")

    def key_converter(self, of: object) -> Converter:
        """Return the converter of the keys of a dict. After an OverflowError the wide form is
        used, as for a big int.
        """
        return self._moment(pack_key) if of is datetime else self.converter(of)

    def container(self, origin: Any, argument: object) -> Converter:
        found = super().container(origin, argument)
        return self.sequence(found, argument) if origin is Sequence else found

    def sequence(self, items: Converter, argument: object) -> Converter:
        """Return the converter of a Sequence, which may be a tuple. `items` is that of a list."""
        value, pack = self.variable(), self.name(partial(_pack_tuple, self._list_codec(argument)))
        return Converter(
            items.wire,
            lambda x: (
                f"({items.packed(value)} if ({value} := {x}).__class__ is list "
                f"else {pack}({value}))"
            ),
            items.unpack,
        )

    @staticmethod
    def _list_codec(argument: object) -> Callable[[], Codec]:
        return _wide_value_codec(generic(list, argument))

    def record(self, of: object, fields: tuple[RecordField, ...]) -> Converter:
        parts = [self.converter(field.type) for field in fields]
        shape = shape_of_stored(of, fields)
        if shape.possible or self.wide:
            return self._with_rest(of, shape, list(zip(fields, parts, strict=True)))
        own = parts and _is_array(of) and all(part.plain for part in parts)
        if own and shape.calls_class and not _holds_float(of):
            return Converter(of)  # msgspec's own form of the record is the same array
        if not parts:
            return Converter(list[Any], lambda _: "()", lambda _: self.made(of, fields, []))
        pairs = list(zip(fields, parts, strict=True))
        return Converter(
            generic(tuple, *(part.wire for part in parts)),
            lambda x: f"({', '.join(p.packed(read(of, x, f)) for f, p in pairs)},)",
            lambda x: self.made(of, fields, [p.unpacked(f"{x}[{i}]") for i, p in enumerate(parts)]),
        )

    def _with_rest(
        self, of: object, shape: Shape, pairs: list[tuple[RecordField, Converter]]
    ) -> Converter:
        """Return the converter of a record that may have a rest, as the last item of its array."""
        # The wide decoder also reads the rest that another class has stored, before a change of it.
        rest_wire: Any = msgspec.Raw if self.wide else shape.wire | None | msgspec.UnsetType
        wire = msgspec.defstruct(
            "Stored",
            [(f"f{i}", part.wire) for i, (_, part) in enumerate(pairs)]
            + [("rest", rest_wire, msgspec.UNSET)],
            array_like=True,
        )
        rest = self.name(shape.rest)
        made = self.name(shape.record_of_raw if self.wide else shape.record)

        def pack(x: str) -> str:
            packed = [part.packed(read(of, x, field)) for field, part in pairs]
            if not shape.possible:
                return f"({', '.join(packed)},)" if packed else "()"
            if shape.always:
                return f"({', '.join([*packed, f'{rest}({x})'])},)"
            has_rest = shape.has_rest(x, self.name)
            return f"({', '.join([*packed, f'*(({rest}({x}),) if {has_rest} else ())'])},)"

        def unpack(x: str) -> str:
            values = [part.unpacked(f"{x}.f{i}") for i, (_, part) in enumerate(pairs)]
            return f"{made}({', '.join([f'{x}.rest', *values])})"

        return Converter(wire, pack, unpack)

    def made(self, of: object, fields: tuple[RecordField, ...], values: list[str]) -> str:
        """Return the source that makes a record without its initialisers."""
        shape = shape_of_stored(of, fields)
        if shape.calls_class or is_typeddict(shape.kind):
            return super().made(of, fields, values)
        return f"{self.name(shape.new)}({', '.join(values)})"

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


class _WideConverterGenerator(_WireConverterGenerator):
    """The same converters, which also take big ints, and all forms of datetimes and Sequences."""

    wide = True

    def scalar(self, of: object) -> Converter:
        if of is int or of is float:
            converter = int_converter(self.name(pack_int), self.name(unpack_int), self.variable())
            return converter if of is int else replace(converter, wire=converter.wire | float)
        if of is datetime:
            value, read_moment = self.variable(), self.name(as_moment)
            usual = f"({value} := {{}}).__class__ is {self.name(datetime)}"
            return Converter(
                datetime | msgspec.msgpack.Ext,
                super().scalar(of).pack,
                lambda x: f"({value} if {usual.format(x)} else {read_moment}({value}))",
            )
        return super().scalar(of)

    def sequence(self, items: Converter, argument: object) -> Converter:
        value = self.variable()
        unpack = self.name(partial(_unpack_tuple, self._list_codec(argument)))
        return Converter(
            items.wire | msgspec.msgpack.Ext,
            super().sequence(items, argument).pack,
            lambda x: (
                f"({items.unpacked(value)} if ({value} := {x}).__class__ is list "
                f"else {unpack}({value}))"
            ),
        )

    def mapping(self, key_of: object, value_of: object) -> Converter:
        if key_of not in (int, float, datetime):
            return super().mapping(key_of, value_of)
        plain_key = float | int if key_of is float else key_of
        key, value = self.converter(key_of), self.converter(value_of)
        names = self.name(dict_or_pairs), self.name(entries_of), self.variable(), self.variable()
        return pairs_converter(key, value, plain_key, names)


def _pack_tuple(codec: Callable[[], Codec], values: Any) -> Any:
    if type(values) is not tuple:
        raise TypeError(
            f"a Sequence is a list or a tuple here, not {article(type(values).__name__)}"
        )
    return msgspec.msgpack.Ext(TUPLE, codec().encode([*values]))


def _unpack_tuple(codec: Callable[[], Codec], plain: Any) -> Any:
    if not isinstance(plain, msgspec.msgpack.Ext) or plain.code != TUPLE:
        raise ValueError("an extension of another type is no Sequence")
    return tuple(codec().decode(bytes(plain.data)))


def _holds_float(of: object) -> bool:
    parts = [field.type for field in fields_of(of) or ()]
    return of is float or any(_holds_float(part) for part in (*parts, *get_args(of)))


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
        msgspec.msgpack.Decoder(converter.wire, ext_hook=read_extension).decode,
    )
    to_bytes, front = generator.name(encode), f"{prefix!r} + " if prefix else ""
    if converter.plain and not prefix and on_overflow is None:
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


def _column(
    generator: _WireConverterGenerator, of: object, fields: tuple[RecordField, ...]
) -> Converter:
    return _columns(generator, of, fields) if fields else generator.container(list, of)


def _columns(
    generator: _WireConverterGenerator, of: object, fields: tuple[RecordField, ...]
) -> Converter:
    """Return the converter of a list of records to one list for each field.

    If the records may have a rest, one more list has it, or None for each record without one.
    """
    parts = [generator.converter(field.type) for field in fields]
    pairs = list(zip(fields, parts, strict=True))
    shape = shape_of_stored(of, fields)
    wires = [part.wire for part in parts]
    if shape.possible:
        wires.append(shape.wire | None)

    def pack(x: str) -> str:
        columns = [f"[{part.packed(read(of, 'r', field))} for r in {x}]" for field, part in pairs]
        if shape.possible:
            rest, has_rest = generator.name(shape.rest), shape.has_rest("r", generator.name)
            given = f"{rest}(r)" if shape.always else f"{rest}(r) if {has_rest} else None"
            columns.append(f"[{given} for r in {x}]")
        return f"({', '.join(columns)},)"

    def unpack(x: str) -> str:
        columns = [
            f"{x}[{i}]" if part.unpack is None else f"[{part.unpacked('c')} for c in {x}[{i}]]"
            for i, part in enumerate(parts)
        ]
        if shape.possible:
            made = generator.name(shape.records)
            return f"{made}({x}[{len(parts)}], {', '.join(columns)})"
        if takes_positions(of) or not shape.calls_class:
            made = generator.name(record_class(of) if shape.calls_class else shape.new)
            return f"list(map({made}, {', '.join(columns)}))"
        # Python allows no `:=` in the iterable of a comprehension, so the values are unpacked here.
        names = [f"c{i}" for i in range(len(parts))]
        values = [part.unpacked(name) for part, name in zip(parts, names, strict=True)]
        zipped = f"zip({', '.join(f'{x}[{i}]' for i in range(len(parts)))}, strict=True)"
        return f"[{generator.made(of, fields, values)} for {', '.join(names)}, in {zipped}]"

    wire = generic(tuple, *(generic(list, wire) for wire in wires))
    return Converter(wire, pack, unpack)


def _leb128(number: int) -> bytes:
    data = bytearray()
    while number > 0x7F:  # noqa: PLR2004 - seven bits a byte, the eighth says that more follow
        data.append(number & 0x7F | 0x80)
        number >>= 7
    data.append(number)
    return bytes(data)
