"""Produces records of windows, and notes when it has produced those that close each window.

A window of event time lasts for a drawn time of the clock, so its end comes at any time between two
watermarks of a source. The end of a window is a record of the next window in every partition. All
of them are produced at one time, which the feed notes: then the last partition passes the end.

    python -m integration.bench.window_feed BOOTSTRAP TOPIC RECORDS_PER_S

At SIGTERM it ends its window. Then it prints, as JSON, the number of its records in all windows
that have ended, and the time in nanoseconds at which it ended each one.
"""

from __future__ import annotations

import random
import signal
import sys
import time
from typing import Final

import msgspec
from confluent_kafka import Producer

from integration.bench.data import PARTITIONS
from integration.bench.steady_producer import ENDS_IN_S, STEP_S, ModuleProcess

WINDOW_MS: Final = 1_000
"""Length of a window in event time."""
FIRST_MS: Final = 1_700_000_000_000
USERS: Final = 100
SHORTEST_S, LONGEST_S = 0.2, 0.5
"""Shortest and longest time for which the feed produces records of one window."""


class Visit(msgspec.Struct, frozen=True, gc=False):
    """A record of the feed."""

    user: str
    at_ms: int


class VisitCount(msgspec.Struct, frozen=True, gc=False):
    """The number of records of a user in one window."""

    user: str
    start_ms: int
    count: int


class Fed(msgspec.Struct, frozen=True):
    """The windows that a feed has ended."""

    records: int
    closed_ns: dict[int, int]
    """The time at which the feed has ended each window, by the start of the window."""


class WindowFeed(ModuleProcess):
    """A process that produces until the block is left or `end` is called."""

    def __init__(self, bootstrap: str, topic: str, rate: int) -> None:
        super().__init__("integration.bench.window_feed", bootstrap, topic, str(rate), pipe=True)

    def end(self) -> Fed:
        """End the feed and its window. All records are acknowledged then."""
        self._process.send_signal(signal.SIGTERM)
        said, _ = self._process.communicate(timeout=ENDS_IN_S)
        return msgspec.json.decode(said, type=Fed)


class _Feed:
    """The feed in its own process."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "linger.ms": 1,
                "enable.idempotence": True,  # a retry must not write a record twice
            }
        )
        self._topic, self._encode = topic, msgspec.json.Encoder().encode
        self._start_ms, self._sent, self._in_window = FIRST_MS, 0, 0
        self._began_s = time.monotonic()
        self._closed_ns: dict[int, int] = {}

    def run(self, rate: int) -> Fed:
        """Produce every 5 ms until SIGTERM."""
        over: list[int] = []
        signal.signal(signal.SIGTERM, lambda number, frame: over.append(number))
        draw = random.Random(1)
        began_s = time.monotonic()
        ends_s = began_s + LONGEST_S
        while not over:
            now_s = time.monotonic()
            if now_s >= ends_s:
                self._end_window()
                ends_s = now_s + draw.uniform(SHORTEST_S, LONGEST_S)
            for _ in range(int((now_s - began_s) * rate) - self._sent):
                self._produce(self._sent % PARTITIONS)
            self._producer.poll(0)
            time.sleep(STEP_S)
        self._end_window()
        left = self._producer.flush(ENDS_IN_S)
        if left:
            raise RuntimeError(f"{left} records could not be written to {self._topic}.")
        return Fed(self._sent - self._in_window, self._closed_ns)

    def _end_window(self) -> None:
        ended_ms, self._start_ms = self._start_ms, self._start_ms + WINDOW_MS
        self._in_window, self._began_s = 0, time.monotonic()
        self._closed_ns[ended_ms] = time.time_ns()
        for partition in range(PARTITIONS):
            self._produce(partition)

    def _produce(self, partition: int) -> None:
        # Times advance within a window, so that the watermark has changed at each interval.
        into_ms = min(round((time.monotonic() - self._began_s) * 1000), WINDOW_MS - 1)
        visit = Visit(f"u{self._sent % USERS:03d}", self._start_ms + into_ms)
        self._producer.produce(self._topic, self._encode(visit), partition=partition)
        self._sent += 1
        self._in_window += 1


if __name__ == "__main__":
    done = _Feed(sys.argv[1], sys.argv[2]).run(int(sys.argv[3]))
    print(msgspec.json.encode(done).decode())
