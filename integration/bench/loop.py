"""Runs the workloads as loops written by hand with confluent-kafka, for the comparison.

A loop has one transactional producer, sends its offsets with the transaction, and commits every
second. It runs in one process. It does not recover its totals, because they are in a dict that a
crash loses.

Each loop is the cheapest that we can write with these guarantees. Each way in which it saves time
has won against the way before in rounds that ran in turns:

- It hands each result to the producer at once, and makes no lists of results.
- It asks the client for its positions once a commit, and looks at no partition or offset.
- The client reports only deliveries that failed. A failed delivery makes the next commit fail.
- It looks once a batch whether the queue of the producer has room, and not in each call.
- Values are decoded by `map` over the method of the class.
- Totals and fees change in place, and the object that is kept is the one that is encoded.
- A transactional producer waits 25 ms for larger batches. The check reads committed records.
- The garbage collector is off, because the objects have no cycles.

A loop for production would also look for errors among its messages. This one does not, and so it
costs a little less than a complete program.

    python -m integration.bench.loop WORKLOAD BOOTSTRAP SOURCE SINK COUNT COMMIT_MS
    python -m integration.bench.loop for-ever BOOTSTRAP SOURCE SINK COMMIT_MS
    python -m integration.bench.loop windows-for-ever BOOTSTRAP SOURCE SINK

The second command copies until it is killed, and is used to measure latency. It commits a
transaction every COMMIT_MS. With 0, it uses an idempotent producer without transactions, so that
records are visible at once. The third command counts the records of `window_feed.py` by user and
window in the same way, without transactions.
"""

from __future__ import annotations

import gc
import sys
import time
import uuid
from collections import defaultdict
from collections.abc import Callable
from typing import Any, Final, Protocol

import msgspec
from confluent_kafka import Consumer, Message, Producer, TopicPartition

from integration.bench.data import (
    GAP_MS,
    PARTITIONS,
    THRESHOLD,
    WINDOW_MS,
    Click,
    ClickWithFee,
)
from integration.bench.window_feed import WINDOW_MS as FEED_WINDOW_MS
from integration.bench.window_feed import Visit, VisitCount

LATENESS_MS: Final = 1_000
"""Milliseconds by which a record may be behind others of its partition."""
COMMIT_S: Final = 1.0
BATCH: Final = 250
"""Number of records of one call of the consumer. With 1,000, the transform and the total cost up to
a twentieth more.
"""
QUEUE: Final = 1_000_000
"""Number of records in the queue of the producer."""
ROOM: Final = 200_000
"""Free places in the queue before a batch. No batch, and no end of a window, emits more results."""
END_MS: Final = 1 << 62
"""A watermark after every window."""

_value: Final[Any] = Message.value


class Produce(Protocol):
    """The function that takes a result: topic, value and key."""

    def __call__(self, topic: str, value: bytes | None, key: bytes | None, /) -> object: ...


class Step(Protocol):
    """A workload: it takes messages, and hands its results to a producer."""

    def __call__(self, messages: list[Any], /) -> object: ...


class UserTotal(msgspec.Struct, gc=False):
    """Number and sum of the payments of a user so far. It changes in place."""

    user: str
    count: int = 0
    total: float = 0.0


def passthrough(produce: Produce, sink: str) -> Step:
    """Return a step that keeps key and value."""

    def step(messages: list[Any]) -> None:
        for m in messages:
            produce(sink, m.value(), m.key())

    return step


def transform(produce: Produce, sink: str) -> Step:
    """Return a step that decodes, filters, adds a field and encodes."""
    decode, encode = msgspec.json.Decoder(ClickWithFee).decode, msgspec.json.Encoder().encode

    def step(messages: list[Any]) -> None:
        for m, c in zip(messages, map(decode, map(_value, messages)), strict=True):
            amount = c.amount
            if amount > THRESHOLD:
                c.fee = round(amount * 0.02, 2)
                produce(sink, encode(c), m.key())

    return step


def total(produce: Produce, sink: str) -> Step:
    """Return a step that keeps count and sum per user in a dict."""
    decode, encode = msgspec.json.Decoder(Click).decode, msgspec.json.Encoder().encode
    totals: dict[str, UserTotal] = {}
    known = totals.get

    def step(messages: list[Any]) -> None:
        for m, c in zip(messages, map(decode, map(_value, messages)), strict=True):
            user = c.user
            paid = known(user)
            if paid is None:
                paid = totals[user] = UserTotal(user)
            paid.count += 1
            paid.total += c.amount
            produce(sink, encode(paid), m.key())

    return step


class WindowTotal(msgspec.Struct, gc=False):
    """Sum of the payments of a user in one window. It changes in place."""

    user: str
    start: int
    total: float


