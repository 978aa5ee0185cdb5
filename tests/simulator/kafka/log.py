"""One partition: a log of records and markers by offset, and the producers that may write to it.

Each record belongs to a span: the records that one producer wrote into this partition in one
transaction. A marker ends the span. The marker decides for all records of the span at once whether
readers see them. The last stable offset is the first offset of the oldest open span, as in Kafka.

Only records that are read are copied. The cost of a read or a write is proportional to the records
that it returns or appends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from tests.simulator.kafka.faults import BrokerError, Code
from tidegate.stream_elements import TopicPartition

CREATE_TIME: Final = 1
"""The number with which the client library marks a timestamp that the producer has set."""


class Record(NamedTuple):
    """A record as a producer sends it."""

    value: bytes | None
    key: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    timestamp_ms: int


class Span:
    """The records of one producer in one partition and one transaction, from offset `first` on.

    Without a transaction, a span holds the records of one batch.
    """

    __slots__ = ("first", "hidden", "producer")

    def __init__(
        self, first: int, *, hidden: bool = False, producer: tuple[int, int] | None = None
    ) -> None:
        self.first = first
        self.producer = producer
        """Producer id and epoch."""
        self.hidden = hidden
        """Whether `read_committed` readers skip the span. They never reach an open span."""


_CONTROL: Final = Span(0, hidden=True)


class StoredRecord:
    """A record in the log, with the accessors of the client library's messages."""

    __slots__ = ("_offset", "_record", "span")

    def __init__(self, record: Record, offset: int, span: Span) -> None:
        self._record = record
        self._offset = offset
        self.span = span

    def value(self) -> bytes | None:
        return self._record.value

    def key(self) -> bytes | None:
        return self._record.key

    def offset(self) -> int:
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        return CREATE_TIME, self._record.timestamp_ms

    def headers(self) -> list[tuple[str, bytes]] | None:
        found = self._record.headers
        return list(found) if found else None  # type: ignore[arg-type]  # null values are real


class Marker:
    """A control record that ends a transaction in this partition."""

    __slots__ = ("commit", "epoch", "producer_id", "timestamp_ms")

    span = _CONTROL

    def __init__(self, producer_id: int, epoch: int, timestamp_ms: int, *, commit: bool) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.timestamp_ms = timestamp_ms
        self.commit = commit


class _Writer:
    """The leader's state of a producer id: its epoch and the next sequence number."""

    __slots__ = ("epoch", "sequence")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.sequence = 0


