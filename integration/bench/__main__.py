"""The benchmark: tidegate beside loops written by hand, in turns, on one broker, outputs checked.

    make bench                 two million records, three rounds
    make bench QUICK=1         300,000 records, one round

CPU seconds per million records of the whole process tree (the broker apart), start-up apart: each
figure is the difference between a run over all records and one over a thousand, so that what every
run pays once drops out. Wall figures are of the same runs and say less: machines are noisy. The run
is void if the loops do not stand to each other as they did when the goals were set.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from integration.bench.data import PARTITIONS, THRESHOLD, Click, fill, records
from integration.bench.tree import Usage, measure
from tidegate.drivers.kafka.embedded import EmbeddedKafka

ROOT: Final = Path(__file__).parents[2]
SMALL: Final = 1_000
WORKLOADS: Final = {"passthrough": "Passthrough", "transform": "Transform", "total": "Totals"}
GOALS: Final = {"passthrough": 1.3, "transform": 1.4, "total": 1.8}
LOOP_SHAPE: Final = {"passthrough": 1.5, "transform": 1.8, "total": 3.3}
"""CPU seconds per million of the loops on a quiet machine; only their proportions are compared."""
SHAPE_TOLERANCE: Final = 0.25


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured run, start-up apart."""

    cpu_per_million: float
    records_per_s: float
    rss_mb: float
    start_s: float


def main() -> int:
    """Measure, print, and say whether the goals are met; 1 if the run is void or an output
    wrong."""
    parser = argparse.ArgumentParser(prog="python -m integration.bench", description=__doc__)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="300,000 records, one round")
    parser.add_argument("--only", choices=sorted(WORKLOADS), help="one workload")
    options = parser.parse_args()
    count, rounds = (300_000, 1) if options.quick else (options.records, options.rounds)
    with tempfile.TemporaryDirectory() as scratch:
        bench = Bench(Path(scratch), count)
        try:
            wanted = [options.only] if options.only else list(WORKLOADS)
            return bench.run(wanted, rounds)
        finally:
            bench.broker.stop()


class Bench:
    """One broker, one input of all records and one of a thousand."""

    def __init__(self, scratch: Path, count: int) -> None:
        self.scratch, self.count = scratch, count
        print(f"starting a broker and writing {count:,} records", flush=True)
        self.broker = EmbeddedKafka.start(directory=scratch / "kafka", owned=True)
        self.admin = AdminClient({"bootstrap.servers": self.broker.bootstrap})
        for topic, size in (("bench-in", count), ("bench-small", SMALL)):
            self._create(topic)
            fill(self.broker.bootstrap, topic, size)
        self._number = 0

    def run(self, workloads: list[str], rounds: int) -> int:
        """All rounds, loop and tidegate in turns."""
        figures: dict[tuple[str, str], list[Figure]] = {}
        for number in range(rounds):
            for workload in workloads:
                for kind in ("loop", "tidegate"):
                    figure = self._figure(kind, workload)
                    figures.setdefault((workload, kind), []).append(figure)
                    print(
                        f"round {number + 1}, {workload}, {kind}: "
                        f"{figure.cpu_per_million:.2f} CPU s per million, "
                        f"{figure.records_per_s:,.0f} records/s",
                        flush=True,
                    )
        return self._table(figures, workloads)

    def _figure(self, kind: str, workload: str) -> Figure:
        small = self._once(kind, workload, "bench-small", SMALL)
        large = self._once(kind, workload, "bench-in", self.count)
        extra = self.count - SMALL
        wall_s = max(large.wall_s - small.wall_s, 0.001)
        return Figure(
            cpu_per_million=(large.cpu_s - small.cpu_s) / extra * 1e6,
            records_per_s=extra / wall_s,
            rss_mb=large.rss_max / 1e6,
            start_s=small.wall_s,
        )

    def _once(self, kind: str, workload: str, source: str, count: int) -> Usage:
        self._number += 1
        sink = f"bench-out-{self._number}"
        self._create(sink)
        folder = self.scratch / f"run-{self._number}"
        folder.mkdir()
        command = self._command(kind, workload, source, sink, count)
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'framework'}"}
        usage = measure(command, folder, environment)
        if usage.status != 0:
            log = (folder / "output.log").read_text()
            message = f"{kind} {workload} ended with status {usage.status}:\n{log[-4000:]}"
            raise RuntimeError(message)
        check_output(workload, self._read(sink), count)
        self.admin.delete_topics([sink])[sink].result()
        return usage

    def _command(self, kind: str, workload: str, source: str, sink: str, count: int) -> list[str]:
        bootstrap = self.broker.bootstrap
        if kind == "loop":
            module = ["-m", "integration.bench.loop"]
            return [sys.executable, *module, workload, bootstrap, source, sink, str(count)]
        names = {"passthrough": "copies", "transform": "paying", "total": "totals"}
        settings = {
            "kafka.bootstrap": bootstrap,
            "sources.clicks.topic": source,
            f"sinks.{names[workload]}.topic": sink,
            "checkpoint.interval": "1 s",
            "job.parallelism": "1",
        }
        return [
            sys.executable,
            "-m",
            "tidegate.cli.main",
            "run",
            f"integration.bench.pipelines:{WORKLOADS[workload]}",
            "--bounded",
            "--take-over",  # each run has a storage of its own
            *(word for key, value in settings.items() for word in ("-c", f"{key}={value}")),
        ]

    def _create(self, topic: str) -> None:
        self.admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result()

    def _read(self, topic: str) -> list[Any]:
        return read_committed(self.broker.bootstrap, topic)

    def _table(self, figures: dict[tuple[str, str], list[Figure]], workloads: list[str]) -> int:
        print(
            f"\n{'workload':<13}{'':<10}{'CPU s/M':>9}{'ratio':>8}{'goal':>7}{'records/s':>12}"
            f"{'RSS MB':>9}{'start-up s':>12}"
        )
        loops: dict[str, float] = {}
        for workload in workloads:
            for kind in ("loop", "tidegate"):
                runs = figures[workload, kind]
                cpu = statistics.median(run.cpu_per_million for run in runs)
                loops.setdefault(workload, cpu)
                last = (
                    f"{'':>8}{'':>7}"
                    if kind == "loop"
                    else f"{cpu / loops[workload]:>7.2f}x{GOALS[workload]:>6.1f}x"
                )
                print(
                    f"{workload:<13}{kind:<10}{cpu:>9.2f}{last}"
                    f"{statistics.median(run.records_per_s for run in runs):>12,.0f}"
                    f"{max(run.rss_mb for run in runs):>9.0f}"
                    f"{statistics.median(run.start_s for run in runs):>12.1f}"
                )
        return 0 if _shape_holds(loops) else 1


