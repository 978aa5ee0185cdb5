"""Runs the workloads as loops written by hand with confluent-kafka, for the comparison.

A loop has one transactional producer, sends its offsets with the transaction, and commits every
second. A good engineer writes such a loop in an afternoon. It runs in one process. It does not
recover its totals, because they are in a dict that a crash loses.

    python -m integration.bench.loop WORKLOAD BOOTSTRAP SOURCE SINK COUNT COMMIT_MS
    python -m integration.bench.loop for-ever BOOTSTRAP SOURCE SINK COMMIT_MS
    python -m integration.bench.loop windows-for-ever BOOTSTRAP SOURCE SINK

The second command copies until it is killed, and is used to measure latency. It commits a
transaction every COMMIT_MS. With 0, it uses an idempotent producer without transactions, so that
records are visible at once. The third command counts the records of `window_feed.py` by user and
window in the same way, without transactions.
"""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Callable
from typing import Any

import msgspec
from confluent_kafka import Consumer, Producer, TopicPartition

from integration.bench.data import GAP_MS, PARTITIONS, THRESHOLD, WINDOW_MS, Click
from integration.bench.window_feed import WINDOW_MS as FEED_WINDOW_MS
from integration.bench.window_feed import Visit, VisitCount

LATENESS_MS = 1_000
"""Milliseconds by which a record may be behind others of its partition."""
COMMIT_S = 1.0

Columns = tuple[list[bytes | None], list[bytes | None]]


class Fee(Click, frozen=True, gc=False):
    """A click that paid."""

    fee: float


class UserTotal(msgspec.Struct, frozen=True, gc=False):
    """Number and sum of the payments of a user so far."""

    user: str
    count: int
    total: float


def passthrough() -> Callable[[list[Any]], Columns]:
    """Return a step that keeps key and value."""
    return lambda messages: ([m.value() for m in messages], [m.key() for m in messages])


def transform() -> Callable[[list[Any]], Columns]:
    """Return a step that decodes, filters, adds a field and encodes."""
    decode, encode = msgspec.json.Decoder(Click).decode, msgspec.json.Encoder().encode

    def step(messages: list[Any]) -> Columns:
        values: list[bytes | None] = []
        keys: list[bytes | None] = []
        for m in messages:
            c = decode(m.value())
            if c.amount > THRESHOLD:
                fee = round(c.amount * 0.02, 2)
                out = Fee(c.seq, c.user, c.amount, c.ts, c.sku, c.qty, c.country, c.note, fee)
                values.append(encode(out))
                keys.append(m.key())
        return values, keys

    return step


def total() -> Callable[[list[Any]], Columns]:
    """Return a step that keeps count and sum per user in a dict."""
    decode, encode = msgspec.json.Decoder(Click).decode, msgspec.json.Encoder().encode
    totals: dict[str, tuple[int, float]] = {}

    def step(messages: list[Any]) -> Columns:
        values: list[bytes | None] = []
        keys: list[bytes | None] = []
        for m in messages:
            c = decode(m.value())
            count, paid = totals.get(c.user, (0, 0.0))
            now = totals[c.user] = (count + 1, paid + c.amount)
            values.append(encode(UserTotal(c.user, *now)))
            keys.append(c.user.encode())
        return values, keys

    return step


class WindowTotal(msgspec.Struct, frozen=True, gc=False):
    """Sum of the payments of a user in one window."""

    user: str
    start: int
    total: float


def windows() -> Callable[[list[Any]], Columns]:
    """Return a step that sums per user and window. A user's next window emits the previous sum."""
    decode, encode = msgspec.json.Decoder(Click).decode, msgspec.json.Encoder().encode
    open_windows: dict[str, tuple[int, float]] = {}

    def step(messages: list[Any]) -> Columns:
        values: list[bytes | None] = []
        keys: list[bytes | None] = []
        for m in messages:
            c = decode(m.value())
            start = c.ts - c.ts % WINDOW_MS
            known = open_windows.get(c.user)
            if known is None or known[0] == start:
                open_windows[c.user] = (start, (known[1] if known else 0.0) + c.amount)
            else:
                open_windows[c.user] = (start, c.amount)
                values.append(encode(WindowTotal(c.user, *known)))
                keys.append(c.user.encode())
        return values, keys

    return step


class _Tumbling:
    """A step that sums per user and window. A window is emitted when all partitions have passed its
    end.
    """

    def __init__(self) -> None:
        self._decode = msgspec.json.Decoder(Click).decode
        self._encode = msgspec.json.Encoder().encode
        self._windows: dict[int, dict[str, float]] = {}
        self._highest = dict.fromkeys(range(PARTITIONS), 0)

    def __call__(self, messages: list[Any]) -> Columns:
        """Sum the records of messages, and emit the windows that have ended."""
        decode, windows, highest = self._decode, self._windows, self._highest
        for m in messages:
            c = decode(m.value())
            ts = c.ts
            sums = windows.get(ts - ts % WINDOW_MS)
            if sums is None:
                sums = windows[ts - ts % WINDOW_MS] = {}
            sums[c.user] = sums.get(c.user, 0.0) + c.amount
            partition = m.partition()
            highest[partition] = max(highest[partition], ts)
        return self._emit(min(highest.values()) - LATENESS_MS)

    def finish(self) -> Columns:
        """Emit the windows that are left at the end."""
        return self._emit(1 << 62)

    def _emit(self, watermark_ms: int) -> Columns:
        values: list[bytes | None] = []
        keys: list[bytes | None] = []
        for start in sorted(self._windows):
            if start + WINDOW_MS <= watermark_ms:
                for user, total in self._windows.pop(start).items():
                    values.append(self._encode(WindowTotal(user, start, total)))
                    keys.append(user.encode())
        return values, keys


