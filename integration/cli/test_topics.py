"""Topics by hand, tested with the user's commands on a real broker."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import fastavro
import pytest
from confluent_kafka import Producer

from integration.support.brokers import Kafka, TopicFactory, unique
from integration.support.running import in_time

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(180)]

COMMAND = [sys.executable, "-m", "tidegate.cli.main", "kafka"]


class Shell:
    """A folder in which the commands run, with the broker in its settings."""

    def __init__(self, folder: Path, bootstrap: str) -> None:
        self.folder = folder
        (folder / "tidegate.toml").write_text(f'[kafka]\nbootstrap_servers = "{bootstrap}"\n')

    def run(self, *arguments: str, given: str | bytes = "", code: int = 0) -> tuple[str, str]:
        data = given.encode() if isinstance(given, str) else given
        done = subprocess.run(
            [*COMMAND, *arguments], input=data, capture_output=True, cwd=self.folder, check=False
        )
        assert done.returncode == code, done.stderr.decode()
        return done.stdout.decode(), done.stderr.decode()

    def json(self, *arguments: str, given: str | bytes = "") -> Any:
        return json.loads(self.run(*arguments, "--json", given=given)[0])

    def records(self, topic: str, *arguments: str) -> list[dict[str, Any]]:
        out, _ = self.run("read", topic, "--json", *arguments)
        return [json.loads(line) for line in out.splitlines()]


@pytest.fixture
def shell(kafka: Kafka, tmp_path: Path) -> Shell:
    return Shell(tmp_path, kafka.bootstrap)


def test_topic_is_created_listed_described_and_deleted(shell: Shell) -> None:
    topic = unique("by-hand")
    setting = ("--topic-config", "retention.ms=86400000")
    created = shell.json("topics", "create", topic, "-p", "3", *setting)
    assert created == [{"topic": topic, "partitions": 3, "created": True}]
    again = shell.json("topics", "create", topic, "--if-missing")
    assert again == [{"topic": topic, "partitions": 3, "created": False}]
    assert f"{topic}  3 partitions, 1 replica" in shell.run("topics", "list", "--prefix", topic)[0]
    shell.run("produce", topic, "--partition", "2", given="a\nb\n")
    described = shell.json("topics", "describe", topic)
    assert described["config"] == {"retention.ms": "86400000"}
    assert [each["end"] for each in described["partitions"]] == [0, 0, 2]
    assert "nothing is deleted" in shell.run("topics", "delete", topic, code=2)[1].lower()
    assert shell.run("topics", "delete", topic, "--yes")[0] == f"{topic}: deleted\n"
    assert "no such topic" in shell.run("topics", "describe", topic, code=2)[1]


@pytest.mark.slow
def test_wrong_request_is_refused_with_the_reason_of_the_broker(
    shell: Shell, topic_factory: TopicFactory
) -> None:
    topic = topic_factory("taken")
    assert "exists already" in shell.run("topics", "create", topic, code=2)[1]
    _, error = shell.run("topics", "create", unique("t"), "--replication-factor", "3", code=2)
    assert "replication factor" in error.lower()
    _, error = shell.run("topics", "create", unique("t"), "--topic-config", "retention=1", code=2)
    assert "retention" in error
    assert "no such topic" in shell.run("produce", unique("absent"), given="a", code=2)[1]
    _, error = shell.run("topics", "delete", topic, unique("absent"), "--yes", code=2)
    assert topic in shell.run("topics", "list")[0]


def test_records_are_written_read_and_copied_with_all_of_their_parts(
    shell: Shell, topic_factory: TopicFactory
) -> None:
    topic, copy = topic_factory("orders", partitions=2), topic_factory("copy", partitions=2)
    lines = 'ann:{"amount": 1.50}\nbob:text\n'
    shell.run("produce", topic, "--key-separator", ":", "-H", "trace=abc", given=lines)
    shell.run("produce", topic, "--records", given='{"key": "cat", "value": null}\n')
    found = {record["key"]: record for record in shell.records(topic)}
    assert found["ann"]["value"] == {"amount": 1.5}
    assert found["ann"]["headers"] == [["trace", "abc"]]
    assert (found["bob"]["value"], found["cat"]["value"]) == ("text", None)
    out, _ = shell.run("read", topic, "--json")
    assert shell.json("produce", copy, "--records", given=out)["records"] == 3
    parts = ("partition", "key", "value", "headers", "timestamp_ms")
    copied = {record["key"]: record for record in shell.records(copy)}
    for key, record in found.items():
        assert {name: record[name] for name in parts} == {name: copied[key][name] for name in parts}
    (shell.folder / "orders.txt").write_text("one\ntwo\n")
    assert "2 records written" in shell.run("produce", topic, "orders.txt", "--key", "dan")[1]
    assert [r["value"] for r in shell.records(topic) if r["key"] == "dan"] == ["one", "two"]


@pytest.mark.slow
def test_record_that_kafka_refuses_is_an_error_that_names_its_line(
    shell: Shell, topic_factory: TopicFactory
) -> None:
    topic = topic_factory("small", partitions=1, config={"max.message.bytes": "1000"})
    lines = f"first\n{'x' * 5000}\nthird\n"
    _, error = shell.run(
        "produce", topic, "-c", "kafka.properties.batch.num.messages=1", given=lines, code=1
    )
    assert "Line 2: Kafka at" in error
    assert "max.message.bytes" in error
    _, error = shell.run("produce", topic, "--partition", "1", given="a\n", code=2)
    assert f"Line 1: topic {topic} has no partition 1" in error
    _, error = shell.run("produce", topic, "--key-separator", ":", given="k:a\nb\n", code=2)
    assert "Line 2: it has no ':'" in error
    assert "Kafka took 1 record before it." in error


def test_the_topic_alone_limits_the_size_of_a_record(shell: Shell) -> None:
    topic, small, huge = unique("mib"), unique("small"), unique("huge")
    shell.run("topics", "create", topic, "-p", "1")
    shell.run("topics", "create", small, "-p", "1", "--topic-config", "max.message.bytes=500")
    shell.run("topics", "create", huge, "-p", "1", "--topic-config", "max.message.bytes=104857600")
    shell.run("produce", topic, given="x" * 1_020_000)
    shell.run("produce", topic, given="x" * 1_048_516)  # with 72 bytes around it: the limit
    _, error = shell.run("produce", topic, given="x" * 1_048_517, code=1)
    assert "Line 1: " in error
    assert "has 1,048,589 bytes" in error
    assert "(max.message.bytes) is 1,048,588 bytes. Raise that setting of the topic" in error
    compressed = ("-c", "kafka.properties.compression.type=lz4")
    shell.run("produce", topic, *compressed, given="x" * 3_000_000)
    # Records that fit are not sent in a batch that does not.
    shell.run("produce", small, given="0123456789\n" * 100)
    assert "is 500 bytes" in shell.run("produce", small, given="x" * 600, code=1)[1]
    # A consumer's own default refuses an answer of more than 100 MB.
    shell.run("produce", huge, given="x" * 104_000_000)
    for name, sizes in ((topic, [1_020_000, 1_048_516, 3_000_000]), (huge, [104_000_000])):
        out, _ = shell.run("read", name, "--values")
        assert [len(line) for line in out.splitlines()] == sizes
    assert len(shell.records(small)) == 100


def test_record_larger_than_the_queue_of_the_client_is_an_error(shell: Shell) -> None:
    topic = unique("queue")
    shell.run("topics", "create", topic, "-p", "1")
    queue = ("-c", "kafka.properties.queue.buffering.max.kbytes=5")
    _, error = shell.run("produce", topic, *queue, given="x" * 50_000, code=1)
    assert "Raise queue.buffering.max.kbytes" in error


@pytest.mark.slow
def test_only_uncommitted_reading_shows_records_of_open_transactions(
    shell: Shell, kafka: Kafka, topic_factory: TopicFactory
) -> None:
    topic = topic_factory("open", partitions=1)
    shell.run("produce", topic, given="committed\n")
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": unique("t")})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"open")
    producer.flush(30)
    out, told = shell.run("read", topic, "--values")
    assert out == "committed\n"
    assert "1 offset behind open transactions" in told
    assert shell.run("read", topic, "--values", "--uncommitted")[0] == "committed\nopen\n"
    described = shell.json("topics", "describe", topic)
    assert described["partitions"][0]["high_watermark"] == described["partitions"][0]["end"] + 1
    producer.abort_transaction(30)
    shell.run("produce", topic, given="after\n")
    assert shell.run("read", topic, "--values")[0] == "committed\nafter\n"


@pytest.mark.slow
def test_reading_begins_and_ends_where_the_options_say(
    shell: Shell, topic_factory: TopicFactory
) -> None:
    topic = topic_factory("log", partitions=1)
    shell.run("produce", topic, given="".join(f"{number}\n" for number in range(10)))
    shell.run("produce", topic, given="late\n")  # the start of a command takes many milliseconds
    late_ms = shell.records(topic)[-1]["timestamp_ms"]

    def values(*options: str) -> list[str]:
        return shell.run("read", topic, "--values", *options)[0].splitlines()

    assert values("--limit", "2") == ["0", "1"]
    assert values("--from", "8") == ["8", "9", "late"]
    assert values("--from", "-2") == ["9", "late"]
    assert values("--from", "end") == []
    at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(late_ms / 1000))
    at += f".{late_ms % 1000:03}Z"
    assert values("--from", at) == ["late"]
    assert len(values("--from", "1h")) == 11
    assert "has no partition 4" in shell.run("read", topic, "--partition", "4", code=2)[1]
    head = subprocess.run(
        f"{' '.join(COMMAND)} read {topic} --values | head -n 1",
        shell=True,
        cwd=shell.folder,
        capture_output=True,
        text=True,
        check=True,
    )
    assert (head.stdout, head.stderr) == ("0\n", "")


@pytest.mark.slow
def test_follow_shows_new_records_and_ends_without_a_traceback(
    shell: Shell, topic_factory: TopicFactory
) -> None:
    topic = topic_factory("follow")
    shell.run("produce", topic, given="before\n")
    reading = subprocess.Popen(
        [*COMMAND, "read", topic, "--follow", "--values", "--from", "beginning"],
        cwd=shell.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert reading.stdout is not None
    assert reading.stdout.readline() == "before\n"
    shell.run("produce", topic, given="new\n")
    assert reading.stdout.readline() == "new\n"
    reading.send_signal(2)
    _, error = reading.communicate(timeout=30)
    assert (reading.returncode, error) == (130, "")


PIPELINE = """
import msgspec
from tidegate import Avro, KafkaSink, KafkaSource, Pipeline

