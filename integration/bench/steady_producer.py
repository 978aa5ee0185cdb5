"""Produces records at a steady rate, for the measurements of latency and recovery.

A record of bytes has the size of the benchmark's records. It holds the time at which the producer
received it, so the linger time of the producer counts. It also holds its number, so that a reader
can find out which records are missing.

A click holds the same time as its amount, and each click belongs to the next user. If all other
amounts of a user are 0, the user's running total is the production time of the newest record.

    python -m integration.bench.steady_producer BOOTSTRAP TOPIC RECORDS_PER_S bytes|clicks
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Literal, Self

import msgspec
from confluent_kafka import Producer

from integration.bench.data import USERS, click_of
from integration.support.running import ROOT

Kind = Literal["bytes", "clicks"]

STEP_S: Final = 0.005
SIZE: Final = 143
STAMP: Final = 20
"""Length of the production time, in nanoseconds, at the start of a record."""
NUMBER: Final = 12
"""Length of the number of the record, which follows the time."""
ENDS_IN_S: Final = 30.0


class ModuleProcess:
    """A module that runs in its own process. The process is killed at the end of the block."""

    def __init__(self, *words: str, pipe: bool = False) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", *words], cwd=ROOT, stdout=subprocess.PIPE if pipe else None
        )

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
        if self._process.stdout is not None:
            self._process.stdout.close()


class SteadyProducer(ModuleProcess):
    """A process that produces at a steady rate until the block is left or `end` is called."""

    def __init__(self, bootstrap: str, topic: str, rate: int, kind: Kind = "bytes") -> None:
        super().__init__(
            "integration.bench.steady_producer", bootstrap, topic, str(rate), kind, pipe=True
        )

    def end(self) -> int:
        """End the feed. Return the number of its records, which are all acknowledged then."""
        self._process.send_signal(signal.SIGTERM)
        said, _ = self._process.communicate(timeout=ENDS_IN_S)
        return int(said)


def produced_s(value: bytes) -> float:
    """Return the time at which a record of the feed was produced."""
    return int(value[:STAMP]) / 1e9


def number_of(value: bytes) -> int:
    """Return the number of a record of the feed. The first one has the number 0."""
    return int(value[STAMP : STAMP + NUMBER])


def make_bytes() -> Callable[[int, int], bytes]:
    """Return a function that makes a record from its number and time."""
    pad = b"x" * (SIZE - STAMP - NUMBER)
    return lambda number, now_ns: b"%0*d%0*d%b" % (STAMP, now_ns, NUMBER, number, pad)


def make_clicks() -> Callable[[int, int], bytes]:
    """Return a function that makes a click of the next user."""
    encode = msgspec.json.Encoder().encode
    return lambda number, now_ns: encode(click_of(number, amount=now_ns / 1e9))


def feed(bootstrap: str, topic: str, rate: int, kind: Kind) -> int:
    """Produce every 5 ms until SIGTERM. Return the number of records after all are acknowledged."""
    over: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: over.append(number))
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": 1,
            "enable.idempotence": True,  # a retry must not write a record twice
        }
    )
    make = make_bytes() if kind == "bytes" else make_clicks()
    keys = [b"u%06d" % number for number in range(USERS)]
    sent, began = 0, time.monotonic()
    while not over:
        due = int((time.monotonic() - began) * rate)
        now_ns = time.time_ns()
        for number in range(sent, due):
            producer.produce(topic, make(number, now_ns), keys[number % USERS])
        sent = max(sent, due)
        producer.poll(0)
        time.sleep(STEP_S)
    left = producer.flush(ENDS_IN_S)
    if left:
        raise RuntimeError(f"{left} records could not be written to {topic}.")
    return sent


if __name__ == "__main__":
    wanted: Kind = "clicks" if sys.argv[4] == "clicks" else "bytes"
    print(feed(sys.argv[1], sys.argv[2], int(sys.argv[3]), wanted))
