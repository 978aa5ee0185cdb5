"""Provides tools to measure recoveries: a reader, a loop by hand, and the phases in a job's log.

The reader does not know which process is killed. The loop is a transactional producer, written by
hand. A phase is the time between two lines of the log of the JobMaster. The log is used because its
lines have milliseconds, while reports come only a few times a second.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from integration.bench.data import PARTITIONS
from integration.bench.steady_producer import produced_s

GIVE_UP_S: Final = 150.0
LOOP_EVERY_S: Final = 0.1
SHOWN_S: Final = 0.05
"""Shorter phases are left out."""
UNNOTICED: Final = "noticing, starting"
BEGINS: Final = {
    "initializing": "claiming",
    "claimed": "settling, fencing",
    "recovered": "resolving the restore",
    "restarting": "restarting",
    "waiting for slots": "waiting for slots",
    "deploying": "deploying, restoring",
    "running": "running until visible",
}
"""The phase that begins with a line of the log, by the state or the message of the line."""
RUNNING: Final = BEGINS["running"]
STATE: Final = re.compile(
    r'state=("(?P<words>[^"]+)"|(?P<word>\S+)) .*message="job state changed"$'
)
STEP: Final = re.compile(r"message=(?P<word>claimed|recovered)$")


class Reader:
    """A thread that reads committed records and keeps the newest time of production."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.newest_s = 0.0
        """Time at which the newest visible record was produced."""
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
        """Return the seconds from `then_s` until a record produced after it is seen."""
        end_s = time.time() + GIVE_UP_S
        while time.time() < end_s:
            if self.newest_s > then_s:
                return time.time() - then_s
            time.sleep(0.01)
        raise TimeoutError(f"No new record came within {GIVE_UP_S:g} s.")

    def close(self) -> None:
        """Stop reading."""
        self._over.set()
        self._thread.join()
        self._consumer.close()

    def _read(self) -> None:
        while not self._over.is_set():
            for message in self._consumer.consume(500, 0.05):
                value = message.value()
                if message.error() is None and value is not None:
                    self.newest_s = max(self.newest_s, produced_s(value))


class Loop:
    """A hand-written transactional producer. After an error it starts with a new client."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._bootstrap, self._topic = bootstrap, topic
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._write, name="loop")
        self._thread.start()

    def close(self) -> None:
        """Stop writing."""
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


def phases(log: Path, then_s: float, took_s: float, *, ran: bool) -> str:
    """Return each phase between a fault and the new output, with its seconds.

    `ran` says that the job ran at the time of the fault.
    """
    lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    return told(spans(transitions(lines), then_s, then_s + took_s, ran=ran))


def transitions(lines: Iterable[str]) -> Iterator[tuple[float, str]]:
    """Yield the time at which each phase began, and its name."""
    for line in lines:
        found = STATE.search(line) or STEP.search(line)
        if found is not None:
            begins = BEGINS.get(found.groupdict().get("words") or found["word"])
            if begins is not None:
                yield _seconds(line), begins


def spans(
    begun: Iterable[tuple[float, str]], then_s: float, end_s: float, *, ran: bool
) -> dict[str, float]:
    """Return the seconds of each phase, in the order in which the phases first began."""
    seen = [(at, phase) for at, phase in begun if then_s <= at < end_s]
    first = UNNOTICED if seen or not ran else RUNNING
    found: dict[str, float] = {}
    edges = [(then_s, first), *seen, (end_s, "")]
    for (at, phase), (following, _) in pairwise(edges):
        found[phase] = found.get(phase, 0.0) + following - at
    return found


def told(found: dict[str, float]) -> str:
    """Return the phases as a cell of the table."""
    return ", ".join(f"{phase} {span:.1f}" for phase, span in found.items() if span >= SHOWN_S)


def _seconds(line: str) -> float:
    stamp = line.removeprefix("ts=").split()[0]
    return datetime.strptime(stamp, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC).timestamp()
