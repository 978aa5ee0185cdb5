"""Windows on a real broker: kills, rescaling in the middle, an idle partition, and late records.

Two partitions of the topic of clicks are in the order of event time, and a third one of another
topic is idle. So no record is late, and the results must be those of a batch over all clicks: each
window once, whatever is killed. The kills come while windows fire.
"""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from integration.support.brokers import Kafka
from integration.support.running import code_of_stop
from integration.support.user_project import Folder, Run

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(240)]

BEGIN_MS = round(time.time() - 86_400) // 10 * 10_000
"""The first event time, a multiple of the windows' size, a day ago."""
KEYS = 50
SIZE_MS = 10_000
GAP_MS = 3_000
STEP_MS = 250
"""Event time between two rounds. In a round, a seventh of the keys have a click."""

JOB = """
import msgspec

from tidegate import (
    BoundedOutOfOrderness, Count, First, Json, KafkaSink, KafkaSource, Last, Pipeline, Session,
    Sum, Tumbling,
)


class Click(msgspec.Struct, frozen=True):
    key: str
    at_ms: int
    value: int


class Result(msgspec.Struct, frozen=True):
    key: str
    start_ms: int
    end_ms: int
    count: int
    values: list[int]
    firing: str


class Clicks(Pipeline, name="{job}"):
    clicks = KafkaSource(
        "{clicks}",
        value=Json(Click),
        event_time=lambda click: click.at_ms,
        watermarks=BoundedOutOfOrderness("1 s"),
    )
    quiet = KafkaSource(
        "{quiet}",
        value=Json(Click),
        event_time=lambda click: click.at_ms,
        watermarks=BoundedOutOfOrderness("1 s", idle_after="500 ms"),
    )
    hours = KafkaSink("{hours}", value=Json(Result), record_key=lambda r: r.key)
    visits = KafkaSink("{visits}", value=Json(Result), record_key=lambda r: r.key)
    late = KafkaSink("{late}", value=Json(Click))

    def define(self) -> None:
        by_key = self.clicks.union(self.quiet).key_by(lambda click: click.key)
        hours = by_key.window(Tumbling("10 s")).aggregate(
            Count(),
            Sum(lambda click: click.value),
            into=lambda w, count, total: Result(
                w.key, w.start_ms, w.end_ms, count, [total], w.firing
            ),
            uid="sums",
        )
        hours.to(self.hours)
        hours.late.to(self.late)
        by_key.window(Session("3 s")).aggregate(
            Count(),
            First(lambda click: click.value),
            Last(lambda click: click.value),
            into=lambda w, count, first, last: Result(
                w.key, w.start_ms, w.end_ms, count, [first, last], w.firing
            ),
            uid="sessions",
        ).to(self.visits)
"""

Found = dict[tuple[str, int, int], tuple[int, list[int]]]


