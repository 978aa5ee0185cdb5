"""Watermarks of a source: its partitions, idleness, restores, and a strategy that misbehaves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import msgspec
import pytest

from tidegate.api.time.watermarks import (
    BoundedOutOfOrderness,
    CustomWatermarks,
    Monotonous,
    Punctuated,
    WatermarkStrategy,
)
from tidegate.dataplane.counters import Counters
from tidegate.dataplane.sources.watermarks import BETWEEN_S_MAX, POLL_S_MAX, SourceWatermarks
from tidegate.errors import UserCodeError
from tidegate.ids import Uid
from tidegate.protocol.subtask_snapshot import SourceSplit
from tidegate.stream_elements import MIN_MS, RecordBatch, TopicPartition, Watermark

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
BOTH = {P0, P1}


def split(topic_partition: TopicPartition, watermark_ms: int | None = None) -> SourceSplit:
    topic, partition = topic_partition
    return SourceSplit(
        source=Uid("s"), topic=topic, partition=partition, offset=0, watermark_ms=watermark_ms
    )


def batch(topic_partition: TopicPartition, *times_ms: int) -> RecordBatch:
    return RecordBatch(
        [f"m{time_ms}" for time_ms in times_ms],
        range(len(times_ms)),
        topic_partition,
        None,
        list(times_ms),
    )


class World:
    """The watermarks of two partitions, and a clock that each poll moves."""

    def __init__(
        self, strategy: WatermarkStrategy[str], splits: Sequence[SourceSplit] = ()
    ) -> None:
        self.counters = Counters()
        self.splits = tuple(splits) or (split(P0), split(P1))
        self.marks = SourceWatermarks(strategy, Uid("s"), self.splits, self.counters)
        self.now_s = 100.0

    def polls(
        self,
        seconds: float,
        got: set[TopicPartition] | None = None,
        at_end: set[TopicPartition] = BOTH,
        every_s: float = 0.05,
        within: bool = False,
    ) -> None:
        """Poll for so long, at this interval. The time passes within polls, or between them."""
        for _ in range(round(seconds / every_s)):
            began_s = self.now_s if within else self.now_s + every_s
            self.now_s += every_s
            self.marks.polled(began_s, self.now_s, got or set(), lambda: set(at_end))


def test_watermark_is_the_highest_time_minus_the_delay_and_a_millisecond() -> None:
    world = World(BoundedOutOfOrderness("10 ms"))
    world.marks.observe(batch(P0, 50, 100, 70))
    world.marks.observe(batch(P1, 90))
    assert world.marks.current() == Watermark(79)
    world.marks.observe(batch(P1, 80))
    assert world.marks.current() == Watermark(79), "an older record is no step back"
    assert world.counters.backward_watermarks == 0


def test_monotonous_watermark_has_no_delay() -> None:
    world = World(Monotonous(), [split(P0)])
    world.marks.observe(batch(P0, 50))
    assert world.marks.current() == Watermark(49)


def test_partition_without_records_holds_back_the_watermark_and_is_named() -> None:
    world = World(Monotonous())
    world.marks.observe(batch(P0, 50))
    world.polls(60.0)
    assert world.marks.current() == Watermark(MIN_MS)
    assert world.marks.slowest() == P1


def test_partition_becomes_idle_after_it_was_asked_in_vain_for_idle_after() -> None:
    world = World(Monotonous(idle_after="1 s"))
    world.marks.observe(batch(P0, 50))
    world.polls(0.9, got={P0})
    assert world.marks.current() == Watermark(MIN_MS)
    world.polls(0.3, got={P0})
    assert world.marks.current() == Watermark(49)


def test_partition_with_unread_records_does_not_become_idle() -> None:
    world = World(Monotonous(idle_after="1 s"))
    world.polls(5.0, at_end={P1})
    assert world.marks.current() == Watermark(MIN_MS)


def test_time_in_which_the_task_did_not_ask_does_not_count() -> None:
    world = World(Monotonous(idle_after="1 s"))
    world.marks.observe(batch(P0, 50))
    world.polls(8 * 60.0, every_s=60.0)  # a step takes a minute for each batch
    assert world.marks.current() == Watermark(MIN_MS), f"8 polls count {8 * BETWEEN_S_MAX} s"


def test_time_of_waits_within_polls_counts() -> None:
    world = World(Monotonous(idle_after="1 s"))
    world.marks.observe(batch(P0, 50))
    world.polls(0.8, every_s=0.2, within=True)
    assert world.marks.current() == Watermark(MIN_MS)
    world.polls(0.4, every_s=0.2, within=True)
    assert world.marks.current() == Watermark(49, idle=True)


def test_poll_in_which_the_process_was_stopped_counts_as_a_short_one() -> None:
    world = World(Monotonous(idle_after="1 s"))
    world.marks.observe(batch(P0, 50))
    world.polls(60.0, every_s=60.0, within=True)
    assert world.marks.current() == Watermark(MIN_MS), f"it counts {POLL_S_MAX} s"


def test_record_ends_the_idleness_of_its_partition() -> None:
    world = World(Monotonous(idle_after="1 s"))
    world.marks.observe(batch(P0, 50))
    world.polls(2.0)
    assert world.marks.current() == Watermark(49, idle=True)
    world.marks.observe(batch(P1, 30))
    assert world.marks.current() == Watermark(49), "it is behind and does not hold back"
    world.marks.observe(batch(P1, 60))
    assert world.marks.slowest() == P1


def test_splits_carry_watermarks_and_idleness_over_a_restore() -> None:
    world = World(Monotonous(idle_after="1 s"))
    world.marks.observe(batch(P0, 50))
    world.polls(2.0, got={P0})
    stored = world.marks.in_splits(world.splits)
    assert [(each.watermark_ms, each.idle) for each in stored] == [(49, False), (None, True)]
    restored = World(Monotonous(idle_after="1 s"), stored)
    restored.marks.observe(batch(P0, 10))
    assert restored.marks.in_splits(world.splits) == stored, "nothing is known yet"
    restored.polls(0.1, got={P0})
    assert restored.marks.current() == Watermark(49), "it is idle at once, and not after a second"


def test_partition_that_was_idle_and_has_new_records_holds_back_after_a_restore() -> None:
    stored = [split(P0, 40), msgspec.structs.replace(split(P1, 10), idle=True)]
    world = World(Monotonous(idle_after="1 s"), stored)
    world.marks.observe(batch(P0, 500))
    world.polls(5.0, got={P0}, at_end={P0})
    assert world.marks.current() == Watermark(10), "its records come, and must not be late"
    world.marks.observe(batch(P1, 60))
    assert world.marks.current() == Watermark(59)


def test_partition_that_is_idle_at_its_end_holds_nothing_back_from_the_start() -> None:
    at_end = msgspec.structs.replace(split(P1), idle=True, end_offset=0)
    world = World(Monotonous(idle_after="1 min"), [split(P0), at_end])
    world.marks.observe(batch(P0, 500))
    assert world.marks.current() == Watermark(499)
    world.polls(1.0, got={P0}, at_end=set())
    stored = world.marks.in_splits(world.splits)
    assert [(each.watermark_ms, each.idle) for each in stored] == [(499, False), (None, True)]


@pytest.mark.parametrize(
    ("strategy", "end"), [(Monotonous(), 0), (Monotonous(idle_after="1 s"), 1)]
)
def test_partition_holds_back_without_idle_after_and_while_records_are_in_front_of_its_end(
    strategy: WatermarkStrategy[str], end: int
) -> None:
    other = msgspec.structs.replace(split(P1), idle=True, end_offset=end)
    world = World(strategy, [split(P0), other])
    world.marks.observe(batch(P0, 500))
    assert world.marks.current() == Watermark(MIN_MS)


def test_idleness_of_a_checkpoint_does_not_count_in_a_strategy_without_idle_after() -> None:
    world = World(Monotonous(), [split(P0), msgspec.structs.replace(split(P1), idle=True)])
    assert [each.idle for each in world.marks.in_splits(world.splits)] == [False, False]


def test_partition_that_was_idle_is_not_idle_in_the_poll_that_returns_its_records() -> None:
    stored = [split(P0, 40), msgspec.structs.replace(split(P1, 10), idle=True)]
    world = World(Monotonous(idle_after="1 s"), stored)
    world.polls(0.05, got=BOTH, at_end=BOTH)  # the records of both are read and not emitted yet
    world.marks.observe(batch(P0, 500))
    assert world.marks.current() == Watermark(10)
    world.marks.observe(batch(P1, 60))
    assert world.marks.current() == Watermark(59)


def test_subtask_without_partitions_is_idle_from_the_start() -> None:
    marks = SourceWatermarks(Monotonous(), Uid("s"), [], Counters())
    assert marks.current() == Watermark(MIN_MS, idle=True)


def test_marker_records_carry_the_watermark() -> None:
    marks = {"m50": 45, "m70": 60}
    world = World(Punctuated(marks.get), [split(P0)])
    world.marks.observe(batch(P0, 10, 20))
    assert world.marks.current() == Watermark(MIN_MS)
    world.marks.observe(batch(P0, 50, 60, 70, 80))
    assert world.marks.current() == Watermark(60)


def test_marker_watermark_does_not_depend_on_the_batches() -> None:
    for batches in ([(1, 2)], [(1,), (2,)]):
        world = World(Punctuated({"m1": 100, "m2": 50}.get), [split(P0)])
        for times_ms in batches:
            world.marks.observe(batch(P0, *times_ms))
        assert world.marks.current() == Watermark(100)


def test_watermark_that_goes_back_is_ignored_and_counted() -> None:
    world = World(Punctuated({"m1": 45, "m2": 30}.get), [split(P0)])
    world.marks.observe(batch(P0, 1))
    world.marks.observe(batch(P0, 2))
    assert world.marks.current() == Watermark(45)
    assert world.counters.backward_watermarks == 1


class Counted(CustomWatermarks[str]):
    """A strategy of a user: the watermark is ten times the number of records."""

    def __init__(self) -> None:
        super().__init__()
        self.records = 0

    def resume(self, watermark_ms: int, /) -> None:
        self.records = watermark_ms // 10

    def observe(self, records: Sequence[str], times_ms: Sequence[int], /) -> int:
        self.records += len(records)
        return 10 * self.records


def test_custom_strategy_has_one_object_for_each_partition_and_resumes() -> None:
    world = World(Counted())
    world.marks.observe(batch(P0, 1, 2, 3))
    world.marks.observe(batch(P1, 1, 2))
    assert world.marks.current() == Watermark(20)
    restored = World(Counted(), world.marks.in_splits(world.splits))
    restored.marks.observe(batch(P1, 3))
    assert restored.marks.current() == Watermark(30)


def test_strategy_that_raises_ends_the_attempt_and_is_named() -> None:
    world = World(Punctuated(lambda _: 1 // 0), [split(P0)])
    with pytest.raises(UserCodeError, match=r"strategy Punctuated .* raised ZeroDivision"):
        world.marks.observe(batch(P0, 1))


@pytest.mark.parametrize("found", [1.5, "5", True, 1 << 70])
def test_watermark_of_a_wrong_type_or_out_of_range_ends_the_attempt(found: Any) -> None:
    class Wrong(CustomWatermarks[str]):
        def observe(self, records: Sequence[str], times_ms: Sequence[int], /) -> int | None:
            return cast("int", found)

    world = World(Wrong(), [split(P0)])
    with pytest.raises(UserCodeError, match=r"strategy Wrong .* it returned"):
        world.marks.observe(batch(P0, 1))
