"""What travels along channels: batches of records, and the control elements that stand between
them.

A `RecordBatch` is parallel columns, never a list of record objects of ours: the cost of an element
is paid once per batch. Every batch stems from one partition, so that one `TopicPartition` and a
column of offsets name the source record behind each value, wherever a step fails. Control elements
never overtake a batch of their channel and are never overtaken by one (invariant 6 of
ARCHITECTURE.md).

No behaviour lives here; alignment is in `checkpoint/alignment.py`, the loop in `dataplane/task.py`.
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
    `values[i]`. `keys`, where a sink asks for it, are the source records' own keys, as bytes. A
    batch belongs to whoever received it last; nobody changes one that was handed on.
    """

    values: list[Any]
    offsets: Sequence[int]
    origin: TopicPartition
    keys: list[bytes | None] | None = None

    def __len__(self) -> int:
        return len(self.values)


@dataclass(slots=True, frozen=True)
class Barrier:
    """Cuts a channel in two: what is before it belongs to the checkpoint, what follows does not.

    After a `final` barrier a source emits nothing more: the job ends with this checkpoint.
    """

    checkpoint: CheckpointId
    final: bool = False


@dataclass(slots=True, frozen=True)
class EndOfInput:
    """No record follows on this channel; barriers still may."""


StreamElement = RecordBatch | Barrier | EndOfInput
