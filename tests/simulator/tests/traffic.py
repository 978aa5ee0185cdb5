"""Slots that send each other records and barriers over the simulated network, and what must hold.

Goal, for every schedule and latency:

- Each record reaches the owner of its key's group, once, unaltered and in the order of its key.
- A barrier continues downstream at the point where it cut every input, no record earlier or later.
- Everything arrives in the end, so no credit is lost.

Method: every slot is a process with one mailbox thread, as real ones are. It runs the real
channels, the real alignment and the real task, and only the operators are missing. Connections
never break here.
"""

from __future__ import annotations

import queue
import random
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

from tests.dataplane.channels.parts import PlainColumn
from tests.simulator.exchange import SimExchange
from tests.simulator.network import Network
from tests.simulator.network_conditions import MessageFaults, NetworkConditions
from tests.simulator.scheduler import Scheduler, SimProcess
from tests.simulator.threads import SimClock, SimQueue
from tidegate.checkpoint.alignment import Alignment
from tidegate.dataplane.chain import OperatorChain
from tidegate.dataplane.channels.record_writer import RecordWriter
from tidegate.dataplane.channels.slot_channels import SlotChannels
from tidegate.dataplane.counters import Counters
from tidegate.dataplane.input_task import InputTask
from tidegate.dataplane.subtask_context import SubtaskContext
from tidegate.errors import ExchangeError
from tidegate.graph.key_groups import key_group, subtask_of
from tidegate.graph.plan import plan
from tidegate.graph.stream_graph import Edge, StreamGraph
from tidegate.ids import Attempt, CheckpointId, SubtaskId, SubtaskIndex, VertexId
from tidegate.protocol.subtask_snapshot import SubtaskSnapshot
from tidegate.stream_elements import Barrier, EndOfInput, RecordBatch, TopicPartition

MAX_PARALLELISM: Final = 128
KEYS: Final = 40
TOTALS: Final = VertexId("totals")
SOURCES: Final = (VertexId("orders"), VertexId("payments"))
RECORDS: Final = 300
"""Records of each source subtask."""
BARRIERS: Final = 4
FLUSHED: Final = 0.3
"""The chance that a slot flushes although it is not idle, which makes many small frames."""
VIRTUAL_S_MAX: Final = 60.0
"""A run takes seconds; one that has lost a credit takes for ever."""


SETTLED_S: Final = 0.5
"""After the end, for the last credits to come home: longer than any is under way."""


class Wrong(Exception):  # a verdict
    """A condition that must hold does not."""


def must(holds: object, what: str) -> None:
    if not holds:
        raise Wrong(what)


def owner(key: str, parallelism: int) -> int:
    """The slot that must get a key's records; also what the tests of routing say."""
    return subtask_of(key_group(key.encode(), MAX_PARALLELISM), parallelism, MAX_PARALLELISM)


