"""A partition without records in bounded runs and backfills on a real broker: with `idle_after` it
holds nothing back. The waves of a backfill count late records.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from integration.support.brokers import Kafka
from integration.support.session_cluster import TIDEGATE
from integration.support.user_project import Folder

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(180)]

JOB = """
import msgspec

from tidegate import BoundedOutOfOrderness, Count, Json, KafkaSink, KafkaSource, Pipeline, Tumbling


class Click(msgspec.Struct, frozen=True):
    key: str
    at_ms: int


class Clicked(msgspec.Struct, frozen=True):
    key: str
    start_ms: int
    count: int


class Clicks(Pipeline, name="{job}"):
    clicks = KafkaSource(
        "{clicks}",
        value=Json(Click),
        event_time=lambda click: click.at_ms,
        watermarks=BoundedOutOfOrderness("1 s", idle_after="10 min"),
    )
    counts = KafkaSink("{counts}", value=Json(Clicked))

    def define(self) -> None:
        by_key = self.clicks.key_by(lambda click: click.key)
        by_key.window(Tumbling("10 s")).aggregate(
            Count(),
            into=lambda w, count: Clicked(w.key, w.start_ms, count),
            uid="hourly",
        ).to(self.counts)
"""
BEGIN_MS = 1_700_000_000_000


def make(kafka: Kafka, path: Path) -> Folder:
    folder = Folder.make(path, kafka.bootstrap, "", topics=("clicks", "counts"), partitions=2)
    folder.write("job.py", JOB)
    return folder


def send(folder: Folder, partition: int, *seconds: int) -> None:
    """Write clicks of one key, at these times after the begin."""
    producer = Producer({"bootstrap.servers": folder.bootstrap})
    for second in seconds:
        text = json.dumps({"key": "a", "at_ms": BEGIN_MS + 1_000 * second})
        producer.produce(folder.topics["clicks"], text, partition=partition)
    assert producer.flush(30) == 0


def counts(folder: Folder) -> dict[int, int]:
    """Return the count of each window that readers see, by its begin in seconds."""
    rows: list[dict[str, Any]] = [json.loads(m.value() or b"") for m in folder.read("counts")]
    return {(row["start_ms"] - BEGIN_MS) // 1_000: row["count"] for row in rows}


def backfill(folder: Folder) -> list[dict[str, Any]]:
    """Run a backfill with one record in a wave, and return its events."""
    bootstrap = f"kafka.bootstrap_servers={folder.bootstrap}"
    words = ["backfill", "job:Clicks", "--json", "--master", "in-process", "--wave-records", "1"]
    done = subprocess.run(
        [TIDEGATE, *words, "-c", bootstrap],
        cwd=folder.path,
        check=False,
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.once
@pytest.mark.parametrize("parallelism", [1, 2])
def test_bounded_run_closes_windows_although_a_partition_is_empty(
    kafka: Kafka, tmp_path: Path, parallelism: int
) -> None:
    folder = make(kafka, tmp_path)
    send(folder, 0, 0, 3, 12, 25)
    options = ("--no-drain", "--parallelism", str(parallelism))
    with folder.started(*options, reference="job:Clicks", bounded=True) as run:
        assert run.wait().code == 0, run.err
    assert counts(folder) == {0: 2, 10: 1}


@pytest.mark.slow
def test_backfill_closes_windows_counts_late_records_and_its_live_run_reads_the_empty_partition(
    kafka: Kafka, tmp_path: Path
) -> None:
    folder = make(kafka, tmp_path)
    send(folder, 0, 0, 12, 25, 3)
    events = backfill(folder)
    assert counts(folder) == {0: 1, 10: 1}
    waves = [event["late"] for event in events if event["event"] == "wave"]
    assert [late for late in waves if late] == [{"hourly": 1}]
    assert events[-1]["event"] == "end"
    assert events[-1]["late"] == {"hourly": 1}
    send(folder, 1, 26)
    waves_published = len(folder.published())
    with folder.started(reference="job:Clicks", bounded=False) as run:
        run.until(lambda: len(folder.published()) > waves_published, "the live run", 60.0)
        send(folder, 1, 40)
        send(folder, 0, 40)
        run.until(lambda: 20 in counts(folder), "the window of both partitions", 60.0)
        run.stop()
    assert counts(folder)[20] == 2, "the record of the partition that was empty is not late"
