"""Measures how long after its end a window's results are visible.

The time counts from the production of the record that closes the window until a reader sees a
result of an at-least-once sink. A source emits its watermark at an interval
(`job.watermark_interval`), so a result is late by up to that interval. The hand-written loop has no
such interval: it looks for ended windows after each batch.

The feed ends each window in all partitions at one time (`window_feed.py`). All results together
must count each record of the ended windows once. Otherwise slow results could be missing in the
figures.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

import msgspec
from confluent_kafka import Consumer, TopicPartition

from integration.bench.cost import Rig
from integration.bench.data import PARTITIONS
from integration.bench.latency import LAST_S, SETTLE_S, TAKE_OVER
from integration.bench.page import Table
from integration.bench.steady_producer import ModuleProcess
from integration.bench.window_feed import Fed, VisitCount, WindowFeed
from integration.support.running import TidegateRun, runs_with_checkpoint
from tidegate.config import JobSettings

RATE: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One measurement: the loop by hand (parallelism 0) or a job, and its feed."""

    parallelism: int
    rate: int = RATE
    """Records a second between the ends of windows. With 0, the only records are those that end
    windows, so a slot is asleep most of the time.
    """
    checkpoint_s: int = 1


CASES: Final = (
    Case(parallelism=0),
    Case(parallelism=1),
    Case(parallelism=4),
    Case(parallelism=1, rate=0, checkpoint_s=10),
    Case(parallelism=4, rate=0, checkpoint_s=10),
)
BEYOND_MS: Final = 50
"""Goal: at most so much later than one interval of watermarks."""
COLUMNS: Final = (
    *("", "parallelism", "records/s", "checkpoints", "windows", "results"),
    *("p50 ms", "p90", "p99", "max", "goal", "load average"),
)


def measure_window_latency(rig: Rig, seconds: float, settle_s: float = SETTLE_S) -> Table:
    """Measure each case for `seconds`, after `settle_s`."""
    interval_ms = JobSettings().watermark_interval
    rows = []
    for case in CASES:
        took_ms = _measured(rig, case, seconds, settle_s)
        in_order = sorted(each for _, each in took_ms)
        job = case.parallelism > 0
        rows.append(
            [
                *(("tidegate", str(case.parallelism)) if job else ("loop", "")),
                *(f"{case.rate:,}", f"{case.checkpoint_s} s" if job else ""),
                *(str(len({window for window, _ in took_ms})), f"{len(in_order):,}"),
                *(f"{in_order[int(len(in_order) * share)]:.0f}" for share in (0.5, 0.9, 0.99)),
                *(f"{in_order[-1]:.0f}", f"p99 {interval_ms + BEYOND_MS} ms" if job else ""),
                f"{os.getloadavg()[0]:.1f}",
            ]
        )
    note = (
        "A feed ends its windows at drawn times, about three a second, by a record in each "
        "partition. Records a second are those between these ends. A source emits its watermark "
        f"at most every {interval_ms} ms. The results count each record of the ended windows once. "
        "The load average is that of the minute before the end of the measurement."
    )
    return Table("Latency from the end of a window to its results", COLUMNS, rows, note)


def _measured(rig: Rig, case: Case, seconds: float, settle_s: float) -> list[tuple[int, float]]:
    """Return the window and the time in milliseconds of each result."""
    source, _ = rig.fresh("feed")
    topic, folder = rig.fresh("window-latency")
    with ExitStack() as running:
        if not case.parallelism:
            words = ["windows-for-ever", rig.bootstrap, source, topic]
            running.enter_context(ModuleProcess("integration.bench.loop", *words))
        else:
            config = {
                "sources.visits.topic": source,
                "sinks.counts.topic": topic,
                "checkpoint.interval": f"{case.checkpoint_s} s",
                "job.parallelism": str(case.parallelism),
            }
            name = "integration.bench.pipelines:CountedVisits"
            job = TidegateRun(
                folder, rig.bootstrap, pipeline=name, options=TAKE_OVER, config=config
            )
            running.enter_context(job).wait_for("a checkpoint", runs_with_checkpoint, 90)
        feed = running.enter_context(WindowFeed(rig.bootstrap, source, case.rate))
        return observe(rig.bootstrap, topic, feed, seconds, settle_s)


class SeenResults:
    """The results that were seen, each with its time."""

    def __init__(self) -> None:
        self._decode = msgspec.json.Decoder(VisitCount).decode
        self._seen: dict[tuple[int, str], float] = {}
        self.records = 0
        """The number of records that the results count."""

    def note(self, value: bytes, seen_s: float) -> None:
        """Note a result. Raise RuntimeError if it was seen before."""
        result = self._decode(value)
        which = result.start_ms, result.user
        if which in self._seen:
            raise RuntimeError(f"The result {result} was seen twice.")
        self._seen[which] = seen_s
        self.records += result.count

    def took_ms(self, fed: Fed, since_s: float) -> list[tuple[int, float]]:
        """Return the window and the milliseconds of each result of a window that has ended after
        `since_s`. Raise RuntimeError unless the results count each record of the feed once.
        """
        if self.records != fed.records:
            raise RuntimeError(
                f"The results count {self.records} records, and the feed has written "
                f"{fed.records} into the windows that have ended."
            )
        return [
            (start_ms, (seen_s - fed.closed_ns[start_ms] / 1e9) * 1000)
            for (start_ms, _), seen_s in self._seen.items()
            if fed.closed_ns[start_ms] / 1e9 >= since_s
        ]


def observe(
    bootstrap: str, topic: str, feed: WindowFeed, seconds: float, settle_s: float
) -> list[tuple[int, float]]:
    """Return the window and the latency, in milliseconds, of the results of windows that end in
    `seconds`. Windows of the first `settle_s` are not measured. At the end, this function ends the
    feed.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench-latency",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 10,
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    seen = SeenResults()
    since_s = time.time() + settle_s
    end_s = time.monotonic() + settle_s + seconds
    try:
        while time.monotonic() < end_s:
            _look(consumer, seen)
        fed = feed.end()
        end_s = time.monotonic() + LAST_S
        while seen.records < fed.records and time.monotonic() < end_s:
            _look(consumer, seen)
    finally:
        consumer.close()
    return seen.took_ms(fed, since_s)


def _look(consumer: Consumer, seen: SeenResults) -> None:
    # Wait for one message, then take all that are there, as in `latency.py`.
    messages = consumer.consume(1, 0.1)
    messages += consumer.consume(5_000, 0) if messages else []
    seen_s = time.time()
    for message in messages:
        value = message.value()
        if message.error() is None and value is not None:
            seen.note(value, seen_s)
