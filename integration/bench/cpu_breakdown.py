"""Measures CPU microseconds per record, for each part of a slot and for the loop by hand.

The real parts of a slot (source task, chain, state, sink and drivers) run in one process on a real
broker. There is no control plane. The CPU clock of the thread is read before and after each call of
a part, which is one call per batch. The time of inner parts with their own clock is subtracted. The
CPU time of librdkafka's and RocksDB's threads is read from /proc.

A barrier comes after each `EVERY` records and not every second. Otherwise the number of records
that share the cost of a checkpoint would depend on how busy the machine is.

The loops of `loop.py` run in turns with the slot, in their own processes, and commit as often. The
figures are those of the cheapest round, because other load on the machine only adds cost. The
control plane, start-up, and frames between slots (`exchange_micro.py`) are not measured here.

    python -m integration.bench --only budget
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

if TYPE_CHECKING:
    from integration.bench.cost import Rig
    from integration.bench.page import Table
    from tidegate.api.connectors.kafka_sink import KafkaSink
    from tidegate.api.connectors.kafka_source import KafkaSource
    from tidegate.dataplane.sources.watermarks import SourceWatermarks
    from tidegate.dataplane.state.step import SubtaskKeyedState
    from tidegate.dataplane.subtask_context import SubtaskContext
    from tidegate.graph.stream_graph import Node
    from tidegate.protocol.subtask_snapshot import (
        PreparedTransaction,
        SourceSplit,
        SubtaskSnapshot,
    )

ROOT: Final = Path(__file__).parents[2]
PIPELINES: Final = {
    "passthrough": "Passthrough",
    "transform": "Transform",
    "total": "Totals",
    "tumbling": "Tumbled",
    "sessions": "Sessions",
}
TICK_MS: Final = 1000 / os.sysconf("SC_CLK_TCK")
WARM_S: Final = 1.0
"""Wait before the clocks start, so that the first producers of the sink are ready."""
WAIT_S: Final = 0.005
EVERY: Final = 250_000
"""Records between two barriers: about one second of work on a quiet machine."""
SINK_SETTINGS: Final = [
    {"compression.type": compression, "linger.ms": linger}
    for compression, linger in (
        ("none", "5"),
        ("lz4", "5"),
        ("snappy", "5"),
        ("zstd", "5"),
        ("gzip", "5"),
        ("none", "1"),
        ("none", "25"),
        ("none", "50"),
        ("lz4", "50"),
    )
]


def measure_cpu(rig: Rig, workload: str, rounds: int) -> Table:
    """Measure the loop and the slot, part by part, in the cheapest round, and check the outputs."""
    from integration.bench.page import Table
    from integration.bench.workloads import CHECKED, WORKLOADS

    best: dict[str, dict[str, Any]] = {}
    for _ in range(rounds):
        for kind in ("loop", "slot"):
            sink, _ = rig.fresh("budget")
            told = _run(rig, kind, workload, sink)
            rig.check(WORKLOADS[workload], sink, rig.count)
            if kind not in best or told["cpu_us"] < best[kind]["cpu_us"]:
                best[kind] = told
    loop, slot = best["loop"]["cpu_us"], best["slot"]["cpu_us"]
    rows = [
        [part, f"{us:.3f}", f"{calls:,}", f"{us * rig.count / calls:,.0f}"]
        if calls
        else [part, f"{us:.3f}", "", ""]
        for part, (us, calls) in sorted(best["slot"]["parts"].items(), key=lambda item: -item[1][0])
    ]
    note = (
        f"The slot alone takes {slot:.2f} us a record, and the loop {loop:.2f}: "
        f"{slot / loop:.2f} x. A barrier comes every {EVERY:,} records. Figures are those of the "
        f"cheapest of {rounds} rounds. {CHECKED}"
    )
    return Table(f"Budget: {workload}", ("part", "us a record", "calls", "us a call"), rows, note)


def measure_settings(rig: Rig, rounds: int) -> Table:
    """Measure the CPU cost and the stored bytes of the sink's compression and linger settings.

    The workload is the transform, and each output is checked.
    """
    from integration.bench.page import Table
    from integration.bench.workloads import CHECKED, WORKLOADS

    rows = []
    for properties in SINK_SETTINGS:
        found = []
        for _ in range(rounds):
            sink, _ = rig.fresh("settings")
            told = _run(rig, "slot", "transform", sink, properties)
            stored = sum(f.stat().st_size for f in rig.scratch.glob(f"kafka/**/{sink}-*/*.log"))
            found.append((told["cpu_us"], stored))
            rig.check(WORKLOADS["transform"], sink, rig.count)
        cpu_us, stored = min(found)
        rows.append([*properties.values(), f"{cpu_us:.2f}", f"{stored / 1e6:.1f}"])
    note = (
        f"The workload is the transform, which writes half of {rig.count:,} records. Figures are "
        f"those of the cheapest of {rounds} rounds. {CHECKED}"
    )
    columns = ("compression.type", "linger.ms", "slot: us a record read", "MB stored")
    return Table("Compression and linger.ms of a sink", columns, rows, note)


def _run(
    rig: Rig, kind: str, workload: str, sink: str, properties: dict[str, str] | None = None
) -> dict[str, Any]:
    """Run a loop or a slot in its own process. Return the figures in its last line."""
    words = [kind, workload, rig.bootstrap, sink, str(rig.count), json.dumps(properties or {})]
    done = subprocess.run(
        [sys.executable, __file__, *words], check=False, capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"The {kind} of {workload} failed: {done.stderr[-2000:]}")
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


class Clocks:
    """The CPU time of the parts. Inner calls with a clock do not count for the calling part."""

    def __init__(self) -> None:
        self.spent_ns: dict[str, int] = {}
        self.calls: dict[str, int] = {}
        self._inner = threading.local()

    def around(self, owner: Any, method: str, part: str) -> None:
        """Read the clock before and after each call of a method."""
        called = getattr(owner, method)

        def clocked(*arguments: Any, **named: Any) -> Any:
            inner: list[int] = self._inner.__dict__.setdefault("stack", [])
            began = time.thread_time_ns()
            inner.append(0)
            try:
                return called(*arguments, **named)
            finally:
                spent = time.thread_time_ns() - began
                self.spent_ns[part] = self.spent_ns.get(part, 0) + spent - inner.pop()
                self.calls[part] = self.calls.get(part, 0) + 1
                if inner:
                    inner[-1] += spent

        setattr(owner, method, clocked)


def clock_parts(clocks: Clocks) -> None:
    """Put clocks around the methods that a slot calls per batch and per checkpoint."""
    from tidegate.dataplane.keying import StepKeys
    from tidegate.dataplane.operators.keyed import KeyedOperator
    from tidegate.dataplane.operators.stateless import FusedSteps
    from tidegate.dataplane.sinks.delivery import TransactionalDelivery
    from tidegate.dataplane.sinks.encoding import BatchEncoder
    from tidegate.dataplane.sinks.kafka import KafkaSinkWriter
    from tidegate.dataplane.source_task import SourceTask
    from tidegate.dataplane.sources.decoding import BatchDecoder
    from tidegate.dataplane.state.backend import KeyedStateBackend
    from tidegate.dataplane.state.snapshots import SnapshotUploader
    from tidegate.dataplane.state.window_tables import WindowTables
    from tidegate.dataplane.windows.firing import Firing
    from tidegate.dataplane.windows.operator import WindowOperator
    from tidegate.drivers.kafka.producer import KafkaProducer
    from tidegate.drivers.kafka.reader import KafkaPartitionReader
    from tidegate.drivers.rocksdb import RocksDBStore

    for owner, method, part in (
        (KafkaPartitionReader, "poll", "consume"),
        (BatchDecoder, "decode", "decode"),
        (FusedSteps, "process", "operators"),
        (KeyedOperator, "process", "operators"),
        (WindowOperator, "process", "windows: add"),
        (WindowOperator, "advance", "windows: fire"),
        (WindowOperator, "fire", "windows: fire"),
        (Firing, "emit", "windows: emit"),
        (WindowTables, "save_some", "snapshot: encode what changed"),
        (StepKeys, "of", "key of"),
        (KeyedStateBackend, "rows", "state: look up"),
        (KeyedStateBackend, "_load", "state: load new keys"),
        (BatchEncoder, "encode", "encode"),
        (KafkaProducer, "send", "produce"),
        (KafkaSinkWriter, "write", "sink"),
        (SourceTask, "step", "task"),
        (KeyedStateBackend, "save_next", "snapshot: what to save"),
        (KeyedStateBackend, "_save", "snapshot: encode what changed"),
        (RocksDBStore, "write", "snapshot: keep what changed"),
        (RocksDBStore, "checkpoint", "checkpoint: freeze the store"),
        (SnapshotUploader, "upload", "checkpoint: upload"),
        (KafkaSinkWriter, "prepare", "checkpoint: sink"),
        (TransactionalDelivery, "flush", "checkpoint: flush of the producer"),
        (TransactionalDelivery, "describe", "checkpoint: describe"),
    ):
        clocks.around(owner, method, part)


def run_loop(
    workload: str, bootstrap: str, sink: str, records: int, properties: dict[str, str]
) -> None:
    """Run the loop by hand in this process and print its figures."""
    del properties  # the loop has its own settings
    from integration.bench import loop

    began = time.process_time_ns()
    loop.run(workload, bootstrap, "bench-in", sink, records, every=EVERY)
    print(json.dumps({"cpu_us": (time.process_time_ns() - began) / 1e3 / records}))


def run_slot(
    workload: str, bootstrap: str, sink: str, records: int, properties: dict[str, str]
) -> None:
    """Run the parts of a slot in this process and print their figures."""
    from tidegate.drivers.process.current import tune_gc

    clocks = Clocks()
    clock_parts(clocks)
    with tempfile.TemporaryDirectory() as folder:
        slot = BareSlot(PIPELINES[workload], bootstrap, sink, Path(folder), properties)
        tune_gc()
        time.sleep(WARM_S)
        clocks.spent_ns.clear()
        clocks.calls.clear()
        slot.native.sample()
        before = dict(slot.native.spent_ms)
        began = time.process_time_ns()
        slot.run(records, EVERY)
        cpu_us = (time.process_time_ns() - began) / 1e3 / records
        parts = {
            part: [spent / 1e3 / records, clocks.calls[part]]
            for part, spent in clocks.spent_ns.items()
        }
        slot.native.sample()
        for (_, thread), spent_ms in slot.native.spent_ms.items():
            part = parts.setdefault(f"threads of {thread}", [0.0, 0])
            part[0] += (spent_ms - before.get((_, thread), 0.0)) * 1e3 / records
        parts["all else"] = [cpu_us - sum(found[0] for found in parts.values()), 0]
        print(json.dumps({"cpu_us": cpu_us, "parts": parts}), flush=True)
        os._exit(0)  # prepared producers are dropped, not closed


class NativeThreads:
    """The CPU time of the libraries' threads.

    Sample it before a producer is dropped, because the threads of a producer end with it.
    """

    def __init__(self) -> None:
        self.spent_ms: dict[tuple[str, str], float] = {}
        """CPU time of each thread, by its number and its library."""

    def sample(self) -> None:
        """Read the CPU time of each library thread from /proc."""
        for task in Path("/proc/self/task").iterdir():
            try:
                name, rest = (task / "stat").read_text().split("(", 1)[1].rsplit(")", 1)
            except FileNotFoundError:
                continue
            library = {"rdk": "librdkafka", "rocksdb": "RocksDB"}.get(name.split(":")[0])
            if library is not None:
                fields = rest.split()
                self.spent_ms[task.name, library] = (int(fields[11]) + int(fields[12])) * TICK_MS


class BareSlot:
    """One subtask of a pipeline with one vertex. It ends its own transactions, like a JobMaster."""

    def __init__(
        self, pipeline: str, bootstrap: str, sink: str, folder: Path, properties: dict[str, str]
    ) -> None:
        from integration.bench import pipelines
        from tests.drivers.kafka.surroundings import SubtaskHarness
        from tidegate.api.pipeline import build
        from tidegate.config import Config, ConnectorSettings, KafkaSettings
        from tidegate.dataplane.chain import ChainOutputs, OperatorChain
        from tidegate.dataplane.sinks.kafka import KafkaSinkWriter
        from tidegate.dataplane.source_task import SourceTask
        from tidegate.dataplane.sources.kafka import KafkaSourceReader
        from tidegate.dataplane.task_builder import source_keys_wanted
        from tidegate.drivers.kafka.transactions import KafkaTransactionAdmin
        from tidegate.drivers.system import SystemDrivers
        from tidegate.graph.plan import plan
        from tidegate.ids import Uid
        from tidegate.protocol.subtask_snapshot import SourceSplit

        kind = getattr(pipelines, pipeline)
        graph = build(kind, {})
        (vertex,) = plan(graph, 1, 128).vertices
        head = graph.nodes[vertex.nodes[0]]
        to = next(node.id for node in graph.nodes.values() if node.kind == "sink")
        config = Config(
            kafka=KafkaSettings(bootstrap_servers=bootstrap),
            sinks={Uid(to): ConnectorSettings(topic=sink, properties=properties)},
        )
        drivers = SystemDrivers()
        self._transactions = KafkaTransactionAdmin({"bootstrap.servers": bootstrap})
        self._around = SubtaskHarness(
            drivers, self._transactions, job=sink, config=config, pooled=2, threads=True
        )
        context = self._around.context
        context.blobs = drivers.blob_store(str(folder / "storage"))
        context.local = folder / "local"
        self._chain = OperatorChain(
            kind.__name__,
            graph,
            vertex,
            ChainOutputs(
                record_writers=(),
                make_sink=lambda node, _: KafkaSinkWriter(
                    cast("KafkaSink[Any]", node.declaration), Uid(node.id), context
                ),
                make_state=lambda node: _open_state(context, node),
                counters=context.counters,
                now_ms=drivers.clock.now_ms,
                watermark_interval_ms=config.job.watermark_interval,
            ),
        )
        reader = KafkaSourceReader(
            cast("KafkaSource[Any]", head.declaration),
            Uid(head.id),
            context,
            keep_keys=source_keys_wanted(graph, head.id),
        )
        splits = [
            SourceSplit(source=Uid(head.id), topic="bench-in", partition=number, offset=0)
            for number in range(4)
        ]
        self._task = SourceTask(
            *(context, self._chain, self, reader, splits),
            fires=True,
            watermarks=_watermarks(context, head, splits),
        )
        self.native = NativeThreads()
        self._ending = ThreadPoolExecutor(1)
        self._open_checkpoints = 0
        self._chain.open()

    def run(self, records: int, every: int) -> None:
        """Read and write all records, with a barrier after each `every` and at the end."""
        from tidegate.ids import Attempt, CheckpointId
        from tidegate.stream_elements import Barrier

        counters, mailbox = self._around.counters, self._around.mailbox
        self._task.start()
        done, barriers = 0, 0
        while True:
            mailbox.run_posted()
            if not self._task.step(0.0):
                self._wait()
            if self._around.failures:
                raise self._around.failures[0]
            done = counters.records_in
            ended = done >= records and not self._task._pending
            if ended:
                self._fire_all()
            if ended or (done < records and done // every > barriers):
                barriers += 1
                self._open_checkpoints += 1
                self._task.trigger(Barrier(CheckpointId(Attempt(1), barriers)))
                self.native.sample()
                while not self._task.step(0.0) or self._task._barriers:
                    mailbox.wait(WAIT_S)
                    mailbox.run_posted()
            if ended:
                break
        self._around.until(lambda: self._open_checkpoints == 0, timeout_s=120)

    def _fire_all(self) -> None:
        """Fire all windows, as at the end of a bounded run."""
        if self._task.watermarks is None:
            return
        self._task.drain()
        while not self._task._output_ended:
            if not self._task.step(0.0):
                self._around.mailbox.wait(WAIT_S)
                self._around.mailbox.run_posted()

    def _wait(self) -> None:
        """Wait for records, or for room in the queue of the producer, as a slot does.

        Otherwise a slow broker would add idle turns of this loop to the figures.
        """
        if self._task.reads():
            self._task.step(WAIT_S)
        else:
            self._around.mailbox.wait(WAIT_S)

    def acknowledge(
        self, checkpoint: Any, snapshot: SubtaskSnapshot, *, alignment_ms: int, sync_ms: int
    ) -> None:
        """End the transactions, as the JobMaster does, but without a journal."""
        del alignment_ms, sync_ms
        self._ending.submit(self._end, checkpoint, snapshot.transactions)

    def _end(self, checkpoint: Any, found: tuple[PreparedTransaction, ...]) -> None:
        for each in found:
            self._transactions.end(each.transactional_id, each.producer_id, each.epoch, commit=True)
        ids = [each.transactional_id for each in found]

        def told() -> None:
            self._open_checkpoints -= 1
            self._task.checkpoint_completed(checkpoint, committed=ids, reusable=ids)

        self._around.mailbox.post(told)

    def decline(self, checkpoint: Any, subtask: Any, reason: str) -> None:
        """End the measurement, because a snapshot could not be stored."""
        raise RuntimeError(f"Checkpoint {checkpoint} of {subtask} failed: {reason}")

    def input_ended(self, subtask: Any) -> None:
        """Do nothing, because the splits have no end."""


def _open_state(context: SubtaskContext, node: Node) -> SubtaskKeyedState:
    """Return the state of a step, which is empty."""
    from tidegate.api.steps.step_state import step_state
    from tidegate.dataplane.state.step import open_step_state
    from tidegate.ids import Uid

    declared = step_state(node)
    return open_step_state(
        *(context, Uid(node.id), declared.states, declared.key_type, ()),
        group_bytes=declared.group_bytes,
    )


def _watermarks(
    context: SubtaskContext, source: Node, splits: Sequence[SourceSplit]
) -> SourceWatermarks | None:
    """Return the watermarks of a source that has a strategy."""
    from tidegate.dataplane.sources.watermarks import SourceWatermarks
    from tidegate.ids import Uid

    strategy = cast("KafkaSource[Any]", source.declaration).watermarks
    if strategy is None:
        return None
    return SourceWatermarks(strategy, Uid(source.id), splits, context.counters)


RUNS: Final[dict[str, Callable[..., None]]] = {"loop": run_loop, "slot": run_slot}

if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT / "framework")]
    RUNS[sys.argv[1]](*sys.argv[2:5], int(sys.argv[5]), json.loads(sys.argv[6]))
