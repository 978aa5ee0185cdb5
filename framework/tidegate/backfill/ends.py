"""Parses `--to`, the end of a backfill, and finds the offset that it means in each partition.

An end is never behind the last stable offset. Records behind that offset may belong to an open
transaction. They cannot be read, and the transaction may still be aborted. This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from tidegate.checkpoint.partition_offsets import PartitionOffsets
from tidegate.errors import ConfigError, RefusedError, check
from tidegate.protocol.submission import PartitionEnd
from tidegate.stream_elements import TopicPartition

NOW: Final = "now"

To = None | int | Mapping[tuple[str, int], int]
"""The parsed value of `--to`. None means all records that can be read now. A number is a time in
milliseconds since the epoch. A mapping has the offset of each topic and partition."""


def parse_to(text: str) -> To:
    """Parse the value of `--to`.

    Raise ConfigError unless it is `now`, a time, or a list `TOPIC/PARTITION=OFFSET,…`. The
    time has the format ISO 8601, and is in UTC if it names no zone.
    """
    if text == NOW:
        return None
    if "=" in text:
        return dict(map(_offset, text.split(",")))
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise _not_understood(text) from None
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    milliseconds = int(at.timestamp() * 1000)
    if milliseconds < 0:
        raise _not_understood(text)
    return milliseconds


def choose_ends(
    to: To,
    partitions: Sequence[PartitionOffsets],
    at_time: Callable[[list[TopicPartition], int], Mapping[TopicPartition, int]],
) -> tuple[PartitionEnd, ...]:
    """Return the end in each partition.

    Raise RefusedError if a mapping lacks a partition, names an unknown one, or has an offset that
    is not in the log.
    """
    if isinstance(to, Mapping):
        _refuse_unfit(to, partitions)
        found = {
            offsets.topic_partition: to[offsets.topic, offsets.partition] for offsets in partitions
        }
    elif to is None:
        found = {offsets.topic_partition: _latest(offsets) for offsets in partitions}
    else:
        found = dict(at_time([offsets.topic_partition for offsets in partitions], to))
    return tuple(
        PartitionEnd(
            source=offsets.source,
            topic=offsets.topic,
            partition=offsets.partition,
            offset=min(found[offsets.topic_partition], _latest(offsets)),
        )
        for offsets in partitions
    )


def _offset(text: str) -> tuple[tuple[str, int], int]:
    place, _, offset = text.strip().partition("=")
    topic, _, partition = place.rpartition("/")
    if not (topic and partition.isdecimal() and offset.isdecimal()):
        raise _not_understood(text)
    return (topic, int(partition)), int(offset)


def _refuse_unfit(
    to: Mapping[tuple[str, int], int], partitions: Sequence[PartitionOffsets]
) -> None:
    known = {(offsets.topic, offsets.partition) for offsets in partitions}
    for topic, partition in sorted(to.keys() - known):
        message = (
            f"--to names partition {partition} of topic {topic!r}, which no source of the pipeline"
            " reads. Remove it from --to."
        )
        raise RefusedError(message)
    for offsets in partitions:
        end = to.get((offsets.topic, offsets.partition))
        where = f"partition {offsets.partition} of topic {offsets.topic!r}"
        if end is None:
            message = (
                f"--to gives no offset for {where}. Give an offset for each partition. The present"
                f" offsets of this partition are {offsets.earliest} to {_latest(offsets)}."
            )
            raise RefusedError(message)
        if not offsets.earliest <= end <= _latest(offsets):
            message = (
                f"--to ends {where} at offset {end}, but the partition can be read only from"
                f" {offsets.earliest} to {_latest(offsets)}. Give an offset in this range."
            )
            raise RefusedError(message)


def _latest(offsets: PartitionOffsets) -> int:
    check(
        offsets.latest is not None, f"the end of {offsets.topic}-{offsets.partition} is not known"
    )
    return offsets.latest or 0


def _not_understood(text: str) -> ConfigError:
    return ConfigError(
        f"--to does not accept {text!r}. Write `now`, a time like 2026-01-31T12:00, or one offset"
        " for each partition, like orders/0=1000,orders/1=1200."
    )
