"""Measures the cost of windows in CPU nanoseconds per record or result, without Kafka.

The records are those of the workload "windows": 100,000 users, ten records for each millisecond of
event time, in batches of a source. Half of a record's cost is that of new windows, because a user
has about one record in a window of 10 s. A watermark comes every 10,000 records, and a checkpoint
every 100,000. The loop by hand does the same with a dict, which a crash loses: it puts each record
into its window, and makes the results of the windows that a watermark ends.

Both decode the records from JSON and encode the results, as a pipeline does, in the lines "with
JSON". The lines "alone" have only the windows.

    python -m integration.bench.windows_micro
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from tidegate import (
    BoundedOutOfOrderness,
    Json,
    KafkaSink,
    KafkaSource,
    Pipeline,
    Session,
    Sliding,
    Sum,
    Tumbling,
    build,
)
from tidegate.api.steps.step_state import step_state
from tidegate.dataplane.counters import Counters
from tidegate.dataplane.sources.kafka import BATCH_RECORDS
from tidegate.dataplane.state.backend import KeyedStateBackend
from tidegate.dataplane.windows.layouts import make_window_operator
from tidegate.drivers.process.current import tune_gc
from tidegate.drivers.rocksdb import RocksDBStore
from tidegate.ids import Uid
from tidegate.stream_elements import MIN_MS, RecordBatch, TopicPartition, Watermark

USERS: Final = 100_000
RECORDS: Final = 600_000
WATERMARK_EVERY: Final = 10_000
CHECKPOINT_EVERY: Final = 100_000
PARTITION: Final = TopicPartition("clicks", 0)
HOUR_MS: Final = 3_600_000
LAG = 101


class Click(msgspec.Struct, frozen=True):
    """A payment, with a few more fields."""

    user: str
    amount: float
    ts: int
    sku: str
    note: str


class UserWindow(msgspec.Struct, frozen=True):
    """The payments of a user in a window."""

    user: str
    start_ms: int
    end_ms: int
    total: float


class Clicks(Pipeline, name="clicks"):
    """The windows that are measured, one step for each kind."""

    clicks = KafkaSource(
        "clicks",
        value=Json(Click),
        event_time=lambda click: click.ts,
        watermarks=BoundedOutOfOrderness("100 ms"),
    )
    sums = KafkaSink("sums", value=Json(UserWindow))

    def define(self) -> None:
        """Add a step for each kind of window."""
        by_user = self.clicks.key_by(lambda click: click.user)
        kinds: dict[str, Any] = {
            "tumbling": Tumbling("10 s"),
            "session": Session("10 s"),
            "every-second": Sliding("1 h", "1 s"),
            "every-ten-minutes": Sliding("1 h", "10 min"),
        }
        for name, assigner in kinds.items():
            by_user.window(assigner).aggregate(
                Sum(lambda click: click.amount),
                into=lambda w, total: UserWindow(w.key, w.start_ms, w.end_ms, total),
                uid=name,
            ).to(self.sums)


class State:
    """A backend with the watermark of a step."""

    def __init__(self, backend: KeyedStateBackend) -> None:
        self.watermark_ms = MIN_MS
        self.backend = backend
        self.rows, self.scan, self.close = backend.rows, backend.scan, backend.close
        self.tables = backend.tables


def main() -> None:
    """Print a table."""
    tune_gc()
    texts = list(_texts())
    with_json, alone = msgspec.json.Decoder(Click).decode, None
    print("CPU ns a record            by hand   tidegate   ratio   results")
    for decode in (with_json, alone):
        batches = _batches(texts, decode)
        for kind, by_hand in (("tumbling", _tumbling), ("session", _sessions)):
            hand, count = _measured(partial(by_hand, batches))
            ours, same = _measured(partial(_ours, kind, batches))
            if abs(count - same) > count // 1_000:  # by hand, a record ends sessions at once
                raise SystemExit(f"{kind}: {count} results by hand, {same} by tidegate")
            name = f"{kind} {'with JSON' if decode else 'alone'}"
            print(f"{name:22}{hand:12.0f}{ours:11.0f}{ours / hand:8.2f}{count:10}")
    print("\nCPU ns a result            tidegate   results")
    for kind, users, span_ms in (("every-second", 100, 2_000), ("every-ten-minutes", 60_000, 300)):
        slides = list(_slides(users, span_ms))
        ns, count = _measured(partial(_ours, kind, slides))
        print(f"{kind:22}{ns * len(slides) * BATCH_RECORDS / count:14.0f}{count:10}")


def _texts() -> Iterator[bytes]:
    random_ = random.Random(1)
    encode = msgspec.json.Encoder().encode
    for number in range(RECORDS):
        user = f"user-{random_.randrange(USERS):06}"
        at_ms = 1_700_000_000_000 + number // 10
        yield encode(Click(user, random_.randrange(10_000) / 100, at_ms, "sku-1", "a short note"))


def _batches(texts: list[bytes], decode: Any) -> list[Any]:
    """Return batches of texts with their decoder, or of records."""
    records = texts if decode else list(map(msgspec.json.Decoder(Click).decode, texts))
    return [
        (records[first : first + BATCH_RECORDS], decode)
        for first in range(0, len(records), BATCH_RECORDS)
    ]


def _slides(users: int, records_each: int) -> Iterator[Any]:
    """Records of few users with many windows, or of many users with few: as many results."""
    random_ = random.Random(2)
    count = users * records_each // BATCH_RECORDS
    for number in range(min(count, 800)):
        at_ms = number * (2 * HOUR_MS // 800)
        yield (
            [
                Click(f"u{random_.randrange(users)}", 1.0, at_ms + i, "", "")
                for i in range(BATCH_RECORDS)
            ],
            None,
        )


def _measured(run: Callable[[], tuple[int, int]]) -> tuple[float, int]:
    """Return the least CPU ns a record of three runs, and the number of results."""
    best, count = float("inf"), 0
    for _ in range(3):
        began = time.process_time_ns()
        records, count = run()
        best = min(best, (time.process_time_ns() - began) / records)
    return best, count


def _tumbling(batches: list[Any]) -> tuple[int, int]:
    """Sum by hand, with a dict for each window."""
    windows: dict[int, dict[str, float]] = {}
    seen, made, highest = 0, 0, 0
    encode = msgspec.json.Encoder().encode
    for texts, decode in batches:
        clicks = list(map(decode, texts)) if decode else texts
        for click in clicks:
            start = click.ts - click.ts % 10_000
            sums = windows.get(start)
            if sums is None:
                sums = windows[start] = {}
            sums[click.user] = sums.get(click.user, 0.0) + click.amount
            highest = max(highest, click.ts)
        seen += len(clicks)
        if seen % WATERMARK_EVERY == 0:
            for start in [one for one in windows if one + 10_000 <= highest - 100]:
                results = [
                    UserWindow(user, start, start + 10_000, total)
                    for user, total in windows.pop(start).items()
                ]
                made += len(list(map(encode, results))) if decode else len(results)
    return seen, made


def _sessions(batches: list[Any]) -> tuple[int, int]:
    """Sum sessions by hand, with one open session for each user. Times are in order."""
    sessions: dict[str, list[Any]] = {}
    seen, made, highest = 0, 0, 0
    encode = msgspec.json.Encoder().encode
    for texts, decode in batches:
        clicks = list(map(decode, texts)) if decode else texts
        results = []
        for click in clicks:
            session = sessions.get(click.user)
            if session is None:
                sessions[click.user] = [click.ts, click.ts + 10_000, click.amount]
            elif click.ts <= session[1]:
                session[1] = click.ts + 10_000
                session[2] += click.amount
            else:
                results.append(UserWindow(click.user, session[0], session[1], session[2]))
                sessions[click.user] = [click.ts, click.ts + 10_000, click.amount]
            highest = max(highest, click.ts)
        seen += len(clicks)
        if seen % WATERMARK_EVERY == 0:
            ended = [user for user, one in sessions.items() if one[1] <= highest - 100]
            for user in ended:
                start, end, total = sessions.pop(user)
                results.append(UserWindow(user, start, end, total))
        made += len(list(map(encode, results))) if decode else len(results)
    return seen, made


def _ours(kind: str, batches: list[Any]) -> tuple[int, int]:
    node = build(Clicks).nodes[kind]
    declared = step_state(node)
    made, seen, highest = [0], 0, 0
    encode = msgspec.json.Encoder().encode

    def take(batch: RecordBatch) -> None:
        made[0] += len(list(map(encode, batch.values)) if batches[0][1] else batch.values)

    with tempfile.TemporaryDirectory() as folder:
        backend = KeyedStateBackend(
            Uid(kind),
            declared.states,
            declared.key_type,
            128,
            range(128),
            RocksDBStore(Path(folder) / "state"),
            200_000,
            group_bytes=declared.group_bytes,
        )
        state: Any = State(backend)
        operator = make_window_operator(
            "Clicks", node, state, {"main": take}, Counters(), lambda: 0, None
        )
        operator.open()
        for texts, decode in batches:
            clicks = list(map(decode, texts)) if decode else texts
            times = [click.ts for click in clicks]
            operator.process(RecordBatch(clicks, range(len(clicks)), PARTITION, None, times))
            highest = max(highest, times[-1])
            seen += len(clicks)
            if seen % WATERMARK_EVERY == 0:
                operator.advance(Watermark(highest - LAG))
                while operator.firing:
                    operator.fire()
            if seen % CHECKPOINT_EVERY == 0:
                backend.begin_snapshot()
                while backend.save_next() is None:
                    pass
        operator.close()
    return seen, made[0]


if __name__ == "__main__":
    main()
