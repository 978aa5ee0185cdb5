"""`AfterWatermark(on_time="always")` in a running job: each window has one result at its end, also
a window whose records were all in early results, and also if slots are killed between the two.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from pathlib import Path

import pytest
from confluent_kafka import Producer

from integration.support.brokers import TIMEOUT_S, Kafka
from integration.support.user_project import Folder

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(240)]

JOB = """
import msgspec

from tidegate import (
    AfterWatermark, Count, EveryCount, Json, KafkaSink, KafkaSource, Monotonous, Pipeline, Session,
    Tumbling,
)


class Click(msgspec.Struct, frozen=True):
    key: str
    at_ms: int


class Result(msgspec.Struct, frozen=True):
    key: str
    count: int
    firing: str


class Clicks(Pipeline, name="{job}"):
    clicks = KafkaSource(
        "{clicks}",
        value=Json(Click),
        event_time=lambda click: click.at_ms,
        watermarks=Monotonous(),
    )
    hours = KafkaSink("{hours}", value=Json(Result), record_key=lambda r: r.key)
    visits = KafkaSink("{visits}", value=Json(Result), record_key=lambda r: r.key)

    def define(self) -> None:
        by_key = self.clicks.key_by(lambda click: click.key)
        for windows, uid, sink in (
            (Tumbling("10 s"), "by-hour", self.hours),
            (Session("3 s"), "by-visit", self.visits),
        ):
            by_key.window(
                windows, trigger=AfterWatermark(early=EveryCount(2), on_time="always")
            ).aggregate(
                Count(), into=lambda w, count: Result(w.key, count, w.firing), uid=uid
            ).to(sink)
"""
BEGIN_MS = round(time.time() - 86_400) // 10 * 10_000
"""The start of the windows, a day ago."""
COUNTS = {f"k{number}": 1 + number % 4 for number in range(24)}
"""The number of clicks by key. Early results take all clicks of a key with an even number."""
SINKS = ("hours", "visits")


def send(folder: Folder, clicks: dict[str, int], at_ms: int) -> None:
    """Write this number of clicks of each key to one of the two partitions."""
    producer = Producer({"bootstrap.servers": folder.bootstrap, "log_level": 0})
    for number, (key, count) in enumerate(clicks.items()):
        for _ in range(count):
            value = json.dumps({"key": key, "at_ms": at_ms})
            producer.produce(folder.topics["clicks"], value, partition=number % 2)
    assert producer.flush(TIMEOUT_S) == 0


def results(folder: Folder, sink: str, firing: str) -> dict[str, list[int]]:
    """Return the counts of the results of one kind, by key."""
    found: dict[str, list[int]] = defaultdict(list)
    for message in folder.read(sink):
        result = json.loads(message.value() or b"")
        if result["firing"] == firing:
            found[result["key"]].append(result["count"])
    return dict(found)


def test_each_window_has_one_result_at_its_end_after_early_results_and_a_kill(
    kafka: Kafka, tmp_path: Path
) -> None:
    topics = ("clicks", *SINKS)
    folder = Folder.make(tmp_path, kafka.bootstrap, JOB, topics=topics, partitions=2)
    early = {key: list(range(2, count + 1, 2)) for key, count in COUNTS.items() if count > 1}
    with folder.started("-p", "2", reference="job:Clicks", bounded=False) as run:
        send(folder, COUNTS, BEGIN_MS)
        run.until(
            lambda: all(results(folder, sink, "early") == early for sink in SINKS),
            "at the early results",
        )
        run.kill_slots()
        send(folder, {"end-0": 1, "end-1": 1}, BEGIN_MS + 60_000)
        due = {key: [count] for key, count in COUNTS.items()}
        run.until(
            lambda: all(len(results(folder, sink, "on_time")) == len(due) for sink in SINKS),
            "at the end of the windows",
        )
        assert run.stop().code == 0
    for sink in SINKS:
        assert results(folder, sink, "on_time") == due
        assert results(folder, sink, "early") == early
