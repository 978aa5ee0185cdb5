"""The parts of a checkpoint: files of keyed state, positions of splits, and prepared transactions.

These structs travel in acknowledgements and are stored in manifests. Their JSON form is therefore
part of the disk format: fields are only ever added, with a default.
"""

from __future__ import annotations

from typing import Final

import msgspec

from tidegate.ids import SubtaskIndex, TransactionalId, Uid, VertexId
from tidegate.stream_elements import TopicPartition

KEY_TYPE: Final = ""
"""The name in `KeyedSnapshot.schemas` that holds the schema of the keys. No state has this name."""


class PreparedTransaction(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A transaction that was flushed and described as Ongoing at a barrier.

    Equal structs mean the same transaction. In Kafka, the id, the producer id, the epoch and the
    start time together identify one transaction permanently. In another system, the id and the
    handle do, and the other fields are empty or 0.
    """

    cluster_id: str
    transactional_id: TransactionalId
    producer_id: int
    epoch: int
    start_ms: int
    handle: str = ""
    """The text by which the coordinator of another system finds the transaction, for example a
    path. Only the writer and the coordinator of that system read it.
    """


class StateFile(msgspec.Struct, frozen=True, kw_only=True):
    """One immutable file of keyed state in the checkpoint storage."""

    name: str
    """The file's name in the state store's folder. A restore must use this name."""
    path: str
    """The path of the file, relative to the job's folder in the checkpoint storage."""
    size: int
    """The size in bytes."""
    sha256: str


class KeyedSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The keyed state of one step in one subtask."""

    uid: Uid
    backend: str
    """The format of the files: `rocksdb` or `memory`."""
    first_key_group: int
    last_key_group: int
    """The last key group, inclusive."""
    files: tuple[StateFile, ...]
    schemas: dict[str, list[str]]
    """The Avro schemas (JSON) per state name, by schema number, with number 0 first. `KEY_TYPE`
    holds the schema of the step's keys.
    """
    stored_names: dict[str, str] = msgspec.field(default_factory=dict)
    """The name that the rows of a state have in store keys, per state name. Only states whose
    stored name differs are listed.
    """
    watermark_ms: int | None = None
    """The watermark of the step at the barrier; None if it had none. Subtasks of a step differ only
    by what full outputs have held back.
    """


class StepWatermark(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The watermark of a step with its own time, in one subtask."""

    uid: Uid
    watermark_ms: int | None = None
    """The watermark at the barrier; None if the subtask had none."""
    idle: bool = False
    """Whether the subtask was idle at the barrier, so that the others did not wait for it."""


class SourceSplit(msgspec.Struct, frozen=True, kw_only=True):
    """A partition of a source, and the position up to which it was read."""

    source: Uid
    topic: str
    partition: int
    offset: int
    """The next offset to read. It is always a number, resolved before any checkpoint holds it."""
    end_offset: int | None = None
    """The offset at which a bounded run stops, exclusive."""
    topic_id: str = ""
    """Kafka's id of the topic (KIP-516). A topic of the same name that is created later has another
    id. Empty in checkpoints of earlier versions, and if the brokers have no topic ids.
    """
    leader_epoch: int = -1
    """The leader epoch of the last record before `offset` (KIP-101); -1 if it is not known."""
    watermark_ms: int | None = None
    """The watermark of the partition at the barrier; None if it had none."""
    idle: bool = False
    """Whether the partition was idle at the barrier, so that the watermark did not wait for it."""

    @property
    def topic_partition(self) -> TopicPartition:
        """Return the topic and the partition."""
        return TopicPartition(self.topic, self.partition)


class SubtaskSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a checkpoint that one subtask acknowledges.

    `transactions` holds every transaction that the subtask prepared and whose end has not been
    reported to it. Transactions of earlier checkpoints are included, because a failed checkpoint
    must not drop the transactions that were prepared for it.
    """

    vertex: VertexId
    index: SubtaskIndex
    keyed: tuple[KeyedSnapshot, ...] = ()
    splits: tuple[SourceSplit, ...] = ()
    transactions: tuple[PreparedTransaction, ...] = ()
    drained: bool = False
    """Whether the subtask is a source that has told the job that its input has ended, so that
    timers and windows fire before their time.
    """
    watermarks: tuple[StepWatermark, ...] = ()
    """The watermarks of the steps that have their own time."""
