"""The elements that travel along channels: batches of records, and control elements between them.

A `RecordBatch` is a set of parallel columns, never a list of record objects, so the cost of an
element is paid once per batch. All records of a batch come from one partition. One `TopicPartition`
and a column of offsets therefore name the source record of each value, wherever a step fails. A
control element never overtakes a batch of its channel, and no batch overtakes a control element
(invariant 6 of ARCHITECTURE.md).

This module has no behaviour. Alignment is in `checkpoint/alignment.py`, and the loop is in
`dataplane/task.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tidegate.ids import CheckpointId


class TopicPartition(NamedTuple):
    """The partition that a batch's records were read from."""

    topic: str
    partition: int


@dataclass(slots=True)
class RecordBatch:
    """Records of one partition, in order.

    `values` and `offsets` are parallel: `offsets[i]` is the offset of the source record that led to
    `values[i]`. `keys` holds the keys of the source records as bytes, if a sink needs them. A batch
    belongs to the component that received it last. No other component changes it.
    """

    values: list[Any]
    offsets: Sequence[int]
    topic_partition: TopicPartition
    keys: list[bytes | None] | None = None

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


StreamElement = RecordBatch | Barrier | EndOfInput
