"""The plan of a backfill, which the command prints before it starts any work.

The planner reads Kafka and the checkpoint storage, and changes neither. The numbers of offsets are
exact. A topic may have fewer records, because transactions leave markers and compaction leaves
gaps. Bytes and times are estimated from a few records at the start and the end of each partition.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tidegate.api.connectors.sink import Sink
from tidegate.backfill.ends import To, choose_ends
from tidegate.backfill.refusals import (
    refuse_records_without_schema,
    refuse_unknown_steps,
    refuse_unread_sources,
)
from tidegate.checkpoint.partition_offsets import PartitionOffsets
from tidegate.commit.initial_offsets import read_initial_offsets
from tidegate.commit.journal.claimed import restore_point
from tidegate.commit.journal.reading import read_journal
from tidegate.commit.journal.state import JournalState
from tidegate.commit.publish import load_manifest
from tidegate.commit.timeouts import wave_timeout_ms
from tidegate.config import Config
from tidegate.controlplane.journal.effect_runner import run_read_only
from tidegate.controlplane.journal.split_enumeration import (
    enumerate_partitions,
    with_chosen_ends,
)
from tidegate.errors import KafkaError, RefusedError
from tidegate.graph.stream_graph import StreamGraph
from tidegate.ids import JobName, Uid
from tidegate.ports.blobs import BlobStore
from tidegate.ports.clock import Clock
from tidegate.ports.drivers import Drivers
from tidegate.ports.kafka import PartitionReader
from tidegate.protocol.submission import PartitionEnd, Submission
from tidegate.protocol.subtask_snapshot import SourceSplit
from tidegate.stream_elements import TopicPartition

SAMPLE_RECORDS: Final = 2_000
"""Maximum number of records of one poll for the sample."""
SAMPLE_TAIL: Final = 50
"""Number of offsets before an end that are read for the last timestamp. Some of them may hold
markers instead of records."""
SAMPLE_S: Final = 10.0

_log = logging.getLogger(__name__)

PartitionPositions = Mapping[tuple[Uid, str, int], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRange:
    """The offsets that the backfill reads in one partition."""

    source: Uid
    topic: str
    partition: int
    begin: int
    end: int
    """The offset after the last one to read."""
    hidden: int
    """Number of offsets behind `end` that an open transaction hides."""

    @property
    def offsets(self) -> int:
        """The number of offsets to read."""
        return max(0, self.end - self.begin)


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillPlan:
    """The work of a backfill: what it reads, in how many waves, and with which settings."""

    job: JobName
    submission: str
    continues: str
    """The checkpoint from which the backfill continues. Empty if it starts without state."""
    partitions: tuple[PartitionRange, ...]
    waves: int
    """The number of waves that `wave_records` alone requires. `wave_span_ms` may increase it."""
    wave_records: int
    wave_span_ms: int | None
    parallelism: int
    master: str
    transaction_timeout_ms: int
    at_least_once: tuple[str, ...]
    """Sinks that write records again when a wave is run again."""
    record_bytes: float | None = None
    """Mean size of key and value. None if no record was read."""
    first_ms: int | None = None
    last_ms: int | None = None

    @property
    def offsets(self) -> int:
        """The number of offsets to read in all partitions."""
        return sum(each.offsets for each in self.partitions)

    @property
    def hidden(self) -> int:
        """The number of offsets that open transactions hide in all partitions."""
        return sum(each.hidden for each in self.partitions)


@dataclass(slots=True)
class Sample:
    """The times and the total size of a few records."""

    first_ms: int | None = None
    last_ms: int | None = None
    records: int = 0
    size: int = 0

    def take(
        self,
        reader: PartitionReader,
        ends: Mapping[TopicPartition, int],
        clock: Clock,
        *,
        whole: bool,
    ) -> None:
        """Read until each partition is at its end. Without `whole`, one poll with records is enough
        for a partition. Stop after `SAMPLE_S` seconds in any case.
        """
        waiting, deadline_s = set(ends), clock.monotonic() + SAMPLE_S
        while waiting and clock.monotonic() < deadline_s:
            for run in reader.poll(SAMPLE_RECORDS, 0.2):
                for message in run.messages:
                    self._add(message.timestamp()[1], message.key(), message.value())
                if run.position >= ends[run.topic_partition] or (run.messages and not whole):
                    waiting.discard(run.topic_partition)

    def _add(self, time_ms: int, key: bytes | None, value: bytes | None) -> None:
        self.records += 1
        self.size += len(key or b"") + len(value or b"")
        if time_ms >= 0:
            self.first_ms = time_ms if self.first_ms is None else min(self.first_ms, time_ms)
            self.last_ms = time_ms if self.last_ms is None else max(self.last_ms, time_ms)


class Planner:
    """Plans a backfill of one job."""

    def __init__(
        self, graph: StreamGraph, config: Config, drivers: Drivers, storage: BlobStore
    ) -> None:
        self._graph, self._config = graph, config
        self._drivers, self._storage = drivers, storage

    def ends(self, job: JobName, to: To) -> tuple[PartitionEnd, ...]:
        """Return the ends that `--to` means now."""
        admin = self._drivers.kafka_admin(self._config.kafka.client_settings())
        try:
            found = enumerate_partitions(self._graph, self._config, job, admin, {}, bounded=True)
            return choose_ends(to, found, admin.at_time)
        finally:
            admin.close()

    def plan(self, submission: Submission) -> BackfillPlan:
        """Return the plan of a backfill of `submission`, whose ends are already chosen.

        Raise RefusedError for a step that waves cannot run, and in the cases in which a start of
        the job raises it. Raise KafkaError if the brokers do not answer.
        """
        refuse_unknown_steps(self._graph)
        refuse_records_without_schema(self._graph)
        state = run_read_only(self._storage, read_journal(submission.job))
        positions, continues = self._job_positions(state, submission)
        admin = self._drivers.kafka_admin(self._config.kafka.client_settings())
        try:
            found = enumerate_partitions(
                self._graph, self._config, submission.job, admin, {}, bounded=True
            )
            limit_ms = admin.transaction_max_timeout_ms()
        finally:
            admin.close()
        known = {source for source, _, _ in positions}
        refuse_unread_sources(self._graph, {offsets.source for offsets in found} - known)
        ranges = _ranges(with_chosen_ends(found, submission.ends), positions)
        settings, sample = self._config.backfill, self._sample(submission.job, ranges)
        offsets = sum(each.offsets for each in ranges)
        return BackfillPlan(
            job=submission.job,
            submission=submission.id,
            continues=continues,
            partitions=ranges,
            waves=-(-offsets // settings.wave_records),
            wave_records=settings.wave_records,
            wave_span_ms=settings.wave_span,
            parallelism=submission.parallelism,
            master=settings.master,
            transaction_timeout_ms=wave_timeout_ms(limit_ms, self._config.checkpoint),
            at_least_once=tuple(_at_least_once(self._graph)),
            record_bytes=sample.size / sample.records if sample.records else None,
            first_ms=sample.first_ms,
            last_ms=sample.last_ms,
        )

    def _job_positions(
        self, state: JournalState, submission: Submission
    ) -> tuple[PartitionPositions, str]:
        """Return the job's position in each partition, and the checkpoint that holds it."""
        point = restore_point(state, submission.id, submission.restore) if state.number else None
        if point is None:
            first = run_read_only(
                self._storage, read_initial_offsets(submission.job, submission.id)
            )
            return _partition_positions(first), ""
        manifest = run_read_only(self._storage, load_manifest(point))
        return _partition_positions(manifest.splits), str(point.checkpoint)

    def _sample(self, job: JobName, ranges: Sequence[PartitionRange]) -> Sample:
        sample = Sample()
        filled = [each for each in ranges if each.offsets]
        ends = {TopicPartition(each.topic, each.partition): each.end for each in filled}
        heads = {TopicPartition(each.topic, each.partition): each.begin for each in filled}
        tails = {
            TopicPartition(each.topic, each.partition): max(each.begin, each.end - SAMPLE_TAIL)
            for each in filled
        }
        for starts in (heads, tails) if filled else ():
            reader = self._drivers.partition_reader(
                self._config.kafka.client_settings(),
                f"tidegate.{job}.plan",
                with_end_of_partition=True,
            )
            try:
                reader.assign(starts)
                sample.take(reader, ends, self._drivers.clock, whole=starts is tails)
            except KafkaError as error:
                # For example, retention may have deleted the position. The restore reports this.
                _log.warning("bytes and times cannot be estimated: %s", error)
                return Sample()
            finally:
                reader.close()
        return sample


