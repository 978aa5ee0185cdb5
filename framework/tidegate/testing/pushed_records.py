"""The partitions of a pipeline under test: the records that the test has pushed, as a log.

The real source reader reads them through `PushedReader`, a `ports.kafka.PartitionReader`. A
position counts the pushed records of its partition, from 0. It need not be the offset that a pushed
ConsumerRecord names.

A partition shows its records only up to `end`. After a crash the test takes `end` back to the
restored position, and reveals the records again in the order in which they were pushed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tidegate.api.connectors.kafka_records import Headers
from tidegate.ports.kafka import PartitionBatch, PartitionReader, Position
from tidegate.stream_elements import TopicPartition

_CREATE_TIME: Final = 1
"""The number with which the client library marks a timestamp that the producer has set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PushedRecord:
    """A record with the interface of the client library's messages."""

    topic_partition: TopicPartition
    of_value: bytes | None
    of_key: bytes | None
    of_headers: Headers
    at_offset: int
    timestamp_ms: int

    def value(self) -> bytes | None:
        return self.of_value

    def key(self) -> bytes | None:
        return self.of_key

    def offset(self) -> int:
        return self.at_offset

    def timestamp(self) -> tuple[int, int]:
        return _CREATE_TIME, self.timestamp_ms

    def headers(self) -> Any:
        return list(self.of_headers) or None


@dataclass(slots=True)
class PushedPartition:
    """The log of one partition. Records from `end` on cannot be read yet."""

    records: list[PushedRecord] = field(default_factory=list)
    end: int = 0
    named: bool = False
    """Whether the job knows the partition now. A crash takes this back too, and `closed`."""
    closed: bool = False
    """Whether the test has ended the partition, so that no record follows."""


Partitions = dict[TopicPartition, PushedPartition]
"""The partitions of one source."""


class PushedReader:
    """A reader of the partitions of one source. One poll returns everything that can be read, in
    batches of `batch` records. So a watermark follows all records of a push, whatever `batch` is.
    """

    def __init__(self, partitions: Partitions, batch: int) -> None:
        self._partitions, self._batch = partitions, batch
        self._next: dict[TopicPartition, int] = {}

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        self._next = dict(positions)

    def poll(self, max_records: int, timeout_s: float) -> list[PartitionBatch]:
        del max_records, timeout_s
        found = []
        for each, position in self._next.items():
            partition = self._partitions[each]
            for start in range(position, partition.end, self._batch):
                stop = min(start + self._batch, partition.end)
                found.append(PartitionBatch(each, partition.records[start:stop], stop))
        for each, _, stop in found:
            self._next[each] = stop
        return found

    def positions(self) -> dict[TopicPartition, Position]:
        return {each: Position(position, -1) for each, position in self._next.items() if position}

    def pause(self, topic_partitions: Sequence[TopicPartition]) -> None:
        for each in topic_partitions:
            self._next.pop(each, None)

    def high_watermarks(self) -> dict[TopicPartition, int]:
        return {each: self._partitions[each].end for each in self._next}

    def commit(self, positions: Mapping[TopicPartition, int], metadata: str = "") -> None:
        """Do nothing: no monitor reads the consumer group."""

    def connection_error(self) -> str:
        return ""

    def close(self) -> None:
        """Do nothing: the reader holds no connection."""


if TYPE_CHECKING:
    _: PartitionReader = PushedReader({}, 1)
