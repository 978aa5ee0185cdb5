"""The operator of `with_timestamps`: times, its watermark, idleness, and what is stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from tests.dataplane.test_task import C1, C2, SUBTASK, Reader, offer, steps
from tests.dataplane.test_task_time import TimedWorld, timed
from tidegate.api.time.watermarks import (
    BoundedOutOfOrderness,
    CustomWatermarks,
    Monotonous,
    Punctuated,
    WatermarkStrategy,
)
from tidegate.dataplane.chain import OperatorChain
from tidegate.dataplane.counters import Counters
from tidegate.dataplane.operators.with_timestamps import TimestampsOperator
from tidegate.dataplane.refusals import Refusals
from tidegate.dataplane.source_task import SourceTask
from tidegate.errors import ResourceExhaustedError, UserCodeError
from tidegate.graph.stream_graph import MAIN, REJECTED, Edge, Node, StreamGraph
from tidegate.ids import Uid
from tidegate.protocol.subtask_snapshot import StepWatermark
from tidegate.stream_elements import (
    MAX_MS,
    MIN_MS,
    NEVER,
    Barrier,
    EndOfInput,
    RecordBatch,
    TopicPartition,
    Watermark,
)

P0 = TopicPartition("orders", 0)
INTERVAL_MS = 200


def node(
    strategy: WatermarkStrategy[Any],
    event_time: Callable[[Any], Any] = lambda value: value,
    **facts: bool,
) -> Node:
    return Node(
        id="stamp",
        kind="with_timestamps",
        inputs=(),
        uid="stamp",
        options={},
        location="job.py:1",
        function=event_time,
        declaration=strategy,
        **facts,
    )


class Step:
    """An operator, the clock, and everything that it sends, in order."""

    def __init__(
        self,
        strategy: WatermarkStrategy[Any] | None = None,
        event_time: Callable[[Any], Any] = lambda value: value,
        *,
        restored_ms: int = MIN_MS,
        reads_rejected: bool = False,
        **facts: bool,
    ) -> None:
        self.now_ms, self.asks = 1_000_000, True
        self.sent: list[Any] = []
        self.rejected: list[RecordBatch] = []
        self.counters = Counters()
        emits = {MAIN: lambda batch: self.sent.append(batch.timestamps_ms)}
        if reads_rejected:
            emits[REJECTED] = self.rejected.append
        self.operator = TimestampsOperator(
            "Clicks",
            node(strategy or BoundedOutOfOrderness("10 ms"), event_time, **facts),
            emits,
            Refusals("stamp", "skip", self.counters),
            counters=self.counters,
            restored_ms=restored_ms,
            interval_ms=INTERVAL_MS,
            now_ms=lambda: self.now_ms,
            asks=lambda: self.asks,
        )
        self.operator.forward = self.sent.append
        self.operator.open()

    def push(self, *values: Any) -> None:
        self.operator.process(RecordBatch(list(values), range(len(values)), P0))

    def passes(self, span_ms: int, every_ms: int = 10) -> None:
        """Let time pass. The task looks whether something is due as often as this."""
        for _ in range(span_ms // every_ms):
            self.now_ms += every_ms
            if self.operator.next_processing_ms <= self.now_ms:
                self.operator.advance_processing_time(self.now_ms)

    def marks(self) -> list[Watermark]:
        return [each for each in self.sent if isinstance(each, Watermark)]


def test_records_get_the_times_of_the_function_and_keep_their_other_columns() -> None:
    found: list[RecordBatch] = []
    step = Step(event_time=int)
    step.operator._emit = found.append
    step.operator.process(RecordBatch(["5", "7"], [3, 4], P0, [b"a", None], [100, 200]))
    assert found == [RecordBatch(["5", "7"], [3, 4], P0, [b"a", None], [5, 7])]


def test_watermark_follows_the_records_at_most_once_in_the_interval() -> None:
    step = Step()
    step.push(100)
    assert step.sent == [[100]], "not before the task asks what is due"
    step.passes(10)
    step.push(150)
    step.push(120)
    step.passes(INTERVAL_MS - 10)
    assert step.sent == [[100], Watermark(89), [150], [120]]
    step.passes(10)
    assert step.sent[4:] == [Watermark(139)]
    step.passes(1000)
    assert len(step.sent) == 5


def test_watermark_is_emitted_before_its_time_if_a_barrier_comes_and_only_once() -> None:
    step = Step()
    step.push(100)
    step.passes(10)
    step.push(150)
    step.operator.emit_watermark()
    step.operator.emit_watermark()
    assert step.marks() == [Watermark(89), Watermark(139)]


def test_look_at_the_clock_emits_no_watermark_before_its_time() -> None:
    step = Step(BoundedOutOfOrderness("10 ms", idle_after="100 ms"))
    step.push(100)
    step.passes(10)
    step.push(150)
    step.passes(50)
    assert step.marks() == [Watermark(89)]


def test_watermarks_from_in_front_are_ignored_and_the_end_of_time_passes_and_is_not_stored() -> (
    None
):
    step = Step(BoundedOutOfOrderness("10 ms", idle_after="5 s"))
    step.operator.advance(Watermark(500))
    assert step.sent == []
    step.push(100)
    step.operator.advance(Watermark(MAX_MS))
    assert step.sent == [[100], Watermark(MAX_MS)]
    step.passes(1000)
    step.operator.emit_watermark()
    assert step.sent == [[100], Watermark(MAX_MS)]
    assert step.operator.snapshot() == StepWatermark(uid=Uid("stamp"), watermark_ms=89)
    assert step.operator.next_processing_ms == NEVER


def test_input_that_is_idle_makes_the_step_idle_until_its_next_record() -> None:
    step = Step()
    step.operator.advance(Watermark(MIN_MS, idle=True))
    assert step.sent == [Watermark(MIN_MS, idle=True)]
    step.push(100)
    assert step.sent[1:] == [Watermark(MIN_MS), [100]], "the others wait before they get records"
    step.passes(INTERVAL_MS)
    assert step.sent[3:] == [Watermark(89)]
    step.operator.advance(Watermark(7, idle=True))
    assert step.sent[4:] == [Watermark(89, idle=True)]
    step.operator.advance(Watermark(8))
    assert step.sent[5:] == [Watermark(89)]


def test_idleness_does_not_count_if_only_some_sources_in_front_declare_watermarks() -> None:
    step = Step(mixed_time=True)
    step.operator.advance(Watermark(MIN_MS, idle=True))
    assert step.sent == []


@pytest.mark.parametrize("records", [(), (100,)])
def test_subtask_without_records_becomes_idle_after_its_time(records: tuple[int, ...]) -> None:
    step = Step(BoundedOutOfOrderness("10 ms", idle_after="5 s"))
    if records:
        step.push(*records)
    step.passes(4_900)
    assert not any(mark.idle for mark in step.marks())
    assert not step.operator.snapshot().idle
    step.passes(200)
    assert step.marks()[-1] == Watermark(89 if records else MIN_MS, idle=True)
    assert step.operator.snapshot().idle
    assert step.operator.next_processing_ms == NEVER
    step.operator.advance(Watermark(50))
    assert step.marks()[-1].idle, "a watermark from in front is no record"
    step.push(300)
    assert step.sent[-1] == [300]
    assert not step.marks()[-1].idle
    step.passes(4_900)
    assert step.marks()[-1] == Watermark(289)
    step.passes(200)
    assert step.marks()[-1] == Watermark(289, idle=True)


def test_step_without_idle_after_never_becomes_idle_and_needs_no_clock() -> None:
    step = Step()
    step.passes(100_000, 1000)
    assert step.sent == []
    assert step.operator.next_processing_ms == NEVER


def test_time_in_which_the_task_does_not_ask_makes_no_subtask_idle() -> None:
    step = Step(BoundedOutOfOrderness("10 ms", idle_after="5 s"))
    step.passes(4_000)
    step.asks = False
    step.passes(60_000)
    assert step.marks() == []
    step.asks = True
    step.passes(900)
    assert step.marks() == []
    step.passes(200)
    assert step.marks() == [Watermark(MIN_MS, idle=True)]


def test_long_time_between_two_looks_counts_as_two_looks() -> None:
    step = Step(BoundedOutOfOrderness("10 ms", idle_after="5 s"))
    step.passes(3_500)
    step.passes(60_000, every_ms=60_000)  # outputs are full
    assert step.marks() == []
    step.passes(600)
    assert step.marks() == [Watermark(MIN_MS, idle=True)]


def unusable(value: Any) -> Any:
    if value == "raises":
        raise KeyError(value)
    if value == "stops":
        raise StopIteration
    return value


BAD = [None, "raises", "stops", 1 << 63, 1.5]


def test_records_without_a_usable_time_are_rejected_and_move_no_watermark() -> None:
    step = Step(event_time=unusable, reads_rejected=True)
    batch = RecordBatch([50, *BAD, 60], range(7), P0, None, [9] * 7)
    step.operator.process(batch)
    step.passes(10)
    assert step.sent == [[50, 60], Watermark(49)]
    assert step.rejected == [RecordBatch(BAD, [1, 2, 3, 4, 5], P0)]
    assert step.counters.skipped == 0


def test_rejected_records_are_counted_if_nobody_reads_them() -> None:
    step = Step(event_time=unusable)
    step.push(*BAD)
    step.passes(10)
    assert step.sent == []
    assert step.counters.skipped == len(BAD)


def test_resource_that_the_system_refuses_is_no_property_of_a_record() -> None:
    def refused(_value: Any) -> int:
        raise MemoryError

    with pytest.raises(UserCodeError, match="MemoryError"):
        Step(event_time=refused).push(1)

    def own(_value: Any) -> int:
        raise ResourceExhaustedError("no memory")

    with pytest.raises(ResourceExhaustedError):
        Step(event_time=own).push(1)


class Returns(CustomWatermarks[Any]):
    def __init__(self, *found: Any) -> None:
        super().__init__()
        self.found, self.resumed = list(found), [MIN_MS]

    def resume(self, watermark_ms: int, /) -> None:
        self.resumed.append(watermark_ms)

    def observe(self, records: Sequence[Any], times_ms: Sequence[int], /) -> int | None:
        found = self.found.pop(0)
        if isinstance(found, Exception):
            raise found
        return found  # type: ignore[no-any-return]


def test_strategy_that_goes_back_is_ignored_and_counted() -> None:
    step = Step(Returns(50, 40, None, 60))
    for _ in range(4):
        step.push(1)
        step.passes(INTERVAL_MS)
    assert step.marks() == [Watermark(50), Watermark(60)]
    assert step.counters.backward_watermarks == 1


@pytest.mark.parametrize("found", [ValueError("no"), "7", 1 << 63])
def test_strategy_that_raises_or_returns_no_time_ends_the_attempt(found: Any) -> None:
    with pytest.raises(UserCodeError, match=r"step uid 'stamp': the watermark strategy Returns"):
        Step(Returns(found)).push(1)


def test_strategy_sees_only_records_with_usable_times() -> None:
    step = Step(Punctuated(lambda value: value), unusable)
    step.push(5, "raises", 3)
    step.passes(10)
    assert step.sent == [[5, 3], Watermark(5)]


def test_step_continues_from_the_restored_watermark_before_the_first_record() -> None:
    step = Step(restored_ms=500)
    assert step.operator.next_processing_ms <= step.now_ms
    step.passes(10)
    assert step.sent == [Watermark(500)]
    step.push(100)
    step.passes(INTERVAL_MS)
    assert step.sent == [Watermark(500), [100]], "no step back"
    step.push(600)
    step.passes(INTERVAL_MS)
    assert step.marks() == [Watermark(500), Watermark(589)]
    assert step.operator.snapshot() == StepWatermark(uid=Uid("stamp"), watermark_ms=589)


def test_subtask_without_a_watermark_stores_none() -> None:
    assert Step().operator.snapshot() == StepWatermark(uid=Uid("stamp"))


class World(TimedWorld):
    """Tasks whose chain has a step with its own time."""

    def __init__(self) -> None:
        super().__init__()
        self._marks: list[Watermark] = []
        self._pieces = self._seen = 0
        self._newest_ms: int | None = None

    def stamped_source(self, reader: Reader, splits: int = 1, **options: Any) -> SourceTask:
        task = SourceTask(
            self.context, self.chain, self.master, reader, reader.snapshot()[:splits], **options
        )
        task.start()
        return task

    def own_time(self, *marks_ms: int, pieces: int = 0) -> None:
        """Let the step have these watermarks, one after each batch. Each makes `pieces` due."""
        self._marks, self._pieces = list(map(Watermark, marks_ms)), pieces
        chain: Any = self.chain
        chain.emit_watermarks, chain.step_watermarks = self._emit, self._snapshot

    def _emit(self) -> None:
        batches = sum(isinstance(each, list) for each in self.record_writer.sent)
        if self.chain.firing or not self.chain.writable() or batches == self._seen:
            return
        self._seen = batches
        mark = self._marks.pop(0)
        self._newest_ms = mark.timestamp_ms
        self.burst.left = self._pieces
        self.burst.advance(mark)

    def _snapshot(self) -> tuple[StepWatermark, ...]:
        return (StepWatermark(uid=Uid("stamp"), watermark_ms=self._newest_ms),)


@pytest.fixture
def world() -> World:
    return World()


# --- tasks --------------------------------------------------------------------------------------


def test_source_without_splits_tells_the_steps_behind_once_that_it_is_idle(
    world: World,
) -> None:
    task = world.stamped_source(Reader(), splits=0, tells_time=True)
    steps(task)
    assert world.record_writer.sent == [Watermark(MIN_MS, idle=True)]


@pytest.mark.parametrize(("splits", "tells_time"), [(1, True), (0, False)])
def test_source_with_splits_or_that_nobody_asks_tells_nothing(
    world: World, splits: int, tells_time: bool
) -> None:
    steps(world.stamped_source(Reader(), splits, tells_time=tells_time))
    assert world.record_writer.sent == []


def test_source_without_watermarks_ends_the_time_of_the_steps_behind(world: World) -> None:
    reader = Reader([timed(5)], bounded=True)
    task = world.stamped_source(reader, tells_time=True, drains=True, fires=True)
    steps(task)
    assert world.record_writer.sent == [[5], Watermark(MAX_MS), EndOfInput()]
    task.trigger(Barrier(C1, final=True))
    steps(task)
    world.sink.answer(C1)
    assert world.master.acknowledged[0][1].drained


def test_tasks_let_steps_emit_before_each_barrier_and_before_the_end(world: World) -> None:
    world.own_time(10, 20, 30)
    task, (channel,) = world.timed_inputs(1)
    offer(channel, timed(1), Barrier(C1), timed(2), Barrier(C2), timed(3), EndOfInput())
    steps(task)
    sent = world.record_writer.sent
    assert sent[:4] == [[1], Watermark(10), Barrier(C1), [2]]
    assert sent[4:] == [Watermark(20), Barrier(C2), [3], Watermark(30), EndOfInput()]
    world.sink.answer(C1)
    assert world.master.acknowledged[0][1].watermarks == (
        StepWatermark(uid=Uid("stamp"), watermark_ms=10),
    )


def test_source_task_lets_steps_emit_before_each_barrier_and_before_the_end(
    world: World,
) -> None:
    world.own_time(10, 20)
    task = world.stamped_source(Reader([timed(1)], [timed(2)], bounded=True))
    task.step(0.0)
    task.trigger(Barrier(C1))
    steps(task)
    assert world.record_writer.sent == [
        [1],
        Watermark(10),
        Barrier(C1),
        [2],
        Watermark(20),
        EndOfInput(),
    ]


@pytest.mark.parametrize("inputs", [True, False])
def test_what_a_step_makes_due_before_a_final_barrier_fires_before_it(
    world: World, inputs: bool
) -> None:
    world.own_time(10, pieces=2)
    if inputs:
        task, (channel,) = world.timed_inputs(1)
        offer(channel, timed(1), Barrier(C1, final=True))
        steps(task)
    else:
        source = world.stamped_source(Reader([timed(1)]))
        steps(source)
        source.trigger(Barrier(C1, final=True))
        steps(source)
    assert world.record_writer.sent == [
        [1],
        "piece",
        "piece",
        Watermark(10),
        Barrier(C1, final=True),
    ]


@pytest.mark.parametrize(("firing", "writable"), [(True, True), (False, False), (False, True)])
def test_chain_lets_steps_emit_only_if_it_can_take_a_watermark(
    firing: bool, writable: bool
) -> None:
    emitted: list[int] = []
    steps = [SimpleNamespace(emit_watermark=lambda n=n: emitted.append(n)) for n in range(2)]
    chain: Any = SimpleNamespace(_own_time=steps, firing=firing, writable=lambda: writable)
    OperatorChain.emit_watermarks(chain)
    assert emitted == ([1, 0] if writable and not firing else []), "those in front come first"


@pytest.mark.parametrize("inputs", [True, False])
def test_what_a_step_makes_due_before_the_end_fires_before_it(world: World, inputs: bool) -> None:
    world.own_time(10, pieces=2)
    if inputs:
        task, (channel,) = world.timed_inputs(1)
        offer(channel, timed(1), EndOfInput())
        steps(task)
    else:
        steps(world.stamped_source(Reader([timed(1)], bounded=True)))
    sent = world.record_writer.sent
    assert sent == [[1], "piece", "piece", Watermark(10), EndOfInput()]


def test_input_task_asks_for_records_from_the_first_element_on_and_not_while_it_aligns(
    world: World,
) -> None:
    task, (first, second) = world.timed_inputs(2)

    def reading() -> bool:
        return world.chain.reading

    steps(task)
    assert not reading(), "the sources may not have started"
    offer(first, timed(1))
    steps(task)
    assert reading()
    offer(first, Barrier(C1))
    steps(task)
    assert not reading()
    offer(second, Barrier(C1))
    steps(task)
    assert reading()
    offer(first, EndOfInput())
    steps(task)
    assert reading()
    offer(second, EndOfInput())
    steps(task)
    assert not reading(), "a later run may continue behind the end"


def test_source_task_asks_for_records_from_its_start_to_its_end(world: World) -> None:
    world.chain.reading = False
    task = world.stamped_source(Reader([timed(1)], bounded=True))
    assert world.chain.reading
    steps(task)
    assert not world.chain.reading


def test_status_names_the_step_that_holds_the_watermark_back(world: World) -> None:
    task, _ = world.timed_inputs(1)
    marks = (
        StepWatermark(uid=Uid("a"), watermark_ms=7),
        StepWatermark(uid=Uid("b")),
        StepWatermark(uid=Uid("c"), idle=True),
    )
    chain: Any = world.chain
    chain.step_watermarks = lambda: marks
    assert task.slowest_watermark() == (MIN_MS, f"b: subtask {SUBTASK.index}")
    chain.step_watermarks = lambda: marks[:1]
    assert task.slowest_watermark() == (7, "a: subtask 0")
    chain.step_watermarks = lambda: marks[2:]
    assert task.slowest_watermark() is None


# --- the graph ----------------------------------------------------------------------------------


def test_steps_in_front_of_the_step_tell_time_and_others_do_not() -> None:
    graph = StreamGraph("g")
    bare = graph.add("source", (), location="j:1", uid="bare")
    marked = graph.add("source", (), location="j:2", uid="marked", watermarks=True)
    other = graph.add("source", (), location="j:3", uid="other")
    mapped = graph.add("map", (edge(bare),), location="j:4")
    union = graph.add("map", (edge(mapped), edge(marked)), location="j:5")
    stamp = graph.add(
        "with_timestamps",
        (edge(union),),
        location="j:6",
        uid="stamp",
        watermarks=True,
        event_time=True,
    )
    behind = graph.add("map", (edge(stamp),), location="j:7")
    apart = graph.add("map", (edge(mapped),), location="j:8")
    tells = {each.id for each in graph if graph.tells_time(each.id)}
    assert tells == {each.id for each in (bare, marked, mapped, union, stamp, behind)}
    assert not graph.tells_time(other.id)
    assert not graph.tells_time(apart.id)
    assert {each.id for each in graph if each.mixed_time} == {union.id, stamp.id}
    assert behind.event_time


def test_rejected_records_have_no_event_time() -> None:
    graph = StreamGraph("g")
    source = graph.add("source", (), location="j:1", uid="s", event_time=True)
    stamp = graph.add(
        "with_timestamps", (edge(source),), location="j:2", uid="stamp", event_time=True
    )
    assert graph.add("map", (edge(stamp),), location="j:3").event_time
    assert not graph.add("map", (edge(stamp, REJECTED),), location="j:4").event_time


def edge(node: Node, port: str = MAIN) -> Edge:
    return Edge(node=node.id, port=port)


def test_monotonous_is_a_strategy_too() -> None:
    step = Step(Monotonous())
    step.push(5)
    step.passes(10)
    assert step.marks() == [Watermark(4)]
