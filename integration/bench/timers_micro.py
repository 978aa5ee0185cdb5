"""Measures timers without Kafka: a million keys, each with one pending event timer.

The operator and the state are those of a job, with RocksDB. The module prints the CPU time of a
record that sets its timer, of one that moves it, and of one in a function without timers. It also
prints the memory for each pending timer, the time of a restore, the synchronous part of a barrier,
and the CPU time for each timer that fires. The first line is the CPU time that a record spends in
`with_timestamps`, with a watermark for each batch.

    python -m integration.bench.timers_micro [KEYS]

The restore runs in a process of its own, so that its memory is not that of objects freed before.
"""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import msgspec

from tidegate import BoundedOutOfOrderness, Json, KafkaSink, KafkaSource, Pipeline, build
from tidegate.api.functions import Context, KeyedProcess
from tidegate.api.state.state import ValueState
from tidegate.api.time.timers import EventTimer, Fired, for_keys
from tidegate.dataplane.counters import Counters
from tidegate.dataplane.operators.keyed import KeyedOperator
from tidegate.dataplane.operators.timers import TimedKeyedOperator
from tidegate.dataplane.operators.with_timestamps import TimestampsOperator
from tidegate.dataplane.sources.kafka import BATCH_RECORDS
from tidegate.dataplane.state.backend import KeyedStateBackend
from tidegate.drivers.process.current import tune_gc
from tidegate.drivers.rocksdb import RocksDBStore
from tidegate.graph.stream_graph import MAIN, Edge, Node
from tidegate.ids import Uid
from tidegate.stream_elements import MIN_MS, RecordBatch, TopicPartition, Watermark

KEYS = 1_000_000
BEGIN_MS = 1_700_000_000_000
CACHE = 200_000
"""`state.cache_entries`. The rows of the other keys are in the store only."""
RESTORE = "restore"
PARTITION = TopicPartition("clicks", 0)


class Count(KeyedProcess[str, str, str]):
    """Counts the records of a key."""

    count = ValueState(int, default=0)

    def process(self, record: str, ctx: Context[str]) -> Iterable[str]:
        self.count.value += 1
        return ()


class Silence(KeyedProcess[str, str, str]):
    """Does the same, and moves a timer with each record."""

    count = ValueState(int, default=0)
    silence = EventTimer()

    def process(self, record: str, ctx: Context[str]) -> Iterable[str]:
        self.count.value += 1
        self.silence.set(ctx.timestamp_ms + 1_800_000)
        return ()

    def on_timer(self, fired: Fired, ctx: Context[str]) -> Iterable[str]:
        self.count.clear()
        return (ctx.key,)


class Stamp(msgspec.Struct, frozen=True, gc=False):
    """A record with an event time."""

    at_ms: int


class Stamps(Pipeline, name="stamps"):
    """A pipeline with the step that gives event times."""

    stamps = KafkaSource("stamps", value=Json(Stamp))
    copies = KafkaSink("copies", value=Json(Stamp))

    def define(self) -> None:
        self.stamps.with_timestamps(
            lambda stamp: stamp.at_ms, watermarks=BoundedOutOfOrderness("1 s"), uid="stamp"
        ).to(self.copies)


class Step:
    """A function with its operator over a store."""

    def __init__(
        self, function: KeyedProcess[str, str, str], folder: Path, schemas: Any = None
    ) -> None:
        kind = type(function)
        states = for_keys(kind.declared_states, str)
        self.store = RocksDBStore(folder)
        self.state = KeyedStateBackend(
            Uid("bench"), states, str, 128, range(128), self.store, CACHE, schemas
        )
        cast("Any", self.state).watermark_ms = MIN_MS
        edge = Edge(node="clicks", partitioning="key", key=_itself, key_type=str)
        node = Node(
            id="bench",
            kind="keyed_process",
            inputs=(edge,),
            uid="bench",
            options={},
            location="",
            function=function,
            watermarks=True,
            event_time=True,
        )
        self.fired = 0
        operator = TimedKeyedOperator if isinstance(function, Silence) else KeyedOperator
        self.operator = operator(
            "Bench", node, cast("Any", self.state), {MAIN: self._count}, now_ms=lambda: 0
        )

    def push(self, keys: list[str], at_ms: int) -> None:
        """Process a record of each key, one millisecond after the other."""
        for start in range(0, len(keys), BATCH_RECORDS):
            some = keys[start : start + BATCH_RECORDS]
            times_ms = list(range(at_ms + start, at_ms + start + len(some)))
            self.operator.process(RecordBatch(some, range(len(some)), PARTITION, None, times_ms))

    def advance(self, watermark_ms: int) -> None:
        """Advance the watermark, and fire all that is due."""
        self.operator.advance(Watermark(watermark_ms))
        while self.operator.firing:
            self.operator.fire()

    def _count(self, batch: RecordBatch) -> None:
        self.fired += len(batch)


