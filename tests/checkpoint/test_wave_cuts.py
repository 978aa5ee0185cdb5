"""Cuts of waves: every wave reads on in every partition, and the last one reaches every end."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tidegate.checkpoint.wave_cuts import cut_wave, limit_by_time, offsets_left
from tidegate.ids import Uid
from tidegate.protocol.subtask_snapshot import SourceSplit
from tidegate.stream_elements import TopicPartition


def split(partition: int, offset: int, end: int) -> SourceSplit:
    return SourceSplit(
        source=Uid("orders"), topic="t", partition=partition, offset=offset, end_offset=end
    )


def test_all_partitions_advance_by_the_same_share() -> None:
    cut = cut_wave([split(0, 0, 1_000), split(1, 50, 150), split(2, 7, 7)], 110)
    assert [(each.offset, each.end_offset) for each in cut] == [(0, 100), (50, 60), (7, 7)]


def test_split_whose_position_is_beyond_its_end_reads_nothing() -> None:
    """Another submission had a later end."""
    (cut,) = cut_wave([split(0, 20, 10)], 5)
    assert cut.end_offset == 20


@given(
    st.lists(st.tuples(st.integers(0, 1 << 40), st.integers(0, 1 << 40)), min_size=1, max_size=6),
    st.integers(1, 1 << 41),
)
def test_waves_reach_every_end_and_no_wave_is_much_larger_than_asked(
    spans: list[tuple[int, int]], size: int
) -> None:
    splits = [split(number, at, at + length) for number, (at, length) in enumerate(spans)]
    ends = [each.end_offset for each in splits]
    waves = 0
    size = max(size, -(-sum(map(offsets_left, splits)) // 20))  # at most some twenty waves
    size = max(size, 1)
    while any(map(offsets_left, splits)):
        cut = cut_wave(splits, size)
        read = sum(map(offsets_left, cut))
        assert 0 < read < size + len(splits)
        for before, after in zip(splits, cut, strict=True):
            assert offsets_left(after) > 0 or not offsets_left(before)
        splits = [
            msgspec.structs.replace(each, offset=each.end_offset or 0, end_offset=end)
            for each, end in zip(cut, ends, strict=True)
        ]
        waves += 1
    assert waves <= 21 + len(spans)
    assert [each.offset for each in splits] == ends


HOUR_MS = 3_600_000


def at_hours(*hours: list[int]) -> Callable[[int], dict[TopicPartition, int]]:
    """Kafka's index of timestamps for partitions whose records have these hours, in order."""

    def at_time(time_ms: int) -> dict[TopicPartition, int]:
        return {
            TopicPartition("t", number): next(
                (at for at, hour in enumerate(given) if hour * HOUR_MS >= time_ms), len(given)
            )
            for number, given in enumerate(hours)
        }

    return at_time


def ends(splits: Sequence[SourceSplit]) -> list[int | None]:
    return [each.end_offset for each in splits]


def test_wave_limited_by_time_ends_at_the_same_time_in_every_partition() -> None:
    index = at_hours([3, 3, 4, 9], [3, 7, 7], [12])
    splits = [split(0, 0, 4), split(1, 0, 3), split(2, 0, 1)]
    found: list[list[int | None]] = []
    while any(map(offsets_left, splits)):
        cut = limit_by_time(splits, index, HOUR_MS, now_ms=20 * HOUR_MS)
        found.append(ends(cut))
        splits = [
            msgspec.structs.replace(before, offset=after.end_offset or 0)
            for before, after in zip(splits, cut, strict=True)
        ]
    assert found == [[2, 1, 0], [3, 1, 0], [3, 3, 0], [4, 3, 0], [4, 3, 1]]


def test_records_with_future_timestamps_form_one_wave() -> None:
    splits = [split(0, 1, 3)]
    assert ends(limit_by_time(splits, at_hours([3, 99, 200]), HOUR_MS, now_ms=HOUR_MS)) == [3]


def test_wave_limited_by_time_stays_between_the_position_and_the_end_offset() -> None:
    """The index knows nothing of either."""
    index = at_hours([3] * 10, [5] * 10)
    splits = [split(0, 4, 6), split(1, 8, 8)]
    assert ends(limit_by_time(splits, index, HOUR_MS, now_ms=9 * HOUR_MS)) == [6, 8]