def refuse_passed_ends(to: To, partitions: Sequence[PartitionRange]) -> None:
    """Raise RefusedError if an offset of `--to` is before the job's position, because the backfill
    would read nothing there.
    """
    if not isinstance(to, Mapping):
        return
    for each in partitions:
        if each.end < each.begin:
            message = (
                f"--to ends partition {each.partition} of topic {each.topic!r} at offset"
                f" {each.end}, but the job has already read it up to {each.begin}. Give that offset"
                " or a later one. To read the topic again, add --restore none. It drops the state,"
                " and the output is written again."
            )
            raise RefusedError(message)


def _ranges(
    chosen: Sequence[PartitionOffsets], positions: PartitionPositions
) -> tuple[PartitionRange, ...]:
    return tuple(
        PartitionRange(
            source=offsets.source,
            topic=offsets.topic,
            partition=offsets.partition,
            begin=_begin(offsets, positions),
            end=offsets.end or 0,
            hidden=offsets.hidden,
        )
        for offsets in chosen
    )


def _begin(offsets: PartitionOffsets, positions: PartitionPositions) -> int:
    """Return the first offset that a restore reads. A partition that was added to a source is read
    from its earliest offset.
    """
    added = any(source == offsets.source for source, _, _ in positions)
    first = offsets.earliest if added else offsets.start
    return positions.get((offsets.source, offsets.topic, offsets.partition), first)


def _partition_positions(splits: Sequence[SourceSplit]) -> PartitionPositions:
    return {(split.source, split.topic, split.partition): split.offset for split in splits}


def _at_least_once(graph: StreamGraph) -> list[str]:
    return [
        node.id
        for node in graph
        if isinstance(node.declaration, Sink) and node.declaration.guarantee != "exactly_once"
    ]
