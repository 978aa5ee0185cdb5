"""Watermarks on a real broker: partitions of different speed, an idle one, kills, and rescaling.

Each partition is in the order of event time. So no record is ever behind the watermark of its step,
whatever is killed and however the job is rescaled, as long as no partition becomes idle. The
watermark that the records of a key see never goes back, also not by a restore.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, Producer

from integration.support.brokers import Kafka
from integration.support.running import code_of_stop
from integration.support.user_project import Folder, Run

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(240)]

FAST, SLOW, IDLE, PARTITIONS = 0, 1, 2, 4
KEYS = 7
BEGIN_MS = round(time.time() - 86_400) * 1000
"""The first event time, a day ago: the sink writes event times, and a topic keeps them for a week.
"""
SLOW_EVERY = 10
"""Number of rounds for each record of the slow partition."""
BEHIND_MS = 300_000
"""Milliseconds of event time by which a partition may be behind the others."""

JOB = """
from collections.abc import Iterable

import msgspec

from tidegate import (
    BoundedOutOfOrderness, Context, Json, KafkaSink, KafkaSource, KeyedProcess, Pipeline, ValueState
)


class Click(msgspec.Struct, frozen=True):
    key: str
    at_ms: int | None


class Seen(msgspec.Struct, frozen=True):
    key: str
    at_ms: int
    watermark_ms: int
    number: int


class See(KeyedProcess[str, Click, Seen]):
    number = ValueState(int, default=0)

    def process(self, click: Click, ctx: Context[str]) -> Iterable[Seen]:
        self.number.value += 1
        yield Seen(ctx.key, ctx.timestamp_ms, ctx.watermark_ms, self.number.value)


class Clicks(Pipeline, name="{job}"):
    clicks = KafkaSource(
        "{clicks}",
        value=Json(Click),
        event_time=lambda click: click.at_ms,
        watermarks=BoundedOutOfOrderness("1 s", {options}),
        {source}
    )
    seen = KafkaSink(
        "{seen}", value=Json(Seen), record_key=lambda seen: seen.key, timestamps="event_time"
    )

    def define(self) -> None:
        self.clicks.key_by(lambda click: click.key).process(See(), uid="see").to(self.seen)
"""


class Seen(NamedTuple):
    """One record, with the times that the step has seen."""

    key: str
    at_ms: int
    watermark_ms: int
    number: int


class Clicks:
    """The topic of clicks. Times follow from the number of a round."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._producer = Producer({"bootstrap.servers": folder.bootstrap})
        self.sent = 0

    def send(
        self, rounds: range, partitions: Sequence[int] = (FAST, SLOW, 3), *, behind_ms: int = 0
    ) -> None:
        """Write a click of each key into each of these partitions, in each round. The clicks of the
        slow partition are behind the others by `behind_ms`.
        """
        for number in rounds:
            for partition in partitions:
                slow = partition == SLOW
                if slow and number % SLOW_EVERY:
                    continue
                at_ms = BEGIN_MS + 1_000 * number - (behind_ms if slow else 0)
                for key in range(KEYS):
                    self.send_one({"key": f"k{key}", "at_ms": at_ms}, partition)
        self._producer.flush()

    def send_one(self, click: dict[str, Any], partition: int, at_ms: int = 0) -> None:
        """Write one click; `at_ms` is its timestamp in Kafka. With 0, that is the time of now."""
        topic, value = self._folder.topics["clicks"], json.dumps(click)
        self._producer.produce(topic, value, partition=partition, timestamp=at_ms)
        self._producer.poll(0)
        self.sent += 1
        if self.sent % 1000 == 0:
            self._producer.flush()


def project(
    tmp_path: Path,
    kafka: Kafka,
    *,
    options: str = "",
    source: str = "",
    partitions: int = PARTITIONS,
) -> Folder:
    folder = Folder.make(
        tmp_path, kafka.bootstrap, "", topics=["clicks", "seen"], partitions=partitions
    )
    folder.write("job.py", JOB.replace("{options}", options).replace("{source}", source))
    return folder