def read_committed(bootstrap: str, topic: str) -> list[Any]:
    """All committed messages of a topic, up to its last stable offsets."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench-check",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "fetch.queue.backoff.ms": 5,
        }
    )
    consumer.assign([TopicPartition(topic, p, 0) for p in range(PARTITIONS)])
    found: list[Any] = []
    open_partitions = set(range(PARTITIONS))
    while open_partitions:
        for message in consumer.consume(5000, 5):
            if message.error() is None:
                found.append(message)
            else:
                open_partitions.discard(message.partition())
    consumer.close()
    return found


def check_output(workload: str, messages: list[Any], count: int) -> None:
    """Compare with what the input says; raises where anything is missing, doubled or wrong."""
    found = Counter((message.key(), message.value()) for message in messages)
    expected: Counter[tuple[bytes, bytes]] = Counter()
    if workload == "passthrough":
        expected.update(records(count))
    else:
        encode, decode = msgspec.json.Encoder().encode, msgspec.json.Decoder(Click).decode
        totals: dict[str, tuple[int, float]] = {}
        for key, value in records(count):
            click = decode(value)
            if workload == "total":
                paid_count, paid = totals.get(click.user, (0, 0.0))
                totals[click.user] = (paid_count + 1, paid + click.amount)
                now = totals[click.user]
                body = {"user": click.user, "count": now[0], "total": now[1]}
                expected[key, encode(body)] += 1
            elif click.amount > THRESHOLD:
                body = {**msgspec.structs.asdict(click), "fee": round(click.amount * 0.02, 2)}
                expected[key, encode(body)] += 1
    if found != expected:
        missing, extra = expected - found, found - expected
        message = (
            f"{workload}: {missing.total()} records missing, {extra.total()} too many, e.g. "
            f"{next(iter(missing), None)} / {next(iter(extra), None)}"
        )
        raise RuntimeError(message)


def _shape_holds(loops: dict[str, float]) -> bool:
    if len(loops) < len(LOOP_SHAPE):
        return True
    scale = statistics.mean(loops[name] / LOOP_SHAPE[name] for name in LOOP_SHAPE)
    off = {name: loops[name] / LOOP_SHAPE[name] / scale - 1 for name in LOOP_SHAPE}
    print("loops against their known proportions: ", end="")
    print(", ".join(f"{name} {share:+.0%}" for name, share in off.items()))
    if all(abs(share) <= SHAPE_TOLERANCE for share in off.values()):
        return True
    print("VOID: the loops do not stand to each other as they should; the machine is too busy")
    return False


if __name__ == "__main__":
    sys.exit(main())
