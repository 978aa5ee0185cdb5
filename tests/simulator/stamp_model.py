"""The watermarks of `with_timestamps`, as they follow from the records of each subtask.

A checkpoint has the watermark of the step in each subtask, and the offsets of the partitions that
the subtask reads. All subtasks begin an attempt with the watermark that the restored checkpoint
gives: the least of its subtasks that were not idle. From there the watermark of a subtask follows
exactly: it is that of the highest event time that the subtask has read in this attempt.

The step behind may have less: a full output takes the watermark only after the barrier.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tests.simulator.result_groups import Violation
from tests.simulator.timed_model import Sources
from tests.simulator.timed_pipelines import STAMP
from tidegate.protocol.subtask_snapshot import SubtaskSnapshot
from tidegate.stream_elements import MIN_MS, TopicPartition


@dataclass(frozen=True, slots=True)
class Stamp:
    """The watermark of the step in one subtask, in a checkpoint."""

    name: str
    watermark_ms: int
    idle: bool
    offsets: Mapping[TopicPartition, int]
    """The offsets of the partitions that the subtask reads."""


def stamps_of(subtasks: Iterable[SubtaskSnapshot]) -> tuple[Stamp, ...]:
    """Return the watermarks of the step in a checkpoint."""
    return tuple(
        Stamp(
            f"subtask {subtask.index}",
            MIN_MS if mark.watermark_ms is None else mark.watermark_ms,
            mark.idle,
            {split.topic_partition: split.offset for split in subtask.splits},
        )
        for subtask in subtasks
        for mark in subtask.watermarks
        if mark.uid == STAMP
    )


def combined_ms(stamps: Sequence[Stamp]) -> int:
    """Return the watermark with which all subtasks continue from a checkpoint."""
    active = [each.watermark_ms for each in stamps if not each.idle]
    every = [each.watermark_ms for each in stamps]
    return min(active) if active else max(every, default=MIN_MS)


def check_stamps(stamps: Sequence[Stamp], base: Sequence[Stamp], sources: Sources) -> None:
    """Check the watermarks of a checkpoint. `base` has those with which the attempt has begun.
    Raise Violation.
    """
    floor_ms = combined_ms(base)
    starts = {place: offset for each in base for place, offset in each.offsets.items()}
    for each in stamps:
        read = (
            sources.partitions[place].highest_ms(starts.get(place, 0), offset)
            for place, offset in each.offsets.items()
        )
        expected = max((floor_ms, *read))
        if each.watermark_ms != expected:
            message = (
                f"a checkpoint has the watermark {each.watermark_ms} of {STAMP}, {each.name}, "
                f"where {expected} follows from what it has read"
            )
            raise Violation(message)