@contextmanager
def started(folder: Folder, *options: str, bounded: bool = False) -> Iterator[Run]:
    with folder.started(*options, reference="job:Clicks", bounded=bounded) as run:
        yield run


def seen(folder: Folder) -> dict[str, list[Seen]]:
    """Return the records that the step has seen, by key and in order."""
    found: dict[str, list[Seen]] = {}
    for message in folder.read("seen"):
        one = Seen(**json.loads(message.value() or b""))
        assert message.timestamp() == (TIMESTAMP_CREATE_TIME, one.at_ms)
        found.setdefault(one.key, []).append(one)
    return found


def assert_in_time(found: dict[str, list[Seen]]) -> None:
    """No record is late, and the watermark of a key never goes back."""
    for key, each in found.items():
        assert [one.number for one in each] == list(range(1, len(each) + 1)), f"{key}: exactly once"
        late = [one for one in each if one.at_ms <= one.watermark_ms]
        assert not late, f"{key}: {late[:3]}"
        watermarks = [one.watermark_ms for one in each]
        assert watermarks == sorted(watermarks), f"{key}: the watermark went back"


def count(folder: Folder) -> int:
    return len(folder.read("seen"))


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 3)])
def test_no_record_is_late_and_no_watermark_goes_back_after_kills_and_rescaling(
    kafka: Kafka, tmp_path: Path, before: int, after: int
) -> None:
    folder = project(tmp_path, kafka, partitions=3)
    clicks = Clicks(folder)
    clicks.send(range(200), range(3))
    with started(folder, "--parallelism", str(before)) as run:
        run.until(lambda: count(folder) > 0, "output")
        for number in range(2):
            clicks.send(range(200 + 100 * number, 300 + 100 * number), range(3))
            run.kill_slots()
            published = len(folder.published())
            run.until(lambda: len(folder.published()) > published + 1, "a checkpoint")  # noqa: B023
        assert run.stop().code == code_of_stop(folder.journal()), run.err
    clicks.send(range(400, 500), range(3))
    with started(folder, "--parallelism", str(after), bounded=True) as run:
        assert run.wait().code == 0, run.err
    found = seen(folder)
    assert sum(map(len, found.values())) == clicks.sent
    assert_in_time(found)
    assert max(one.watermark_ms for each in found.values() for one in each) > BEGIN_MS + 300_000


@pytest.mark.slow
def test_partitions_that_were_idle_wait_for_records_that_came_while_the_job_was_down(
    kafka: Kafka, tmp_path: Path
) -> None:
    folder = project(tmp_path, kafka, options='idle_after="500 ms"', partitions=2)
    clicks = Clicks(folder)
    clicks.send(range(21), range(2))
    with started(folder, "--parallelism", "2") as run:
        run.until(lambda: all_are_idle(folder), "a checkpoint with idle partitions", 60.0)
        assert run.stop().code == code_of_stop(folder.journal()), run.err
    clicks.send(range(100, 1_500), range(2))  # Kafka has all of it before the job is back
    often = ("-c", "job.watermark_interval=5ms")
    with started(folder, "--parallelism", "1", *often, bounded=True) as run:
        assert run.wait().code == 0, run.err
    found = seen(folder)
    assert sum(map(len, found.values())) == clicks.sent
    assert_in_time(found)


def all_are_idle(folder: Folder) -> bool:
    """Return whether all partitions were idle at the newest checkpoint."""
    manifests = folder.path / ".tidegate" / "checkpoints" / folder.job / "manifests"
    text = "".join(
        (manifests / f"{checkpoint}.json").read_text() for checkpoint in folder.published()[-1:]
    )
    return text.count('"idle":true') == 2


