"""Records as text: what `tidegate kafka read` and `tidegate dev` print, and what
`tidegate kafka produce` reads.

One JSON object per record has the same keys in both directions, so `read --json` of one topic can
be written to another with `produce --records`. A value that is a JSON object, array, number or
boolean appears as it is, and its bytes do not change except for white space. Other bytes are text,
or `value_base64` if they are not UTF-8. A key is text unless it is an object or an array.

This module reads no topic and prints nothing.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import fastavro
import msgspec

from tidegate.api.records.avro_file import find_schema_file
from tidegate.api.records.finite import json_of_any
from tidegate.api.records.formats import Format, Json, Raw
from tidegate.errors import ConfigError, PipelineError
from tidegate.message_text import utc_text

FORMATS: Final = ("auto", "json", "text", "hex", "avro", "confluent-avro")
"""Names of the formats of keys and values."""
CONFLUENT_HEADER_BYTES: Final = 5
"""The header of Confluent's wire format: a zero byte and the four bytes of the schema's id."""

Shown = msgspec.Raw | str
"""JSON as it stands in the record, or text."""


class Undecodable(ValueError):
    """Bytes that are not of the format."""


class RecordRow(msgspec.Struct, frozen=True, kw_only=True):
    """A record as one JSON object. UNSET fields are left out."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: msgspec.Raw | str | msgspec.UnsetType | None = msgspec.UNSET
    key_base64: str | msgspec.UnsetType = msgspec.UNSET
    value: msgspec.Raw | str | msgspec.UnsetType | None = msgspec.UNSET
    value_base64: str | msgspec.UnsetType = msgspec.UNSET
    headers: list[tuple[str, Any]] = msgspec.field(default_factory=list)
    error: str | msgspec.UnsetType = msgspec.UNSET
    """The reason why the key or the value cannot be decoded."""


class GivenRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A record that a user gives as a JSON object. Other fields, such as an offset, are ignored."""

    key: msgspec.Raw = msgspec.Raw(b"null")
    key_base64: str | None = None
    value: msgspec.Raw = msgspec.Raw(b"null")
    value_base64: str | None = None
    headers: list[tuple[str, Any]] | dict[str, Any] = msgspec.field(default_factory=list)
    partition: int | None = None
    timestamp_ms: int = 0


Decoder = Callable[[bytes], Shown]


def auto_value(data: bytes) -> Shown:
    """Return the JSON in a record's value, or its text. Undecodable if it is neither."""
    if data[:1] not in (b'"', b"n"):  # a JSON text or null would read as the text itself
        try:
            return _compact(data)
        except Undecodable:
            pass
    return as_text(data)


def auto_key(data: bytes) -> Shown:
    """Return the JSON object or array in a record's key, or its text."""
    return auto_value(data) if data[:1] in (b"{", b"[") else as_text(data)


