"""A process that produces at a steady rate until it is left: what latency and recovery are seen by.

A record says when it was given to the producer, so the producer's own lingering counts, and the how
manieth it is, so that a reader can tell what is missing. Records are bytes of the benchmark's size,
or clicks. A click's amount is its time, one user after the other: the running total of a user whose
other amounts are 0 is then the time at which their newest record was produced.

    python -m integration.bench.feed BOOTSTRAP TOPIC RECORDS_PER_S bytes|clicks
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
"""Bytes of the time of production, in nanoseconds, in front of a record."""
NUMBER: Final = 12
"""Bytes of its number behind that."""
ENDS_IN_S: Final = 30.0


class Left:
    """A module that runs as a process of its own until it is left."""

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


class Feed(Left):
    """Produces at a steady rate until it is left or ended."""

    def __init__(self, bootstrap: str, topic: str, rate: int, kind: Kind = "bytes") -> None:
        super().__init__("integration.bench.feed", bootstrap, topic, str(rate), kind, pipe=True)

    def end(self) -> int:
        """How many records it has written, which are all acknowledged now."""
        self._process.send_signal(signal.SIGTERM)
        said, _ = self._process.communicate(timeout=ENDS_IN_S)
        return int(said)


def produced_s(value: bytes) -> float:
    """When a record of the feed was produced."""
    return int(value[:STAMP]) / 1e9


def number_of(value: bytes) -> int:
    """The how manieth record of the feed it is, from 0 on."""
    return int(value[STAMP : STAMP + NUMBER])


def make_bytes() -> Callable[[int, int], bytes]:
    """A record of its number and time."""
    pad = b"x" * (SIZE - STAMP - NUMBER)
    return lambda number, now_ns: b"%0*d%0*d%b" % (STAMP, now_ns, NUMBER, number, pad)


def make_clicks() -> Callable[[int, int], bytes]:
    """A click of the next user."""
    encode = msgspec.json.Encoder().encode
    return lambda number, now_ns: encode(click_of(number, amount=now_ns / 1e9))


def feed(bootstrap: str, topic: str, rate: int, kind: Kind) -> int:
    """Produce, some every 5 ms, until SIGTERM; how many, once all are acknowledged."""
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
        raise RuntimeError(f"{left} records could not be written to {topic}")
    return sent


if __name__ == "__main__":
    wanted: Kind = "clicks" if sys.argv[4] == "clicks" else "bytes"
    print(feed(sys.argv[1], sys.argv[2], int(sys.argv[3]), wanted))