@pytest.mark.slow
def test_partition_without_records_holds_back_the_watermark_and_the_status_names_it(
    kafka: Kafka, tmp_path: Path
) -> None:
    folder = project(tmp_path, kafka)
    clicks = Clicks(folder)
    clicks.send(range(50), (FAST,))
    with started(folder, "--parallelism", "2", "--json") as run:
        report = run.until(lambda: last_report(run, "watermark_held_by"), "a named partition")
        assert report["watermark_held_by"].startswith(f"clicks: {folder.topics['clicks']}-")
        assert report["watermark_held_by"][-2:] != f"-{FAST}"
        assert report["watermark_ms"] is None
        clicks.send(range(50, 60), range(PARTITIONS), behind_ms=BEHIND_MS)
        report = run.until(lambda: last_report(run, "watermark_ms"), "a watermark")
        assert report["watermark_ms"] == BEGIN_MS + 50_000 - BEHIND_MS - 1_001
        assert report["watermark_held_by"][-2:] == f"-{SLOW}"
        run.stop()
    assert_in_time(seen(folder))


def last_report(run: Run, field: str) -> dict[str, Any] | None:
    """The last report, if this field has a value that is not the one of the first reports."""
    lines = [line for line in run.out.splitlines() if line.startswith("{")]
    report: dict[str, Any] = json.loads(lines[-1]) if lines else {}
    return report if report.get(field) else None


@pytest.mark.slow
def test_record_without_a_usable_time_follows_the_policy_and_moves_no_watermark(
    kafka: Kafka, tmp_path: Path
) -> None:
    source = 'on_bad_record="skip",'
    folder = project(tmp_path, kafka, options='max_ahead="1 h"', source=source, partitions=1)
    clicks = Clicks(folder)
    for number in range(50):
        at_ms = BEGIN_MS + 1_000 * number
        clicks.send_one({"key": "k0", "at_ms": at_ms}, FAST, at_ms)
        clicks.send_one({"key": "k0", "at_ms": None}, FAST, at_ms)
        clicks.send_one({"key": "k0", "at_ms": at_ms + 3_600_001}, FAST, at_ms)
        clicks.send_one({"key": "k0", "at_ms": 1 << 62}, FAST, at_ms)
    clicks.send(range(0))
    outcome = folder.run("--json", reference="job:Clicks")
    assert outcome.code == 0, outcome.err
    found = seen(folder)["k0"]
    assert [one.at_ms for one in found] == [BEGIN_MS + 1_000 * number for number in range(50)]
    assert_in_time({"k0": found})
    last = json.loads(outcome.out.splitlines()[-1])
    assert last["skipped"] == 150


def test_record_without_a_time_fails_the_job_and_the_error_names_it(
    kafka: Kafka, tmp_path: Path
) -> None:
    folder = project(tmp_path, kafka)
    clicks = Clicks(folder)
    clicks.send_one({"key": "k0", "at_ms": BEGIN_MS}, FAST)
    clicks.send_one({"key": "k0", "at_ms": None}, FAST)
    clicks.send(range(0))
    outcome = folder.run(reference="job:Clicks")
    assert outcome.code != 0
    topic = folder.topics["clicks"]
    assert f"cannot use the event time of the record of {topic}-{FAST} at offset 1" in outcome.err
    assert "its event time is None, not milliseconds or a datetime with a zone" in outcome.err


@pytest.mark.slow
def test_backfill_carries_watermarks_over_waves_and_hands_them_over_to_the_live_job(
    kafka: Kafka, tmp_path: Path
) -> None:
    folder = project(tmp_path, kafka)
    clicks = Clicks(folder)
    clicks.send(range(200), range(PARTITIONS))
    words = ["--kafka", kafka.bootstrap, "--master", "in-process", "--wave-records", "600"]
    command = [str(Path(sys.executable).with_name("tidegate")), "backfill", "job:Clicks", *words]
    command += ["-c", "job.parallelism=2", "--json"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    waves = len(folder.published())
    assert waves >= 4, "several waves"
    found = seen(folder)
    assert sum(map(len, found.values())) == clicks.sent
    assert_in_time(found)
    marks = {one.watermark_ms for each in found.values() for one in each}
    assert len(marks) >= waves, "the watermark moves within and between waves"
    clicks.send(range(200, 250), range(PARTITIONS))
    with started(folder, "--parallelism", "3", bounded=True) as run:
        assert run.wait().code == 0, run.err
    found = seen(folder)
    assert sum(map(len, found.values())) == clicks.sent
    assert_in_time(found)
