"""The start of a source, and the end of a bounded run, on a real broker."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from integration.support.brokers import TIMEOUT_S
from integration.support.user_project import Folder, assert_golden, paragraph
from tidegate.drivers.kafka.embedded import EmbeddedKafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(180)]

COPY = """
from tidegate import KafkaSink, KafkaSource, Pipeline, Utf8


class Copy(Pipeline, name="{job}"):
    words = KafkaSource("{words}", value=Utf8()START)
    copies = KafkaSink("{copies}", value=Utf8())

    def define(self) -> None:
        self.words.to(self.copies)
"""
PARTITIONS = 2
T0_MS = (int(time.time()) - 3600) * 1000
"""The timestamp of the first record in ms, an hour ago. Each next record is a second later."""


def make(path: Path, bootstrap: str, start: str = "") -> Folder:
    text = COPY.replace("START", f", starting_offsets={start}" if start else "")
    return Folder.make(path, bootstrap, text, topics=("words", "copies"), partitions=PARTITIONS)


def write(folder: Folder, *numbers: int) -> None:
    """Write numbers as text, a second apart: even ones to partition 0, odd ones to partition 1."""
    producer = Producer({"bootstrap.servers": folder.bootstrap, "log_level": 0})
    for number in numbers:
        producer.produce(
            folder.topics["words"],
            str(number),
            partition=number % 2,
            timestamp=T0_MS + 1000 * number,
        )
    assert producer.flush(TIMEOUT_S) == 0


def transaction(folder: Folder, *numbers: int, commit: bool) -> None:
    producer = Producer(
        {
            "bootstrap.servers": folder.bootstrap,
            "transactional.id": f"writer-{folder.job}",
            "log_level": 0,
        }
    )
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    for number in numbers:
        producer.produce(folder.topics["words"], str(number), partition=number % 2)
    assert producer.flush(TIMEOUT_S) == 0
    if commit:
        producer.commit_transaction(TIMEOUT_S)
    else:
        producer.abort_transaction(TIMEOUT_S)


def commit_to_the_group(folder: Folder, source: str, offsets: dict[int, int]) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": folder.bootstrap,
            "group.id": f"tidegate.{folder.job}.{source}",
            "log_level": 0,
        }
    )
    topic = folder.topics["words"]
    try:
        consumer.commit(
            offsets=[TopicPartition(topic, part, offset) for part, offset in offsets.items()],
            asynchronous=False,
        )
    finally:
        consumer.close()


def copies(folder: Folder, topic: str = "copies") -> list[int]:
    return sorted(int(message.value() or b"") for message in folder.read(topic))


STARTS = {
    "earliest": ("'earliest'", list(range(10))),
    "at_time": (f"{T0_MS + 5_500}", [6, 7, 8, 9]),
    "after_all": (f"{T0_MS + 600_000}", []),
    "latest": ("'latest'", []),
    "offset_of_one": ("{1: 3}", [0, 2, 4, 6, 7, 8, 9]),
    "offsets_of_both": ("{0: 4, 1: 5}", [8]),
    "group": ("'committed'", [2, 4, 6, 8, 9]),
    "group_without": ("'committed'", list(range(10))),
}
"""The sources of one job. They read one topic from different starts. Each entry holds the start,
and the numbers that the source must read.
"""


def with_all_starts() -> str:
    head, _, rest = COPY.partition("    words = ")
    ends = rest[rest.index("    def define") :].partition("        self")[0]
    sources = [
        f'    {name} = KafkaSource("{{words}}", value=Utf8(), starting_offsets={says})\n'
        f'    {name}_copies = KafkaSink("{{{name}}}", value=Utf8())\n'
        for name, (says, _) in STARTS.items()
    ]
    chains = [f"        self.{name}.to(self.{name}_copies)\n" for name in STARTS]
    return "".join([head, *sources, "\n", ends, *chains])


def test_each_source_starts_at_its_starting_offsets_and_continues_from_its_checkpoint(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    folder = Folder.make(
        tmp_path,
        kafka.bootstrap,
        with_all_starts(),
        topics=("words", *STARTS),
        partitions=PARTITIONS,
    )
    write(folder, *range(10))
    commit_to_the_group(folder, "group", {0: 1, 1: 4})
    outcome = folder.run(reference="job:Copy")
    assert outcome.code == 0, outcome.err
    found = {name: copies(folder, name) for name in STARTS}
    assert found == {name: expected for name, (_, expected) in STARTS.items()}
    write(folder, 10, 11)  # between two runs; the source that began at the end reads them too
    assert folder.run(reference="job:Copy").code == 0
    found = {name: copies(folder, name) for name in STARTS}
    assert found == {name: [*expected, 10, 11] for name, (_, expected) in STARTS.items()}


@pytest.mark.slow
def test_starting_offsets_of_a_missing_partition_are_refused(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    folder = make(tmp_path, kafka.bootstrap, "{7: 1}")
    outcome = folder.run(reference="job:Copy")
    assert outcome.code == 2, outcome.err
    said = folder.normalised(outcome.err.splitlines()[-1])
    assert_golden("start-partition-missing", said)


@pytest.mark.slow
def test_starting_offsets_that_are_not_in_the_log_are_refused(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    folder = make(tmp_path, kafka.bootstrap, "{0: 100}")
    write(folder, *range(4))
    outcome = folder.run(reference="job:Copy")
    assert outcome.code == 2, outcome.err
    said = folder.normalised(outcome.err.splitlines()[-1])
    assert_golden("start-offset-not-in-the-log", said)
    assert copies(folder) == []


@pytest.mark.slow
def test_a_bounded_run_ends_behind_markers_and_aborted_records(
    any_kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    folder = make(tmp_path, any_kafka.bootstrap)
    transaction(folder, 0, 1, commit=True)
    transaction(folder, 2, 3, commit=False)
    outcome = folder.run(reference="job:Copy")
    assert outcome.code == 0, outcome.err
    assert copies(folder) == [0, 1]
    transaction(folder, 4, commit=False)
    transaction(folder, 5, commit=True)
    assert folder.run(reference="job:Copy").code == 0
    assert copies(folder) == [0, 1, 5]
    assert folder.run(reference="job:Copy").code == 0, "there is nothing to do"
    assert copies(folder) == [0, 1, 5]


@pytest.mark.slow
def test_bounded_run_ends_at_the_end_offsets_of_its_start(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    folder = make(tmp_path, kafka.bootstrap)
    write(folder, *range(4))
    with folder.started(reference="job:Copy") as run:
        # The job reads the end offsets after its claim and before its first checkpoint.
        run.until(lambda: any(e["kind"] == "publication" for e in folder.journal()), "published")
        write(folder, *range(4, 8))
        assert run.wait().code == 0
    assert copies(folder) == [0, 1, 2, 3]
    assert folder.run(reference="job:Copy").code == 0
    assert copies(folder) == list(range(8))


def test_job_commits_its_progress_to_the_consumer_group(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    folder = make(tmp_path, kafka.bootstrap)
    write(folder, *range(10))
    consumer = Consumer(
        {
            "bootstrap.servers": folder.bootstrap,
            "group.id": f"tidegate.{folder.job}.words",
            "log_level": 0,
        }
    )
    try:
        with folder.started(reference="job:Copy", bounded=False) as run:
            asked = [TopicPartition(folder.topics["words"], part) for part in range(PARTITIONS)]

            def told() -> bool:
                time.sleep(0.1)
                return [each.offset for each in consumer.committed(asked, TIMEOUT_S)] == [5, 5]

            run.until(told, "told to the group")
            assert run.stop().code == 0
    finally:
        consumer.close()


HELD = """
import os
import time
from collections.abc import Iterable
from pathlib import Path