def windows(produce: Produce, sink: str) -> Step:
    """Return a step that sums per user and window. A user's next window emits the previous sum."""
    decode, encode = msgspec.json.Decoder(Click).decode, msgspec.json.Encoder().encode
    open_windows: dict[str, WindowTotal] = {}
    known = open_windows.get

    def step(messages: list[Any]) -> None:
        for m, c in zip(messages, map(decode, map(_value, messages)), strict=True):
            user, ts = c.user, c.ts
            start = ts - ts % WINDOW_MS
            window = known(user)
            if window is None:
                open_windows[user] = WindowTotal(user, start, c.amount)
            elif window.start == start:
                window.total += c.amount
            else:
                produce(sink, encode(window), m.key())
                window.start, window.total = start, c.amount

    return step


class _Tumbling:
    """A step that sums per user and window. A window is emitted when all partitions have passed its
    end.
    """

    def __init__(self, produce: Produce, sink: str) -> None:
        self._produce, self._sink = produce, sink
        self._decode = msgspec.json.Decoder(Click).decode
        self._encode = msgspec.json.Encoder().encode
        self._windows: dict[int, defaultdict[str, float]] = {}
        self._highest = [0] * PARTITIONS

    def __call__(self, messages: list[Any]) -> None:
        """Sum the records of messages, and emit the windows that have ended."""
        decode, windows, highest = self._decode, self._windows, self._highest
        last_start, sums = -1, defaultdict[str, float](float)
        for m, c in zip(messages, map(decode, map(_value, messages)), strict=True):
            ts = c.ts
            start = ts - ts % WINDOW_MS
            if start != last_start:  # most records are in the window of the one before
                last_start = start
                sums = windows.get(start) or windows.setdefault(start, defaultdict(float))
            sums[c.user] += c.amount
            partition = m.partition()
            highest[partition] = max(highest[partition], ts)
        self._emit(min(highest) - LATENESS_MS)

    def finish(self) -> None:
        """Emit the windows that are left at the end."""
        self._emit(END_MS)

    def _emit(self, watermark_ms: int) -> None:
        produce, sink, encode = self._produce, self._sink, self._encode
        for start in sorted(self._windows):
            if start + WINDOW_MS <= watermark_ms:
                for user, paid in self._windows.pop(start).items():
                    produce(sink, encode(WindowTotal(user, start, paid)), user.encode())


class SessionTotal(msgspec.Struct, gc=False):
    """Sum of the payments of a user in one session. It changes in place."""

    user: str
    start: int
    end: int
    total: float


class _Sessions:
    """A step that sums per user and session. The records of a user are in order, so a user has one
    open session. The user's next record emits it, or a look at all sessions, once a second, after
    all partitions have passed its end. To keep the sessions by their ends would cost more.
    """

    def __init__(self, produce: Produce, sink: str) -> None:
        self._produce, self._sink = produce, sink
        self._decode = msgspec.json.Decoder(Click).decode
        self._encode = msgspec.json.Encoder().encode
        self._sessions: dict[str, SessionTotal] = {}
        self._highest = [0] * PARTITIONS
        self._look_s = time.monotonic() + COMMIT_S

    def __call__(self, messages: list[Any]) -> None:
        """Sum the records of messages, and emit the sessions that are known to have ended."""
        decode, encode, sessions = self._decode, self._encode, self._sessions
        produce, sink, highest = self._produce, self._sink, self._highest
        known = sessions.get
        for m, c in zip(messages, map(decode, map(_value, messages)), strict=True):
            user, ts = c.user, c.ts
            session = known(user)
            if session is None:
                sessions[user] = SessionTotal(user, ts, ts + GAP_MS, c.amount)
            elif ts <= session.end:
                session.end = ts + GAP_MS
                session.total += c.amount
            else:
                produce(sink, encode(session), m.key())
                session.start, session.end, session.total = ts, ts + GAP_MS, c.amount
            partition = m.partition()
            highest[partition] = max(highest[partition], ts)
        if time.monotonic() >= self._look_s:
            self._look_s = time.monotonic() + COMMIT_S
            self._emit(min(highest) - LATENESS_MS)

    def finish(self) -> None:
        """Emit the sessions that are left at the end."""
        self._emit(END_MS)

    def _emit(self, watermark_ms: int) -> None:
        sessions = self._sessions
        for user in [user for user, each in sessions.items() if each.end <= watermark_ms]:
            self._produce(self._sink, self._encode(sessions.pop(user)), user.encode())


WORKLOADS: Final[dict[str, Callable[[Produce, str], Step]]] = {
    "passthrough": passthrough,
    "transform": transform,
    "total": total,
    "windows": windows,
    "tumbling": _Tumbling,
    "sessions": _Sessions,
}