class Traffic:
    """One run under one seed; `run` raises Wrong, or what the code itself noticed."""

    def __init__(self, seed: int) -> None:
        self.scheduler = Scheduler(seed)
        self.rng = self.scheduler.random_for("traffic")
        conditions = NetworkConditions(
            latency_s=0.0001 * 10 ** (2 * self.rng.random()),
            late=self.rng.choice([0.0, 0.05]),
            late_s_max=0.2,
        )
        self.network = Network(
            self.scheduler, MessageFaults(conditions, self.scheduler.random_for("weather"))
        )
        self.parallelism = self.rng.choice([2, 3])
        self.cuts: dict[tuple[TopicPartition, int], int] = {}
        """Offset at which a source subtask has injected a barrier."""
        self.sent: dict[TopicPartition, list[list[str]]] = defaultdict(list)
        graph = StreamGraph("traffic")
        for source in SOURCES:
            graph.add("source", (), location="x:1", uid=source, record_type=list[str])
        edges = tuple(
            Edge(node=source, partitioning="key", key=_key, key_type=str, record_type=list[str])
            for source in SOURCES
        )
        graph.add("keyed_process", edges, location="x:2", uid=TOTALS)
        self.credits = self.rng.choice([2, 3, 8])
        self.slots = [Slot(self, ordinal, graph) for ordinal in range(self.parallelism)]

    def run(self) -> None:
        addresses = [slot.exchange.address for slot in self.slots]
        for slot in self.slots:
            slot.start(addresses)
        try:
            self.scheduler.run(VIRTUAL_S_MAX, self._is_over)
            for _, error in self.scheduler.bugs:
                raise error
            must(all(slot.ended for slot in self.slots), "something waits for ever")
            self.scheduler.run(self.scheduler.now + SETTLED_S)
            self._check_end()
            self._check_credits()
        finally:
            self.scheduler.close()

    def check_cut(self, slot: Slot, counter: int) -> None:
        """A slot's task has sent a barrier on: what went before it is what it cut off."""
        for topic_partition, values in self.sent.items():
            cut = self.cuts.get((topic_partition, counter))
            must(
                cut is not None,
                f"barrier {counter} overtook its own on the way from {topic_partition}",
            )
            mine = self._of(slot, values[:cut])
            got = slot.received[topic_partition]
            must(
                got == mine,
                f"barrier {counter} cut {topic_partition} at {len(got)} and not {len(mine)}",
            )

    def _check_end(self) -> None:
        for slot in self.slots:
            must(slot.barriers == list(range(1, BARRIERS + 1)), f"barriers {slot.barriers}")
            for topic_partition, values in self.sent.items():
                must(
                    slot.received[topic_partition] == self._of(slot, values),
                    f"{topic_partition} is not complete",
                )

    def _check_credits(self) -> None:
        for slot in self.slots:
            for (edge, receiver), sender in slot.channels._remote.items():
                ungranted = (
                    self.slots[receiver].channels._inputs[edge, slot.ordinal].unannounced_credit
                )
                home = sender.credit + ungranted
                must(home == self.credits, f"{home} of {self.credits} credits are home")

    def _of(self, slot: Slot, values: list[list[str]]) -> list[list[str]]:
        return [value for value in values if owner(value[0], self.parallelism) == slot.ordinal]

    def _is_over(self) -> bool:
        return bool(self.scheduler.bugs) or all(slot.ended for slot in self.slots)


class Slot:
    """A process with its mailbox, its sources and its task; records what goes downstream."""

    def __init__(self, traffic: Traffic, ordinal: int, graph: StreamGraph) -> None:
        self.traffic, self.ordinal = traffic, ordinal
        self.process: SimProcess = traffic.scheduler.process(f"slot {ordinal}")
        self.exchange = SimExchange(
            traffic.network, self.process, job="job", attempt=1, ordinal=ordinal
        )
        self.received: dict[TopicPartition, list[list[str]]] = defaultdict(list)
        self.barriers: list[int] = []
        self.ended = False
        self._mailbox = SimQueue(traffic.scheduler)
        self.channels = SlotChannels(
            plan(graph, traffic.parallelism, MAX_PARALLELISM),
            graph,
            ordinal=ordinal,
            initial_credit=traffic.credits,
            exchange=self.exchange,
            column_codec=lambda _: PlainColumn(),
            key_encoder=lambda _: str.encode,
        )
        gate = self.channels.gate(TOTALS)
        context = SimpleNamespace(
            counters=Counters(),
            subtask=SubtaskId(TOTALS, SubtaskIndex(ordinal)),
            drivers=SimpleNamespace(clock=SimClock(self.process)),
            local=Path(),
        )
        self._task = InputTask(
            cast("SubtaskContext", context),
            cast("OperatorChain", RecordingChain(self)),
            self,
            gate,
            Alignment(len(gate)),
        )
        rng = traffic.scheduler.random_for(f"slot/{ordinal}")
        self._sources = [
            Source(traffic, source, ordinal, self.channels.record_writers(source)[0][1], rng)
            for source in SOURCES
        ]
        self._rng = rng

    def start(self, addresses: list[str]) -> None:
        def main() -> None:
            self.channels.connect(addresses, post=self._mailbox.put, on_lost=_raise)
            while True:
                self._turn()

        self.process.start(main, name="mailbox")

    def _turn(self) -> None:
        """Runs one turn as the slot's loop does: posts first, then a little of everything, then a
        wait.
        """
        busy = False
        while self._mailbox.qsize():
            self._mailbox.get()()
        for source in self._sources:
            busy |= source.step()
            if self._rng.random() < FLUSHED:
                source.record_writer.flush()
        for _ in range(self._rng.choice([0, 1, 5])):
            busy |= self._task.step(0.0)
        if not busy:
            for source in self._sources:
                source.record_writer.flush()
            try:
                self._mailbox.get(timeout=0.01)()
            except queue.Empty:
                return

    # --- where the task reports -----------------------------------------------------------------

    def acknowledge(
        self,
        checkpoint: CheckpointId,
        _snapshot: SubtaskSnapshot,
        *,
        alignment_ms: int,
        sync_ms: int,
    ) -> None:
        """The snapshot has it; the elements that go downstream are judged here."""

    def decline(self, checkpoint: CheckpointId, _subtask: SubtaskId, reason: str) -> None:
        raise Wrong(f"{checkpoint} was declined: {reason}")

    def input_ended(self, _subtask: SubtaskId) -> None:
        self.ended = True


