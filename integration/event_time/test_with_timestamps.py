"""`with_timestamps` on a real broker: kills, rescaling, a backfill, and a subtask without records.

The source declares no event time. Clicks of all partitions are sent in the order of event time, and
a partition may be behind the others by much less than the delay of the step. So no record is late
behind the step, and the watermark that the records of a key see never goes back.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from integration.event_time.test_watermarks import (
    BEGIN_MS,
    FAST,
    KEYS,
    Clicks,
    assert_in_time,
    count,
    last_report,
    seen,
    started,
)
from integration.support.brokers import Kafka
from integration.support.running import code_of_stop
from integration.support.user_project import Folder

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(240)]

JOB = """
from collections.abc import Iterable

import msgspec

from tidegate import (
    BoundedOutOfOrderness, Context, EventTimer, Fired, Json, KafkaSink, KafkaSource, KeyedProcess,
    Pipeline, ValueState
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
    clicks = KafkaSource("{clicks}", value=Json(Click))
    seen = KafkaSink(
        "{seen}", value=Json(Seen), record_key=lambda seen: seen.key, timestamps="event_time"
    )
    rejected = KafkaSink("{rejected}", value=Json(Click))

    def define(self) -> None:
        stamped = self.clicks.with_timestamps(
            lambda click: click.at_ms,
            watermarks=BoundedOutOfOrderness("{delay}", {options}),
            uid="stamp",
        )
        stamped.key_by(lambda click: click.key).process(See(), uid="see").to(self.seen)
        stamped.rejected.to(self.rejected)
"""


def project(
    tmp_path: Path, kafka: Kafka, *, partitions: int, delay: str = "1000 s", options: str = ""
) -> Folder:
    folder = Folder.make(
        tmp_path, kafka.bootstrap, "", topics=["clicks", "seen", "rejected"], partitions=partitions
    )
    folder.write("job.py", JOB.replace("{delay}", delay).replace("{options}", options))
    return folder


def newest_watermark_ms(folder: Folder) -> int:
    return max(one.watermark_ms for each in seen(folder).values() for one in each)


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 3), (3, 1)])
def test_no_record_is_late_behind_the_step_after_kills_and_rescaling(
    kafka: Kafka, tmp_path: Path, before: int, after: int
) -> None:
    folder = project(tmp_path, kafka, partitions=3)
    clicks = Clicks(folder)
    clicks.send_one({"key": "k0", "at_ms": None}, FAST)
    with started(folder, "--parallelism", str(before)) as run:
        for number in range(4):
            # A job that catches up may read one partition after the other. The delay covers these.
            clicks.send(range(400 * number, 400 * number + 400), range(3))
            if number > 1:
                run.kill_slots()
            run.until(lambda: count(folder) == clicks.sent - 1, "all records")
        assert run.stop().code == code_of_stop(folder.journal()), run.err
    clicks.send(range(1_600, 1_800), range(3))
    with started(folder, "--parallelism", str(after), bounded=True) as run:
        assert run.wait().code == 0, run.err
    found = seen(folder)
    assert sum(map(len, found.values())) == clicks.sent - 1
    assert len(folder.read("rejected")) == 1
    assert_in_time(found)
    assert newest_watermark_ms(folder) > BEGIN_MS + 100_000


def test_subtasks_without_records_hold_nothing_back_and_the_status_names_the_step(
    kafka: Kafka, tmp_path: Path
) -> None:
    """Subtasks 2 and 3 have no partition. One of the others has one without records."""
    folder = project(tmp_path, kafka, partitions=2, delay="1 s", options='idle_after="3 s"')
    clicks = Clicks(folder)
    clicks.send(range(50), (FAST,))
    with started(folder, "--parallelism", "4", "--json") as run:
        report = run.until(lambda: last_report(run, "watermark_held_by"), "a named step")
        assert report["watermark_held_by"].startswith("stamp: subtask ")
        numbers = itertools.count(50)

        def watermark() -> Any:
            # The other partition becomes idle by and by. This one must not be idle as well by then.
            number = next(numbers)
            clicks.send(range(number, number + 1), (FAST,))
            return last_report(run, "watermark_ms")

        run.until(watermark, "a watermark")
        run.until(lambda: count(folder) == clicks.sent, "all records")
        run.stop()
    assert_in_time(seen(folder))
    assert newest_watermark_ms(folder) >= BEGIN_MS + 49_000 - 1_001


@pytest.mark.slow
def test_backfill_carries_the_watermark_over_waves_and_hands_it_over_to_the_live_job(
    kafka: Kafka, tmp_path: Path
) -> None:
    folder = project(tmp_path, kafka, partitions=2)
    clicks = Clicks(folder)
    clicks.send(range(1_500), range(2))
    words = ["--kafka", kafka.bootstrap, "--master", "in-process", "--wave-records", "2000"]
    command = [str(Path(sys.executable).with_name("tidegate")), "backfill", "job:Clicks", *words]
    command += ["-c", "job.parallelism=2", "--json"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    waves = len(folder.published())
    assert waves >= 3, "several waves"
    assert_in_time(seen(folder))
    reached_ms = newest_watermark_ms(folder)
    assert reached_ms > BEGIN_MS
    clicks.send_one({"key": "new", "at_ms": BEGIN_MS + 1_500_000}, FAST)
    clicks.send(range(0))
    with started(folder, "--parallelism", "3", bounded=True) as run:
        assert run.wait().code == 0, run.err
    found = seen(folder)
    assert sum(map(len, found.values())) == clicks.sent
    assert_in_time(found)
    assert found["new"][0].watermark_ms >= reached_ms, "the watermark of the step is a floor"
    assert len(found) == KEYS + 1
