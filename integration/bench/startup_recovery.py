"""Measures start-up, recovery, `--help`, and the memory and CPU of an idle cluster.

Recovery counts from the kill of a slot to the first record that was produced after the kill and is
visible to `read_committed` readers. So a record that an older attempt had prepared does not count.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec
import psutil
from confluent_kafka import Consumer, TopicPartition

from integration.bench.cost import ROOT, Rig
from integration.bench.data import PARTITIONS, USERS, everyone, fill
from integration.bench.latency import SETTLE_S, TAKE_OVER
from integration.bench.page import Table
from integration.bench.pipelines import UserTotal
from integration.bench.process_tree import proportional_bytes
from integration.bench.steady_producer import SteadyProducer, produced_s
from integration.support.resource_usage import kind_of
from integration.support.running import Report, TidegateRun, runs_with_checkpoint

COPY: Final = "integration.bench.pipelines:Passthrough"
TOTALS: Final = "integration.bench.pipelines:Totals"
HELPS: Final = 5
IDLE_S: Final = 10.0
RECOVERY_GOAL: Final = "1.7 s"
"""Goal of a recovery. It is the checkpoint interval of 1 s, plus 0.7 s."""
GIVE_UP_S: Final = 90.0
FEED_PER_S: Final = 1_000
CLUSTER: Final = ("jobmanager", "jobmaster", "taskmanager", "fork-server", "slot")


def measure_startup_recovery(rig: Rig, rounds: int, *, quick: bool) -> Table:
    """Measure one row for each figure. `quick` measures less, and for a shorter time."""

    def middle(once: Callable[[Rig], float]) -> str:
        return f"{statistics.median(once(rig) for _ in range(rounds)):.2f} s"

    idle_s = IDLE_S / 2 if quick else IDLE_S
    rows = [
        ["`tidegate --help`", f"{help_ms():.0f} ms", "150 ms"],
        ["`run` of a pass-through to its first committed record", middle(start_s), "2.5 s"],
        [
            "kill -9 of the slot of a pass-through to a record produced after it",
            *(middle(recovery_s), RECOVERY_GOAL),
        ],
        [
            f"the same of a running total with {USERS:,} keys of durable state",
            *(middle(recovery_of_total_s), RECOVERY_GOAL),
        ],
    ]
    held_mb, share = _middles(idle(rig, "10 s", idle_s) for _ in range(rounds))
    rows.append(["idle cluster, two slots: proportional set size", f"{held_mb:.0f} MB", "180 MB"])
    rows.append(["idle cluster, two slots: CPU, of one core", f"{share:.1%}", "1 %"])
    if not quick:
        _, share = _middles(idle(rig, "1 s", idle_s) for _ in range(rounds))
        rows.append(["the same with a checkpoint every second", f"{share:.1%}", ""])
    note = (
        f"Figures are medians of {rounds} (`--help`: of {HELPS}). A checkpoint comes every second, "
        "and every 10 s in the idle cluster, unless the row names another interval. The idle "
        f"cluster is measured for {idle_s:g} s each time, without its client. Of the outputs, only "
        "the counts of the users in the recovered total are compared."
    )
    return Table("Start, recovery, idle", ("what", "measured", "goal"), rows, note)


def _middles(pairs: Iterable[tuple[float, float]]) -> tuple[float, float]:
    firsts, seconds = zip(*pairs, strict=True)
    return statistics.median(firsts), statistics.median(seconds)


def help_ms() -> float:
    """Return the median wall time of `tidegate --help`, in milliseconds."""
    command = [str(Path(sys.executable).with_name("tidegate")), "--help"]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'framework'}"}
    found = []
    for _ in range(HELPS):
        began = time.monotonic()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
        found.append((time.monotonic() - began) * 1000)
    return statistics.median(found)


def start_s(rig: Rig) -> float:
    """Measure from the start of the command to the first committed record that a reader sees."""
    sink, folder = rig.fresh("start")
    began = time.monotonic()
    config = job_settings("copies", "bench-small", sink)
    with TidegateRun(folder, rig.bootstrap, pipeline=COPY, options=TAKE_OVER, config=config):
        _first(rig.bootstrap, sink, lambda _: True)
        return time.monotonic() - began


def recovery_s(rig: Rig) -> float:
    """Measure from the kill of the slot to the first visible record produced after it."""
    source, _ = rig.fresh("feed")
    sink, folder = rig.fresh("recovery")
    config = job_settings("copies", source, sink)
    with (
        SteadyProducer(rig.bootstrap, source, FEED_PER_S),
        TidegateRun(folder, rig.bootstrap, pipeline=COPY, options=TAKE_OVER, config=config) as run,
    ):
        report = run.wait_for("a checkpoint", runs_with_checkpoint, GIVE_UP_S)
        _first(rig.bootstrap, sink, lambda _: True)
        ends = _ends(rig.bootstrap, sink)
        killed_s = time.time()
        os.kill(report["slots"][0]["pid"], signal.SIGKILL)
        _first(rig.bootstrap, sink, lambda value: produced_s(value) > killed_s, ends)
        return time.time() - killed_s


def recovery_of_total_s(rig: Rig) -> float:
    """Measure a recovery that restores the state of all users. Raise RuntimeError if it was lost.

    Each user has one record, and the feed brings the second one. No user gets a third record during
    a run. So a count of 1 after the kill means that the state of that user was lost.
    """
    source, _ = rig.fresh("feed")
    sink, folder = rig.fresh("recovery")
    fill(rig.bootstrap, source, everyone())
    config = job_settings("totals", source, sink)

    def is_new(value: bytes) -> bool:
        total = msgspec.json.decode(value, type=UserTotal)
        if total.total > killed_s and total.count != 2:
            raise RuntimeError(f"{total.user} has {total.count} records, not 2. State was lost.")
        return total.total > killed_s

    with TidegateRun(
        folder, rig.bootstrap, pipeline=TOTALS, options=TAKE_OVER, config=config
    ) as run:
        report = run.wait_for("all users", _has_all_users, GIVE_UP_S)
        with SteadyProducer(rig.bootstrap, source, FEED_PER_S, "clicks"):
            killed_s = 0.0
            _first(rig.bootstrap, sink, is_new)  # after this, a checkpoint has all users
            ends = _ends(rig.bootstrap, sink)
            killed_s = time.time()
            os.kill(report["slots"][0]["pid"], signal.SIGKILL)
            _first(rig.bootstrap, sink, is_new, ends)
            return time.time() - killed_s


def _has_all_users(report: Report) -> bool:
    return runs_with_checkpoint(report) and report["records_in"] >= USERS


def idle(rig: Rig, interval: str, seconds: float) -> tuple[float, float]:
    """Measure the proportional megabytes, and the share of a core, of a cluster without input.

    The cluster takes a checkpoint every `interval`. CPU is measured for `seconds`.
    """
    source, _ = rig.fresh("silent")
    sink, folder = rig.fresh("idle")
    config = {
        **job_settings("totals", source, sink),
        "job.parallelism": "2",
        "taskmanager.slots": "2",
        "checkpoint.interval": interval,
    }
    with TidegateRun(
        folder, rig.bootstrap, pipeline=TOTALS, options=TAKE_OVER, config=config
    ) as run:
        run.wait_for("a checkpoint", runs_with_checkpoint, GIVE_UP_S)
        time.sleep(SETTLE_S)  # right after the first checkpoint the cluster is not yet idle
        below = psutil.Process(run.pid).children(recursive=True)
        cluster = [process for process in below if kind_of(process) in CLUSTER]
        before = _cpu_s(cluster)
        time.sleep(seconds)
        spent = _cpu_s(cluster) - before
        return sum(map(proportional_bytes, cluster)) / 1e6, spent / seconds


def job_settings(sink: str, source: str, topic: str) -> dict[str, str]:
    """Return the settings of a job with one slot and a checkpoint every second."""
    return {
        "sources.clicks.topic": source,
        f"sinks.{sink}.topic": topic,
        "checkpoint.interval": "1 s",
        "job.parallelism": "1",
    }


def _cpu_s(processes: list[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def _ends(bootstrap: str, topic: str) -> list[int]:
    """Return the offset of the next record of each partition.

    A reader that starts there sees only new records and has no backlog.
    """
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench-ends"})
    try:
        return [
            consumer.get_watermark_offsets(TopicPartition(topic, number), GIVE_UP_S)[1]
            for number in range(PARTITIONS)
        ]
    finally:
        consumer.close()


def _first(
    bootstrap: str,
    topic: str,
    wanted: Callable[[bytes], bool],
    starts: Sequence[int] = (0,) * PARTITIONS,
) -> None:
    """Return as soon as a wanted, committed record is seen. Raise TimeoutError if none comes."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench-first",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 10,
        }
    )
    consumer.assign([TopicPartition(topic, *each) for each in enumerate(starts)])
    end = time.monotonic() + GIVE_UP_S
    try:
        while time.monotonic() < end:
            for message in consumer.consume(1000, 0.01):
                value = message.value()
                if message.error() is None and value is not None and wanted(value):
                    return
    finally:
        consumer.close()
    raise TimeoutError(f"No such record came on {topic} within {GIVE_UP_S:g} s.")