class RecordingChain:
    """Stands for the chain of the task and for its record writer: notes what goes downstream."""

    def __init__(self, slot: Slot) -> None:
        self.sinks: dict[str, Any] = {}
        self.keyed: dict[str, Any] = {}
        self.record_writers = [self]
        self._slot = slot

    def entry(self) -> Callable[[RecordBatch], object]:
        return self._take

    firing = reading = False

    def emit_watermarks(self) -> None:
        """No step has its own time."""

    def step_watermarks(self) -> tuple[()]:
        return ()

    def writable(self) -> bool:
        return True

    def advance_processing_time(self) -> bool:
        return False

    def flush(self) -> None:
        """Nothing is held back."""

    def emit_control(self, element: Barrier | EndOfInput) -> None:
        if isinstance(element, Barrier):
            self._slot.barriers.append(element.checkpoint.counter)
            self._slot.traffic.check_cut(self._slot, element.checkpoint.counter)

    def _take(self, batch: RecordBatch) -> None:
        for value in batch.values:
            here = owner(value[0], self._slot.traffic.parallelism)
            must(here == self._slot.ordinal, f"{value} came to slot {self._slot.ordinal}")
        assert batch.topic_partition is not None
        self._slot.received[batch.topic_partition] += batch.values


class Source:
    """One source subtask: emits records of all keys, and barriers in between."""

    def __init__(
        self,
        traffic: Traffic,
        source: VertexId,
        ordinal: int,
        record_writer: RecordWriter,
        rng: random.Random,
    ) -> None:
        self.record_writer = record_writer
        self._traffic, self._rng = traffic, rng
        self._topic_partition = TopicPartition(source, ordinal)
        self._sent = traffic.sent[self._topic_partition]
        self._cuts = sorted(rng.randint(0, RECORDS) for _ in range(BARRIERS))
        self._barriers = 0
        self._ended = False

    def step(self) -> bool:
        """Emit a batch, or a barrier, or the end; False if there is nothing to do or no room."""
        at = len(self._sent)
        if self._barriers < BARRIERS and at >= self._cuts[self._barriers]:
            self._barriers += 1
            self._traffic.cuts[self._topic_partition, self._barriers] = at
            self.record_writer.emit_control(Barrier(CheckpointId(Attempt(1), self._barriers)))
            return True
        if self._ended or not self.record_writer.writable():
            return False
        if at == RECORDS:
            self._ended = True
            self.record_writer.emit_control(EndOfInput())
            return True
        next_cut = self._cuts[self._barriers] if self._barriers < BARRIERS else RECORDS
        stop = min(at + self._rng.choice([1, 30, 200]), next_cut)
        values = [
            [f"key-{self._rng.randrange(KEYS)}", f"{self._topic_partition.topic}-{n}", "x" * 20]
            for n in range(at, stop)
        ]
        self._sent += values
        self.record_writer.emit(
            RecordBatch([*values], list(range(at, stop)), self._topic_partition)
        )
        return True


def _key(value: list[str]) -> str:
    return value[0]


def _raise(peer: int, error: ExchangeError) -> None:
    raise error
