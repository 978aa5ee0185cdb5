"""What a checkpoint consists of: files of keyed state, positions of splits, prepared transactions.

These structs travel in acknowledgements and stand in manifests, so their JSON form is part of the
disk format: fields are only ever added, with a default.
"""

from __future__ import annotations

from typing import Final

import msgspec

from tidegate.ids import SubtaskIndex, TransactionalId, Uid, VertexId
from tidegate.stream_elements import TopicPartition

KEY_TYPE: Final = ""
"""The name in `KeyedSnapshot.schemas` that holds the schema of the keys. No state has this name."""


class PreparedTransaction(msgspec.Struct, frozen=True, kw_only=True):
    """A transaction that was flushed and described as Ongoing at a barrier.

    Equal structs are the same transaction: id, producer id, epoch and start time together name one
    transaction for ever.
    """

    cluster_id: str
    transactional_id: TransactionalId
    producer_id: int
    epoch: int
    start_ms: int


class StateFile(msgspec.Struct, frozen=True, kw_only=True):
    """One immutable file of keyed state in the checkpoint storage."""

    name: str
    """The file's name in the state store's folder, as a restore must lay it out."""
    path: str
    """Where it is, relative to the job's folder in the checkpoint storage."""
    size: int
    """Bytes."""
    sha256: str


class KeyedSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The keyed state of one step in one subtask."""

    uid: Uid
    backend: str
    """`rocksdb` or `memory`: how the files are to be read."""
    first_key_group: int
    last_key_group: int
    """Inclusive."""
    files: tuple[StateFile, ...]
    schemas: dict[str, list[str]]
    """Per state name: the Avro schemas (JSON), by schema number; number 0 first. Under
    `KEY_TYPE`: the schema of the step's keys.
    """
    stored_names: dict[str, str] = msgspec.field(default_factory=dict)
    """Per state name: the name that its rows have in store keys, where that is another one."""


class SourceSplit(msgspec.Struct, frozen=True, kw_only=True):
    """A partition of a source and how far it was read."""

    source: Uid
    topic: str
    partition: int
    offset: int
    """The next offset to read: always a number, resolved before any checkpoint holds it."""
    end_offset: int | None = None
    """Where a bounded run stops; exclusive."""
    topic_id: str = ""
    """Kafka's id of the topic (KIP-516), which a topic of the same name that is created later does
    not have. Empty in checkpoints of earlier versions and where the brokers have no topic ids.
    """
    leader_epoch: int = -1
    """The leader epoch of the last record before `offset` (KIP-101); -1 where it is not known."""

    @property
    def origin(self) -> TopicPartition:
        """Topic and partition."""
        return TopicPartition(self.topic, self.partition)


class SubtaskSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What one subtask acknowledges with.

    `transactions` holds every transaction that the subtask prepared and was not told is ended, not
    only this checkpoint's: a checkpoint that failed must not drop what was prepared for it.
    """

    vertex: VertexId
    index: SubtaskIndex
    keyed: tuple[KeyedSnapshot, ...] = ()
    splits: tuple[SourceSplit, ...] = ()
    transactions: tuple[PreparedTransaction, ...] = ()
