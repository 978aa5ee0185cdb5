"""Records that cannot be decoded, with every policy and format, and their dead letters in Kafka.

Dead letters are an output like any other. They hold the original bytes and headers of the record,
and headers about its source. A `read_committed` reader sees each of them exactly once, also when a
process is killed.
"""

from __future__ import annotations

import io
import json
import os
import signal
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import cast

import pytest
from confluent_kafka import Message, Producer
from fastavro import schemaless_writer

from integration.support.brokers import TIMEOUT_S
from integration.support.user_project import (
    ONE_CHECKPOINT,
    TOTALS,
    Folder,
    assert_golden,
    paragraph,
)
from tidegate.drivers.kafka.embedded import EmbeddedKafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(180)]

POLICIES = {
    "fail": "",
    "skip": ', on_bad_record="skip"',
    "dead_letter": ', on_bad_record="dead_letter", dead_letter_topic="{dead}"',
}
HEADERS = [("trace", b"\x00\xff"), ("trace", b"again"), ("empty", None)]
SCHEMA = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "customer", "type": "string"}, {"name": "amount", "type": "long"}],
}
BAD = {
    "Json": [b'{"customer": "c0"}', b"\xff\xfe", b""],
    "Avro": [b"\x02", b"\x04c0\x02 and more", b""],
}


def make(
    kafka: EmbeddedKafka, path: Path, policy: str, form: str, *, partitions: int = 1
) -> Folder:
    text = TOTALS.replace("value=Json(Order))", f"value={form}(Order){POLICIES[policy]})")
    text = text.replace("import Context,", "import Avro, Context,")
    topics = ("orders", "totals", "dead")
    return Folder.make(path, kafka.bootstrap, text, topics=topics, partitions=partitions)


def send(folder: Folder, form: str, numbers: range, bad: Sequence[bytes | None]) -> None:
    """Write good orders. After each of the first ones, write one of the bad records, with
    headers.
    """
    producer = Producer({"bootstrap.servers": folder.bootstrap, "log_level": 0, "linger.ms": 5})
    for index, number in enumerate(numbers):
        order = {"customer": f"c{number % 3}", "amount": 1}
        value = json.dumps(order).encode()
        if form == "Avro":
            buffer = io.BytesIO()
            schemaless_writer(buffer, SCHEMA, order)
            value = buffer.getvalue()
        key = order["customer"]
        producer.produce(folder.topics["orders"], value, str(key))
        if index < len(bad):
            producer.produce(
                folder.topics["orders"], bad[index], f"bad-{number}", headers=list(HEADERS)
            )
    assert producer.flush(TIMEOUT_S) == 0


def headers_of(letter: Message) -> list[tuple[str, bytes | None]]:
    return cast("list[tuple[str, bytes | None]]", letter.headers() or [])


def header(letter: Message, name: str) -> str:
    (value,) = [value for key, value in headers_of(letter) if key == f"tidegate.{name}"]
    assert value is not None
    return value.decode()


def assert_letters(folder: Folder) -> None:
    """Check that each bad record of the input has one dead letter, with the original content."""
    due = {
        (message.partition(), message.offset()): (message.key(), message.value())
        for message in folder.read("orders")
        if (message.key() or b"").startswith(b"bad-")
    }
    found = {}
    letters = folder.read("dead")
    for letter in letters:
        place = int(header(letter, "source.partition")), int(header(letter, "source.offset"))
        found[place] = letter.key(), letter.value()
        assert headers_of(letter)[: len(HEADERS)] == HEADERS
        assert header(letter, "source.topic") == folder.topics["orders"]
        assert int(header(letter, "source.timestamp")) > 0
        assert header(letter, "error")
    assert found == due
    assert len(letters) == len(due), "a letter is there twice"


@pytest.mark.slow
@pytest.mark.parametrize("form", BAD)
def test_bad_record_with_policy_fail_is_named_and_fails_the_job_without_a_restart(
    kafka: EmbeddedKafka, tmp_path: Path, form: str
) -> None:
    folder = make(kafka, tmp_path, "fail", form)
    send(folder, form, range(6), [*BAD[form], None])
    outcome = folder.run()
    assert outcome.code == 1, outcome.err
    assert " 0 restarts" in outcome.err
    assert_golden(f"bad-record-{form.lower()}", folder.normalised(paragraph(outcome.err)))
    assert folder.read("totals") == []


