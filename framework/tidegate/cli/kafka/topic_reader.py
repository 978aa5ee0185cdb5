"""The work of `tidegate kafka read` after its arguments are parsed: find offsets, read, print.

It is separate from `read.py`, so that help does not import what this module needs. It uses the
reader of jobs (`drivers/kafka/reader`), with its errors. It commits no offsets.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from tidegate.api.code.code import load_pipeline
from tidegate.api.connectors.kafka_names import kafka_nodes, topic_of
from tidegate.api.pipeline import build
from tidegate.api.records.formats import Format
from tidegate.cli.kafka import record_text as text
from tidegate.config import Config
from tidegate.config_load import load
from tidegate.drivers.kafka.reader import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    KafkaPartitionReader,
)
from tidegate.drivers.kafka.topic_admin import KafkaTopicAdmin
from tidegate.errors import ConfigError, RefusedError
from tidegate.message_text import counted
from tidegate.stream_elements import TopicPartition
from tidegate.terminal.options import parameters, parse_pairs

Layout = Literal["lines", "values", "json"]

GROUP: Final = "tidegate-kafka-read"
"""The consumer group that the client names. It commits nothing, so the group does not come into
being.
"""
POLL_S: Final = 0.5
POLL_RECORDS: Final = 500

_AGE_S: Final = {"s": 1, "min": 60, "h": 3_600, "d": 86_400}
_AGE: Final = re.compile(rf"(\d+)\s*({'|'.join(_AGE_S)})")


class Formats(NamedTuple):
    """The options that say how keys and values are decoded."""

    value: str
    value_schema: str | None
    key: str
    key_schema: str | None
    pipeline: str | None


def print_records(
    topic: str,
    formats: Formats,
    *,
    start: str | None,
    follow: bool,
    limit: int | None,
    partitions: list[int] | None,
    uncommitted: bool,
    layout: Layout,
    kafka: str | None,
    config: list[str] | None,
) -> int:
    """Print the records and return the exit code."""
    given = parse_pairs(config, "--config", "Example: -c kafka.properties.security.protocol=SSL")
    if kafka is not None:
        given["kafka.bootstrap_servers"] = kafka
    settings = load(environment=dict(os.environ), command_line=given)
    key_decoder, value_decoder = _decoders(formats, topic, settings)
    where = start or ("end" if follow else "beginning")
    client = settings.kafka.client_settings()
    admin = KafkaTopicAdmin(client)
    try:
        chosen = _chosen(topic, partitions, admin.partitions(topic))
        high_watermarks = admin.high_watermarks(chosen)
        ends = high_watermarks if uncommitted else admin.latest(chosen)
        positions = _positions(where, chosen, ends, admin)
    finally:
        admin.close()
    if not follow:
        hidden = sum(high_watermarks[each] - ends[each] for each in chosen)
        if hidden:
            print(
                f"{topic}: {counted(hidden, 'offset')} behind open transactions and not read. "
                f"--uncommitted reads them; `tidegate txn why-stuck {topic}` names the "
                "transactions.",
                file=sys.stderr,
            )
    run = _Run(key_decoder, value_decoder, layout, limit)
    unread = {each for each in chosen if follow or positions[each] < ends[each]}
    if unread:
        reader = KafkaPartitionReader(
            client,
            GROUP,
            with_end_of_partition=not follow,
            isolation_level=READ_UNCOMMITTED if uncommitted else READ_COMMITTED,
        )
        try:
            reader.assign({each: positions[each] for each in unread})
            run.read(reader, unread, None if follow else ends)
        except BrokenPipeError:  # the reader of the output, such as `head`, has ended
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        finally:
            reader.close()
    if run.undecodable:
        print(
            f"{topic}: {counted(run.undecodable, 'record')} could not be decoded; shown in base64",
            file=sys.stderr,
        )
    return 1 if run.undecodable else 0


class _Run:
    """The records that one command prints."""

    def __init__(
        self,
        key_decoder: text.Decoder,
        value_decoder: text.Decoder,
        layout: Layout,
        limit: int | None,
    ) -> None:
        self._key_decoder, self._value_decoder = key_decoder, value_decoder
        self._layout, self._limit = layout, limit
        self._printed = 0
        self.undecodable = 0

    def read(
        self,
        reader: KafkaPartitionReader,
        unread: set[TopicPartition],
        ends: dict[TopicPartition, int] | None,
    ) -> None:
        """Print records until all partitions are at their ends, or up to the limit. Without ends,
        continue for ever.
        """
        while unread:
            for batch in reader.poll(POLL_RECORDS, POLL_S):
                if batch.topic_partition not in unread:
                    continue
                end = None if ends is None else ends[batch.topic_partition]
                for message in batch.messages:
                    if end is not None and message.offset() >= end:
                        break
                    self._print(batch.topic_partition, message)
                    if self._printed == self._limit:
                        sys.stdout.flush()
                        return
                if end is not None and batch.position >= end:
                    unread.discard(batch.topic_partition)
                    reader.pause([batch.topic_partition])
            sys.stdout.flush()

    def _print(self, where: TopicPartition, message: Any) -> None:
        row = text.row_of(
            where.topic, where.partition, message, self._key_decoder, self._value_decoder
        )
        self._printed += 1
        self.undecodable += isinstance(row.error, str)
        match self._layout:
            case "json":
                line = text.row_json(row).decode()
            case "values":
                line = text.text_of(row.value, row.value_base64, none="")
                line = text.printable(line) if sys.stdout.isatty() else line
            case "lines":
                line = text.row_text(row)
        sys.stdout.write(line + "\n")


def _chosen(topic: str, partitions: list[int] | None, count: int) -> list[TopicPartition]:
    for number in partitions or ():
        if number >= count:
            raise RefusedError(
                f"Topic {topic!r} has no partition {number}: it has {count}, numbered from 0 to "
                f"{count - 1}."
            )
    numbers = sorted(set(partitions)) if partitions else range(count)
    return [TopicPartition(topic, number) for number in numbers]


def _positions(
    where: str,
    chosen: list[TopicPartition],
    ends: dict[TopicPartition, int],
    admin: KafkaTopicAdmin,
) -> dict[TopicPartition, int]:
    """Return the first offset of each partition. An offset that the log no longer has becomes the
    first one that it has.
    """
    first_offsets = admin.earliest(chosen)
    if where == "beginning":
        return first_offsets
    if where == "end":
        return ends
    if re.fullmatch(r"-?\d+", where):
        number = int(where)
        return {
            each: min(max(number if number >= 0 else end + number, first_offsets[each]), end)
            for each, end in ends.items()
        }
    at = admin.at_time(chosen, _time_ms(where, time.time()))
    return {each: min(at[each], ends[each]) for each in chosen}


def _time_ms(where: str, now_s: float) -> int:
    """Return the time that a text names, or that is so long ago, in milliseconds."""
    age = _AGE.fullmatch(where.strip())
    if age is not None:
        return int((now_s - int(age[1]) * _AGE_S[age[2]]) * 1000)
    try:
        at = datetime.fromisoformat(where)
    except ValueError:
        raise ConfigError(
            f"--from {where!r} is not beginning, end, an offset, -N, a time or an age. Examples: "
            '--from 1200, --from -10, --from 2026-11-27T18:00:00Z, --from "10 min".'
        ) from None
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)  # as `read` prints times
    return int(at.timestamp() * 1000)


def _decoders(formats: Formats, topic: str, config: Config) -> tuple[text.Decoder, text.Decoder]:
    """Return the decoders of keys and values."""
    key = text.format_decoder(formats.key, formats.key_schema, is_key=True, option="--key")
    value = text.format_decoder(formats.value, formats.value_schema, is_key=False, option="--value")
    if formats.pipeline is None:
        return key, value
    declared = _declaration(formats.pipeline, topic, config)
    key_format, value_format = (getattr(declared, name, None) for name in ("key", "value"))
    return (
        text.format_of_pipeline(key_format, key) if isinstance(key_format, Format) else key,
        text.format_of_pipeline(value_format, value) if isinstance(value_format, Format) else value,
    )


def _declaration(reference: str, topic: str, config: Config) -> object:
    """Return the source or sink of a pipeline that has the topic."""
    # What user code prints while it is imported must not stand between records.
    with contextlib.redirect_stdout(sys.stderr):
        graph = build(load_pipeline(reference, Path.cwd()), parameters(None, ""))
    nodes = {topic_of(config, node): node for node in kafka_nodes(graph)}
    if topic not in nodes:
        raise RefusedError(
            f"Pipeline {reference} has no source or sink of topic {topic!r}. Its topics are: "
            f"{', '.join(sorted(nodes))}."
        )
    return nodes[topic].declaration