def as_text(data: bytes) -> str:
    """Return the text of UTF-8 bytes. Undecodable for other bytes."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise Undecodable(f"not UTF-8 at byte {error.start}") from None


def _compact(data: bytes) -> msgspec.Raw:
    try:
        msgspec.json.decode(data, type=msgspec.Raw)
        return msgspec.Raw(msgspec.json.format(data, indent=-1))
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Undecodable(f"not JSON: {error}") from None


def format_decoder(name: str, schema: str | None, *, is_key: bool, option: str) -> Decoder:
    """Return the decoder of a format in `FORMATS`. ConfigError for an unknown format, or for an
    Avro format without a schema file.
    """
    if name not in FORMATS:
        raise ConfigError(f"{option} {name!r} is unknown. Choose one of {', '.join(FORMATS)}.")
    if name in ("avro", "confluent-avro"):
        if schema is None:
            raise ConfigError(
                f"{option} {name} needs the writer's schema: {option}-schema FILE.avsc. To use the "
                "formats of a pipeline, give --pipeline MODULE:CLASS instead."
            )
        return _avro(schema, confluent=name == "confluent-avro")
    if schema is not None:
        raise ConfigError(
            f"{option}-schema is for Avro. Give {option} avro, or {option} confluent-avro for "
            "records with the header of Confluent's wire format."
        )
    if name == "auto":
        return auto_key if is_key else auto_value
    decoders: dict[str, Decoder] = {"json": _compact, "text": as_text, "hex": bytes.hex}
    return decoders[name]


def _avro(file: str, *, confluent: bool) -> Decoder:
    path = find_schema_file(file)
    try:
        schema = fastavro.parse_schema(json.loads(Path(path).read_text(encoding="utf-8-sig")))
    except (ValueError, fastavro.schema.SchemaParseException, fastavro.schema.UnknownType) as error:
        raise ConfigError(f"Avro schema file {file} is no schema: {error!r}") from None

    def decode(data: bytes) -> msgspec.Raw:
        rest = io.BytesIO(data)
        if confluent:
            header = rest.read(CONFLUENT_HEADER_BYTES)
            if len(header) < CONFLUENT_HEADER_BYTES or header[0] != 0:
                raise Undecodable("without the header of Confluent's wire format; try avro")
        try:
            value = fastavro.schemaless_reader(rest, schema, None)
        except Exception as error:  # noqa: BLE001  # fastavro raises what its parsers meet
            raise Undecodable(f"not Avro of {file}: {error!r}{_hint(data, confluent)}") from None
        if rest.read(1):
            raise Undecodable(f"longer than Avro of {file}{_hint(data, confluent)}")
        return as_json(value)

    return decode


def _hint(data: bytes, confluent: bool) -> str:
    if confluent or data[:1] != b"\0":
        return ""
    return "; the first byte is that of Confluent's wire format: try confluent-avro"


def format_of_pipeline(declared: Format[Any], auto: Decoder) -> Decoder:
    """Return a decoder that shows values of a pipeline's format as JSON. `auto` is for bytes, which
    are shown as if no format was given.
    """
    if isinstance(declared, Raw):
        return auto
    decode: Callable[[bytes], object] = declared.decoder()
    encode = _json_encoder(declared)

    def decoder(data: bytes) -> Shown:
        try:
            value = decode(data)
        except Exception as error:  # noqa: BLE001  # a format raises what its library raises
            raise Undecodable(f"not {type(declared).__name__} of the pipeline: {error}") from None
        if isinstance(value, str):
            return value
        try:
            return msgspec.Raw(encode(value))
        except ValueError:  # NaN in a record of Avro, which JSON cannot write
            return as_json(value)

    return decoder


def _json_encoder(declared: Format[Any]) -> Callable[[Any], bytes]:
    try:
        return Json(declared.value_type).encoder()
    except PipelineError:  # JSON has no form for the type, so it gets an approximate one
        return lambda value: bytes(as_json(value))


def as_json(value: object) -> msgspec.Raw:
    """Return a decoded value as JSON: a Decimal, a time and NaN as text, bytes in base64."""
    return msgspec.Raw(json_of_any(value, str))


def row_of(
    topic: str,
    partition: int,
    message: Any,
    key_decoder: Decoder,
    value_decoder: Decoder,
) -> RecordRow:
    """Return a record as it is printed. What cannot be decoded is in base64, with the error."""
    key, key_base64, key_error = _shown(message.key(), key_decoder)
    value, value_base64, value_error = _shown(message.value(), value_decoder)
    errors = [
        f"{what} is {why}" for what, why in (("key", key_error), ("value", value_error)) if why
    ]
    return RecordRow(
        topic=topic,
        partition=partition,
        offset=message.offset(),
        timestamp_ms=message.timestamp()[1],
        key=key,
        key_base64=key_base64,
        value=value,
        value_base64=value_base64,
        headers=[(name, _header(data)) for name, data in message.headers() or ()],
        error="; ".join(errors) or msgspec.UNSET,
    )


def _shown(
    data: bytes | None, decoder: Decoder
) -> tuple[Shown | msgspec.UnsetType | None, str | msgspec.UnsetType, str]:
    if data is None:
        return None, msgspec.UNSET, ""
    try:
        return decoder(data), msgspec.UNSET, ""
    except ValueError as error:
        # Bytes that are not text are no mistake if the user has named no format.
        why = "" if decoder in (auto_key, auto_value) else str(error)
        return msgspec.UNSET, base64.b64encode(data).decode(), why


def _header(data: bytes | None) -> Any:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def row_json(row: RecordRow) -> bytes:
    """Return the JSON line of a record, without the end of the line."""
    return msgspec.json.encode(row)


def row_text(row: RecordRow) -> str:
    """Return the line of a record for people: partition, offset, time, key, value and headers."""
    time = "no timestamp"
    if row.timestamp_ms >= 0:
        time = utc_text(row.timestamp_ms, zone="Z", with_ms=True)
    parts = [
        f"{row.partition}:{row.offset}",
        time,
        printable(text_of(row.key, row.key_base64, none="-")),
        printable(text_of(row.value, row.value_base64, none="(tombstone)")),
    ]
    parts += [printable(f"{name}={_header_text(value)}") for name, value in row.headers]
    if row.error is not msgspec.UNSET:
        parts.append(f"({row.error})")
    return "  ".join(parts)


def text_of(
    shown: Shown | msgspec.UnsetType | None, encoded: str | msgspec.UnsetType, *, none: str
) -> str:
    """Return a key or a value as text. `none` is the text for a missing one."""
    if shown is None:
        return none
    if isinstance(shown, msgspec.Raw):
        return bytes(shown).decode()
    return f"base64:{encoded}" if isinstance(shown, msgspec.UnsetType) else shown


def data_text(data: bytes | None, decoder: Decoder, *, none: str) -> str:
    """Return a key or a value as text on one line, with the reason if it cannot be decoded."""
    shown, encoded, error = _shown(data, decoder)
    text = printable(text_of(shown, encoded, none=none))
    return f"{text} ({error})" if error else text


def _header_text(value: Any) -> str:
    if isinstance(value, dict):
        return f"base64:{value['base64']}"
    return "" if value is None else value


def printable(text: str) -> str:
    """Return the text on one line, with an escape for each character that could move the cursor or
    change the terminal: records come from other people.
    """
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )


def given_record(line: bytes) -> GivenRecord:
    """Return the record of a JSON line. Undecodable if it is not such an object."""
    try:
        return msgspec.json.decode(line, type=GivenRecord)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        why = f"not a record as `tidegate kafka read --json` prints it: {error}"
        raise Undecodable(why) from None


def given_bytes(raw: msgspec.Raw, encoded: str | None, field: str) -> bytes | None:
    """Return the bytes of a key or value: those of a text, or the JSON itself. None for null."""
    if encoded is not None:
        return _from_base64(encoded, f"{field}_base64")
    text = bytes(raw).strip()
    if text == b"null":
        return None
    if text[:1] == b'"':
        return msgspec.json.decode(text, type=str).encode()
    return text


def given_headers(
    headers: list[tuple[str, Any]] | dict[str, Any],
) -> list[tuple[str, bytes | None]]:
    """Return the headers of a record. Undecodable for a value that is neither text nor base64."""
    pairs = headers.items() if isinstance(headers, dict) else headers
    found: list[tuple[str, bytes | None]] = []
    for name, value in pairs:
        if value is None:
            found.append((name, None))
        elif isinstance(value, str):
            found.append((name, value.encode()))
        elif isinstance(value, dict) and isinstance(value.get("base64"), str):
            found.append((name, _from_base64(value["base64"], f"header {name}")))
        else:
            raise Undecodable(f'header {name!r} is neither text nor {{"base64": "..."}}')
    return found


def _from_base64(text: str, field: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise Undecodable(f"{field} is not base64: {error}") from None
