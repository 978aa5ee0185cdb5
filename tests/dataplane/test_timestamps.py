"""`with_timestamps` in a subtask: when its watermark leaves it, and when it becomes idle."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.dataplane.test_operators import step
from tidegate.api.watermarks import Monotonous, Punctuated, WatermarkStrategy
from tidegate.dataplane.operators.event_time import ChainTime
from tidegate.dataplane.operators.timestamps import ASKED_S_MAX, TimestampsOperator
from tidegate.errors import UserCodeError
from tidegate.graph.stream_graph import MAIN, REJECTED
from tidegate.stream_elements import MIN_MS, RecordBatch, TopicPartition, Watermark

TOPIC_PARTITION = TopicPartition("orders", 3)
INTERVAL_S = 0.2


class World:
    """The operator, with a clock that the test moves."""

    def __init__(self, strategy: WatermarkStrategy[Any], function: Any = int) -> None:
        self.now_s = 10.0
        self.sent: list[Any] = []
        self.rejected: list[RecordBatch] = []
        emits = {MAIN: self.sent.append, REJECTED: self.rejected.append}
        self.time = ChainTime(now=lambda: self.now_s, watermark_interval_s=INTERVAL_S)
        node = replace(step("with_timestamps", function, uid="stamp"), declaration=strategy)
        self.operator = TimestampsOperator("P", node, emits, self.time)
        self.operator.forward = self.sent.append

    def push(self, *values: Any) -> None:
        self.operator.process(
            RecordBatch(list(values), range(len(values)), TOPIC_PARTITION, None, [0] * len(values))
        )

    def ticks(self, seconds: float, *, writable: bool = True, every_s: float = 0.05) -> None:
        for _ in range(round(seconds / every_s)):
            self.now_s += every_s
            self.operator.tick(writable=writable)

    def watermarks(self) -> list[Watermark]:
        return [each for each in self.sent if isinstance(each, Watermark)]


def test_watermark_follows_its_records_at_the_interval_and_before_a_barrier() -> None:
    world = World(Monotonous())
    world.push(5)
    world.push(9)
    assert world.watermarks() == [Watermark(4)], "the interval has not passed"
    world.operator.emit_watermark()
    assert world.watermarks() == [Watermark(4), Watermark(8)]
    world.operator.emit_watermark()
    assert len(world.watermarks()) == 2, "it has not changed"
    world.push(20)
    world.ticks(INTERVAL_S)
    assert world.watermarks()[-1] == Watermark(19)
    assert [each.timestamps_ms for each in world.sent if isinstance(each, RecordBatch)] == [
        [5],
        [9],
        [20],
    ]


def test_event_times_and_watermarks_from_the_front_are_replaced() -> None:
    world = World(Monotonous())
    world.operator.advance(Watermark(1_000))
    assert world.sent == []
    world.push(5)
    assert world.sent[0].timestamps_ms == [5]


def test_step_without_records_becomes_idle_and_a_record_ends_it() -> None:
    world = World(Monotonous(idle_after="1 s"))
    world.push(5)
    world.ticks(2.0)
    assert world.watermarks()[-1] == Watermark(4, idle=True)
    world.push(9)
    world.operator.emit_watermark()
    assert world.watermarks()[-1] == Watermark(8)


def test_time_with_full_outputs_or_long_steps_does_not_make_it_idle() -> None:
    world = World(Monotonous(idle_after="1 s"))
    world.push(5)
    world.ticks(60.0, writable=False)
    world.ticks(8 * 60.0, every_s=60.0)
    assert world.watermarks()[-1] == Watermark(4), f"8 ticks count {8 * ASKED_S_MAX} s"


def test_silent_step_without_idle_after_stays_active() -> None:
    world = World(Monotonous())
    world.ticks(60.0)
    assert world.watermarks() == []


def test_watermark_that_goes_back_is_ignored_and_counted() -> None:
    world = World(Punctuated(lambda value: value))
    world.push(9)
    world.push(5)
    world.operator.emit_watermark()
    assert world.watermarks() == [Watermark(9)]
    assert world.time.counters.backward_watermarks == 1


def test_strategy_that_raises_ends_the_attempt_and_the_step_is_named() -> None:
    world = World(Punctuated(lambda _: 1 // 0))
    with pytest.raises(UserCodeError, match=r"uid 'stamp' .* raised ZeroDivisionError"):
        world.push(9)


def test_unusable_times_are_rejected_with_all_columns() -> None:
    world = World(Monotonous(), lambda value: value)
    world.push(None, 7, "x")
    assert [(each.values, list(each.offsets)) for each in world.rejected] == [([None, "x"], [0, 2])]
    assert [each.values for each in world.sent if isinstance(each, RecordBatch)] == [[7]]
    assert MIN_MS not in [each.timestamp_ms for each in world.watermarks()]
