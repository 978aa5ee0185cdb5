"""Watches when records of a topic become visible to committed readers, and whether they stay.

The watcher is a `read_committed` consumer in its own thread. It counts records, and for each batch
it keeps the time of arrival and the timestamp of the youngest record. With these the demo can tell
when the first output of a new attempt became visible to any reader. The watcher also keeps a
running digest of the records of each partition. At the end, `vanished_records` compares the digest
with the records that a new reader finds. A record that was visible once must stay for ever, at the
same offset, with no record inserted before it.

Like the checker, this module imports only confluent_kafka and the standard library.
"""

from __future__ import annotations

import bisect
import hashlib
import threading
import time
from collections.abc import Iterable
from types import TracebackType
from typing import NamedTuple, Self

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

BATCH = 2_000
BATCH_S = 0.02
"""The resolution of the recorded times, in seconds: `consume` returns after this time, or earlier
if the batch is full.
"""

PASSING = frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError._TIMED_OUT,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.FENCED_LEADER_EPOCH,
    }
)
"""Errors that a reader gets while brokers are away. It continues to read after them."""


class VisibleRecord(NamedTuple):
    """A record as the watcher saw it."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


class Trace:
    """The number and the digest of all records seen of one partition, in order."""

    def __init__(self) -> None:
        self.count = 0
        self.offset = -1
        """The offset of the last record; -1 before the first."""
        self._digest = hashlib.blake2b(digest_size=16)

    def add(self, offset: int, key: bytes | None, value: bytes | None) -> None:
        """Add one record."""
        self.count += 1
        self.offset = offset
        self._digest.update(repr((offset, key, value)).encode())

    @property
    def digest(self) -> bytes:
        """The digest of all records so far."""
        return self._digest.digest()


class Arrival(NamedTuple):
    """Committed records that came in one batch."""

    seen_ms: int
    written_ms: int
    """Time at which the youngest of them was given to its producer."""


class CommittedOutput:
    """All records that become visible in a topic, from its first offset. All times are wall clock
    times in ms.
    """

    def __init__(self, bootstrap: str, topic: str, *, keep: bool = False) -> None:
        """Prepare the consumer. `keep` stores every record for `kept`; avoid it in long runs."""
        self._topic = topic
        self._kept: list[VisibleRecord] | None = [] if keep else None
        self._traces: dict[int, Trace] = {}
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
        """The number of committed records seen so far."""
        return self._records

    def kept(self) -> list[VisibleRecord]:
        """Return all records seen so far, each partition in order.

        Raises RuntimeError if the topic cannot be read. The list is empty without `keep`.
        """
        with self._changed:
            if self._failure:
                raise RuntimeError(self._failure)
            return list(self._kept or ())

    def vanished_records(
        self, end: Iterable[tuple[int, int, bytes | None, bytes | None]]
    ) -> list[str]:
        """Describe which visible records have changed or disappeared, in a sentence per partition.

        `end` holds the partition, offset, key and value of every committed record that is there
        now, each partition in order.
        """
        with self._changed:
            if self._failure:
                return [self._failure]
            seen = {number: (each.count, each.digest) for number, each in self._traces.items()}
        now = {number: Trace() for number in seen}
        for number, offset, key, value in end:
            if number in seen and now[number].count < seen[number][0]:
                now[number].add(offset, key, value)
        return [
            f"{self._topic}-{number}: the first {count} records that were visible have changed; "
            f"there are {now[number].count} now, up to offset {now[number].offset}"
            for number, (count, digest) in seen.items()
            if (now[number].count, now[number].digest) != (count, digest)
        ]

    def first_of(self, since_ms: int, timeout_s: float) -> int | None:
        """Return the time at which the first record written at or after `since_ms` was seen.

        Returns None if no such record arrives before the timeout. Raises RuntimeError if the topic
        cannot be read.
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
            errors = [error for message in batch if (error := message.error()) is not None]
            failures = [str(error) for error in errors if error.code() not in PASSING]
            if failures:
                with self._changed:
                    self._failure = failures[0]
                    self._changed.notify_all()
                return
            records = [message for message in batch if message.error() is None]
            if not records:
                continue
            youngest_ms = max(message.timestamp()[1] for message in records)
            with self._changed:
                for message in records:
                    self._note(message)
                self._records += len(records)
                self._arrivals.append(Arrival(round(time.time() * 1000), youngest_ms))
                self._changed.notify_all()

    def _note(self, message: Message) -> None:
        number, offset = message.partition() or 0, message.offset() or 0
        key, value = message.key(), message.value()
        self._traces.setdefault(number, Trace()).add(offset, key, value)
        if self._kept is not None:
            self._kept.append(VisibleRecord(number, offset, key, value))
