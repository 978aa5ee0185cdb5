"""How long readers wait for new output after a broker's death, and after repeated kills.

Three brokers, a steady feed, and a reader of committed records that does not know what is attacked.
A figure counts from the kill to the first record that was produced after it and is visible. Beside
each broker's death a hand-written transactional producer does the same on the same brokers: its
figure is the failover of Kafka itself, which no job can be faster than. The phases of a recovery
are the states that the job reports, each with the seconds that the job stayed in it.
"""

from __future__ import annotations

import os
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from integration.bench.data import PARTITIONS
from integration.bench.feed import Feed, produced_s
from integration.bench.page import Table
from integration.running import Report, TidegateRun, runs_with_checkpoint
from tidegate.drivers.kafka.embedded import EmbeddedKafka

COPY: Final = "integration.bench.pipelines:Passthrough"
NODES: Final = 3
FEED_PER_S: Final = 200
SETTLE_S: Final = 3.0
GIVE_UP_S: Final = 150.0
KILLED_RUNS: Final = 4
LIFE_S: Final = 2.0
"""How long a run lives that is killed again and again."""
LOOP_EVERY_S: Final = 0.1
GOAL_BROKER: Final = "the brokers' own + 2 s"
GOAL_RUN: Final = "4 s"


class Reader:
    """Reads committed records of a topic in a thread and keeps when the newest was produced."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._newest_s = 0.0
        self._over = threading.Event()
        settings = {
            "bootstrap.servers": bootstrap,
            "group.id": "bench-recovery",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 10,
            "reconnect.backoff.max.ms": 200,
            "topic.metadata.refresh.interval.ms": 500,
            "log_level": 0,
        }
        self._consumer = Consumer(settings)
        self._consumer.assign([TopicPartition(topic, each, 0) for each in range(PARTITIONS)])
        self._thread = threading.Thread(target=self._read, name="reader")
        self._thread.start()

    def first_after(self, then_s: float) -> float:
        """Seconds from `then_s` until a record that was produced after it was seen."""
        end_s = time.time() + GIVE_UP_S
        while time.time() < end_s:
            if self._newest_s > then_s:
                return time.time() - then_s
            time.sleep(0.01)
        raise TimeoutError(f"no new record within {GIVE_UP_S:g} s")

    def close(self) -> None:
        """Stop to read."""
        self._over.set()
        self._thread.join()
        self._consumer.close()

    def _read(self) -> None:
        while not self._over.is_set():
            for message in self._consumer.consume(500, 0.05):
                value = message.value()
                if message.error() is None and value is not None:
                    self._newest_s = max(self._newest_s, produced_s(value))


class Loop:
    """A transactional producer as one writes it by hand: what fails is begun again."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._bootstrap, self._topic = bootstrap, topic
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._write, name="loop")
        self._thread.start()

    def close(self) -> None:
        """Stop to write."""
        self._over.set()
        self._thread.join()

    def _write(self) -> None:
        while not self._over.is_set():
            try:
                self._produce()
            except KafkaException:
                time.sleep(0.05)

    def _produce(self) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "transactional.id": "bench-recovery-loop",
                "transaction.timeout.ms": 60_000,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )
        producer.init_transactions(30)
        while not self._over.wait(LOOP_EVERY_S):
            producer.begin_transaction()
            for partition in range(PARTITIONS):
                value = b"%020d" % time.time_ns()
                producer.produce(self._topic, value, partition=partition)
            producer.commit_transaction(30)


class Phases:
    """In which states a job was, from its reports."""

    def __init__(self, run: TidegateRun) -> None:
        self._run, self._over = run, threading.Event()
        self.seen: list[tuple[float, str]] = []
        self._thread = threading.Thread(target=self._watch, name="phases")
        self._thread.start()

    def after(self, then_s: float, took_s: float) -> str:
        """Each state between the kill and the new output, with its seconds."""
        end_s = then_s + took_s
        begins = [(max(at, then_s), state) for at, state in self.seen if at < end_s]
        spans: dict[str, float] = {}
        for (at, state), (following, _) in zip(begins, [*begins[1:], (end_s, "")], strict=True):
            spans[state] = spans.get(state, 0.0) + following - at
        shown = {state: span for state, span in spans.items() if span >= 0.05}
        return ", ".join(f"{state.lower()} {span:.1f}" for state, span in shown.items())

    def close(self) -> None:
        """Stop to watch."""
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.02):
            report = self._run.report
            if report is not None and (not self.seen or self.seen[-1][1] != report["state"]):
                self.seen.append((time.time(), report["state"]))


