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
from types import TracebackType
from typing import Final, Self

from confluent_kafka import Consumer, Producer, TopicPartition

from integration.bench.cost import Rig
from integration.bench.data import PARTITIONS, USERS
from integration.bench.page import Table
from integration.running import ROOT, TidegateRun, runs_with_checkpoint

RATE: Final = 20_000
SETTLE_S: Final = 5.0
TAKE_OVER: Final = ("--take-over",)
"""Each run has a storage of its own, in which nobody knows the job of the one before."""
STEP_S: Final = 0.005
SIZE: Final = 143
STAMP: Final = 20
"""Bytes of the time of production, in nanoseconds, in front of a record."""


class Feed:
    """Produces at a steady rate until it is left."""

    def __init__(self, bootstrap: str, topic: str, rate: int) -> None:
        words = ["integration.bench.latency", bootstrap, topic, str(rate)]
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


def produced_s(value: bytes) -> float:
    """When a record of the feed was produced."""
    return int(value[:STAMP]) / 1e9


def measure_latency(rig: Rig, seconds: float) -> Table:
    """Percentiles at 20,000 records/s, exactly once at 100 ms checkpoints and at least once."""
    rows = []
    for guarantee, pipeline, sink, interval, goal in (
        ("exactly once", "Passthrough", "copies", "100 ms", "300 ms"),
        ("at least once", "CopiesAtLeastOnce", "copies", "1 s", "30 ms"),
    ):
        source, _ = rig.fresh("feed")
        topic, folder = rig.fresh("latency")
        config = {
            "sources.clicks.topic": source,
            f"sinks.{sink}.topic": topic,
            "checkpoint.interval": interval,
            "job.parallelism": "1",
        }
        name = f"integration.bench.pipelines:{pipeline}"
        with TidegateRun(
            folder, rig.bootstrap, pipeline=name, options=TAKE_OVER, config=config
        ) as run:
            run.wait_for("a checkpoint", runs_with_checkpoint, 90)
            with Feed(rig.bootstrap, source, RATE):  # not before, or there would be a backlog
                found = sorted(observe(rig.bootstrap, topic, seconds))
        rows.append(
            [
                *(guarantee, interval, f"{len(found) / seconds:,.0f}"),
                *(f"{found[int(len(found) * share)]:.0f}" for share in (0.5, 0.9, 0.99, 0.999)),
                f"{found[-1]:.0f}",
                f"p99 {goal}",
            ]
        )
    columns = (
        "guarantee",
        "checkpoints",
        "records/s",
        "p50 ms",
        "p90",
        "p99",
        "p99.9",
        "max",
        "goal",
    )
    return Table("Latency from produce to visible", columns, rows)


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
    ends = (consumer.get_watermark_offsets(TopicPartition(topic, p)) for p in range(PARTITIONS))
    consumer.assign([TopicPartition(topic, p, end[1]) for p, end in enumerate(ends)])
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
