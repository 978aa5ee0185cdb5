"""Values that a format cannot write exactly, in a running job: NaN in JSON, and a number beyond the
32 bits of an Avro `int`. The sink's `on_error` decides.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from fastavro import schemaless_reader

from integration.connectors.test_bad_records import header
from integration.support.user_project import Folder
from tidegate.drivers.kafka.embedded import EmbeddedKafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(180)]

JOB = """
import msgspec

from tidegate import Avro, Json, KafkaSink, KafkaSource, Pipeline


class Sample(msgspec.Struct, frozen=True):
    number: int
    text: str
    count: int


class Level(msgspec.Struct, frozen=True):
    number: int
    degrees: float


class Tally(msgspec.Struct, frozen=True):
    number: int
    count: int


class Values(Pipeline, name="{job}"):
    samples = KafkaSource("{samples}", value=Json(Sample))
    levels = KafkaSink("{levels}", value=Json(Level){policy})
    tallies = KafkaSink("{tallies}", value=Avro(Tally, schema="tally.avsc"){policy})

    def define(self) -> None:
        self.samples.map(lambda s: Level(s.number, float(s.text)), returns=Level).to(self.levels)
        self.samples.map(lambda s: Tally(s.number, s.count), returns=Tally).to(self.tallies)
"""
SCHEMA = {
    "type": "record",
    "name": "Tally",
    "fields": [{"name": "number", "type": "long"}, {"name": "count", "type": "int"}],
}
BAD: dict[str, dict[str, object]] = {
    "levels": {"text": "nan"},
    "tallies": {"count": 2**40},
}
"""The fields of a sample that a sink cannot write, by the name of the sink."""
TOLD = {"levels": "degrees", "tallies": "count: 1099511627776 is beyond the 32 bits"}
"""A part of the error, with the field, by the name of the sink."""
COUNT = 40


def make(kafka: EmbeddedKafka, path: Path, policy: str) -> Folder:
    topics = ("samples", "levels", "tallies", "dead")
    text = JOB.replace("{policy}", policy)
    folder = Folder.make(path, kafka.bootstrap, text, topics=topics, partitions=2)
    folder.write("tally.avsc", json.dumps(SCHEMA))
    return folder


def send(folder: Folder, bad: dict[int, str]) -> None:
    """Write samples. Those whose number is in `bad` cannot be written to that sink."""
    samples = []
    for number in range(COUNT):
        wrong = BAD[bad[number]] if number in bad else {}
        sample = {"number": number, "text": "1.5", "count": 2**31 - 1} | wrong
        samples.append((b"%d" % number, json.dumps(sample).encode()))
    folder.send("samples", samples)


def levels(folder: Folder) -> list[tuple[int, float]]:
    found = [json.loads(message.value() or b"") for message in folder.read("levels")]
    return sorted((level["number"], level["degrees"]) for level in found)


def tallies(folder: Folder) -> list[tuple[int, int]]:
    found: list[Any] = [
        schemaless_reader(io.BytesIO(message.value() or b""), SCHEMA, None)
        for message in folder.read("tallies")
    ]
    return sorted((tally["number"], tally["count"]) for tally in found)


def test_values_that_a_sink_cannot_write_are_dead_letters_and_all_others_arrive_once(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    folder = make(kafka, tmp_path, ', on_error="dead_letter", dead_letter_topic="{dead}"')
    bad = {3: "levels", 11: "tallies", COUNT - 2: "tallies", COUNT - 1: "levels"}
    send(folder, bad)
    outcome = folder.run("--json", "-p", "2", reference="job:Values")
    assert outcome.code == 0, outcome.err
    for_levels = [number for number in range(COUNT) if bad.get(number) != "levels"]
    assert levels(folder) == [(number, 1.5) for number in for_levels]
    for_tallies = [number for number in range(COUNT) if bad.get(number) != "tallies"]
    assert tallies(folder) == [(number, 2**31 - 1) for number in for_tallies]
    numbers = {
        (message.partition(), message.offset()): json.loads(message.value() or b"")["number"]
        for message in folder.read("samples")
    }
    letters = folder.read("dead")
    found = []
    for letter in letters:
        at = int(header(letter, "source.partition")), int(header(letter, "source.offset"))
        sink = header(letter, "step").split(" (")[0]
        found.append((numbers[at], sink))
        assert TOLD[sink] in header(letter, "error")
    assert sorted(found) == sorted(bad.items())
    assert json.loads(outcome.out.splitlines()[-1])["dead_letters"] == len(bad)


@pytest.mark.parametrize("sink", [pytest.param("levels", marks=pytest.mark.slow), "tallies"])
def test_value_that_a_sink_cannot_write_fails_the_job_and_is_named(
    kafka: EmbeddedKafka, tmp_path: Path, sink: str
) -> None:
    folder = make(kafka, tmp_path, "")
    send(folder, {7: sink})
    config = {"restart.strategy": "none", "checkpoint.interval": "1min"}
    outcome = folder.run("-p", "2", reference="job:Values", config=config)
    assert outcome.code == 1, outcome.err
    assert f"Sink {sink!r} for topic {folder.topics[sink]!r}" in outcome.err
    assert TOLD[sink] in outcome.err.partition("ValueError: ")[2].partition("It came from")[0]
    (offset,) = [
        f"{folder.topics['samples']}-{message.partition()} at offset {message.offset()}."
        for message in folder.read("samples")
        if message.key() == b"7"
    ]
    assert f"It came from {offset}" in outcome.err
    assert levels(folder) == []
    assert tallies(folder) == []
