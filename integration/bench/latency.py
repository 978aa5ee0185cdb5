"""Measures latency, which is the time from the production of a record until a reader sees it.

A feed produces at a steady rate, and a reader notes the time of each record. The feed and the
reader run in different processes, because neither may wait for the other. Both run on the same
machine, so that one clock measures both ends. At the end the feed reports how many records it has
written, and the reader must have seen each one once. Otherwise slow records could be missing in the
figures, and the latency would look better than it is.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from confluent_kafka import Consumer, TopicPartition

from integration.bench.cost import Rig
from integration.bench.data import PARTITIONS
from integration.bench.page import Table
from integration.bench.steady_producer import ModuleProcess, SteadyProducer, number_of, produced_s
from integration.support.running import TidegateRun, runs_with_checkpoint

RATE: Final = 20_000
LOW_RATE, LOWEST_RATE = 1_000, 10
SETTLE_S: Final = 5.0
TAKE_OVER: Final = ("--take-over",)
"""Option for each run, because its storage is empty and does not know the previous run."""
LAST_S: Final = 30.0
"""Seconds after the end of the feed in which the last records must be seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """The measurement of one guarantee, with tidegate's pipeline, the loop by hand and the goal."""

    name: str
    pipeline: str
    interval_ms: int
    loop_commit_ms: int | None
    """Commit interval of the loop. 0 means no transactions, and None means no loop."""
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
    Promise(
        name="the same, ten a second",  # most of the time each slot waits for its own partitions
        pipeline="ShuffledAtLeastOnce",
        interval_ms=10_000,
        loop_commit_ms=None,
        goal="p99 20 ms",
        rate=LOWEST_RATE,
        parallelism=2,
    ),
)
COLUMNS: Final = (
    *("guarantee", "", "checkpoints", "records/s"),
    *("p50 ms", "p90", "p99", "p99.9", "max", "goal"),
)


BUCKETS_MS: Final = (5, 10, 20, 50, 100, 150, 200, 300, 500, 1000)


def measure_latency(rig: Rig, seconds: float, settle_s: float = SETTLE_S) -> tuple[Table, Table]:
    """Measure percentiles and histograms of tidegate, and of loops by hand on the same machine.

    Each measurement takes `seconds` and begins after `settle_s`.
    """
    percentiles, histograms = [], []
    for promise in PROMISES:
        for kind, measured in (("loop", _of_loop), ("tidegate", _of_tidegate)):
            if kind == "loop" and promise.loop_commit_ms is None:
                continue
            found = sorted(measured(rig, promise, seconds, settle_s))
            every = promise.loop_commit_ms if kind == "loop" else promise.interval_ms
            percentiles.append(
                [
                    *(promise.name, kind, f"{every} ms" if every else ""),
                    f"{len(found) / seconds:,.0f}",
                    *(f"{found[int(len(found) * share)]:.0f}" for share in (0.5, 0.9, 0.99, 0.999)),
                    f"{found[-1]:.0f}",
                    promise.goal if kind == "tidegate" else "",
                ]
            )
            histograms.append([promise.name, kind, *map("{:.2%}".format, histogram(found))])
    titles = ("guarantee", "", *(f"to {ms} ms" for ms in BUCKETS_MS), "more")
    note = "By their numbers, the records of the feeds were each seen exactly once."
    same = "The runs are those of `Latency from produce to visible`."
    return (
        Table("Latency from produce to visible", COLUMNS, percentiles, note),
        Table("Latency: share of the records by time", titles, histograms, same),
    )


def histogram(in_order: list[float]) -> list[float]:
    """Return the share of each bucket (its bound included), then of records above all bounds."""
    counts = Counter(bisect_left(BUCKETS_MS, each) for each in in_order)
    return [counts[number] / len(in_order) for number in range(len(BUCKETS_MS) + 1)]


def _of_tidegate(rig: Rig, promise: Promise, seconds: float, settle_s: float) -> list[float]:
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
        with SteadyProducer(rig.bootstrap, source, promise.rate) as feed:  # so there is no backlog
            return observe(rig.bootstrap, topic, feed, seconds, settle_s)


def _of_loop(rig: Rig, promise: Promise, seconds: float, settle_s: float) -> list[float]:
    source, _ = rig.fresh("feed")
    topic, _ = rig.fresh("latency")
    words = ["for-ever", rig.bootstrap, source, topic, str(promise.loop_commit_ms)]
    with (
        ModuleProcess("integration.bench.loop", *words),
        SteadyProducer(rig.bootstrap, source, promise.rate) as feed,
    ):
        return observe(rig.bootstrap, topic, feed, seconds, settle_s)


@dataclass(slots=True)
class Seen:
    """The records of the feed that were seen, and the latency of the measured ones."""

    took_ms: list[float] = field(default_factory=list)
    numbers: bytearray = field(default_factory=bytearray)
    """One byte for each record number: 1 if the record was seen."""
    count: int = 0

    def note(self, value: bytes, seen_s: float, *, measured: bool) -> None:
        """Note a record. Raise RuntimeError if it was seen before."""
        number = number_of(value)
        if number >= len(self.numbers):
            self.numbers.extend(bytes(number + 1))  # it at least doubles
        if self.numbers[number]:
            raise RuntimeError(f"Record {number} of the feed was seen twice.")
        self.numbers[number] = 1
        self.count += 1
        if measured:
            self.took_ms.append((seen_s - produced_s(value)) * 1000)

    def check(self, sent: int) -> None:
        """Raise RuntimeError unless all `sent` records were seen, and no other record."""
        missing = self.numbers[:sent].count(0) + max(0, sent - len(self.numbers))
        if missing or self.count != sent:
            raise RuntimeError(
                f"Of {sent} records of the feed, {missing} were never seen, and "
                f"{self.count + missing - sent} were seen that it did not send."
            )


def observe(
    bootstrap: str, topic: str, feed: SteadyProducer, seconds: float, settle_s: float
) -> list[float]:
    """Return the latency, in milliseconds, of the records that become visible in `seconds`.

    Records of the first `settle_s` are not measured. At the end, this function ends the feed. It
    raises RuntimeError unless each record of the feed was seen once.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench-latency",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 10,
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    seen = Seen()
    start = time.monotonic() + settle_s
    end = start + seconds
    try:
        while (now := time.monotonic()) < end:
            _look(consumer, seen, measured=now >= start)
        sent = feed.end()
        end = time.monotonic() + LAST_S
        while seen.count < sent and time.monotonic() < end:
            _look(consumer, seen, measured=False)
    finally:
        consumer.close()
    seen.check(sent)
    return seen.took_ms


def _look(consumer: Consumer, seen: Seen, *, measured: bool) -> None:
    # Wait for one message, then take all that are there. A larger first number would wait until it
    # is reached.
    messages = consumer.consume(1, 0.1)
    messages += consumer.consume(5_000, 0) if messages else []
    seen_s = time.time()
    for message in messages:
        value = message.value()
        if message.error() is None and value is not None:
            seen.note(value, seen_s, measured=measured)
