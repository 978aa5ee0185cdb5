"""The cut of a wave: the offset at which the wave ends in each partition.

The waves of a backfill go through all partitions together, so that the topics of a job advance as
they would in a live job. Each wave takes the same share of the remaining offsets of every
partition. A wave can also be limited to a span of the records' time. The module is pure.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction

import msgspec

from tidegate.errors import check
from tidegate.protocol.subtask_snapshot import SourceSplit
from tidegate.stream_elements import TopicPartition


def offsets_left(split: SourceSplit) -> int:
    """Return the number of offsets up to the split's end, including markers and gaps."""
    check(
        split.end_offset is not None, f"the split {split.topic_partition} of a backfill has no end"
    )
    return max(0, (split.end_offset or 0) - split.offset)


def cut_wave(splits: Sequence[SourceSplit], wave_offsets: int) -> tuple[SourceSplit, ...]:
    """Return the splits with the ends of the next wave, which has about `wave_offsets` offsets in
    all. Each partition rounds its share up, so every wave reads something in every partition that
    has offsets left.
    """
    check(wave_offsets > 0, "a wave reads at least one offset")
    left = sum(map(offsets_left, splits))
    share = Fraction(min(wave_offsets, left), left) if left else Fraction(1)
    return tuple(
        msgspec.structs.replace(split, end_offset=split.offset + _share(split, share))
        for split in splits
    )


def _share(split: SourceSplit, share: Fraction) -> int:
    return min(offsets_left(split), -int(-offsets_left(split) * share // 1))


def limit_by_time(
    splits: Sequence[SourceSplit],
    at_time: Callable[[int], Mapping[TopicPartition, int]],
    span_ms: int,
    now_ms: int,
) -> tuple[SourceSplit, ...]:
    """Return the splits with their ends at the next multiple of `span_ms` that leaves something to
    read.

    `at_time` returns the first offset of each partition at or after a time in ms, from Kafka's
    index of timestamps; it is called about twenty times. Records with timestamps in the future form
    a last part of their own.
    """

    def limited(number: int) -> tuple[SourceSplit, ...]:
        offsets = at_time(number * span_ms)
        return tuple(
            msgspec.structs.replace(
                split,
                end_offset=min(
                    max(split.offset, offsets[split.topic_partition]),
                    split.offset + offsets_left(split),
                ),
            )
            for split in splits
        )

    parts = range(1, now_ms // span_ms + 2)
    found = bisect_left(parts, True, key=lambda number: any(map(offsets_left, limited(number))))
    return limited(parts[found]) if found < len(parts) else tuple(splits)
