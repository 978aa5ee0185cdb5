"""Measures the CPU per record of the exchange: key, split, encode, send, receive and decode.

    python -m integration.bench.exchange_micro [records]

Two processes stand for two slots. The first emits batches of records of about 140 bytes, as large
as those of a source that feeds two subtasks. Its `KeyGroupWriter` has both receivers in the second
process, so every record is split, framed, sent and decoded.

The command prints the CPU microseconds per record (user and system, without start-up) for each kind
of record and each kind of socket. It is not a test, because machines are noisy. The benchmark runs
it several times for its table (`--only exchange`).
"""

from __future__ import annotations

import json
import multiprocessing
import os
import queue
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypedDict

import msgspec

from integration.bench.page import Table
from tidegate.api.state.wire import column_codec
from tidegate.dataplane.channels.frames import (
    FrameCodec,
    FrameKind,
    credit_frame,
    frame_kind,
    read_credit,
)
from tidegate.dataplane.channels.input_gate import InputChannel, InputGate
from tidegate.dataplane.channels.record_writer import KeyGroupWriter, RemoteOutputChannel
from tidegate.dataplane.sources.kafka import BATCH_RECORDS
from tidegate.drivers.exchange import SocketExchange
from tidegate.drivers.process.current import tune_gc
from tidegate.graph.plan import PlanEdge
from tidegate.ids import SubtaskIndex, VertexId
from tidegate.stream_elements import EndOfInput, RecordBatch, TopicPartition

ROOT: Final = Path(__file__).parents[2]
GOALS: Final = {("Struct", "unix"): "0.6"}
"""Goals in CPU microseconds per record on a quiet machine, by kind of record and socket."""
CREDITS = 8
CHANNELS = 2
BATCH = BATCH_RECORDS * CHANNELS
KEYS = 10_000


class StructRecord(msgspec.Struct):
    order_id: int
    customer_id: str
    amount: str
    placed_at_ms: int
    note: str


@dataclass(slots=True)
class DataRecord:
    order_id: int
    customer_id: str
    amount: str
    placed_at_ms: int
    note: str


class DictRecord(TypedDict):
    order_id: int
    customer_id: str
    amount: str
    placed_at_ms: int
    note: str


KINDS: dict[str, tuple[Any, Callable[[Any], str]]] = {
    "Struct": (StructRecord, lambda record: record.customer_id),
    "dataclass": (DataRecord, lambda record: record.customer_id),
    "dict": (DictRecord, lambda record: record["customer_id"]),
}


def codec(kind: str) -> FrameCodec:
    return FrameCodec("a -> b", "a", column_codec(KINDS[kind][0]))


def batches(kind: str) -> list[RecordBatch]:
    """Make four different batches, with 2,000 keys in all."""
    of = KINDS[kind][0]
    topic_partition = TopicPartition("orders", 0)
    made = []
    for start in range(0, 4 * BATCH, BATCH):
        rows = [
            of(
                order_id=number,
                customer_id=f"customer-{number * 7919 % KEYS:06d}",
                amount="12.50",
                placed_at_ms=1_700_000_000_000 + number,
                note="n" * 52,
            )
            for number in range(start, start + BATCH)
        ]
        made.append(RecordBatch(rows, list(range(start, start + BATCH)), topic_partition))
    return made


class Mailbox:
    """Actions for one thread: the mailbox of a slot process, without its tasks."""

    def __init__(self) -> None:
        self._actions: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.post = self._actions.put

    def run_waiting(self) -> None:
        while not self._actions.empty():
            self._actions.get()()

    def wait(self) -> None:
        self._actions.get()()


def lost(peer: int, error: Exception) -> None:
    raise error


def receive(kind: str, host: str | None, pipe: Any) -> None:
    exchange = SocketExchange(job="bench", attempt=1, ordinal=1, host=host)
    pipe.send(exchange.address)
    edge = PlanEdge(
        index=0,
        source=VertexId("a"),
        source_node="a",
        port="main",
        target=VertexId("b"),
        target_node="b",
        input=0,
        partitioning="key",
    )

    def grant(channel: int) -> Callable[[int], None]:
        return lambda frames: exchange.send(0, channel, (credit_frame(frames),))

    frame_codec = codec(kind)
    channels = [
        InputChannel(edge, SubtaskIndex(0), CREDITS, frame_codec, grant(number))
        for number in range(CHANNELS)
    ]
    gate = InputGate(channels)

    def on_frames(peer: int, frames: list[tuple[int, bytes]]) -> None:
        for number, payload in frames:
            if frame_kind(payload) is FrameKind.DATA:
                channels[number].offer_frame(payload)
            else:
                channels[number].put(EndOfInput())

    mailbox = Mailbox()
    exchange.connect({0: pipe.recv()}, post=mailbox.post, on_frames=on_frames, on_lost=lost)
    pipe.recv()
    tune_gc()
    cpu = time.process_time()
    records = taken = ended = 0
    while ended < CHANNELS:
        mailbox.run_waiting()
        found = gate.next_element()
        if found is None:
            mailbox.wait()
        elif isinstance(found[1], RecordBatch):
            records += len(found[1])
            taken += 1
        else:
            ended += 1
    pipe.send({"cpu": time.process_time() - cpu, "records": records, "batches": taken})
    exchange.close()