print("imported")

class Order(msgspec.Struct, frozen=True):
    amount: int

class Copy(Pipeline, name="copy"):
    orders = KafkaSource("TOPIC", value=Avro(Order))
    copies = KafkaSink("copies", value=Avro(Order))

    def define(self) -> None:
        self.orders.to(self.copies)
"""


def test_avro_is_shown_as_values_by_a_schema_file_and_by_a_pipeline(
    shell: Shell, kafka: Kafka, topic_factory: TopicFactory
) -> None:
    plain, framed = topic_factory("avro"), topic_factory("framed")
    schema = {"type": "record", "name": "Order", "fields": [{"name": "amount", "type": "long"}]}
    (shell.folder / "order.avsc").write_text(json.dumps(schema))
    (shell.folder / "avro_job.py").write_text(PIPELINE.replace("TOPIC", plain))
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), {"amount": 7})
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    producer.produce(plain, out.getvalue())
    producer.produce(framed, b"\0\0\0\0\x05" + out.getvalue())
    producer.flush(30)
    by_file = ("--values", "--value-schema", "order.avsc", "--value")
    assert shell.run("read", plain, *by_file, "avro")[0] == '{"amount":7}\n'
    assert shell.run("read", framed, *by_file, "confluent-avro")[0] == '{"amount":7}\n'
    out_, told = shell.run("read", plain, "--json", "--pipeline", "avro_job:Copy")
    assert json.loads(out_)["value"] == {"amount": 7}
    assert told == "imported\n"
    out_, told = shell.run("read", framed, "--json", *by_file[1:], "avro", code=1)
    assert "try confluent-avro" in json.loads(out_)["error"]
    assert "1 record could not be decoded" in told


@pytest.mark.slow
def test_broker_that_does_not_answer_is_an_error_within_seconds(tmp_path: Path) -> None:
    shell = Shell(tmp_path, "127.0.0.1:9")
    began_s = time.monotonic()
    _, error = shell.run("topics", "create", "orders", code=1)
    assert "127.0.0.1:9 refuses connections" in error
    in_time(time.monotonic() - began_s < 30, "it took too long")
    assert [path.name for path in tmp_path.iterdir()] == ["tidegate.toml"]