from tidegate import KafkaSink, KafkaSource, Pipeline, Process, ProcessContext, Utf8

HERE = Path.cwd()  # the code runs from a copy


class Held(Process[str, str]):
    def open(self) -> None:
        while not (HERE / "go").exists():
            if (HERE / "fail").exists():
                os._exit(3)
            time.sleep(0.02)

    def process(self, record: str, ctx: ProcessContext) -> Iterable[str]:
        yield record


class Copy(Pipeline, name="{job}"):
    words = KafkaSource("{words}", value=Utf8(), starting_offsets=START)
    copies = KafkaSink("{copies}", value=Utf8())

    def define(self) -> None:
        self.words.process(Held()).to(self.copies)
"""
"""A copy whose slots wait before their sources start, until the test lets them continue or fail."""


def make_held(path: Path, bootstrap: str, start: str) -> Folder:
    text = HELD.replace("START", start)
    return Folder.make(path, bootstrap, text, topics=("words", "copies"), partitions=PARTITIONS)


def has_looked(folder: Folder) -> bool:
    """Return whether the first attempt has stored the initial offsets of the submission."""
    checkpoints = folder.path / ".tidegate" / "checkpoints" / folder.job
    return any(checkpoints.glob("beginnings/*.json"))


def attempts(folder: Folder) -> int:
    return sum(entry["kind"] == "claim" for entry in folder.journal())


@pytest.mark.slow
def test_a_partition_that_is_added_before_the_first_checkpoint_is_read_from_its_earliest_offset(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    folder = make_held(tmp_path, kafka.bootstrap, "'latest'")
    write(folder, 0, 1)
    words = folder.topics["words"]
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    with folder.started(reference="job:Copy", bounded=False) as run:
        run.until(lambda: has_looked(folder), "looked for its start")
        admin.create_partitions([NewPartitions(words, PARTITIONS + 1)])[words].result(TIMEOUT_S)
        producer = Producer({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
        for number in range(2, 8):
            producer.produce(words, str(number), partition=number % 3)
        assert producer.flush(TIMEOUT_S) == 0
        (folder.path / "fail").touch()
        run.until(lambda: attempts(folder) > 1, "restarted")
        (folder.path / "fail").unlink()
        (folder.path / "go").touch()
        run.until(lambda: len(copies(folder)) >= 6, "read what was written since the submit")
        assert run.stop().code == 0
    assert folder.published(), "the job has published its positions"
    assert copies(folder) == [2, 3, 4, 5, 6, 7]


@pytest.mark.slow
@pytest.mark.parametrize("start", ["'latest'", str(T0_MS + 3_500)], ids=["latest", "timestamp"])
def test_job_fails_if_retention_deletes_its_start_offset_before_the_first_checkpoint(
    kafka: EmbeddedKafka, tmp_path: Path, start: str
) -> None:
    folder = make_held(tmp_path, kafka.bootstrap, start)
    write(folder, *range(4))
    words = folder.topics["words"]
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    with folder.started(reference="job:Copy", bounded=False) as run:
        run.until(lambda: has_looked(folder), "looked for its start")
        write(folder, *range(4, 10))
        # Partition 0 has the offsets 0 to 4, and the job must read 2 to 4.
        topic_partition = TopicPartition(words, 0, 5)
        admin.delete_records([topic_partition])[topic_partition].result(TIMEOUT_S)
        (folder.path / "fail").touch()
        outcome = run.wait()
    assert outcome.code == 1, outcome.err
    said = folder.normalised(paragraph(outcome.err))
    assert_golden("start-overtaken-by-retention", said)
    assert copies(folder) == []
