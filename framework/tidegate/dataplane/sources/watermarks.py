"""The watermark of one source subtask, from the watermarks of its partitions.

Each partition has a generator of the declared strategy. It sees the records when they are emitted,
not when they are read, so a watermark never overtakes a record. The source task asks for the
combined watermark at an interval, and directly before every barrier.

A partition becomes idle if it was read to the end that the broker last reported, and nothing came
for `idle_after`. Only time in which the task asked for records counts: a step that takes long, or a
sink that holds the task back, says nothing about the partition (FLINK-35886).

A partition that was idle at the checkpoint is active after a restore, until it is known to be still
at its end. Records may have come meanwhile, and the others must not run ahead of them.

A partition that is read to the end of its split keeps its watermark and holds back the others. The
next wave, or the next run, continues behind that end. If a split begins at its end, and is idle
there (`checkpoint/restore.py` says when), then it is idle from the start.

Invariant: the watermarks of partitions, and whether they are idle, are in the splits of every
checkpoint. A restored source starts with them, before its first record.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

import msgspec

from tidegate.api.time.watermarks import WatermarkStrategy
from tidegate.dataplane.counters import Counters
from tidegate.dataplane.time.generated import GeneratedWatermark
from tidegate.dataplane.time.valve import WatermarkValve
from tidegate.errors import check
from tidegate.ids import Uid
from tidegate.protocol.subtask_snapshot import SourceSplit
from tidegate.stream_elements import MIN_MS, RecordBatch, TopicPartition, Watermark

BETWEEN_S_MAX: Final = 0.1
"""The longest time between two polls, in seconds, that counts as time in which the task asked for
records.
"""
POLL_S_MAX: Final = 0.3
"""The longest time within a poll, in seconds, that counts. A slot waits for 0.2 s at most; a longer
poll means that the process was stopped or decoded for long.
"""
LOOK_S: Final = 0.1
"""Seconds between two looks at which partitions are read to their end."""


class SourceWatermarks:
    """The watermarks of the partitions of one source in one subtask."""

    def __init__(
        self,
        strategy: WatermarkStrategy[Any],
        uid: Uid,
        splits: Sequence[SourceSplit],
        counters: Counters,
    ) -> None:
        """Register the partitions, with the watermarks of the checkpoint that is restored."""
        self._strategy = strategy
        self._indexes = {split.topic_partition: n for n, split in enumerate(splits)}
        idles = strategy.idle_after_ms is not None
        restored = [_restored(split, idles=idles) for split in splits]
        self._generated = [
            GeneratedWatermark(strategy, f"Source {uid!r}", counters, each.timestamp_ms)
            for each in restored
        ]
        self._valve = WatermarkValve(restored)
        self._was_idle = [split.idle and idles for split in splits]
        """Whether each partition was idle at the checkpoint, and was not looked at since."""
        self._quiet_s = [0.0] * len(splits)
        self._polled_s: float | None = None
        """Monotonic time in seconds at which the last poll ended."""
        self._looked_s = -LOOK_S

    def observe(self, batch: RecordBatch) -> None:
        """Note a batch that is emitted now. UserCodeError if the user's strategy raises."""
        check(
            batch.topic_partition is not None and batch.timestamps_ms is not None,
            "a source with watermarks reads records with event times",
        )
        index = self._indexes[batch.topic_partition]  # type: ignore[index]
        self._quiet_s[index], self._was_idle[index] = 0.0, False
        generated = self._generated[index]
        generated.observe(batch.values, batch.timestamps_ms)  # type: ignore[arg-type]
        before = self._valve.of(index)
        if generated.watermark_ms > before.timestamp_ms or before.idle:
            self._valve.offer(index, Watermark(generated.watermark_ms))

    def polled(
        self,
        began_s: float,
        ended_s: float,
        got: Collection[TopicPartition | None],
        at_end: Callable[[], set[TopicPartition]],
    ) -> None:
        """Note a poll, with the monotonic times of its begin and end, that has returned records of
        the partitions `got`. `at_end` returns the partitions that are read to the end that the
        broker last reported.
        """
        if self._strategy.idle_after_ms is None:
            return
        between_s = 0.0 if self._polled_s is None else min(began_s - self._polled_s, BETWEEN_S_MAX)
        self._polled_s = ended_s
        asked_s = min(ended_s - began_s, POLL_S_MAX) + between_s
        for topic_partition, index in self._indexes.items():
            self._quiet_s[index] += asked_s
            if topic_partition in got:
                self._quiet_s[index], self._was_idle[index] = 0.0, False
        if ended_s - self._looked_s < LOOK_S:
            return
        self._looked_s = ended_s
        self._look(at_end(), self._strategy.idle_after_ms)

    def _look(self, at_end: Collection[TopicPartition], idle_after_ms: int) -> None:
        for topic_partition, index in self._indexes.items():
            if topic_partition not in at_end:
                self._quiet_s[index] = 0.0
            elif self._was_idle[index] or round(self._quiet_s[index] * 1000) >= idle_after_ms:
                self._was_idle[index] = False
                self._valve.offer(index, Watermark(MIN_MS, idle=True))

    def current(self) -> Watermark:
        """Return the combined watermark of all partitions."""
        return self._valve.combined

    def of(self, topic_partition: TopicPartition) -> Watermark:
        """Return the watermark of one partition."""
        return self._valve.of(self._indexes[topic_partition])

    def set(self, topic_partition: TopicPartition, watermark: Watermark) -> None:
        """Set the watermark of a partition without a record, or make it idle. A pipeline test does
        so. A watermark that goes back changes only whether the partition is idle.
        """
        index = self._indexes[topic_partition]
        if watermark.timestamp_ms > self._valve.of(index).timestamp_ms:
            self._generated[index].resume(watermark.timestamp_ms)
        self._valve.offer(index, watermark)

    def slowest(self) -> TopicPartition | None:
        """Return the partition that holds the watermark back; None if all are idle."""
        found = self._valve.slowest()
        return next((each for each, index in self._indexes.items() if index == found), None)

    def in_splits(self, splits: Sequence[SourceSplit]) -> tuple[SourceSplit, ...]:
        """Return the splits with the watermarks of their partitions, for a checkpoint."""
        return tuple(self._in_split(split) for split in splits)

    def _in_split(self, split: SourceSplit) -> SourceSplit:
        own = self._valve.of(self._indexes[split.topic_partition])
        stored_ms = None if own.timestamp_ms == MIN_MS else own.timestamp_ms
        idle = own.idle or self._was_idle[self._indexes[split.topic_partition]]
        return msgspec.structs.replace(split, watermark_ms=stored_ms, idle=idle)


def _restored(split: SourceSplit, *, idles: bool) -> Watermark:
    is_read = split.end_offset is not None and split.offset >= split.end_offset
    return Watermark(
        MIN_MS if split.watermark_ms is None else split.watermark_ms,
        idle=idles and split.idle and is_read,
    )
