"""Tasks and event time: where a watermark stands between records and barriers, and what is stored.

The tasks, the valve and the channels are the real ones. The chain records what it gets.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.dataplane.test_task import C1, Reader, World, offer, steps
from tidegate.api.time.watermarks import Monotonous
from tidegate.dataplane.counters import Counters
from tidegate.dataplane.input_task import InputTask
from tidegate.dataplane.source_task import SourceTask
from tidegate.dataplane.sources.watermarks import SourceWatermarks
from tidegate.dataplane.time.valve import WatermarkValve
from tidegate.ids import Uid
from tidegate.protocol.subtask_snapshot import SourceSplit
from tidegate.stream_elements import (
    MAX_MS,
    MIN_MS,
    Barrier,
    EndOfInput,
    RecordBatch,
    TopicPartition,
    Watermark,
)

P0 = TopicPartition("orders", 0)
INTERVAL_S = 0.2


def timed(*times_ms: int) -> RecordBatch:
    """Records whose values are their event times."""
    return RecordBatch(list(times_ms), list(times_ms), P0, None, list(times_ms))


class Burst:
    """A stand-in for timers that are due: `left` pieces, which `fire` sends one after the other."""

    def __init__(self, chain: Any, sent: list[Any]) -> None:
        self.left, self._sent, self._chain = 0, sent, chain
        self.after: Watermark | None = None

    def advance(self, watermark: Watermark) -> None:
        """Note the watermark, and send it after the pieces."""
        self.after = watermark
        self._update()

    def fire(self) -> None:
        self.left -= 1
        self._sent.append("piece")
        self._update()

    def set(self, pieces: int) -> None:
        self.left = pieces
        self._update()

    def _update(self) -> None:
        self._chain.firing = self.left > 0
        if not self.left and self.after is not None:
            self._sent.append(self.after)
            self.after = None


class TimedWorld(World):
    def __init__(self) -> None:
        super().__init__()
        chain = cast("Any", self.chain)
        self.burst = Burst(chain, self.record_writer.sent)
        chain.advance, chain.fire = self.burst.advance, self.burst.fire
        job = SimpleNamespace(watermark_interval=INTERVAL_S * 1000)
        cast("Any", self.context).config = SimpleNamespace(job=job)

    def timed_source(self, reader: Reader, **options: bool) -> SourceTask:
        split = SourceSplit(source=Uid("orders"), topic="orders", partition=0, offset=0)
        marks = SourceWatermarks(Monotonous(), Uid("orders"), [split], Counters())
        task = SourceTask(
            self.context,
            self.chain,
            self.master,
            reader,
            (split,),
            watermarks=marks,
            **options,
        )
        task.start()
        return task

    def timed_inputs(self, channels: int) -> tuple[InputTask, Any]:
        task, made = self.inputs(channels)
        task._valve = WatermarkValve([Watermark(MIN_MS)] * channels)
        return task, made


@pytest.fixture
def world() -> TimedWorld:
    return TimedWorld()


def test_source_emits_its_watermark_directly_before_each_barrier(world: TimedWorld) -> None:
    task = world.timed_source(Reader([timed(5), timed(9)], [timed(20)]))
    task.step(0.0)  # reads the first two batches
    task.trigger(Barrier(C1))
    steps(task)
    sent = world.record_writer.sent
    before = sent.index(Barrier(C1))
    assert sent[before - 2 : before + 2] == [[9], Watermark(8), Barrier(C1), [20]]


def test_watermark_does_not_overtake_a_record_that_was_read_and_not_emitted(
    world: TimedWorld,
) -> None:
    task = world.timed_source(Reader([timed(5), timed(9)]))
    task.step(0.0)
    for _ in range(2):
        world.now_s += 1.0
        task.step(0.0)
    assert [each for each in world.record_writer.sent if isinstance(each, list)] == [[5], [9]]
    watermarks = [each for each in world.record_writer.sent if isinstance(each, Watermark)]
    assert Watermark(8) not in watermarks, "the last batch was emitted just now"
    world.now_s += 1.0
    task.step(0.0)
    assert world.record_writer.sent[-1] == Watermark(8)


def test_watermark_is_emitted_at_the_interval_and_only_if_it_has_changed(world: TimedWorld) -> None:
    task = world.timed_source(Reader([timed(5)]))
    steps(task)
    for _ in range(10):
        world.now_s += INTERVAL_S / 2
        task.step(0.0)
    marks = [each for each in world.record_writer.sent if isinstance(each, Watermark)]
    assert marks == [Watermark(MIN_MS), Watermark(4)]


def test_watermark_that_changes_after_a_silence_is_emitted_at_once(world: TimedWorld) -> None:
    task = world.timed_source(Reader([timed(5)], [], [], [], [timed(9)]))
    for _ in range(5):
        task.step(0.0)
        world.now_s += INTERVAL_S / 2
    world.now_s += INTERVAL_S * 3 / 4
    steps(task)
    assert world.record_writer.sent == [Watermark(MIN_MS), [5], Watermark(4), [9], Watermark(8)]


def test_source_says_when_its_next_watermark_is_due(world: TimedWorld) -> None:
    reader = Reader([timed(5)])
    task = world.timed_source(reader)
    steps(task)
    assert task.due_in_s() == pytest.approx(INTERVAL_S), "the first watermark was emitted just now"
    world.now_s += INTERVAL_S / 4
    assert task.due_in_s() == pytest.approx(INTERVAL_S * 3 / 4)
    world.sink.accepts = False
    assert task.due_in_s() == math.inf, "it waits for the sink"
    world.sink.accepts = True
    world.now_s += INTERVAL_S
    steps(task)
    assert task.due_in_s() == math.inf, "the watermark has not changed since"


def test_task_says_when_a_timer_is_due_by_the_clock_until_its_output_has_ended(
    world: TimedWorld,
) -> None:
    source = world.timed_source(Reader())
    task, (channel,) = world.timed_inputs(1)
    cast("Any", world.chain).due_in_s = lambda: 0.125
    steps(source)
    assert (source.due_in_s(), task.due_in_s()) == (0.125, 0.125)
    offer(channel, EndOfInput())
    steps(task)
    assert task.due_in_s() == math.inf


def test_checkpoint_stores_the_watermark_of_each_partition(world: TimedWorld) -> None:
    task = world.timed_source(Reader([timed(5)]))
    steps(task)
    task.trigger(Barrier(C1))
    steps(task)
    world.sink.answer(C1)
    [(_, snapshot)] = world.master.acknowledged
    assert [split.watermark_ms for split in snapshot.splits] == [4]


def test_subtask_advances_to_the_least_watermark_of_its_channels(world: TimedWorld) -> None:
    task, (first, second) = world.timed_inputs(2)
    offer(first, Watermark(10), timed(11))
    offer(second, Watermark(7))
    steps(task)
    assert world.record_writer.sent == [Watermark(7), [11]] or world.record_writer.sent == [
        [11],
        Watermark(7),
    ]
    offer(second, EndOfInput())
    offer(first, Watermark(20))
    steps(task)
    assert world.record_writer.sent[-1] != Watermark(20), "a later run may continue behind the end"


def test_watermark_waits_while_outputs_are_full_and_its_barrier_passes(
    world: TimedWorld,
) -> None:
    task, (channel,) = world.timed_inputs(1)
    world.sink.accepts = False
    offer(channel, Watermark(10), Barrier(C1), timed(11))
    steps(task)
    assert world.sink.story == [C1]
    assert Watermark(10) not in world.record_writer.sent
    world.sink.accepts = True
    steps(task)
    assert world.record_writer.sent == [Barrier(C1), Watermark(10), [11]]


def test_channel_keeps_only_the_newest_of_successive_watermarks(world: TimedWorld) -> None:
    task, (channel,) = world.timed_inputs(1)
    channel.block()
    offer(channel, timed(1), *(Watermark(number) for number in range(1000)), timed(2000))
    assert len(channel) == 3
    channel.unblock()
    steps(task)
    assert world.record_writer.sent == [[1], Watermark(999), [2000]]


def test_no_watermark_follows_a_final_barrier(world: TimedWorld) -> None:
    task, (channel,) = world.timed_inputs(1)
    world.sink.accepts = False
    offer(channel, Watermark(10), Barrier(C1, final=True))
    steps(task)
    world.sink.accepts = True
    steps(task)
    assert world.record_writer.sent == [Barrier(C1, final=True)]


def test_burst_lets_a_barrier_pass_between_two_pieces_and_no_record(world: TimedWorld) -> None:
    task, (channel,) = world.timed_inputs(1)
    world.burst.set(3)
    task.step(0.0)
    offer(channel, Watermark(10), Barrier(C1), timed(11))
    steps(task)
    assert world.record_writer.sent == [
        "piece",
        Barrier(C1),
        "piece",
        "piece",
        Watermark(10),
        [11],
    ]


def test_burst_waits_while_outputs_are_full(world: TimedWorld) -> None:
    task, _ = world.timed_inputs(1)
    world.burst.set(2)
    world.sink.accepts = False
    assert not task.step(0.0)
    world.sink.accepts = True
    steps(task)
    assert world.record_writer.sent == ["piece", "piece"]


def test_final_barrier_waits_for_what_is_due_and_nothing_fires_after_it(
    world: TimedWorld,
) -> None:
    task, (channel,) = world.timed_inputs(1)
    world.burst.set(2)
    offer(channel, Watermark(10), Barrier(C1, final=True))
    steps(task)
    sent = world.record_writer.sent
    assert sent == ["piece", "piece", Watermark(10), Barrier(C1, final=True)]
    world.burst.set(2)
    steps(task)
    assert len(sent) == 4


def test_final_barrier_does_not_wait_for_outputs_that_are_full(world: TimedWorld) -> None:
    task, (channel,) = world.timed_inputs(1)
    world.burst.set(2)
    world.sink.accepts = False
    offer(channel, Barrier(C1, final=True))
    steps(task)
    assert world.record_writer.sent == [Barrier(C1, final=True)]


def test_final_barrier_of_a_source_waits_for_what_is_due(world: TimedWorld) -> None:
    task = world.timed_source(Reader([timed(5)]))
    task.step(0.0)
    world.burst.set(2)
    task.trigger(Barrier(C1, final=True))
    steps(task)
    first, *sent = world.record_writer.sent
    assert first == Watermark(MIN_MS)
    assert sent == ["piece", "piece", [5], Watermark(4), Barrier(C1, final=True)]


def test_end_of_the_input_comes_after_the_burst(world: TimedWorld) -> None:
    task, (channel,) = world.timed_inputs(1)
    world.burst.set(2)
    offer(channel, EndOfInput())
    steps(task)
    assert world.record_writer.sent == ["piece", "piece", EndOfInput()]


def test_source_fires_what_is_due_before_it_emits_records_and_injects_barriers_between(
    world: TimedWorld,
) -> None:
    task = world.timed_source(Reader([timed(5)]))
    world.burst.set(2)
    assert not task.reads()
    task.step(0.0)
    task.trigger(Barrier(C1))
    steps(task)
    assert world.record_writer.sent[:5] == [
        "piece",
        Barrier(C1),
        "piece",
        Watermark(MIN_MS),
        [5],
    ]


def test_bounded_source_that_drains_ends_time_before_its_output(world: TimedWorld) -> None:
    task = world.timed_source(Reader([timed(5)], bounded=True), drains=True, fires=True)
    steps(task)
    assert world.record_writer.sent[-3:] == [[5], Watermark(MAX_MS), EndOfInput()]
    world.now_s += 10.0
    task.trigger(Barrier(C1, final=True))
    steps(task)
    world.sink.answer(C1)
    assert world.record_writer.sent[-1] == Barrier(C1, final=True)
    [(_, snapshot)] = world.master.acknowledged
    assert snapshot.drained
    assert [split.watermark_ms for split in snapshot.splits] == [4], "the end is not stored"


def test_bounded_source_that_does_not_drain_leaves_time_where_it_is(world: TimedWorld) -> None:
    task = world.timed_source(Reader([timed(5)], bounded=True), fires=True)
    steps(task)
    world.now_s += 10.0
    task.trigger(Barrier(C1, final=True))
    steps(task)
    world.sink.answer(C1)
    assert Watermark(MAX_MS) not in world.record_writer.sent
    assert not world.master.acknowledged[0][1].drained


def test_drain_emits_what_was_read_and_reads_no_more(world: TimedWorld) -> None:
    task = world.timed_source(Reader([timed(5)], [timed(6)]), fires=True)
    task.step(0.0)
    task.drain()
    steps(task)
    assert [each for each in world.record_writer.sent if each != Watermark(MIN_MS)] == [
        [5],
        Watermark(MAX_MS),
        EndOfInput(),
    ]
    assert task.has_ended()
    assert world.master.ended == [task.subtask]


def test_attempt_that_restores_a_stopped_drain_reads_nothing_and_continues_the_drain(
    world: TimedWorld,
) -> None:
    """The JobMaster may not know of the stop yet, and records have come meanwhile."""
    task = world.timed_source(Reader([timed(6)]), fires=True, input_over=True)
    steps(task)
    assert [each for each in world.record_writer.sent if each != Watermark(MIN_MS)] == [
        Watermark(MAX_MS),
        EndOfInput(),
    ]
    task.trigger(Barrier(C1, final=True))
    steps(task)
    world.sink.answer(C1)
    assert world.master.acknowledged[0][1].drained


def test_end_of_time_waits_for_the_end_of_an_input_without_watermarks(world: TimedWorld) -> None:
    task, (with_watermarks, without) = world.timed_inputs(2)
    task._valve = WatermarkValve([Watermark(MIN_MS), None])
    offer(with_watermarks, Watermark(10), timed(11), Watermark(MAX_MS), EndOfInput())
    offer(without, timed(3), timed(4))
    steps(task)
    assert Watermark(MAX_MS) not in world.record_writer.sent
    offer(without, timed(5), EndOfInput())
    steps(task)
    assert world.record_writer.sent[-3:] == [[5], Watermark(MAX_MS), EndOfInput()]


def test_final_barrier_does_not_wait_for_an_end_of_time_that_is_held_back(
    world: TimedWorld,
) -> None:
    task, (with_watermarks, without) = world.timed_inputs(2)
    task._valve = WatermarkValve([Watermark(MIN_MS), None])
    offer(with_watermarks, Watermark(MAX_MS), EndOfInput(), Barrier(C1, final=True))
    offer(without, timed(3), Barrier(C1, final=True))
    steps(task)
    assert world.record_writer.sent == [[3], Barrier(C1, final=True)]


def test_end_of_a_source_comes_after_what_its_last_watermark_makes_due(world: TimedWorld) -> None:
    task = world.timed_source(Reader([timed(5)], bounded=True))
    task.step(0.0)
    task.step(0.0)
    world.burst.left = 2
    steps(task)
    assert world.record_writer.sent[-4:] == ["piece", "piece", Watermark(4), EndOfInput()]


def test_nothing_fires_by_the_clock_after_the_end_of_the_output(world: TimedWorld) -> None:
    fired: list[str] = []
    chain = cast("Any", world.chain)
    chain.advance_processing_time = lambda: fired.append("clock")
    task, (channel,) = world.timed_inputs(1)
    offer(channel, EndOfInput())
    steps(task)
    count = len(fired)
    task.step(0.0)
    assert len(fired) == count
    source = world.timed_source(Reader(bounded=True))
    steps(source)
    assert world.record_writer.sent[-1] == EndOfInput()
    before = len(fired)
    source.step(0.0)
    assert len(fired) == before
