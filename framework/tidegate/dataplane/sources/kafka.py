"""The Kafka source of one subtask: it reads splits into batches, and its positions into snapshots.

`task.SourceTask` drives the source in the mailbox thread. The JobMaster has decided before which
splits the source reads and where they start, so every start offset is a number. The source never
moves an offset back or forward by itself. It commits to a consumer group only so that lag monitors
show its progress.

Invariant: for each split, `snapshot` states the offset after the last record that `poll` has
returned, or that the source's policy has refused. If markers and aborted records follow, it states
the offset after those. A barrier that is injected after all these records were emitted therefore
separates exactly there. The offset must not stay in front of a marker: on an idle partition, the
retention may delete the marker. A restart would then be refused for records that never existed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tidegate.api.connectors.kafka_names import consumer_group
from tidegate.api.connectors.kafka_sink import dead_letter_sink_name
from tidegate.api.connectors.kafka_source import KafkaSource
from tidegate.commit.lost_tail import commit_metadata
from tidegate.dataplane.sources.decoding import NO_TIMESTAMP, BatchDecoder, timestamp_ms
from tidegate.dataplane.subtask_context import SubtaskContext
from tidegate.errors import InternalError, check
from tidegate.ids import CheckpointId, Uid
from tidegate.ports.kafka import PartitionBatch, PartitionReader, RawRecord
from tidegate.protocol.subtask_snapshot import SourceSplit
from tidegate.stream_elements import RecordBatch, TopicPartition

BATCH_RECORDS: Final = 250
"""Number of records of one poll, for each subtask that may get a part. Each part has fixed costs.

