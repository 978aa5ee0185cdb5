"""A subtask's turn: what it reads, where it cuts, and when it acknowledges.

The chain, reader, gate and sinks here are small stand-ins with the real interfaces; the alignment
machine is the real one.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tidegate.checkpoint.alignment import Alignment
from tidegate.dataplane.chain import OperatorChain
from tidegate.dataplane.channels.input_gate import InputChannel, InputGate
from tidegate.dataplane.counters import Counters
from tidegate.dataplane.input_task import InputTask
from tidegate.dataplane.source_task import SourceTask
from tidegate.dataplane.subtask_context import SubtaskContext
from tidegate.graph.plan import PlanEdge
from tidegate.ids import (
    Attempt,
    CheckpointId,
    SubtaskId,
    SubtaskIndex,
    TransactionalId,
    Uid,
    VertexId,
)
from tidegate.protocol.subtask_snapshot import (
    PreparedTransaction,
    SourceSplit,
    StepWatermark,
    SubtaskSnapshot,
)
from tidegate.stream_elements import (
    Barrier,
    Control,
    EndOfInput,
    RecordBatch,
    StreamElement,
    TopicPartition,
)

TOPIC_PARTITION = TopicPartition("orders", 0)
SUBTASK = SubtaskId(VertexId("v"), SubtaskIndex(0))
C1, C2 = CheckpointId(Attempt(1), 1), CheckpointId(Attempt(1), 2)
DoneCall = Callable[[tuple[PreparedTransaction, ...]], None]


def batch(*offsets: int) -> RecordBatch:
    return RecordBatch(list(offsets), list(offsets), TOPIC_PARTITION)


def transaction(name: str) -> PreparedTransaction:
    return PreparedTransaction(
        cluster_id="c",
        transactional_id=TransactionalId(name),
        producer_id=1,
        epoch=0,
        start_ms=1,
    )


class Sink:
    """Records what it is asked; `answer` lets a checkpoint's preparation finish."""

    def __init__(self) -> None:
        self.story: list[object] = []
        self.accepts = True
        self.preparing: dict[CheckpointId, DoneCall] = {}

    def write(self, batch: RecordBatch) -> None:
        self.story.append(list(batch.values))

    def writable(self) -> bool:
        return self.accepts

    def prepare(self, checkpoint: CheckpointId, done: DoneCall, *, final: bool) -> None:
        self.story.append(checkpoint)
        self.preparing[checkpoint] = done

    def answer(self, checkpoint: CheckpointId, *names: str) -> None:
        self.preparing.pop(checkpoint)(tuple(transaction(name) for name in names))

    def open(self) -> None: ...
    def ended(self, ids: Sequence[TransactionalId], checkpoint: CheckpointId | None = None) -> None:
        self.story.append(("ended", tuple(ids), checkpoint))

    def freed(self, ids: Sequence[TransactionalId]) -> None:
        self.story.append(("freed", tuple(ids)))


class RecordingWriter:
    def __init__(self) -> None:
        self.sent: list[object] = []

    def emit(self, batch: RecordBatch) -> None:
        self.sent.append(list(batch.values))

    def emit_control(self, element: Control) -> None:
        self.sent.append(element)

    def writable(self) -> bool:
        return True

    def flush(self) -> None: ...


class FakeChain:
    def __init__(self, sink: Sink, record_writer: RecordingWriter) -> None:
        self.sinks, self.record_writers, self.keyed = (
            {"out": sink},
            [record_writer],
            dict[str, Any](),
        )
        self._sink, self._record_writer = sink, record_writer

    def _emit(self, batch: RecordBatch) -> None:
        self._sink.write(batch)
        self._record_writer.emit(batch)

    def entry(self) -> Callable[[RecordBatch], object]:
        return self._emit

    def from_source(self, port: str = "main") -> Callable[[RecordBatch], object]:
        return self._emit

    def writable(self) -> bool:
        return self.sinks["out"].writable()

    firing, reading = False, True

    def advance_processing_time(self) -> bool:
        return False

    def due_in_s(self) -> float:
        return math.inf

    def emit_watermarks(self) -> None: ...

    def step_watermarks(self) -> tuple[StepWatermark, ...]:
        return ()

    def close(self) -> None: ...