def main() -> None:
    """Print the figures."""
    tune_gc()
    if sys.argv[1:2] == [RESTORE]:
        _restore(Path(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4]))
        return
    number = int(sys.argv[1]) if len(sys.argv) > 1 else KEYS
    _stamped(number)
    keys = [f"customer-{each}" for each in range(number)]
    folder = Path(tempfile.mkdtemp(prefix="tidegate-timers-"))
    try:
        _without_timers(folder / "plain", keys)
        _with_timers(folder / "timed", keys)
    finally:
        shutil.rmtree(folder)


def _stamped(number: int) -> None:
    declared = build(Stamps).nodes["stamp"]
    stamped = [0]

    def take(batch: RecordBatch) -> None:
        stamped[0] += len(batch)

    no_refusals: Any = None
    step = TimestampsOperator(
        "Stamps",
        declared,
        {MAIN: take},
        no_refusals,
        counters=Counters(),
        now_ms=lambda: 0,
        asks=lambda: True,
    )
    records = [Stamp(BEGIN_MS + each) for each in range(BATCH_RECORDS)]
    cpu = time.process_time()
    for _ in range(number // BATCH_RECORDS):
        step.process(RecordBatch(records, range(BATCH_RECORDS), PARTITION))
        step.emit_watermark()
    _print("record in with_timestamps", "us", _us(cpu, stamped[0]))


def _without_timers(folder: Path, keys: list[str]) -> None:
    step = Step(Count(), folder)
    _print("first record of a key, without timers", "us", _cpu_us(step, keys, BEGIN_MS))
    _print("next record of a key, without timers", "us", _cpu_us(step, keys, BEGIN_MS))
    step.state.flush()
    step.state.close()


def _with_timers(folder: Path, keys: list[str]) -> None:
    step = Step(Silence(), folder)
    before = _memory_bytes()
    _print("first record of a key, sets its timer", "us", _cpu_us(step, keys, BEGIN_MS))
    _print("next record of a key, moves its timer", "us", _cpu_us(step, keys, BEGIN_MS + 60_000))
    step.state.flush()
    grown = (_memory_bytes() - before) / len(keys)
    _print("memory for each key, row cache and buffers included", "bytes", grown)
    some = keys[: len(keys) // 10]
    step.push(some, BEGIN_MS + 120_000)
    began = time.perf_counter()
    step.state.begin_snapshot()
    _print("synchronous part of a barrier", "ms", (time.perf_counter() - began) * 1e3)
    while step.state.save_next() is None:
        pass
    step.state.flush()
    schemas = step.state.schemas
    step.state.close()
    command = [sys.executable, "-m", __spec__.name, RESTORE, str(folder)]
    subprocess.run([*command, str(len(keys)), json.dumps(schemas)], check=True)


def _restore(folder: Path, number: int, schemas: Any) -> None:
    before = _memory_bytes()
    began, cpu = time.perf_counter(), time.process_time()
    step = Step(Silence(), folder, schemas)
    _print("restore: read all timers and build the index", "s", time.perf_counter() - began)
    _print("  of this CPU", "s", time.process_time() - cpu)
    grown = (_memory_bytes() - before) / number
    _print("memory for each timer after a restore", "bytes", grown)
    cpu = time.process_time()
    step.advance(BEGIN_MS + 10_000_000)
    assert step.fired == number, step.fired
    _print("timer that fires, row read from the store", "us", _us(cpu, number))
    step.state.close()


def _cpu_us(step: Step, keys: list[str], at_ms: int) -> float:
    cpu = time.process_time()
    step.push(keys, at_ms)
    return _us(cpu, len(keys))


def _us(since: float, number: int) -> float:
    return (time.process_time() - since) / number * 1e6


def _itself(record: str) -> str:
    return record


def _memory_bytes() -> int:
    """Return the resident memory of the process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def _print(what: str, unit: str, value: float) -> None:
    print(f"{what:55} {value:10.2f} {unit}", flush=True)


if __name__ == "__main__":
    main()
