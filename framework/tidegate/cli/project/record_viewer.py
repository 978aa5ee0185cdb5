"""Shows the records of a pipeline's topics as they are written, for `tidegate dev`.

A few records of each topic are shown in each second, and the others are counted. The viewer reads
with `read_committed`, so it shows the output when other readers see it. It joins no consumer group
and commits nothing.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from tidegate.api.connectors.kafka_connector import KafkaConnector
from tidegate.api.connectors.kafka_names import kafka_nodes, topic_of
from tidegate.api.pipeline import build
from tidegate.api.records.formats import Avro, Format
from tidegate.cli.kafka.record_text import (
    Decoder,
    RecordRow,
    auto_key,
    auto_value,
    data_text,
    format_of_pipeline,
    row_of,
)
from tidegate.config_load import load
from tidegate.controlplane.client.preflight import class_settings, load_for_submit
from tidegate.drivers.system import SystemDrivers
from tidegate.message_text import counted
from tidegate.ports.drivers import KafkaAdmin
from tidegate.ports.kafka import RawRecord
from tidegate.stream_elements import TopicPartition
from tidegate.terminal import options as o

SHOWN_PER_SECOND: Final = 5
"""The number of records of a topic that are shown in a second."""
WIDTH: Final = 160
"""The number of characters of a record that are shown."""
AS_JSON: Final = "json"
"""The word that makes the viewer print events."""
POLL_RECORDS: Final = 1_000
POLL_S: Final = 0.2


class ViewedTopic(NamedTuple):
    """A topic of the pipeline, and the decoders of its records."""

    direction: str
    """in or out."""
    key: Decoder
    value: Decoder


class Sampler:
    """Decides which records are shown: a few of each topic in each second."""

    def __init__(self) -> None:
        self._shown: Counter[str] = Counter()
        self._left_out: Counter[str] = Counter()
        self._second = 0

    def take(self, topic: str, now_s: float) -> bool:
        """Return whether to show one more record of a topic."""
        if int(now_s) != self._second:
            self._second = int(now_s)
            self._shown.clear()
        if self._shown[topic] < SHOWN_PER_SECOND:
            self._shown[topic] += 1
            return True
        self._left_out[topic] += 1
        return False

    def left_out(self, now_s: float) -> dict[str, int]:
        """Return how many records of each topic were not shown, once in each second."""
        if int(now_s) == self._second or not self._left_out:
            return {}
        found = dict(self._left_out)
        self._left_out.clear()
        return found


class Layout:
    """The lines of the viewer, for people."""

    def following(self, topics: list[str]) -> str:
        """Return the line for the begin of the display."""
        return f"showing records of {', '.join(topics)}"

    def left_out(self, topic: str, viewed: ViewedTopic, count: int) -> str:
        """Return the line for records that are not shown."""
        return f"{viewed.direction:<3} {topic}: {counted(count, 'more record')}"

    def record(self, at: TopicPartition, viewed: ViewedTopic, record: RawRecord) -> str:
        """Return the line of a record."""
        return record_line(at.topic, viewed, record)


class RecordEvent(RecordRow, frozen=True, kw_only=True, tag_field="event", tag="record"):
    """A record as an event of `tidegate dev --json`."""

    direction: str


class JsonLayout(Layout):
    """The events of the viewer, for scripts."""

    def following(self, topics: list[str]) -> str:
        return json.dumps({"event": "showing_records", "topics": topics})

    def left_out(self, topic: str, viewed: ViewedTopic, count: int) -> str:
        facts = {"direction": viewed.direction, "topic": topic, "count": count}
        return json.dumps({"event": "records_left_out", **facts})

    def record(self, at: TopicPartition, viewed: ViewedTopic, record: RawRecord) -> str:
        row = row_of(*at, record, viewed.key, viewed.value)
        event = RecordEvent(direction=viewed.direction, **msgspec.structs.asdict(row))
        return msgspec.json.encode(event).decode()


def show_records(reference: str, settings: str, positions: str, form: str = "") -> None:
    """Print the records after these positions, until this process is interrupted.

    `settings` are those of the command line, as a JSON object of dotted keys, with --set as
    `params`. `positions` is the JSON of `end_positions`. `form` is AS_JSON, or empty for people.
    """
    layout = JsonLayout() if form == AS_JSON else Layout()
    given: dict[str, Any] = json.loads(settings)
    params = o.parameters(given.pop("params"), "")
    folder = Path.cwd()
    pipeline = load_for_submit(reference, folder)
    config = load(
        folder=folder,
        environment=dict(os.environ),
        class_statement=class_settings(pipeline),
        command_line=given,
    )
    topics = {
        topic_of(config, node): _viewed(node.kind, node.declaration)
        for node in kafka_nodes(build(pipeline, params))
    }
    kafka = config.kafka.client_settings()
    reader = SystemDrivers().partition_reader(kafka, "tidegate.dev", with_end_of_partition=False)
    sampler = Sampler()
    try:
        reader.assign({TopicPartition(name, part): at for name, part, at in json.loads(positions)})
        print(layout.following(sorted(topics)), flush=True)
        while True:
            batches = reader.poll(POLL_RECORDS, POLL_S)
            now_s = time.monotonic()
            for topic, count in sampler.left_out(now_s).items():
                print(layout.left_out(topic, topics[topic], count), flush=True)
            for batch in batches:
                at = batch.topic_partition
                for record in batch.messages:
                    if sampler.take(at.topic, now_s):
                        print(layout.record(at, topics[at.topic], record), flush=True)
    except KeyboardInterrupt:
        return
    finally:
        reader.close()


def record_line(topic: str, viewed: ViewedTopic, record: RawRecord) -> str:
    """Return a record as one line: in or out, the topic, the key and the value."""
    key = data_text(record.key(), viewed.key, none="")
    value = data_text(record.value(), viewed.value, none="(tombstone)")
    line = f"{viewed.direction:<3} {topic}: {key}{' ' if key else ''}{value}"
    return line if len(line) <= WIDTH else f"{line[: WIDTH - 3]}..."


def _viewed(kind: str, declaration: object) -> ViewedTopic:
    formats = declaration if isinstance(declaration, KafkaConnector) else None
    return ViewedTopic(
        direction="in" if kind == "source" else "out",
        key=decoder_of(getattr(formats, "key", None), auto_key),
        value=decoder_of(getattr(formats, "value", None), auto_value),
    )


def decoder_of(declared: Format[Any] | None, auto: Decoder) -> Decoder:
    """Return the decoder of a pipeline's format. Avro is decoded. `auto` shows all else, as it was
    written, also if a producer has made a mistake.
    """
    return format_of_pipeline(declared, auto) if isinstance(declared, Avro) else auto


def end_positions(admin: KafkaAdmin, topics: Sequence[str]) -> list[tuple[str, int, int]]:
    """Return the present ends of topics: the topic, the partition and the next offset of each."""
    partitions = [
        TopicPartition(topic, partition)
        for topic in topics
        for partition in range(admin.partitions(topic))
    ]
    return [(*each, offset) for each, offset in admin.latest(partitions).items()]