class Reader:
    def __init__(self, *polls: list[RecordBatch], bounded: bool = False) -> None:
        self.polls, self.bounded, self.position = deque(polls), bounded, 0
        self.committed: list[int] = []
        self.opened = False

    def open(self, splits: Sequence[SourceSplit]) -> None:
        self.opened = True

    def poll(self, timeout_s: float) -> list[RecordBatch]:
        batches = self.polls.popleft() if self.polls else []
        for each in batches:
            self.position = each.offsets[-1] + 1
        return batches

    def take_dead_letters(self) -> list[RecordBatch]:
        return []

    def limit_polls(self, share: float) -> None: ...

    def last_timestamp_ms(self) -> int:
        return -1

    def finished(self) -> bool:
        return self.bounded and not self.polls

    def at_end(self) -> set[TopicPartition]:
        return set()

    def snapshot(self) -> tuple[SourceSplit, ...]:
        split = SourceSplit(source=Uid("orders"), topic="orders", partition=0, offset=self.position)
        return (split,)

    def commit(self, splits: Sequence[SourceSplit], checkpoint: CheckpointId) -> None:
        self.committed += [split.offset for split in splits]

    def connection_error(self) -> str:
        return ""

    def lag(self) -> int | None:
        return None

    def close(self) -> None: ...


class JobMaster:
    def __init__(self) -> None:
        self.acknowledged: list[tuple[CheckpointId, SubtaskSnapshot]] = []
        self.alignments_ms: list[int] = []
        self.declined: list[CheckpointId] = []
        self.ended: list[SubtaskId] = []

    def acknowledge(
        self,
        checkpoint: CheckpointId,
        snapshot: SubtaskSnapshot,
        *,
        alignment_ms: int,
        sync_ms: int,
    ) -> None:
        self.acknowledged.append((checkpoint, snapshot))
        self.alignments_ms.append(alignment_ms)

    def decline(self, checkpoint: CheckpointId, subtask: SubtaskId, reason: str) -> None:
        self.declined.append(checkpoint)

    def input_ended(self, subtask: SubtaskId) -> None:
        self.ended.append(subtask)


class World:
    def __init__(self) -> None:
        self.sink, self.record_writer, self.master = Sink(), RecordingWriter(), JobMaster()
        self.chain = cast("OperatorChain", FakeChain(self.sink, self.record_writer))
        self.now_s = 0.0
        clock = SimpleNamespace(monotonic=lambda: self.now_s)
        context = SimpleNamespace(
            subtask=SUBTASK,
            counters=Counters(),
            drivers=SimpleNamespace(clock=clock),
            local=Path(),
        )
        self.context = cast("SubtaskContext", context)

    def source(self, reader: Reader) -> SourceTask:
        task = SourceTask(self.context, self.chain, self.master, reader, ())
        task.start()
        return task

    def inputs(self, channels: int) -> tuple[InputTask, list[InputChannel]]:
        edge = PlanEdge(
            index=0,
            source=VertexId("s"),
            source_node="s",
            port="main",
            target=VertexId("v"),
            target_node="v",
            input=0,
            partitioning="key",
        )
        made = [InputChannel(edge, SubtaskIndex(i), 8) for i in range(channels)]
        gate = InputGate(made)
        return InputTask(self.context, self.chain, self.master, gate, Alignment(channels)), made


@pytest.fixture
def world() -> World:
    return World()


def steps(task: SourceTask | InputTask, limit: int = 50) -> None:
    for _ in range(limit):
        if not task.step(0.0):
            return


def test_a_source_reads_nothing_before_it_is_started(world: World) -> None:
    reader = Reader([batch(0)])
    task = SourceTask(world.context, world.chain, world.master, reader, ())
    task.trigger(Barrier(C1))
    assert not task.step(0.0)
    assert not reader.opened
    assert world.sink.story == []


def test_barrier_is_injected_after_the_records_read_and_snapshot_has_these_offsets(
    world: World,
) -> None:
    task = world.source(Reader([batch(0, 1), batch(2)], [batch(3)]))
    assert task.step(0.0)  # reads offsets 0 to 2
    task.trigger(Barrier(C1))
    steps(task)
    assert world.sink.story == [[0, 1], [2], C1, [3]]
    assert world.record_writer.sent == [[0, 1], [2], Barrier(C1), [3]]
    world.sink.answer(C1, "t1")
    [(checkpoint, snapshot)] = world.master.acknowledged
    assert checkpoint == C1
    assert [split.offset for split in snapshot.splits] == [3]
    assert [each.transactional_id for each in snapshot.transactions] == ["t1"]


def test_checkpoint_is_not_acknowledged_before_the_sink_has_prepared(world: World) -> None:
    task = world.source(Reader([batch(0)]))
    task.trigger(Barrier(C1))
    steps(task)
    assert world.master.acknowledged == []


def test_source_passes_barriers_but_reads_nothing_while_the_sink_is_full(
    world: World,
) -> None:
    reader = Reader([batch(0)])
    task = world.source(reader)
    world.sink.accepts = False
    task.trigger(Barrier(C1))
    steps(task)
    assert world.sink.story == [C1]
    assert len(reader.polls) == 1
    assert not task.reads()


