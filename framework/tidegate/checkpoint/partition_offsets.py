"""What Kafka says of the partitions of a job's sources when an attempt starts.

Collected by the JobMaster (`controlplane/jobmaster/split_enumeration`), compared with what a
checkpoint or the submission has stored (`restore`, `procedures/beginnings`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tidegate.ids import Uid
from tidegate.stream_elements import TopicPartition

StartKind = Literal["earliest", "latest", "timestamp", "group", "offset"]
"""How the start of a partition was chosen: a timestamp and an offset are those of `start=`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionOffsets:
    """A partition of a source as Kafka has it now."""

    source: Uid
    topic: str
    partition: int
    start: int
    """Where a source that was never read begins."""
    earliest: int
    """The oldest offset that is still there; where a new partition of a known source begins."""
    end: int | None = None
    """Where a bounded run stops; exclusive."""
    latest: int | None = None
    """The present end of the log for `read_committed` readers."""
    hidden: int = 0
    """Of a bounded run: offsets behind `end` that an open transaction hides."""
    start_kind: StartKind = "earliest"
    """How `start` was chosen. Only "earliest" may follow the log when retention moves its start."""
    topic_id: str = ""
    """Kafka's id of the topic; empty where the brokers have no topic ids."""
    epoch_end: int | None = None
    """Where the log of the checkpoint's leader epoch ends now: -1 where the leader does not know
    that epoch, None where the checkpoint has none.
    """

    @property
    def origin(self) -> TopicPartition:
        """Topic and partition."""
        return TopicPartition(self.topic, self.partition)