A small record takes about a kilobyte while it is processed, as message, value, result and bytes. So
many records stay in a core's second-level cache from one column of the batch to the next. With
1000, a running total cost the slot a tenth more CPU, and the decoding in it a third more. Below
200, the fixed costs become noticeable.
"""

BATCH_RECORDS_MAX: Final = 1000
"""Maximum number of records of one poll, for any number of subtasks. With cheap steps this takes
about 2 ms, and no barrier waits longer than that.
"""


class KafkaSourceReader:
    """The reader of the splits of one source in one subtask.

    With `keep_keys`, batches carry the records' own keys, as bytes, in addition to their values.
    `receivers` is the number of subtasks among which the next exchange splits a batch.
    """

    def __init__(
        self,
        source: KafkaSource[Any],
        uid: Uid,
        context: SubtaskContext,
        *,
        keep_keys: bool = False,
        receivers: int = 1,
    ) -> None:
        self._source, self._uid, self._context = source, uid, context
        self._poll_records = min(BATCH_RECORDS * receivers, BATCH_RECORDS_MAX)
        self._decoder = BatchDecoder(
            source,
            uid,
            context.counters,
            keep_keys=keep_keys,
            dead_letter_bytes_max=context.record_bytes_max(
                dead_letter_sink_name(uid), source.dead_letter_topic or "", {}
            ),
        )
        self._reader: PartitionReader | None = None
        self._splits: dict[TopicPartition, SourceSplit] = {}
        self._next: dict[TopicPartition, int] = {}
        self._epochs: dict[TopicPartition, int] = {}
        self._unfinished: set[TopicPartition] = set()
        self._last_message: RawRecord | None = None

    def limit_polls(self, share: float) -> None:
        """Read at most this share of a full poll at a time."""
        self._poll_records = max(1, round(self._poll_records * share))

    def open(self, splits: Sequence[SourceSplit]) -> None:
        """Start to read; call this once. Splits that are already at their end are not read.

        A subtask without splits has no consumer: it would cost threads and connections.
        """
        check(self._reader is None, "a source is opened once")
        if not splits:
            return
        self._splits = {split.topic_partition: split for split in splits}
        check(len(self._splits) == len(splits), "a partition is assigned to a subtask twice")
        self._next = {split.topic_partition: split.offset for split in splits}
        self._epochs = {split.topic_partition: split.leader_epoch for split in splits}
        self._unfinished = {
            split.topic_partition
            for split in splits
            if split.end_offset is None or split.offset < split.end_offset
        }
        self._reader = self._context.drivers.partition_reader(
            self._context.connector_kafka(self._source.properties, self._configured),
            consumer_group(self._context.job, self._uid),
            with_end_of_partition=any(split.end_offset is not None for split in splits),
        )
        self._reader.assign(
            {
                topic_partition: at
                for topic_partition, at in self._next.items()
                if topic_partition in self._unfinished
            }
        )

    def poll(self, timeout_s: float) -> list[RecordBatch]:
        """Return the records of one poll, as a batch per run of one partition. Wait for the first
        record, at most `timeout_s`.

        Raise KafkaError if the reader fails, and BadRecordError for a record that the policy does
        not let pass.
        """
        if not self._unfinished:
            return []
        batches = []
        for run in self._open_reader().poll(self._poll_records, timeout_s):
            if run.topic_partition not in self._unfinished:
                continue  # it was fetched before its partition was paused
            messages = self._within_split(run)
            if messages:
                self._last_message = messages[-1]
                batch = self._decoder.decode(run.topic_partition, messages)
                if batch.values:
                    batches.append(batch)
        return batches

    def take_dead_letters(self) -> list[RecordBatch]:
        """Return the records that the last polls refused: batches of ProducerRecord with raw bytes
        and provenance.
        """
        letters, self._decoder.dead_letters = self._decoder.dead_letters, []
        return letters

    def last_timestamp_ms(self) -> int:
        """Return Kafka's timestamp of the last record that was read, in ms; -1 if it has no
        timestamp.
        """
        return NO_TIMESTAMP if self._last_message is None else timestamp_ms(self._last_message)

    def finished(self) -> bool:
        """Return whether all splits have reached their ends.

        The position decides this, because a transaction's marker or aborted records at the tail are
        not records. A subtask without splits is finished from the start.
        """
        return not self._unfinished

    def at_end(self) -> set[TopicPartition]:
        """Return the partitions that are read to the end that the broker last reported. A marker or
        an aborted record behind the last record does not count as unread.
        """
        if self._reader is None:
            return set()
        ends, positions = self._reader.high_watermarks(), self._reader.positions()
        return {
            each
            for each in self._unfinished & ends.keys()
            if max(self._next[each], positions[each].offset if each in positions else 0)
            >= ends[each]
        }

    def snapshot(self) -> tuple[SourceSplit, ...]:
        """Return each split with the next offset to read."""
        self._update_positions()
        return tuple(
            SourceSplit(
                source=self._uid,
                topic=split.topic,
                partition=split.partition,
                offset=self._next[topic_partition],
                end_offset=split.end_offset,
                topic_id=split.topic_id,
                leader_epoch=self._epochs[topic_partition],
            )
            for topic_partition, split in self._splits.items()
        )

    def commit(self, splits: Sequence[SourceSplit], checkpoint: CheckpointId) -> None:
        """Commit the positions of a completed checkpoint to the consumer group, with the
        checkpoint's id.

        The call never waits. It may fail without an error.
        """
        self._open_reader().commit(
            {split.topic_partition: split.offset for split in splits},
            commit_metadata(self._context.journal_id, checkpoint),
        )

    def lag(self) -> int | None:
        """Return the number of records up to the newest known ends, including control records.
        Return None while the ends are not known, and 0 without splits.
        """
        reader, unfinished = self._reader, self._unfinished
        if reader is None:
            return 0
        ends = reader.high_watermarks()
        if not ends.keys() >= unfinished:
            return None
        return sum(
            max(0, self._end(topic_partition, ends[topic_partition]) - self._next[topic_partition])
            for topic_partition in unfinished
        )

    def connection_error(self) -> str:
        """Return why the source cannot read, as a sentence that names it; empty if it can."""
        error = "" if self._reader is None else self._reader.connection_error()
        return f"Source {self._uid!r} cannot read: {error}" if error else ""

    def close(self) -> None:
        """Close the consumer, if it was opened."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def _update_positions(self) -> None:
        """Update the leader epochs, and move the positions past control and aborted records.

        For a split with an end, the runs that `poll` returns move the position.
        """
        positions = self._open_reader().positions() if self._splits else {}
        for topic_partition, position in positions.items():
            if position.leader_epoch >= 0:
                self._epochs[topic_partition] = position.leader_epoch
            if self._splits[topic_partition].end_offset is None:
                self._next[topic_partition] = max(self._next[topic_partition], position.offset)

    def _within_split(self, run: PartitionBatch) -> Sequence[RawRecord]:
        """Return the run's messages before the split's end, and store the position."""
        topic_partition, messages, position = run
        end = self._splits[topic_partition].end_offset
        if end is None or position < end:
            self._next[topic_partition] = position
            return messages
        self._next[topic_partition] = end
        self._unfinished.discard(topic_partition)
        self._open_reader().pause([topic_partition])
        if messages and messages[-1].offset() >= end:
            return [message for message in messages if message.offset() < end]
        return messages

    def _end(self, topic_partition: TopicPartition, known: int) -> int:
        end = self._splits[topic_partition].end_offset
        return known if end is None else min(known, end)

    @property
    def _configured(self) -> Mapping[str, str]:
        return self._context.config.source(self._uid).properties

    def _open_reader(self) -> PartitionReader:
        if self._reader is None:
            message = f"source {self._uid!r} is used before it is opened"
            raise InternalError(message)
        return self._reader
