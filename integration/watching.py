"""Watches what committed readers of a topic get to see, and when.

A `read_committed` consumer in a thread of its own. It counts, and it remembers per moment how young
the newest record was: with that the demo can say when the first output of a new attempt became
visible, as any reader of the topic would have noticed it.
"""

from __future__ import annotations

import bisect
import threading
import time
from types import TracebackType
from typing import NamedTuple, Self

from confluent_kafka import Consumer, TopicPartition

BATCH = 2_000
BATCH_S = 0.02
"""How exact a moment is: a call returns when it is over or the batch is full."""


class Arrival(NamedTuple):
    """Committed records that came in one batch."""

    seen_ms: int
    written_ms: int
    """When the youngest of them was handed to its producer."""


class CommittedOutput:
    """What has become visible in a topic since it was made. All times are wall clock, in ms."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "watcher",  # never joined
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 20,
            }
        )
        partitions = self._consumer.list_topics(topic, 30).topics[topic].partitions
        self._consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        self._changed = threading.Condition()
        self._arrivals: list[Arrival] = []
        self._records = 0
        self._failure = ""
        self._ending = False
        self._thread = threading.Thread(target=self._watch, name="watcher", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ending = True
        self._thread.join()
        self._consumer.close()

    @property
    def records(self) -> int:
        """Committed records seen so far."""
        return self._records

    def first_of(self, since_ms: int, timeout_s: float) -> int | None:
        """When the first record that was written at or after this time was seen; None if none
        was within the timeout, RuntimeError when the topic cannot be read.
        """
        end_s = time.monotonic() + timeout_s
        with self._changed:
            while True:
                if self._failure:
                    raise RuntimeError(self._failure)
                start = bisect.bisect_left(self._arrivals, (since_ms, 0))
                for arrival in self._arrivals[start:]:
                    if arrival.written_ms >= since_ms:
                        return arrival.seen_ms
                if time.monotonic() > end_s:
                    return None
                self._changed.wait(0.2)

    def _watch(self) -> None:
        while not self._ending:
            batch = self._consumer.consume(BATCH, BATCH_S)
            if not batch:
                continue
            failures = [str(error) for m in batch if (error := m.error()) is not None]
            if failures:
                with self._changed:
                    self._failure = failures[0]
                return
            youngest_ms = max(message.timestamp()[1] for message in batch)
            with self._changed:
                self._records += len(batch)
                self._arrivals.append(Arrival(round(time.time() * 1000), youngest_ms))
                self._changed.notify_all()