@pytest.mark.once
@pytest.mark.parametrize("form", BAD)
@pytest.mark.parametrize("policy", ["skip", "dead_letter"])
def test_job_continues_without_bad_records_under_skip_and_dead_letter(
    kafka: EmbeddedKafka, tmp_path: Path, policy: str, form: str
) -> None:
    folder = make(kafka, tmp_path, policy, form)
    send(folder, form, range(30), [*BAD[form], None])
    outcome = folder.run("--json")
    assert outcome.code == 0, outcome.err
    report = json.loads(outcome.out.splitlines()[-1])
    skipped = (len(BAD[form]) + 1) * (policy == "skip")
    letters = (len(BAD[form]) + 1) * (policy == "dead_letter")
    assert (report["skipped"], report["dead_letters"]) == (skipped, letters)
    folder.assert_exact(30)
    if letters:
        assert_letters(folder)


@pytest.mark.slow
def test_number_of_skipped_bad_records_is_in_the_last_line_of_a_run(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    folder = make(kafka, tmp_path, "skip", "Json")
    send(folder, "Json", range(3), BAD["Json"])
    outcome = folder.run(config=ONE_CHECKPOINT)
    assert outcome.code == 0, outcome.err
    last = outcome.err.splitlines()[-1]
    assert last.endswith("1 checkpoint, 0 restarts, 3 bad records skipped")


def publishing(folder: Folder, after: int) -> int:
    """Return the newest attempt if it is newer than `after` and has published a checkpoint.

    Otherwise return 0.
    """
    steps = [entry for entry in folder.journal() if entry["kind"] in {"claim", "publication"}]
    if not steps or steps[-1]["kind"] == "claim":
        return 0
    attempt: int = steps[-1]["checkpoint"][0]
    return attempt if attempt > after else 0


def test_dead_letters_of_bad_records_are_exact_when_slots_are_killed(
    any_kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    folder = make(any_kafka, tmp_path, "dead_letter", "Json", partitions=2)
    sent = killed = 0
    with folder.started("-p", "2", bounded=False) as run:
        for _ in range(2):
            for _ in range(8):
                send(folder, "Json", range(sent, sent + 20), BAD["Json"])
                sent += 20
            run.until(lambda: folder.read("dead"), "writing")
            # A slot lost during a recovery belongs to that recovery, and is not another restart.
            killed = run.until(partial(publishing, folder, killed), "publishing")
            for _ in range(7):
                send(folder, "Json", range(sent, sent + 20), BAD["Json"])
                sent += 20
            os.kill(run.until(run.slots, "with slots")[0], signal.SIGKILL)
        run.until(lambda: len(folder.read("totals")) == sent, "at the end of its input", 60)
        outcome = run.stop()
    assert outcome.code == 0, outcome.err
    assert "2 restarts" in outcome.err.splitlines()[-1]
    folder.assert_exact(sent)
    assert_letters(folder)


PASS_ON = """
from tidegate import KafkaSink, KafkaSource, Pipeline, Raw, Utf8


class PassOn(Pipeline, name="{job}"):
    orders = KafkaSource(
        "{orders}", value=Utf8(), on_bad_record="dead_letter", dead_letter_topic="{dead}"
    )
    totals = KafkaSink("{totals}", value=Utf8())

    def define(self) -> None:
        self.orders.to(self.totals)
"""
LARGEST = 1_048_588 - 61 - 14
"""Bytes of the largest value without a key: Kafka's default limit minus the overhead of the record
format.
"""


@pytest.mark.slow
def test_record_of_the_largest_size_of_its_topic_and_its_dead_letter_are_written(
    any_kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    topics = ("orders", "totals", "dead")
    folder = Folder.make(tmp_path, any_kafka.bootstrap, PASS_ON, topics=topics)
    producer = Producer(
        {"bootstrap.servers": folder.bootstrap, "message.max.bytes": "1048588", "log_level": 0}
    )
    good, bad = b"x" * LARGEST, b"\xff" * LARGEST
    for value in (b"small", good, bad, b"last"):
        producer.produce(folder.topics["orders"], value)
    assert producer.flush(TIMEOUT_S) == 0
    outcome = folder.run(reference="job:PassOn")
    assert outcome.code == 0, outcome.err
    assert [message.value() for message in folder.read("totals")] == [b"small", good, b"last"]
    (letter,) = folder.read("dead")
    assert letter.value() == b""
    assert header(letter, "left-out.value") == str(LARGEST)
    assert header(letter, "source.topic") == folder.topics["orders"]
    assert header(letter, "source.offset") == "2"
    assert "0xff" in header(letter, "error")