class PartitionLog:
    """The log of one partition. `message_bytes_max` is the max.message.bytes of the topic."""

    def __init__(self, topic_partition: TopicPartition, message_bytes_max: int) -> None:
        self.topic_partition = topic_partition
        self.start = 0
        """First offset that retention has kept: the log start offset."""
        self.message_bytes_max = message_bytes_max
        self._entries: list[StoredRecord | Marker] = []
        self._open: dict[int, Span] = {}
        self._writers: dict[int, _Writer] = {}
        #: Leader epochs, each with the end of the log when its leader was elected.
        self._epochs: list[tuple[int, int]] = [(0, 0)]

    @property
    def leader_epoch(self) -> int:
        """Epoch of the current leader."""
        return self._epochs[-1][0]

    def elect(self, end: int | None = None) -> None:
        """Elect a new leader. With `end`, the election is unclean: the new log ends there."""
        if end is not None and end < self.end:
            self._truncate(end)
        self._epochs.append((self._epochs[-1][0] + 1, self.end))

    def epoch_at(self, offset: int) -> int:
        """Return the leader epoch of the entry at an offset; -1 if there is no such entry."""
        if not 0 <= offset < self.end:
            return -1
        return max(epoch for epoch, start in self._epochs if start <= offset)

    def epoch_end(self, epoch: int) -> int:
        """Return the end offset of the entries up to an epoch; -1 if the epoch is newer than the
        leader's.
        """
        if epoch > self.leader_epoch:
            return -1
        return min((start for each, start in self._epochs if each > epoch), default=self.end)

    def _truncate(self, end: int) -> None:
        """Remove the entries from `end` on, and correct the state of the producers."""
        del self._entries[end:]
        self._epochs = [(epoch, start) for epoch, start in self._epochs if start <= end]
        self._open = {each: span for each, span in self._open.items() if span.first < end}
        for producer_id, writer in self._writers.items():
            writer.sequence = sum(
                isinstance(entry, StoredRecord)
                and entry.span.producer == (producer_id, writer.epoch)
                for entry in self._entries
            )

    @property
    def end(self) -> int:
        """The high watermark: the offset of the next record."""
        return len(self._entries)

    @property
    def last_stable(self) -> int:
        """First offset of the oldest open transaction, or the end if no transaction is open."""
        # A span begins at the end of the log, so the first one opened is the first in the log.
        for span in self._open.values():
            return span.first
        return len(self._entries)

    def append(
        self,
        producer_id: int,
        epoch: int,
        sequence: int,
        records: Sequence[Record],
        *,
        is_open: Callable[[], bool] | None,
    ) -> None:
        """Append a batch, unless it was appended before. Raise BrokerError if it is refused.

        `is_open` is given for transactional batches. It asks the coordinator whether the
        transaction includes this partition. As in a real leader, the log calls it only for the
        first batch of a transaction.
        """
        if any(size_of(record) > self.message_bytes_max for record in records):
            raise BrokerError(Code.MESSAGE_TOO_LARGE)
        writer = self._writers.get(producer_id)
        if writer is not None and epoch < writer.epoch:
            raise BrokerError(Code.INVALID_PRODUCER_EPOCH)
        expected = writer.sequence if writer is not None and epoch == writer.epoch else 0
        if sequence < expected:
            return
        if sequence > expected:
            raise BrokerError(Code.OUT_OF_ORDER_SEQUENCE_NUMBER)
        span = self._open.get(producer_id)
        if is_open is None:
            span = Span(self.end, producer=(producer_id, epoch))
        elif span is None:
            if not is_open():
                raise BrokerError(Code.INVALID_TXN_STATE)
            span = self._open[producer_id] = Span(self.end, producer=(producer_id, epoch))
        if writer is None or writer.epoch != epoch:
            writer = self._writers[producer_id] = _Writer(epoch)
        writer.sequence += len(records)
        self._entries += [
            StoredRecord(record, offset, span) for offset, record in enumerate(records, self.end)
        ]

    def mark(self, producer_id: int, epoch: int, timestamp_ms: int, *, commit: bool) -> None:
        """End a transaction in this partition. The marker takes an offset even without records."""
        writer = self._writers.get(producer_id)
        if writer is None or writer.epoch < epoch:
            self._writers[producer_id] = _Writer(epoch)
        self._entries.append(Marker(producer_id, epoch, timestamp_ms, commit=commit))
        span = self._open.pop(producer_id, None)
        if span is not None and not commit:
            span.hidden = True

    def read(self, position: int, records_max: int) -> tuple[list[StoredRecord], int]:
        """Return the records of a `read_committed` fetch from `position`, and the next position.

        Raise BrokerError(OFFSET_OUT_OF_RANGE) for an offset that is not in the log.
        """
        if not self.start <= position <= self.end:
            raise BrokerError(Code.OFFSET_OUT_OF_RANGE)
        found: list[StoredRecord] = []
        entries, end = self._entries, self.last_stable
        while position < end and len(found) < records_max:
            entry = entries[position]
            if not entry.span.hidden:
                found.append(entry)  # type: ignore[arg-type]  # markers are hidden
            position += 1
        return found, position

    def everything(self) -> Sequence[StoredRecord | Marker]:
        """Return all entries by offset, including aborted and open records.

        Checkers and tests use it. They must not change the result.
        """
        return self._entries

    def at_time(self, timestamp_ms: int) -> int | None:
        """Return the first offset below the last stable offset whose timestamp is at or after a
        time, or None.
        """
        for offset in range(self.start, self.last_stable):
            entry = self._entries[offset]
            at_ms = entry.timestamp_ms if isinstance(entry, Marker) else entry.timestamp()[1]
            if at_ms >= timestamp_ms:
                return offset
        return None


def size_of(record: Record) -> int:
    """Return the approximate size of a record in bytes: key, value and overhead of the format."""
    return len(record.value or b"") + len(record.key or b"") + 70