class SessionTotal(msgspec.Struct, frozen=True, gc=False):
    """Sum of the payments of a user in one session."""

    user: str
    start: int
    end: int
    total: float


class _Sessions:
    """A step that sums per user and session. The records of a user are in order, so a user has one
    open session. The user's next record emits it, or a look at all sessions, once a second, after
    all partitions have passed its end. To keep the sessions by their ends would cost more.
    """

    def __init__(self) -> None:
        self._decode = msgspec.json.Decoder(Click).decode
        self._encode = msgspec.json.Encoder().encode
        self._sessions: dict[str, list[Any]] = {}
        self._highest = dict.fromkeys(range(PARTITIONS), 0)
        self._look_s = time.monotonic() + COMMIT_S

    def __call__(self, messages: list[Any]) -> Columns:
        """Sum the records of messages, and emit the sessions that are known to have ended."""
        decode, sessions, highest = self._decode, self._sessions, self._highest
        ended: list[tuple[str, list[Any]]] = []
        for m in messages:
            c = decode(m.value())
            ts = c.ts
            session = sessions.get(c.user)
            if session is None:
                sessions[c.user] = [ts, ts + GAP_MS, c.amount]
            elif ts <= session[1]:
                session[1] = ts + GAP_MS
                session[2] += c.amount
            else:
                ended.append((c.user, session))
                sessions[c.user] = [ts, ts + GAP_MS, c.amount]
            partition = m.partition()
            highest[partition] = max(highest[partition], ts)
        if time.monotonic() >= self._look_s:
            self._look_s = time.monotonic() + COMMIT_S
            ended += self._passed(min(highest.values()) - LATENESS_MS)
        return self._emit(ended)

    def finish(self) -> Columns:
        """Emit the sessions that are left at the end."""
        return self._emit(self._passed(1 << 62))

    def _passed(self, watermark_ms: int) -> list[tuple[str, list[Any]]]:
        users = [user for user, session in self._sessions.items() if session[1] <= watermark_ms]
        return [(user, self._sessions.pop(user)) for user in users]

    def _emit(self, ended: list[tuple[str, list[Any]]]) -> Columns:
        encode = self._encode
        values: list[bytes | None] = [
            encode(SessionTotal(user, *session)) for user, session in ended
        ]
        return values, [user.encode() for user, _ in ended]


WORKLOADS: dict[str, Callable[[], Callable[[list[Any]], Columns]]] = {
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
    positions = dict[int, int]()
    commit_at = time.monotonic()
    while True:
        messages = consumer.consume(1, 0.005)
        messages += consumer.consume(1000, 0) if messages else []
        for message in messages:
            producer.produce(sink, message.value(), message.key())
            partition, offset = message.partition(), message.offset()
            if partition is not None and offset is not None:
                positions[partition] = offset + 1
        producer.poll(0)
        if commit_ms and positions and time.monotonic() >= commit_at:
            commit_at = time.monotonic() + commit_ms / 1000
            _commit(producer, consumer, source, positions)


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
    step = WORKLOADS[workload]()
    name = f"loop-{uuid.uuid4().hex[:8]}"
    consumer = _consumer(bootstrap, name)
    consumer.assign([TopicPartition(source, p, 0) for p in range(PARTITIONS)])
    producer = _producer(bootstrap, name)
    producer.init_transactions()
    producer.begin_transaction()
    done, positions, commit_at = 0, dict[int, int](), time.monotonic() + commit_s
    next_commit = every or count
    while done < count:
        messages = consumer.consume(1000, 0.05)
        values, keys = step(messages)
        if isinstance(step, _Tumbling | _Sessions) and done + len(messages) >= count:
            values, keys = (a + b for a, b in zip((values, keys), step.finish(), strict=True))
        for value, key in zip(values, keys, strict=True):
            while True:
                try:
                    producer.produce(sink, value, key)
                    break
                except BufferError:
                    producer.poll(0.05)
        producer.poll(0)
        for message in messages:
            partition, offset = message.partition(), message.offset()
            if partition is not None and offset is not None:
                positions[partition] = offset + 1
        done += len(messages)
        due = done >= next_commit if every else time.monotonic() >= commit_at
        if due or done >= count:
            next_commit += every
            _commit(producer, consumer, source, positions)
            commit_at = time.monotonic() + commit_s


def _consumer(bootstrap: str, name: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": name,
            "enable.auto.commit": False,
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
            "linger.ms": 5,
            "queue.buffering.max.messages": 1_000_000,
            "partitioner": "murmur2_random",
            **kind,
        }
    )


def _commit(producer: Producer, consumer: Consumer, source: str, positions: dict[int, int]) -> None:
    offsets = [TopicPartition(source, p, offset) for p, offset in positions.items()]
    producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata())
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
