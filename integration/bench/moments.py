"""How long single things take, and what an idle cluster holds: start-up, recovery, `--help`, idle.

Recovery counts from the kill of a slot to the first record that was produced after the kill and is
visible to `read_committed` readers: nothing that an older attempt had prepared can pass for it.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import psutil
from confluent_kafka import Consumer, TopicPartition

from integration.bench.cost import ROOT, Rig
from integration.bench.data import PARTITIONS
from integration.bench.latency import SETTLE_S, TAKE_OVER, Feed, produced_s
from integration.bench.page import Table
from integration.holdings import kind_of
from integration.running import TidegateRun, runs_with_checkpoint

COPY: Final = "integration.bench.pipelines:Passthrough"
TOTALS: Final = "integration.bench.pipelines:Totals"
HELPS: Final = 5
IDLE_S: Final = 10.0
GIVE_UP_S: Final = 90.0
FEED_PER_S: Final = 1_000
CLUSTER: Final = ("jobmanager", "jobmaster", "taskmanager", "zygote", "slot")


def measure_moments(rig: Rig, rounds: int) -> Table:
    """All of it, one row each."""
    rows = [
        ["`tidegate --help`", f"{help_ms():.0f} ms", "150 ms"],
        [
            "`run` to first committed record, 1 s checkpoints",
            f"{statistics.median(start_s(rig) for _ in range(rounds)):.2f} s",
            "2.5 s",
        ],
        [
            "kill -9 of a slot to a record produced after it, 1 s checkpoints",
            f"{statistics.median(recovery_s(rig) for _ in range(rounds)):.2f} s",
            "1.7 s",
        ],
    ]
    held_mb, share = idle(rig, "10 s")
    rows.append(["idle cluster, two slots: proportional set size", f"{held_mb:.0f} MB", "250 MB"])
    rows.append(["idle cluster, two slots: CPU, of one core", f"{share:.1%}", "1 %"])
    _, share = idle(rig, "1 s")
    rows.append(["the same with a checkpoint every second", f"{share:.1%}", ""])
    note = f"Medians of {rounds} (`--help`: of {HELPS}). The idle cluster is without its client."
    return Table("Start, recovery, idle", ("what", "measured", "goal"), rows, note)


def help_ms() -> float:
    """Wall time of the command's help, the middle of some."""
    command = [str(Path(sys.executable).with_name("tidegate")), "--help"]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'framework'}"}
    found = []
    for _ in range(HELPS):
        began = time.monotonic()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
        found.append((time.monotonic() - began) * 1000)
    return statistics.median(found)


def start_s(rig: Rig) -> float:
    """From the start of the command to the first committed record that a reader sees."""
    sink, folder = rig.fresh("start")
    began = time.monotonic()
    config = _settings("copies", "bench-small", sink)
    with TidegateRun(folder, rig.bootstrap, pipeline=COPY, options=TAKE_OVER, config=config):
        _first(rig.bootstrap, sink, lambda _: True)
        return time.monotonic() - began


def recovery_s(rig: Rig) -> float:
    """From the kill of the slot to the first visible record that was produced after it."""
    source, _ = rig.fresh("feed")
    sink, folder = rig.fresh("recovery")
    config = _settings("copies", source, sink)
    with (
        Feed(rig.bootstrap, source, FEED_PER_S),
        TidegateRun(folder, rig.bootstrap, pipeline=COPY, options=TAKE_OVER, config=config) as run,
    ):
        report = run.wait_for("a checkpoint", runs_with_checkpoint, GIVE_UP_S)
        _first(rig.bootstrap, sink, lambda _: True)
        killed_s = time.time()
        os.kill(report["slots"][0]["pid"], signal.SIGKILL)
        _first(rig.bootstrap, sink, lambda value: produced_s(value) > killed_s)
        return time.time() - killed_s


def idle(rig: Rig, interval: str) -> tuple[float, float]:
    """Megabytes (proportional) and share of a core of a cluster whose input is silent, with
    checkpoints as often as `interval` says (10 s by default).
    """
    source, _ = rig.fresh("silent")
    sink, folder = rig.fresh("idle")
    config = {
        **_settings("totals", source, sink),
        "job.parallelism": "2",
        "taskmanager.slots": "2",
        "checkpoint.interval": interval,
    }
    with TidegateRun(
        folder, rig.bootstrap, pipeline=TOTALS, options=TAKE_OVER, config=config
    ) as run:
        run.wait_for("a checkpoint", runs_with_checkpoint, GIVE_UP_S)
        time.sleep(SETTLE_S)  # what follows the first checkpoint is not yet idle
        below = psutil.Process(run.pid).children(recursive=True)
        cluster = [process for process in below if kind_of(process) in CLUSTER]
        before = _cpu_s(cluster)
        time.sleep(IDLE_S)
        spent = _cpu_s(cluster) - before
        return sum(map(_proportional_mb, cluster)), spent / IDLE_S


def _settings(sink: str, source: str, topic: str) -> dict[str, str]:
    return {
        "sources.clicks.topic": source,
        f"sinks.{sink}.topic": topic,
        "checkpoint.interval": "1 s",
        "job.parallelism": "1",
    }


def _cpu_s(processes: list[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def _proportional_mb(process: psutil.Process) -> float:
    """What the process holds, shared pages divided among those who share them."""
    rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
    (line,) = (line for line in rollup.splitlines() if line.startswith("Pss:"))
    return int(line.split()[1]) * 1024 / 1e6


def _first(bootstrap: str, topic: str, wanted: Callable[[bytes], bool]) -> None:
    """Return when a committed record is seen that is wanted; TimeoutError if none comes."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench-first",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 10,
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    end = time.monotonic() + GIVE_UP_S
    try:
        while time.monotonic() < end:
            for message in consumer.consume(1000, 0.01):
                value = message.value()
                if message.error() is None and value is not None and wanted(value):
                    return
    finally:
        consumer.close()
    raise TimeoutError(f"no such record on {topic} within {GIVE_UP_S:g} s")
