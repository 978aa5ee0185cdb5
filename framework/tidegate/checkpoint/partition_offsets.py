"""Kafka's data about the partitions of a job's sources when an attempt starts.

The JobMaster collects the data (`controlplane/journal/split_enumeration.py`). `restore` compares it
with a checkpoint, and `commit/initial_offsets.py` with the offsets that the submission has stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tidegate.ids import Uid
from tidegate.stream_elements import TopicPartition

StartKind = Literal["earliest", "latest", "timestamp", "group", "offset"]
"""The choice that gave the start of a partition. A timestamp and an offset come from
`starting_offsets=`.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionOffsets:
    """A partition of a source, as Kafka has it now."""

    source: Uid
    topic: str
    partition: int
    start: int
    """The offset at which a source that was never read begins."""
    earliest: int
    """The oldest offset that still exists. A new partition of a known source begins there."""
    end: int | None = None
    """The offset at which a bounded run stops; exclusive."""
    latest: int | None = None
    """The present end of the log for `read_committed` readers."""
    hidden: int = 0
    """The number of offsets behind `end` that an open transaction hides; only for a bounded run."""
    start_kind: StartKind = "earliest"
    """The choice that gave `start`. Only "earliest" follows the log when retention
    moves its start.
    """
    topic_id: str = ""
    """Kafka's id of the topic; empty if the brokers have no topic ids."""
    epoch_end: int | None = None
    """The offset at which the log of the checkpoint's leader epoch ends now. -1 if the leader does
    not know that epoch, None if the checkpoint has no epoch.
    """

    @property
    def topic_partition(self) -> TopicPartition:
        """The topic and the partition."""
        return TopicPartition(self.topic, self.partition)