def measure_recovery() -> Table:
    """A row for each broker's death, and for a run that is killed again and again."""
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        with EmbeddedKafka.start(directory=folder / "kafka", nodes=NODES, owned=True) as kafka:
            topics = _topics(kafka, "feed", "out", "probe")
            rows += [_broker_dies(kafka, topics, folder, node) for node in range(NODES)]
            rows += _slots_die(kafka, topics, folder)
            rows.append(_runs_die(kafka, topics, folder))
    return Table(
        "Recovery under pressure",
        ["what", "new output after", "phases of the job, s", "the brokers' own", "goal"],
        rows,
        "Three brokers on the machine of the job, replication 3, checkpoints every second, "
        f"{FEED_PER_S} records a second.",
    )


def _broker_dies(
    kafka: EmbeddedKafka, topics: Mapping[str, str], folder: Path, node: int
) -> list[str]:
    probe = Reader(kafka.bootstrap, topics["probe"])
    loop = Loop(kafka.bootstrap, topics["probe"])
    try:
        with _running(kafka, topics, folder) as (run, reader, phases):
            _settled(run, reader)
            probe.first_after(time.time())
            own: list[float] = []
            killed_s = time.time()
            kafka.kill(node)
            waits = threading.Thread(target=lambda: own.append(probe.first_after(killed_s)))
            waits.start()
            took_s = reader.first_after(killed_s)
            waits.join()
            told = phases.after(killed_s, took_s)
            kafka.restart(node)
            time.sleep(SETTLE_S)
            what = f"kill -9 of broker {node + 1} of {NODES}"
            return [what, f"{took_s:.1f} s", told, f"{own[0]:.1f} s", GOAL_BROKER]
    finally:
        loop.close()
        probe.close()


def _slots_die(
    kafka: EmbeddedKafka, topics: Mapping[str, str], folder: Path
) -> Iterator[list[str]]:
    with _running(kafka, topics, folder) as (run, reader, phases):
        _settled(run, reader)
        for number in range(5):
            report = run.wait_for("slots", lambda found: bool(found["slots"]), GIVE_UP_S)
            killed_s = time.time()
            os.kill(report["slots"][0]["pid"], signal.SIGKILL)
            took_s = reader.first_after(killed_s)
            what = f"kill -9 of a slot, the {number + 1}. in a row, one a second"
            yield [what, f"{took_s:.1f} s", phases.after(killed_s, took_s), "", ""]
            time.sleep(1.0)


def _runs_die(kafka: EmbeddedKafka, topics: Mapping[str, str], folder: Path) -> list[str]:
    """A run that is killed two seconds after its start, and started again at once."""
    took: list[float] = []
    home = folder / "killed"
    home.mkdir()
    reader = Reader(kafka.bootstrap, topics["out"])
    try:
        with Feed(kafka.bootstrap, topics["feed"], FEED_PER_S):
            for number in range(KILLED_RUNS):
                began_s = time.time()
                with _run(kafka, topics, home):
                    if number < KILLED_RUNS - 1:
                        time.sleep(LIFE_S)
                    else:
                        took.append(reader.first_after(began_s))
            for _ in range(2):
                began_s = time.time()
                with _run(kafka, topics, home):
                    took.append(reader.first_after(began_s))
    finally:
        reader.close()
    what = f"`run` started again after {KILLED_RUNS - 1} kills within {LIFE_S:g} s, and twice more"
    told = f"median of {len(took)}; the longest {max(took):.1f}"
    return [what, f"{statistics.median(took):.1f} s", told, "", GOAL_RUN]


def _settled(run: TidegateRun, reader: Reader) -> Report:
    report = run.wait_for("a checkpoint", runs_with_checkpoint, GIVE_UP_S)
    reader.first_after(time.time())
    time.sleep(SETTLE_S)
    return report


@contextmanager
def _running(
    kafka: EmbeddedKafka, topics: Mapping[str, str], folder: Path
) -> Iterator[tuple[TidegateRun, Reader, Phases]]:
    home = folder / f"run-{time.time_ns()}"
    home.mkdir()
    reader = Reader(kafka.bootstrap, topics["out"])
    try:
        with (
            Feed(kafka.bootstrap, topics["feed"], FEED_PER_S),
            _run(kafka, topics, home, "--take-over") as run,
        ):
            phases = Phases(run)
            try:
                yield run, reader, phases
            finally:
                phases.close()
    finally:
        reader.close()


def _run(kafka: EmbeddedKafka, topics: Mapping[str, str], home: Path, *options: str) -> TidegateRun:
    config: dict[str, Any] = {
        "sources.clicks.topic": topics["feed"],
        "sinks.copies.topic": topics["out"],
        "checkpoint.interval": "1 s",
        "job.parallelism": "2",
    }
    options = options or ("--take-over",)
    return TidegateRun(home, kafka.bootstrap, pipeline=COPY, options=options, config=config)


def _topics(kafka: EmbeddedKafka, *names: str) -> dict[str, str]:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    made = admin.create_topics([NewTopic(name, PARTITIONS, NODES) for name in names])
    for future in made.values():
        future.result()
    return {name: name for name in names}


if __name__ == "__main__":
    print(measure_recovery().plain())
