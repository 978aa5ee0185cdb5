"""From a record's production to its visibility: a feed at a steady rate, and a reader's clock.

The feed is a process of its own (so is the reader's, for neither may wait for the other), on the
same machine, so that one clock measures both ends. A record carries the time at which it was given
to the producer, so the producer's own lingering is in the figures.

    python -m integration.bench.latency BOOTSTRAP TOPIC RECORDS_PER_S     (the feed)
"""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from integration.bench.cost import Rig
from integration.bench.data import PARTITIONS, USERS
from integration.bench.page import Table
from integration.running import ROOT, TidegateRun, runs_with_checkpoint

RATE: Final = 20_000
LOW_RATE: Final = 1_000
SETTLE_S: Final = 5.0
TAKE_OVER: Final = ("--take-over",)
"""Each run has a storage of its own, in which nobody knows the job of the one before."""
STEP_S: Final = 0.005
SIZE: Final = 143
STAMP: Final = 20
"""Bytes of the time of production, in nanoseconds, in front of a record."""


class Left:
    """A module that runs as a process of its own until it is left."""

    def __init__(self, *words: str) -> None:
        self._process = subprocess.Popen([sys.executable, "-m", *words], cwd=ROOT)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()


class Feed(Left):
    """Produces at a steady rate until it is left."""

    def __init__(self, bootstrap: str, topic: str, rate: int) -> None:
        super().__init__("integration.bench.latency", bootstrap, topic, str(rate))


def produced_s(value: bytes) -> float:
    """When a record of the feed was produced."""
    return int(value[:STAMP]) / 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """One guarantee: tidegate's pipeline for it, the loop by hand, and what is aimed at."""

    name: str
    pipeline: str
    interval_ms: int
    loop_commit_ms: int | None
    """0 is no transaction; None where there is no loop."""
    goal: str
    rate: int = RATE
    parallelism: int = 1


PROMISES: Final = (
    Promise(
        name="exactly once",
        pipeline="Passthrough",
        interval_ms=100,
        loop_commit_ms=100,
        goal="p99 300 ms",
    ),
    Promise(
        name="at least once",
        pipeline="CopiesAtLeastOnce",
        interval_ms=1000,
        loop_commit_ms=0,
        goal="p99 30 ms",
    ),
    Promise(
        name="the same, between two slots",
        pipeline="ShuffledAtLeastOnce",
        interval_ms=1000,
        loop_commit_ms=None,
        goal="p99 20 ms",
        rate=LOW_RATE,
        parallelism=2,
    ),
)
COLUMNS: Final = (
    *("guarantee", "", "checkpoints", "records/s"),
    *("p50 ms", "p90", "p99", "p99.9", "max", "goal"),
)


def measure_latency(rig: Rig, seconds: float) -> Table:
    """Percentiles of tidegate, and of loops by hand on the same machine."""
    rows = []
    for promise in PROMISES:
        for kind, measured in (("loop", _of_loop), ("tidegate", _of_tidegate)):
            if kind == "loop" and promise.loop_commit_ms is None:
                continue
            found = sorted(measured(rig, promise, seconds))
            every = promise.loop_commit_ms if kind == "loop" else promise.interval_ms
            rows.append(
                [
                    *(promise.name, kind, f"{every} ms" if every else ""),
                    f"{len(found) / seconds:,.0f}",
                    *(f"{found[int(len(found) * share)]:.0f}" for share in (0.5, 0.9, 0.99, 0.999)),
                    f"{found[-1]:.0f}",
                    promise.goal if kind == "tidegate" else "",
                ]
            )
    return Table("Latency from produce to visible", COLUMNS, rows)


def _of_tidegate(rig: Rig, promise: Promise, seconds: float) -> list[float]:
    source, _ = rig.fresh("feed")
    topic, folder = rig.fresh("latency")
    config = {
        "sources.clicks.topic": source,
        "sinks.copies.topic": topic,
        "checkpoint.interval": f"{promise.interval_ms} ms",
        "job.parallelism": str(promise.parallelism),
    }
    name = f"integration.bench.pipelines:{promise.pipeline}"
    with TidegateRun(folder, rig.bootstrap, pipeline=name, options=TAKE_OVER, config=config) as run:
        run.wait_for("a checkpoint", runs_with_checkpoint, 90)
        with Feed(rig.bootstrap, source, promise.rate):  # not before, or there would be a backlog
            return observe(rig.bootstrap, topic, seconds)


def _of_loop(rig: Rig, promise: Promise, seconds: float) -> list[float]:
    source, _ = rig.fresh("feed")
    topic, _ = rig.fresh("latency")
    words = ["for-ever", rig.bootstrap, source, topic, str(promise.loop_commit_ms)]
    with Left("integration.bench.loop", *words), Feed(rig.bootstrap, source, promise.rate):
        return observe(rig.bootstrap, topic, seconds)


def observe(bootstrap: str, topic: str, seconds: float) -> list[float]:
    """Milliseconds of the records that become visible in this time, after some to settle."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench-latency",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 10,
            "auto.offset.reset": "latest",
        }
    )
    consumer.assign([_end_of(consumer, topic, number) for number in range(PARTITIONS)])
    start = time.monotonic() + SETTLE_S
    end = start + seconds
    found: list[float] = []
    while (now := time.monotonic()) < end:
        # One at least, then what is there: a larger number would wait to be full.
        messages = consumer.consume(1, 0.1)
        messages += consumer.consume(5_000, 0) if messages else []
        if now >= start:
            seen_ns = time.time_ns()
            for message in messages:
                value = message.value()
                if message.error() is None and value is not None:
                    found.append((seen_ns - int(value[:STAMP])) / 1e6)
    consumer.close()
    return found


def _end_of(consumer: Consumer, topic: str, number: int) -> TopicPartition:
    """The end of a partition, which may just have been made."""
    give_up = time.monotonic() + SETTLE_S
    while True:
        try:
            _, end = consumer.get_watermark_offsets(TopicPartition(topic, number))
        except KafkaException:
            if time.monotonic() > give_up:
                raise
            time.sleep(STEP_S)
        else:
            return TopicPartition(topic, number, end)


def feed(bootstrap: str, topic: str, rate: int) -> None:
    """Produce for ever, some every 5 ms."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 1, "acks": "all"})
    keys = [b"u%06d" % number for number in range(USERS)]
    pad = b"x" * (SIZE - STAMP)
    sent, began = 0, time.monotonic()
    while True:
        due = int((time.monotonic() - began) * rate)
        stamp = b"%020d" % time.time_ns()
        for number in range(sent, due):
            producer.produce(topic, stamp + pad, keys[number % USERS])
        sent = max(sent, due)
        producer.poll(0)
        time.sleep(STEP_S)


if __name__ == "__main__":
    feed(sys.argv[1], sys.argv[2], int(sys.argv[3]))