def test_source_reads_nothing_after_a_final_barrier_but_accepts_another_final_barrier(
    world: World,
) -> None:
    reader = Reader([batch(0)])
    task = world.source(reader)
    task.trigger(Barrier(C1, final=True))
    steps(task)
    task.trigger(Barrier(C2, final=True))
    steps(task)
    assert world.sink.story == [C1, C2]
    assert len(reader.polls) == 1


def test_source_commits_group_offsets_when_their_checkpoint_is_complete(world: World) -> None:
    reader = Reader([batch(0, 1)], [batch(2)])
    task = world.source(reader)
    steps(task, 2)
    task.trigger(Barrier(C1))
    steps(task)
    task.trigger(Barrier(C2))
    steps(task)
    task.checkpoint_aborted(C2)
    task.checkpoint_completed(
        C1, committed=[TransactionalId("t1")], reusable=[TransactionalId("t0")]
    )
    task.checkpoint_completed(C2, committed=[], reusable=[])
    assert reader.committed == [2]
    told = world.sink.story.index(("ended", ("t1",), C1))
    assert world.sink.story[told + 1] == ("freed", ("t0",))


def test_a_bounded_source_ends_its_output_once_and_still_takes_barriers(world: World) -> None:
    task = world.source(Reader([batch(0)], bounded=True))
    steps(task)
    task.trigger(Barrier(C1, final=True))
    steps(task)
    assert world.record_writer.sent == [[0], EndOfInput(), Barrier(C1, final=True)]
    assert world.master.ended == [SUBTASK]


def offer(channel: InputChannel, *elements: StreamElement) -> None:
    for element in elements:
        channel.put(element)


def test_records_after_a_barrier_wait_until_the_barriers_of_all_channels_arrive(
    world: World,
) -> None:
    task, (first, second) = world.inputs(2)
    offer(first, batch(1), Barrier(C1), batch(2))
    steps(task)
    assert world.sink.story == [[1]]
    offer(second, batch(3), Barrier(C1), batch(4))
    steps(task)
    assert world.sink.story[:3] == [[1], [3], C1]
    assert sorted(map(str, world.sink.story[3:])) == ["[2]", "[4]"]


def test_alignment_time_is_from_the_first_barrier_to_the_last(world: World) -> None:
    task, channels = world.inputs(3)
    for at_s, channel in zip((1.0, 1.5, 3.25), channels, strict=True):
        world.now_s = at_s
        offer(channel, Barrier(C1))
        steps(task)
    world.now_s = 9.0
    world.sink.answer(C1)
    assert world.master.alignments_ms == [2250]


def test_time_of_an_aborted_alignment_is_not_counted_for_the_next_checkpoint(world: World) -> None:
    task, (first, second) = world.inputs(2)
    offer(first, Barrier(C1))
    steps(task)
    task.checkpoint_aborted(C1)
    world.now_s = 7.0
    offer(second, Barrier(C1), Barrier(C2))
    steps(task)
    world.now_s = 7.5
    offer(first, Barrier(C2))
    steps(task)
    world.sink.answer(C2)
    assert world.master.alignments_ms == [500]
    assert not task._first_barriers_s


def test_source_task_reports_an_alignment_time_of_zero(world: World) -> None:
    task = world.source(Reader([batch(0)]))
    world.now_s = 5.0
    task.trigger(Barrier(C1))
    steps(task)
    world.sink.answer(C1)
    assert world.master.alignments_ms == [0]


def test_aborted_alignment_releases_records_and_ignores_its_late_barrier(
    world: World,
) -> None:
    task, (first, second) = world.inputs(2)
    offer(first, Barrier(C1), batch(2))
    steps(task)
    task.checkpoint_aborted(C1)
    offer(second, Barrier(C1), batch(3))
    steps(task)
    assert sorted(map(str, world.sink.story)) == ["[2]", "[3]"]
    assert Barrier(C1) not in world.record_writer.sent


def test_full_sink_stops_records_but_not_barriers(world: World) -> None:
    task, (first, second) = world.inputs(2)
    world.sink.accepts = False
    offer(first, Barrier(C1), batch(1))
    offer(second, Barrier(C1))
    steps(task)
    assert world.sink.story == [C1]
    world.sink.accepts = True
    steps(task)
    assert world.sink.story == [C1, [1]]


def test_input_ends_when_every_channel_has_ended(world: World) -> None:
    task, (first, second) = world.inputs(2)
    offer(first, EndOfInput())
    steps(task)
    assert world.master.ended == []
    offer(second, batch(1), EndOfInput())
    steps(task)
    assert world.master.ended == [SUBTASK]
    assert world.record_writer.sent[-1] == EndOfInput()