class Clicks:
    """The clicks that were sent, for the batch over them."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._producer = Producer({"bootstrap.servers": folder.bootstrap})
        self.sent: list[tuple[str, int, int]] = []

    def send(self, rounds: range) -> None:
        """Write the clicks of these rounds, each partition in the order of time."""
        for number in rounds:
            for key in range(number % 7, KEYS, 7):
                # A key pauses for longer than a gap now and then.
                if (number // 20 + key) % 3 == 0:
                    continue
                self.send_one(f"k{key}", BEGIN_MS + number * STEP_MS + key, number, key % 2)
        self._producer.flush()

    def send_one(self, key: str, at_ms: int, value: int, partition: int) -> None:
        """Write one click."""
        self.sent.append((key, at_ms, value))
        text = json.dumps({"key": key, "at_ms": at_ms, "value": value})
        self._producer.produce(self._folder.topics["clicks"], text, partition=partition)
        if len(self.sent) % 1000 == 0:
            self._producer.flush()

    def hours(self) -> Found:
        """Return the tumbling windows of a batch over all clicks."""
        found: dict[tuple[str, int, int], list[int]] = defaultdict(list)
        for key, at_ms, value in self.sent:
            start = at_ms - at_ms % SIZE_MS
            found[key, start, start + SIZE_MS].append(value)
        return {window: (len(values), [sum(values)]) for window, values in found.items()}

    def visits(self) -> Found:
        """Return the sessions of a batch over all clicks."""
        found: Found = {}
        for key in {key for key, _, _ in self.sent}:
            times = sorted((at_ms, value) for one, at_ms, value in self.sent if one == key)
            session = [times[0]]
            for click in [*times[1:], (1 << 60, 0)]:
                if click[0] <= session[-1][0] + GAP_MS:
                    session.append(click)
                    continue
                window = (key, session[0][0], session[-1][0] + GAP_MS)
                found[window] = (len(session), [session[0][1], session[-1][1]])
                session = [click]
        return found


def read(folder: Folder, topic: str) -> Found:
    """Return the windows that readers see. Each must be there once, and on time."""
    rows: list[dict[str, Any]] = [json.loads(m.value() or b"") for m in folder.read(topic)]
    found = {
        (row["key"], row["start_ms"], row["end_ms"]): (row["count"], row["values"]) for row in rows
    }
    twice = Counter((row["key"], row["start_ms"]) for row in rows).most_common(1)
    assert len(found) == len(rows), f"{topic}: {twice} is there more than once"
    assert {row["firing"] for row in rows} <= {"on_time"}
    return found


def kill_slots(folder: Folder, run: Run) -> None:
    run.kill_slots()
    published = len(folder.published())
    run.until(lambda: len(folder.published()) > published + 1, "a checkpoint", 60.0)


def test_windows_are_those_of_a_batch_after_kills_and_rescaling(
    kafka: Kafka, tmp_path: Path
) -> None:
    names = ["clicks", "quiet", "hours", "visits", "late"]
    folder = Folder.make(tmp_path, kafka.bootstrap, "", topics=names, partitions=2)
    folder.write("job.py", JOB)
    clicks = Clicks(folder)
    clicks.send(range(400))
    often = ("-c", "checkpoint.interval=200ms")
    with folder.started("--parallelism", "2", *often, reference="job:Clicks", bounded=False) as run:
        run.until(lambda: bool(folder.read("hours")), "windows", 60.0)
        for number in range(3):
            clicks.send(range(400 + 300 * number, 700 + 300 * number))
            kill_slots(folder, run)
        assert run.stop().code == code_of_stop(folder.journal()), run.err
    before = read(folder, "hours")
    assert 0 < len(before) < len(clicks.hours()), "a stop fires nothing"
    clicks.send(range(1_300, 1_600))
    options = ("--parallelism", "3", *often)
    with folder.started(*options, reference="job:Clicks", bounded=True) as run:
        assert run.wait().code == 0, run.err
    assert read(folder, "hours") == clicks.hours()
    assert read(folder, "visits") == clicks.visits()
    assert folder.read("late") == []


def test_late_records_are_a_stream_and_the_status_counts_them_by_uid(
    kafka: Kafka, tmp_path: Path
) -> None:
    names = ["clicks", "quiet", "hours", "visits", "late"]
    folder = Folder.make(tmp_path, kafka.bootstrap, "", topics=names, partitions=1)
    folder.write("job.py", JOB)
    clicks = Clicks(folder)
    clicks.send_one("a", BEGIN_MS + 100_000, 1, 0)
    clicks.send(range(0))
    with folder.started("--json", reference="job:Clicks", bounded=False) as run:
        run.until(lambda: len(folder.published()) > 2, "a checkpoint")
        clicks.send_one("a", BEGIN_MS + 200_000, 2, 0)
        clicks.send(range(0))
        run.until(lambda: len(folder.read("hours")) == 1, "the first window", 60.0)
        clicks.send_one("a", BEGIN_MS + 100_001, 3, 0)
        clicks.send(range(0))
        report = run.until(lambda: last_late(run), "a late record in the report", 60.0)
        assert report == {"sums": 1, "sessions": 1}
        run.until(lambda: bool(folder.read("late")), "the late record", 60.0)
        run.stop()
    (late,) = folder.read("late")
    assert json.loads(late.value() or b"")["value"] == 3


def last_late(run: Run) -> dict[str, int]:
    """Return the late records of the last report, by uid."""
    lines = [line for line in run.out.splitlines() if line.startswith("{")]
    found: dict[str, int] = json.loads(lines[-1]).get("late") if lines else {}
    return found
