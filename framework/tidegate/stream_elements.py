"""The elements that travel along channels: batches of records, and control elements between them.

A `RecordBatch` is a set of parallel columns, never a list of record objects, so the cost of an
element is paid once per batch. All records of a batch come from one partition. One `TopicPartition`
and a column of offsets therefore name the source record of each value, wherever a step fails. The
results of a timer or a window come from no single record, and have no partition. A control
element never overtakes a batch of its channel, and no batch overtakes a control element
(invariant 6 of ARCHITECTURE.md).

This module has no behaviour. `dataplane/columns.py` cuts and selects batches. Alignment is in
`checkpoint/alignment.py`, and the loop is in `dataplane/input_task.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from tidegate.ids import CheckpointId


class TopicPartition(NamedTuple):
    """The partition that a batch's records were read from."""

    topic: str
    partition: int


NO_OFFSET: Final = -1
"""The offset of a result that no single record led to."""


@dataclass(slots=True)
class RecordBatch:
    """Records of one partition, in order.

    The columns are parallel: `offsets[i]` is the offset of the source record that led to
    `values[i]`. `keys` holds the keys of the source records as bytes, if a sink needs them.
    `timestamps_ms` holds the event times in milliseconds since the Unix epoch, if the source
    declares event time. `topic_partition` is None, and each offset is NO_OFFSET, for results that
    no single record led to. A batch belongs to the component that received it last. No other
    component changes it.
    """

    values: list[Any]
    offsets: Sequence[int]
    topic_partition: TopicPartition | None
    keys: list[bytes | None] | None = None
    timestamps_ms: list[int] | None = None

    def __len__(self) -> int:
        return len(self.values)


@dataclass(slots=True, frozen=True)
class Barrier:
    """A marker that cuts a channel in two. Elements before it belong to the checkpoint, and
    elements after it do not.

    After a `final` barrier a source emits nothing more: the job ends with this checkpoint.
    """

    checkpoint: CheckpointId
    final: bool = False


@dataclass(slots=True, frozen=True)
class EndOfInput:
    """The end of the records on this channel. Barriers may still follow."""


MIN_MS: Final = -(1 << 63)
"""The watermark of a channel that has not said anything yet. It is before every event time."""

NEVER: Final = 1 << 63
"""The next time of something for which no time is set. It is after every time and watermark."""

MAX_MS: Final = (1 << 63) - 1
"""The watermark of a channel on which no record comes any more. It is after every event time. No
checkpoint stores it.
"""


@dataclass(slots=True, frozen=True)
class Watermark:
    """The progress of event time on a channel.

    No record with an event time of `timestamp_ms` or earlier is expected. An `idle` channel has no
    records now, and the receiver does not wait for it.
    """

    timestamp_ms: int
    idle: bool = False


Control = Barrier | EndOfInput | Watermark
"""An element that carries no records."""
StreamElement = RecordBatch | Control