def for_ever(bootstrap: str, source: str, sink: str, commit_ms: int) -> None:
    """Copy each record as soon as it arrives."""
    name = f"loop-{uuid.uuid4().hex[:8]}"
    consumer = _consumer(bootstrap, name)
    consumer.assign([TopicPartition(source, p, 0) for p in range(PARTITIONS)])
    producer = _producer(bootstrap, name if commit_ms else None)
    if commit_ms:
        producer.init_transactions()
        producer.begin_transaction()
    step = passthrough(producer.produce, sink)
    copied, commit_at = False, time.monotonic()
    while True:
        messages = consumer.consume(1, 0.005)
        messages += consumer.consume(BATCH, 0) if messages else []
        step(messages)
        producer.poll(0)
        copied = copied or bool(messages)
        if commit_ms and copied and time.monotonic() >= commit_at:
            commit_at = time.monotonic() + commit_ms / 1000
            _commit(producer, consumer, source)


def windows_for_ever(bootstrap: str, source: str, sink: str) -> None:
    """Count by user and window. Emit a window as soon as all partitions have passed its end."""
    consumer = _consumer(bootstrap, f"loop-{uuid.uuid4().hex[:8]}")
    consumer.assign([TopicPartition(source, p, 0) for p in range(PARTITIONS)])
    producer = _producer(bootstrap, None)
    decode, encode = msgspec.json.Decoder(Visit).decode, msgspec.json.Encoder().encode
    open_windows: dict[int, dict[str, int]] = {}
    highest = dict.fromkeys(range(PARTITIONS), 0)
    while True:
        messages = consumer.consume(1, 0.005)
        messages += consumer.consume(1000, 0) if messages else []
        for message in messages:
            value, partition = message.value(), message.partition()
            if value is None or partition is None:
                continue
            visit = decode(value)
            counts = open_windows.setdefault(visit.at_ms - visit.at_ms % FEED_WINDOW_MS, {})
            counts[visit.user] = counts.get(visit.user, 0) + 1
            highest[partition] = max(highest[partition], visit.at_ms)
        passed = min(highest.values())
        for start in [each for each in open_windows if each + FEED_WINDOW_MS <= passed]:
            for user, count in open_windows.pop(start).items():
                producer.produce(sink, encode(VisitCount(user, start, count)))
        producer.poll(0)


def run(
    workload: str,
    bootstrap: str,
    source: str,
    sink: str,
    count: int,
    *,
    every: int = 0,
    commit_s: float = COMMIT_S,
) -> None:
    """Process `count` records. Commit every `commit_s`, or after each `every` records if given.

    The last commit comes at the end.
    """
    name = f"loop-{uuid.uuid4().hex[:8]}"
    consumer = _consumer(bootstrap, name)
    consumer.assign([TopicPartition(source, p, 0) for p in range(PARTITIONS)])
    producer = _producer(bootstrap, name)
    producer.init_transactions()
    producer.begin_transaction()
    step = WORKLOADS[workload](producer.produce, sink)
    consume, poll, monotonic = consumer.consume, producer.poll, time.monotonic
    done, next_commit, commit_at = 0, every or count, monotonic() + commit_s
    gc.disable()
    while done < count:
        messages = consume(BATCH, 0.05)
        step(messages)
        done += len(messages)
        if done >= count and isinstance(step, _Tumbling | _Sessions):
            step.finish()
        poll(0)
        while len(producer) > QUEUE - ROOM:
            poll(0.05)
        due = done >= next_commit if every else monotonic() >= commit_at
        if due or done >= count:
            next_commit += every
            _commit(producer, consumer, source)
            commit_at = monotonic() + commit_s


def _consumer(bootstrap: str, name: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": name,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "isolation.level": "read_committed",
            "fetch.queue.backoff.ms": 5,
            "queued.min.messages": 100_000,
        }
    )


def _producer(bootstrap: str, transactional_id: str | None) -> Producer:
    kind = {"transactional.id": transactional_id} if transactional_id else {}
    return Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 25 if transactional_id else 5,
            "delivery.report.only.error": True,
            "queue.buffering.max.messages": QUEUE,
            "partitioner": "murmur2_random",
            **kind,
        }
    )


def _commit(producer: Producer, consumer: Consumer, source: str) -> None:
    positions = consumer.position([TopicPartition(source, p) for p in range(PARTITIONS)])
    read = [each for each in positions if each.offset >= 0]  # from which a record was read
    producer.send_offsets_to_transaction(read, consumer.consumer_group_metadata())
    producer.commit_transaction()
    producer.begin_transaction()


if __name__ == "__main__":
    if sys.argv[1] == "for-ever":
        for_ever(sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5]))
    elif sys.argv[1] == "windows-for-ever":
        windows_for_ever(*sys.argv[2:])
    else:
        workload, bootstrap, source, sink, count, commit_ms = sys.argv[1:]
        run(workload, bootstrap, source, sink, int(count), commit_s=int(commit_ms) / 1000)
