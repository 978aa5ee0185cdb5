"""`tidegate kafka produce`: writes records from a file or standard input to a topic.

`drivers/kafka/record_producer` sends them, and `record_text` reads JSON lines. This module parses
the command and the lines. A record that Kafka refuses is an error that names its line.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, NamedTuple

import typer

from tidegate.cli.kafka.topic_options import Brokers, KafkaSettings, TopicArgument, kafka_settings
from tidegate.message_text import counted
from tidegate.terminal import options as o

if TYPE_CHECKING:
    from tidegate.drivers.kafka.record_producer import RecordProducer

INTERRUPTED = 130


class _Fixed(NamedTuple):
    """The parts of all records that the command line gives."""

    key: bytes | None
    separator: str | None
    headers: list[tuple[str, bytes | None]]
    partition: int | None


class _Record(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    partition: int | None
    timestamp_ms: int


File = Annotated[
    Path | None, typer.Argument(help="File with a record per line; else standard input.")
]
KeySeparator = Annotated[
    str | None,
    typer.Option(help="Text between key and value in each line. A line without it is refused."),
]
Headers = Annotated[
    list[str] | None,
    typer.Option("--header", "-H", help="A header of every record: NAME=VALUE. Repeatable."),
]
AsRecords = Annotated[
    bool,
    typer.Option(
        "--records", help="Each line is a JSON object, as `tidegate kafka read --json` prints."
    ),
]


def produce(
    topic: TopicArgument,
    file: File = None,
    key: Annotated[str | None, typer.Option(help="The key of every record.")] = None,
    key_separator: KeySeparator = None,
    header: Headers = None,
    partition: Annotated[
        int | None, typer.Option(min=0, help="The partition; else that of the key.")
    ] = None,
    records: AsRecords = False,
    kafka: Brokers = None,
    config: KafkaSettings = None,
    as_json: o.AsJson = False,
) -> None:
    """Write records to a topic, one per line.

    A line is the value: text, or JSON as it stands. With --records, a line is a JSON object with
    "value" or "value_base64", and optionally "key", "headers", "partition" and "timestamp_ms".
    A null value is a tombstone. The command ends when Kafka has acknowledged all records. A record
    that Kafka refuses is an error, which names the line. Exit code: 0 written, 1 a record was not
    written, 2 refused.

    Example: tidegate kafka produce orders orders.txt --key-separator : -H source=test
    """
    from tidegate.drivers.kafka.record_producer import RecordProducer
    from tidegate.drivers.kafka.topic_admin import KafkaTopicAdmin
    from tidegate.errors import ConfigError

    if records and key_separator is not None:
        raise ConfigError("--records and --key-separator exclude each other.")
    if key_separator == "" or (key is not None and key_separator is not None):
        raise ConfigError("Give either --key, or --key-separator with a text such as ':'.")
    headers = o.parse_pairs(header, "--header", "Example: --header trace=abc")
    fixed = _Fixed(
        None if key is None else key.encode(),
        key_separator,
        [(name, value.encode()) for name, value in headers.items()],
        partition,
    )
    settings = kafka_settings(kafka, config).client_settings()
    admin = KafkaTopicAdmin(settings)
    try:
        count = admin.partitions(topic)
        bytes_max = admin.max_message_bytes([topic]).get(topic)
    finally:
        admin.close()
    producer = RecordProducer(settings, topic, bytes_max)
    interrupted = False
    with _opened(file) as lines:
        try:
            _send_all(lines, producer, fixed, topic=topic, partitions=count, as_records=records)
        except KeyboardInterrupt:
            interrupted = True
    producer.finish()
    written = sum(producer.delivered.values())
    if as_json:
        print(json.dumps({"topic": topic, "records": written, "partitions": producer.delivered}))
    else:
        print(f"{topic}: {counted(written, 'record')} written", file=sys.stderr)
    if interrupted:
        raise typer.Exit(INTERRUPTED)


def _opened(file: Path | None) -> BinaryIO:
    from tidegate.errors import ConfigError

    if file is None or str(file) == "-":
        if sys.stdin.isatty():
            print("one record per line; Ctrl-D ends the input", file=sys.stderr)
        return sys.stdin.buffer
    try:
        return file.open("rb")
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}.") from None


def _send_all(
    lines: BinaryIO,
    producer: RecordProducer,
    fixed: _Fixed,
    *,
    topic: str,
    partitions: int,
    as_records: bool,
) -> None:
    """Send all records. Raise ConfigError for a line that is not a record, after the records before
    it are written.
    """
    from tidegate.drivers.kafka.record_producer import ANY_PARTITION
    from tidegate.errors import ConfigError

    for number, record in _numbered(lines, fixed, as_records=as_records):
        wrong = record if isinstance(record, str) else ""
        if not isinstance(record, str):
            if record.partition is not None and not 0 <= record.partition < partitions:
                wrong = (
                    f"topic {topic} has no partition {record.partition}: it has {partitions}, "
                    "numbered from 0"
                )
            else:
                producer.send(
                    number,
                    record.key,
                    record.value,
                    record.headers,
                    partition=ANY_PARTITION if record.partition is None else record.partition,
                    timestamp_ms=record.timestamp_ms,
                )
        if wrong:
            producer.finish()
            before = sum(producer.delivered.values())
            raise ConfigError(
                f"Line {number}: {wrong}. Kafka took {counted(before, 'record')} before it."
            )


def _numbered(
    lines: BinaryIO, fixed: _Fixed, *, as_records: bool
) -> Iterator[tuple[int, _Record | str]]:
    """Yield each record with the number of its line, or a text that says what is wrong with it."""
    for number, line in enumerate(lines, 1):
        content = line.removesuffix(b"\n").removesuffix(b"\r")
        if not as_records:
            yield number, _of_line(content, fixed)
        elif content.strip():
            yield number, _of_json(content, fixed)


def _of_line(content: bytes, fixed: _Fixed) -> _Record | str:
    key, value = fixed.key, content
    if fixed.separator is not None:
        key, found, value = content.partition(fixed.separator.encode())
        if not found:
            return f"it has no {fixed.separator!r} between key and value"
    return _Record(key, value, fixed.headers, fixed.partition, 0)


def _of_json(content: bytes, fixed: _Fixed) -> _Record | str:
    from tidegate.cli.kafka import record_text as text

    try:
        given = text.given_record(content)
        key = text.given_bytes(given.key, given.key_base64, "key")
        return _Record(
            key if fixed.key is None else fixed.key,
            text.given_bytes(given.value, given.value_base64, "value"),
            [*text.given_headers(given.headers), *fixed.headers],
            given.partition if fixed.partition is None else fixed.partition,
            given.timestamp_ms,
        )
    except text.Undecodable as error:
        return f"it is {error}" if str(error).startswith("not ") else str(error)
