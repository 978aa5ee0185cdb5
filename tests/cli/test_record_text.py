"""Records as text: what is read can be written again, and nothing in a record moves the cursor."""

from __future__ import annotations

import io
import json
from pathlib import Path

import fastavro
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.cli.kafka import record_text as text
from tidegate.errors import ConfigError

SCHEMA = {"type": "record", "name": "Order", "fields": [{"name": "amount", "type": "long"}]}


class Record:
    """A record as the client returns it."""

    def __init__(
        self,
        value: bytes | None,
        key: bytes | None = None,
        headers: list[tuple[str, bytes | None]] | None = None,
        time: tuple[int, int] = (1, 1_795_802_773_322),
    ) -> None:
        self._value, self._key, self._headers, self.time = value, key, headers, time

    def value(self) -> bytes | None:
        return self._value

    def key(self) -> bytes | None:
        return self._key

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return self._headers

    def offset(self) -> int:
        return 12

    def timestamp(self) -> tuple[int, int]:
        return self.time


def shown(record: Record, value: text.Decoder = text.auto_value) -> text.RecordRow:
    return text.row_of("orders", 3, record, text.auto_key, value)


def written_again(row: text.RecordRow) -> tuple[bytes | None, bytes | None, object]:
    given_again = text.given_record(text.row_json(row))
    return (
        text.given_bytes(given_again.key, given_again.key_base64, "key"),
        text.given_bytes(given_again.value, given_again.value_base64, "value"),
        text.given_headers(given_again.headers),
    )


BYTES = st.none() | st.binary() | st.text().map(str.encode) | st.sampled_from([b"null", b'"a"'])


@given(BYTES, BYTES, st.lists(st.tuples(st.text(), BYTES)))
def test_record_that_is_not_json_is_written_again_with_the_same_bytes(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]]
) -> None:
    if value is not None and value[:1] not in (b'"', b"n"):
        try:
            json.loads(value)
            value = b"text " + value.decode().encode()  # JSON loses its white space
        except ValueError:
            pass
    if key is not None:
        key = b"k" + key
    assert written_again(shown(Record(value, key, headers))) == (key, value, headers)


@pytest.mark.parametrize("value", [b'{"a":1.50,"b":12345678901234567890123}', b"[1e400]", b"007"])
def test_numbers_keep_their_digits(value: bytes) -> None:
    assert written_again(shown(Record(value)))[1] == value


def test_json_of_a_value_is_on_one_line_and_a_number_is_text_as_a_key() -> None:
    row = shown(Record(b'{\n  "a": [1, 2]\n}', b"5"))
    assert json.loads(text.row_json(row))["value"] == {"a": [1, 2]}
    assert text.row_text(row) == '3:12  2026-11-27 18:06:13.322Z  5  {"a":[1,2]}'
    assert json.loads(text.row_json(row))["key"] == "5"


def test_any_timestamp_of_a_topic_is_shown() -> None:
    micros = text.row_text(shown(Record(b"us", time=(1, 1_764_448_000_000_000))))
    assert micros == "3:12  1764448000000000 ms  -  us"
    assert text.row_text(shown(Record(b"old", time=(0, -1)))) == "3:12  no timestamp  -  old"


def test_characters_that_control_a_terminal_are_escaped() -> None:
    line = text.row_text(shown(Record(b"a\x1b[31m\nb", b"k\x9b", [("h\x07", b"v\r")])))
    assert "\\x1b[31m\\nb" in line
    assert line.isprintable()


def test_tombstone_binary_value_and_headers_are_shown() -> None:
    row = shown(Record(None, b"\xff", [("trace", b"abc"), ("raw", b"\xfe"), ("none", None)]))
    assert text.row_text(row).split("  ")[2:] == [
        "base64:/w==",
        "(tombstone)",
        "trace=abc",
        "raw=base64:/g==",
        "none=",
    ]


def test_schema_file_may_begin_with_a_bom(tmp_path: Path) -> None:
    file = tmp_path / "order.avsc"
    file.write_text(json.dumps(SCHEMA), encoding="utf-8-sig")
    decode = text.format_decoder("avro", str(file), is_key=False, option="--value")
    assert decode(encoded(7)) == msgspec.Raw(b'{"amount":7}')


@pytest.fixture
def schema(tmp_path: Path) -> str:
    (tmp_path / "order.avsc").write_text(json.dumps(SCHEMA))
    return str(tmp_path / "order.avsc")


def encoded(amount: int) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(SCHEMA), {"amount": amount})
    return out.getvalue()


def test_avro_is_shown_as_its_value_with_and_without_the_header_of_confluent(schema: str) -> None:
    plain = text.format_decoder("avro", schema, is_key=False, option="--value")
    framed = text.format_decoder("confluent-avro", schema, is_key=False, option="--value")
    assert plain(encoded(7)) == framed(b"\0\0\0\0\x05" + encoded(7)) == msgspec.Raw(b'{"amount":7}')


def test_record_of_another_format_is_in_base64_with_the_reason(schema: str) -> None:
    plain = text.format_decoder("avro", schema, is_key=False, option="--value")
    framed = text.format_decoder("confluent-avro", schema, is_key=False, option="--value")
    row = shown(Record(b"\0\0\0\0\x05" + encoded(7)), plain)
    assert row.value_base64 == "AAAAAAUO"
    assert "try confluent-avro" in str(row.error)
    assert "without the header" in str(shown(Record(encoded(7)), framed).error)
    as_json = text.format_decoder("json", None, is_key=False, option="--value")
    assert "value is not JSON" in str(shown(Record(b"{"), as_json).error)


@pytest.mark.parametrize(
    ("name", "schema", "said"),
    [
        ("protobuf", None, "Choose one of"),
        ("avro", None, "--value-schema FILE.avsc"),
        ("json", "order.avsc", "--value-schema is for Avro"),
    ],
)
def test_wrong_format_is_refused_with_the_remedy(name: str, schema: str | None, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        text.format_decoder(name, schema, is_key=False, option="--value")


@pytest.mark.parametrize(
    "line",
    [b"5", b"{", b'{"value_base64": "?"}', b'{"headers": [["a", 5]]}', b'{"partition": "x"}'],
)
def test_line_that_is_not_a_record_is_refused(line: bytes) -> None:
    def read() -> None:
        record = text.given_record(line)
        text.given_bytes(record.value, record.value_base64, "value")
        text.given_headers(record.headers)

    with pytest.raises(text.Undecodable):
        read()
