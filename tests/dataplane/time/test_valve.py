"""The combined watermark of several inputs, in single cases and against a slow model."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidegate.dataplane.time.valve import WatermarkValve
from tidegate.stream_elements import MAX_MS, MIN_MS, Watermark

NEW = Watermark(MIN_MS)


def at(timestamp_ms: int) -> Watermark:
    return Watermark(timestamp_ms)


def idle(timestamp_ms: int = MIN_MS) -> Watermark:
    return Watermark(timestamp_ms, idle=True)


def test_combined_watermark_is_the_least_of_all_inputs() -> None:
    valve = WatermarkValve([NEW, NEW])
    assert valve.offer(0, at(10)) is None, "the other input has not said anything yet"
    assert valve.offer(1, at(7)) == at(7)
    assert valve.offer(1, at(12)) == at(10)
    assert valve.offer(0, at(11)) == at(11)


def test_watermark_that_goes_back_changes_nothing() -> None:
    valve = WatermarkValve([NEW])
    assert valve.offer(0, at(10)) == at(10)
    assert valve.offer(0, at(5)) is None
    assert valve.of(0) == at(10)


def test_idle_input_does_not_hold_back_the_others() -> None:
    valve = WatermarkValve([NEW, NEW])
    valve.offer(0, at(10))
    assert valve.offer(1, idle()) == at(10)
    assert valve.offer(0, at(20)) == at(20)


def test_input_that_returns_behind_stays_out_until_it_has_caught_up() -> None:
    valve = WatermarkValve([at(10), idle(5)])
    assert valve.offer(1, at(6)) is None, "it is behind: it neither moves nor holds the watermark"
    assert valve.offer(0, at(20)) == at(20), "the valve does not wait for it"
    assert valve.offer(1, at(25)) is None, "it has caught up"
    assert valve.offer(0, at(30)) == at(25), "the valve waits for it again"


def test_combined_watermark_is_the_highest_if_all_inputs_are_idle() -> None:
    valve = WatermarkValve([at(10), at(30)])
    assert valve.offer(0, idle()) == at(30)
    assert valve.offer(1, idle()) == idle(30)
    assert valve.slowest() is None
    assert WatermarkValve([at(10), idle(30)]).offer(0, idle()) == idle(30)


def test_input_without_watermarks_takes_no_part() -> None:
    valve = WatermarkValve([NEW, None])
    assert valve.offer(0, at(10)) == at(10)
    assert valve.offer(0, idle(15)) == idle(15)
    assert valve.offer(0, at(MAX_MS)) == at(MAX_MS)


def test_end_of_time_is_combined_when_every_input_has_it_also_idle_ones() -> None:
    """An idle input may still have records in front of the end."""
    valve = WatermarkValve([at(10), idle(5)])
    assert valve.offer(0, at(MAX_MS)) is None
    assert valve.offer(1, at(7)) is None
    assert valve.offer(1, at(MAX_MS)) == at(MAX_MS)


def test_end_of_time_does_not_wait_for_an_input_that_has_ended() -> None:
    """A source subtask without partitions ends before the job drains."""
    valve = WatermarkValve([at(10), idle()])
    assert valve.offer(0, at(MAX_MS)) is None
    assert valve.end(1) == at(MAX_MS)
    valve = WatermarkValve([at(10), at(5)])
    assert valve.end(1) is None, "it still holds back the other one: a later run may continue"
    assert valve.offer(0, at(20)) is None


def test_idle_input_of_an_active_group_counts_until_it_has_the_same_watermark() -> None:
    """Two subtasks of a step get one watermark, and the second has still results that are due."""
    valve = WatermarkValve([NEW, NEW, NEW], [1, 1, None])
    for index in range(3):
        valve.offer(index, idle(10))
    assert valve.combined == idle(10)
    assert valve.offer(0, at(20)) == at(10), "the other one of its group is not so far yet"
    assert valve.offer(1, at(20)) == at(20)
    assert valve.offer(2, at(15)) is None, "an input on its own returns behind, and stays out"


def test_idle_group_does_not_hold_back_the_others() -> None:
    valve = WatermarkValve([NEW, NEW, NEW], [1, 1, None])
    valve.offer(0, idle(10))
    valve.offer(1, idle(10))
    assert valve.offer(2, at(30)) == at(30)
    assert valve.offer(0, at(20)) is None, "the group is behind, and stays out"
    assert valve.offer(0, at(40)) is None
    assert valve.offer(2, at(50)) == at(40)


def test_restored_inputs_are_registered_before_the_first_record() -> None:
    valve = WatermarkValve([at(10), NEW])
    assert valve.combined == NEW, "a partition that was added holds back the watermark"
    assert WatermarkValve([at(10), at(20)]).combined == at(10)
    assert WatermarkValve([at(10), idle(20)]).combined == at(10)
    assert WatermarkValve([]).combined == idle(), "a subtask without partitions is idle"


def test_slowest_input_is_the_one_that_holds_the_watermark_back() -> None:
    valve = WatermarkValve([at(10), at(5), idle(1)])
    assert valve.slowest() == 1
    valve.offer(1, at(15))
    assert valve.slowest() == 0
    valve = WatermarkValve([at(10), idle(3)])
    valve.offer(1, at(5))
    valve.offer(0, idle())
    assert valve.slowest() == 1, "all active inputs are behind"
    valve = WatermarkValve([at(10), idle(3)])
    valve.offer(1, at(5))
    assert valve.slowest() == 0, "an input that is behind holds nothing back"


class Model:
    """The rules, one after the other, over all inputs at each step."""

    def __init__(self, count: int) -> None:
        self.watermarks, self.idle = [MIN_MS] * count, [False] * count
        self.out, self.waits_for = MIN_MS, set(range(count))

    def offer(self, index: int, watermark: Watermark) -> tuple[int, bool]:
        self.watermarks[index] = max(self.watermarks[index], watermark.timestamp_ms)
        self.idle[index] = watermark.idle
        if watermark.idle:
            self.waits_for.discard(index)
        elif self.watermarks[index] >= self.out:
            self.waits_for.add(index)
        if self.waits_for:
            self.out = max(self.out, min(self.watermarks[each] for each in self.waits_for))
        elif all(self.idle):
            self.out = max(self.out, *self.watermarks)
        return self.out, all(self.idle)


@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 30), st.booleans()), max_size=30),
)
def test_valve_equals_the_model_and_never_goes_back(
    count: int, steps: list[tuple[int, int, bool]]
) -> None:
    valve, model = WatermarkValve([NEW] * count), Model(count)
    before = valve.combined
    for index, time_ms, is_idle in steps:
        found = valve.offer(index % count, Watermark(time_ms, idle=is_idle))
        due = Watermark(*model.offer(index % count, Watermark(time_ms, idle=is_idle)))
        assert valve.combined == due
        assert found == (None if due == before else due), "each change is returned, and only once"
        assert due.timestamp_ms >= before.timestamp_ms
        before = due


def test_input_that_takes_no_part_changes_nothing() -> None:
    valve = WatermarkValve([NEW, None])
    assert valve.offer(1, at(3)) is None
    assert valve.offer(0, at(10)) == at(10)
    assert valve.offer(1, idle()) is None
    assert valve.offer(0, idle(10)) == idle(10)
    assert valve.offer(1, at(MAX_MS)) is None
    assert valve.offer(0, at(MAX_MS)) == at(MAX_MS)
