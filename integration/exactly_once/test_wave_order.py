"""A wave merges the records of two topics with different rates by Kafka's timestamps, on a real
broker.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from confluent_kafka import Producer

from integration.support.backfills import BackfillJob
from integration.support.brokers import TIMEOUT_S, create_topic, unique
from integration.support.user_project import Folder
from tidegate.dataplane.sources.kafka import BATCH_RECORDS_MAX
from tidegate.dataplane.waves.level_task import FLUSH_RECORDS
from tidegate.drivers.kafka.embedded import EmbeddedKafka

pytestmark = [pytest.mark.slow, pytest.mark.kafka, pytest.mark.timeout(180)]

JOINED = """
from collections.abc import Iterable

import msgspec

from tidegate import Context, Json, KafkaSink, KafkaSource, KeyedProcess, Pipeline, ValueState


class Event(msgspec.Struct, frozen=True):
    time: int


class Seen(msgspec.Struct, frozen=True):
    number: int
    time: int


class Counting(KeyedProcess[str, Event, Seen]):
    count = ValueState(int, default=0)

    def process(self, event: Event, ctx: Context[str]) -> Iterable[Seen]:
        self.count.value += 1
        yield Seen(self.count.value, event.time)


class Joined(Pipeline, name="{job}"):
    fast = KafkaSource("{fast}", value=Json(Event))
    slow = KafkaSource("{slow}", value=Json(Event))
    seen = KafkaSink("{seen}", value=Json(Seen))

    def define(self) -> None:
        one = self.fast.union(self.slow).key_by(lambda event: "all")
        one.process(Counting(), uid="counting").to(self.seen)
"""
SPAN_S = 40_000
SLOW_STEP_S = 20
START_S = 1_700_000_000
FAST_PARTITIONS = 2


def send(bootstrap: str, topic: str, step_s: int, partitions: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50, "log_level": 0})
    for time_s in range(0, SPAN_S, step_s):
        producer.produce(
            topic,
            json.dumps({"time": time_s}).encode(),
            partition=time_s // step_s % partitions,
            timestamp=(START_S + time_s) * 1000,
        )
        producer.poll(0)
    assert producer.flush(TIMEOUT_S) == 0


def test_a_keyed_process_sees_the_records_of_two_topics_about_in_the_order_of_their_time(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    """A task sends its output after at most FLUSH_RECORDS records. This limits the disorder: a
    record follows a later record only within the time that a partition spans in so many records.
    """
    folder = Folder(tmp_path, kafka.bootstrap)
    for name, partitions in {"fast": FAST_PARTITIONS, "slow": 1, "seen": 1}.items():
        folder.topics[name] = unique(name)
        create_topic(kafka.bootstrap, folder.topics[name], partitions=partitions)
    send(kafka.bootstrap, folder.topics["fast"], 1, FAST_PARTITIONS)
    send(kafka.bootstrap, folder.topics["slow"], SLOW_STEP_S, 1)
    module = unique("joined").replace("-", "_")
    folder.write(f"{module}.py", JOINED)
    job = BackfillJob(f"{module}:Joined", tmp_path, {"kafka.bootstrap_servers": kafka.bootstrap})
    records = SPAN_S + SPAN_S // SLOW_STEP_S
    assert len(job.backfill(parallelism=2, wave_offsets=records)) == 1
    seen = [json.loads(message.value() or b"") for message in folder.read("seen")]
    seen.sort(key=lambda each: int(each["number"]))
    assert [each["number"] for each in seen] == list(range(1, records + 1))
    latest = disorder = 0
    for each in seen:
        latest = max(latest, each["time"])
        disorder = max(disorder, latest - each["time"])
    assert disorder <= (FLUSH_RECORDS + 2 * BATCH_RECORDS_MAX) * FAST_PARTITIONS
