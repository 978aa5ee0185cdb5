"""The other process of the two-process tests: slot 0, which sends from four sources to slot 1."""

from __future__ import annotations

import time
from multiprocessing.connection import Connection

from tests.contracts.exchange import Slot
from tests.dataplane.channels.parts import PlainColumn
from tests.drivers.exchange.mailbox import socket_slot
from tidegate.dataplane.channels.slot_channels import SlotChannels
from tidegate.graph.key_groups import key_group, subtask_of
from tidegate.graph.plan import plan
from tidegate.graph.stream_graph import Edge, StreamGraph
from tidegate.ids import Attempt, CheckpointId, VertexId
from tidegate.stream_elements import Barrier, EndOfInput, RecordBatch, TopicPartition

SOURCES = tuple(VertexId(f"source-{n}") for n in range(4))
TOTALS = VertexId("totals")
MAX_PARALLELISM = 128
BATCH = 700
BARRIER_EVERY = 10
"""Batches between barriers of a source."""
CREDITS = 4


def key(value: list[str]) -> str:
    return value[0]


def channels(slot: Slot, ordinal: int) -> SlotChannels:
    """The channels of one of two slots: four sources go by key into one step."""
    graph = StreamGraph("two-slots")
    for source in SOURCES:
        graph.add("source", (), location="x:1", uid=source)
    edges = tuple(Edge(node=s, partitioning="key", key=key, key_type=str) for s in SOURCES)
    graph.add("keyed_process", edges, location="x:2", uid=TOTALS)
    return SlotChannels(
        plan(graph, 2, MAX_PARALLELISM),
        graph,
        ordinal=ordinal,
        initial_credit=CREDITS,
        exchange=slot.exchange,
        column_codec=lambda _: PlainColumn(),
        key_encoder=lambda _: str.encode,
    )


def keys_of_slot_1() -> list[str]:
    """Keys of slot 1."""
    names = [f"key-{n}" for n in range(400)]
    groups = [key_group(name.encode(), MAX_PARALLELISM) for name in names]
    pairs = zip(names, groups, strict=True)
    return [name for name, group in pairs if subtask_of(group, 2, MAX_PARALLELISM) == 1]


def batches(source: VertexId, records: int) -> list[RecordBatch]:
    """The batches that a source sends: offsets 0, 1, 2 …, all to slot 1."""
    names = keys_of_slot_1()
    return [
        RecordBatch(
            [[names[n % len(names)], "x" * 40] for n in range(start, min(records, start + BATCH))],
            list(range(start, min(records, start + BATCH))),
            TopicPartition(source, 0),
        )
        for start in range(0, records, BATCH)
    ]


def send(pipe: Connection, host: str | None, records: int) -> None:
    """Main of the process: sends `records` from each source, then the end; then waits for a
    message.
    """
    slot = socket_slot(0, host=host)
    sender = channels(slot, 0)
    pipe.send(slot.address)
    sender.connect(
        [slot.address, pipe.recv()],
        post=slot.mailbox.append,
        on_lost=lambda _, error: _raise(error),
    )
    waiting = {source: batches(source, records)[::-1] for source in SOURCES}
    sent = dict.fromkeys(SOURCES, 0)
    while waiting:
        for source in list(waiting):
            ((_, record_writer),) = sender.record_writers(source)
            if not record_writer.writable():
                continue
            if waiting[source]:
                record_writer.emit(waiting[source].pop())
                sent[source] += 1
                if sent[source] % BARRIER_EVERY == 0:
                    record_writer.emit_control(Barrier(CheckpointId(Attempt(1), sent[source])))
            else:
                record_writer.emit_control(EndOfInput())
                del waiting[source]
        slot.run_rest()
        time.sleep(0)
    slot.exchange.close()
    pipe.send("sent")
    pipe.close()


def _raise(error: Exception) -> None:
    raise error