def send(kind: str, host: str | None, records: int) -> dict[str, float | str]:
    ours, theirs = multiprocessing.Pipe()
    receiver = multiprocessing.get_context("spawn").Process(
        target=receive, args=(kind, host, theirs)
    )
    receiver.start()
    exchange = SocketExchange(job="bench", attempt=1, ordinal=0, host=host)
    address = ours.recv()
    mailbox = Mailbox()
    frame_codec = codec(kind)

    def channel(number: int) -> RemoteOutputChannel:
        return RemoteOutputChannel(
            frame_codec, CREDITS, lambda frame: exchange.send(1, number, frame)
        )

    channels = [channel(number) for number in range(CHANNELS)]

    def on_frames(peer: int, frames: list[tuple[int, bytes]]) -> None:
        for number, payload in frames:
            channels[number].add_credit(read_credit(payload))

    record_writer = KeyGroupWriter(KINDS[kind][1], str.encode, 128, channels, step="a")
    work = batches(kind)
    ours.send(exchange.address)
    exchange.connect({1: address}, post=mailbox.post, on_frames=on_frames, on_lost=lost)
    ours.send("go")
    tune_gc()
    cpu, began = time.process_time(), time.perf_counter()
    for number in range(records // BATCH):
        mailbox.run_waiting()
        while not record_writer.writable():
            mailbox.wait()
        record_writer.emit(work[number % len(work)])
    record_writer.emit_control(EndOfInput())
    while any(way.waiting for way in channels):
        mailbox.wait()
    result = ours.recv()
    wall, mine = time.perf_counter() - began, time.process_time() - cpu
    exchange.close()
    receiver.join()
    if result["records"] != records:
        raise SystemExit(f"Only {result['records']} of {records} records arrived.")
    return {
        "records": kind,
        "socket": "tcp" if host else "unix",
        "us per record": round((mine + result["cpu"]) / records * 1e6, 3),
        "sender": round(mine / records * 1e6, 3),
        "receiver": round(result["cpu"] / records * 1e6, 3),
        "records per batch": round(records / result["batches"]),
        "records per s": round(records / wall),
    }


def measure_exchange(records: int, rounds: int) -> Table:
    """Measure medians by kind of record and of socket. Each round is a new process."""
    command = [sys.executable, "-m", "integration.bench.exchange_micro", str(records)]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'framework'}"}
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for _ in range(rounds):
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment)
        for line in done.stdout.splitlines():
            told = json.loads(line)
            found.setdefault((told["records"], told["socket"]), []).append(told)
    return exchange_table(found, rounds)


def exchange_table(found: dict[tuple[str, str], list[dict[str, Any]]], rounds: int) -> Table:
    """Make the table of the figures of all rounds."""

    def middle(runs: list[dict[str, Any]], what: str) -> float:
        return statistics.median(float(run[what]) for run in runs)

    rows = [
        [
            *(kind, socket),
            *(f"{middle(runs, what):.2f}" for what in ("us per record", "sender", "receiver")),
            GOALS.get((kind, socket), ""),
            f"{min(run['us per record'] for run in runs):.2f}",
            f"{middle(runs, 'records per s'):,.0f}",
        ]
        for (kind, socket), runs in found.items()
    ]
    titles = ("records", "socket", "us a record", "sender", "receiver", "goal", "least")
    note = (
        f"The CPU is that of both ends. Figures are medians of {rounds} rounds, and `least` is the "
        "cheapest round. Records are not written. Only the number that arrived is compared."
    )
    return Table("Exchange between two slots", (*titles, "records/s"), rows, note)


def main() -> None:
    """Print a line for each kind of record and of socket. Only full batches are sent."""
    records = int(sys.argv[1]) if len(sys.argv) > 1 else 2_000_000
    for kind in KINDS:
        for host in (None, "127.0.0.1"):
            print(json.dumps(send(kind, host, records - records % BATCH)))


if __name__ == "__main__":
    main()
