"""A pipeline under test from its start to the end of the test, over crashes and checkpoints.

The run notes everything that the test does to the sources, in order. A checkpoint is a place in
this list, for each partition. A crash drops the attempt, builds another one from the checkpoint,
and does again what came after it: in the order of the test, or in a drawn one that keeps the order
of each partition. So the partitions are read again as Kafka would give them. The clock does not go
back: a job that starts again has lost time too.

The job knows a partition as soon as the test names it. A source with watermarks learns of a
partition as in a job, by a restart: the watermarks of its subtasks then do not depend on which of
them reads the partition.

Invariants: an element of a partition is processed completely before the next one of the same
partition. A checkpoint contains exactly the elements of each partition that its source had read.
"""

from __future__ import annotations

import random
import secrets
import shutil
import tempfile
import weakref
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Final, cast

from tidegate.api.connectors.kafka_names import consumer_group
from tidegate.api.connectors.kafka_source import KafkaSource
from tidegate.api.pipeline import Pipeline
from tidegate.checkpoint.manifest import Manifest
from tidegate.checkpoint.partition_offsets import PartitionOffsets
from tidegate.config import Config, JobSettings, StateSettings
from tidegate.dataplane.counters import Counters
from tidegate.drivers.memory.blob_store import MemoryBlobStore
from tidegate.errors import PipelineError
from tidegate.graph.key_groups import DEFAULT_MAX_PARALLELISM
from tidegate.graph.plan import plan
from tidegate.graph.stream_graph import StreamGraph
from tidegate.ids import JobName, Uid
from tidegate.ports.kafka import PartitionReader
from tidegate.protocol.subtask_snapshot import SourceSplit
from tidegate.stream_elements import TopicPartition, Watermark
from tidegate.testing.attempt import PipelineAttempt
from tidegate.testing.drivers import PipelineDrivers, VirtualClock
from tidegate.testing.pushed_records import (
    Partitions,
    PushedPartition,
    PushedReader,
    PushedRecord,
)
from tidegate.testing.slot_builder import TestedJob

POLL_INTERVAL_MS: Final = 100
"""The time between two polls while the clock moves. A longer pause counts as a slow step, which
makes no partition idle (`BETWEEN_S_MAX` of the source's watermarks).
"""

_CONFIG: Final = Config(
    state=StateSettings(backend="memory"),
    # No pause between two watermarks. In a job, the setting must be positive.
    job=JobSettings(watermark_interval=0),
)


@dataclass(frozen=True, slots=True)
class _Named:
    """The test has named a partition for the first time."""

    source: Uid
    of: TopicPartition


@dataclass(frozen=True, slots=True)
class _Pushed:
    """The test has pushed records into a partition."""

    source: Uid
    of: TopicPartition
    end: int
    """The number of records in the partition, with these."""


@dataclass(frozen=True, slots=True)
class _Marked:
    """The test has set the watermark of a partition, or made it idle."""

    source: Uid
    of: TopicPartition
    watermark: Watermark


@dataclass(frozen=True, slots=True)
class _Ended:
    """The test has ended a partition."""

    source: Uid
    of: TopicPartition


_Element = _Named | _Pushed | _Marked | _Ended
"""One thing that the test did to a partition of a source."""

_Place = tuple[Uid, TopicPartition]
"""A partition of a source."""


@dataclass(frozen=True, slots=True)
class _Checkpoint:
    """A completed checkpoint."""

    manifest: Manifest
    done: Mapping[_Place, int]
    """The number of elements of each partition that it contains."""


class PipelineRun:
    """A job in the calling thread."""

    def __init__(
        self,
        pipeline: type[Pipeline],
        params: Mapping[str, object],
        *,
        parallelism: int,
        now_ms: int,
        batch: int,
        seed: int,
        checkpoint_every: int = 0,
        shuffled_replay: bool = False,
    ) -> None:
        self._clock, self._batch = VirtualClock(now_ms), batch
        folder = Path(tempfile.gettempdir(), f"tidegate-test-{secrets.token_hex(8)}")
        # A test without a `with` block leaves no folder either.
        self._remove_folder = weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self.job = TestedJob(
            pipeline=pipeline,
            params=params,
            max_parallelism=pipeline.settings.max_parallelism or DEFAULT_MAX_PARALLELISM,
            config=_CONFIG,
            drivers=PipelineDrivers(self._clock, self._open_reader),
            blobs=MemoryBlobStore(),
            counters=Counters(),
            kept={},
            local=folder,
            draw=random.Random(seed) if seed else None,  # noqa: S311 - no secret
            piece=batch,
            checkpoint_every=checkpoint_every,
            on_checkpoint=self._note_checkpoint,
        )
        self._replay_draw = random.Random(seed) if shuffled_replay else None  # noqa: S311
        self._elements: list[_Element] = []
        self._applied: dict[_Place, list[_Element]] = defaultdict(list)
        """The elements of each partition that this attempt, or its checkpoint, contains."""
        self._checkpoint: _Checkpoint | None = None
        """The last checkpoint."""
        self._stopped = self._drained = self._begun = False
        self._attempts = 0
        self._partitions: dict[Uid, Partitions] = {}
        self._attempt = self._new_attempt(parallelism, None)
        self._sources = {
            Uid(node.id): cast("KafkaSource[Any]", node.declaration)
            for node in self._attempt.graph
            if node.kind == "source"
        }

    @property
    def graph(self) -> StreamGraph:
        """The graph of the pipeline."""
        return self._attempt.graph

    def name(self, source: Uid, of: TopicPartition) -> None:
        """Let the job know a partition, if it does not yet."""
        self._check_running()
        partition = self._partition(source, of)
        if not partition.named:
            others = [each for each in self._partitions[source].values() if each.named]
            if others and all(each.closed for each in others):
                raise PipelineError(
                    f"Source {source!r} has ended: the test has ended all of its partitions, so "
                    f"it reads no partition {of.partition}. Name each partition before that."
                )
            self._do(_Named(source, of))

    def push(self, source: Uid, of: TopicPartition, records: Sequence[PushedRecord]) -> None:
        """Process records of one partition."""
        self._check_open(source, of)
        self._begin()
        partition = self._partition(source, of)
        partition.records += records
        self._do(_Pushed(source, of, len(partition.records)))

    def next_position(self, source: Uid, of: TopicPartition) -> int:
        """Return the number of records that were pushed into a partition."""
        return len(self._partition(source, of).records)

    def set_watermark(self, source: Uid, of: TopicPartition, watermark: Watermark) -> None:
        """Set the watermark of a partition, or make the partition idle."""
        self._check_open(source, of)
        self._begin()
        self._do(_Marked(source, of, watermark))

    def watermark_of(self, source: Uid, of: TopicPartition) -> Watermark:
        """Return the watermark of a partition."""
        self.name(source, of)
        return self._attempt.watermark_of(source, of)

    def timed_partitions(self) -> list[tuple[Uid, TopicPartition]]:
        """Return the partitions of all sources with watermarks that have not ended."""
        self._check_running()
        self._begin()
        return [
            (uid, of)
            for uid, source in self._sources.items()
            if source.watermarks is not None
            for of, partition in self._partitions[uid].items()
            if partition.named and not partition.closed
        ]

    def end(self, source: Uid, of: TopicPartition) -> None:
        """End a partition."""
        self._check_open(source, of)
        self._begin()
        self._do(_Ended(source, of))

    def move_clock(self, span_ms: int) -> None:
        """Let processing time pass. Timers fire at their times, and quiet partitions become
        idle.
        """
        self._check_running()
        self._attempt.start()
        strategies = [source.watermarks for source in self._sources.values()]
        quiet_ms = max((each.idle_after_ms or 0 for each in strategies if each), default=0)
        passed_ms = 0
        while passed_ms < span_ms:
            # Long enough polls make a partition idle. Nothing depends on further ones.
            step_ms = POLL_INTERVAL_MS if passed_ms < quiet_ms else span_ms
            due_ms = self._attempt.next_processing_ms - self._clock.now_ms()
            step_ms = max(1, min(step_ms, span_ms - passed_ms, due_ms))
            self._clock.move(step_ms)
            self._attempt.settle()
            passed_ms += step_ms

    def checkpoint(self, *, final: bool = False) -> None:
        """Take a checkpoint, and commit what the sinks have written."""
        self._check_running()
        self._note_checkpoint(self._attempt.checkpoint(final=final))
        self._stopped = final

    def drain(self) -> None:
        """End the input of every source, and take the last checkpoint."""
        self._check_running()
        self._begin()
        for uid in self._sources:
            if not self._has_ended(uid):  # else it has drained
                self._attempt.end_source(uid)
        self._attempt.settle()
        self.checkpoint(final=True)
        self._drained = True

    def crash(self, parallelism: int | None) -> None:
        """Drop the attempt, restore the last checkpoint, and process again what came after it."""
        if self._drained:
            raise PipelineError(
                "The test has drained this job: all timers have fired, so no other run continues "
                "it. Use stop() in place of drain() for a job that starts again."
            )
        if parallelism is None:
            parallelism = self._attempt.parallelism
        plan(self.graph, parallelism, self.job.max_parallelism)  # raises before anything is lost
        self._attempt.close()
        checkpoint = self._checkpoint
        manifest = None if checkpoint is None else checkpoint.manifest
        for kept in self.job.kept.values():
            kept.withdraw()
        self._forget_partitions(manifest)
        self._stopped = False
        self._attempt = self._new_attempt(parallelism, manifest)
        self._replay({} if checkpoint is None else checkpoint.done)
        self._attempt.start()

    def close(self) -> None:
        """Close the functions of the pipeline, and remove the folder of local state."""
        try:
            self._attempt.close()
        finally:
            self._remove_folder()

    # --- elements -------------------------------------------------------------------------------

    def _do(self, element: _Element) -> None:
        self._elements.append(element)
        self._apply(element)

    def _replay(self, done: Mapping[_Place, int]) -> None:
        """Do again what the checkpoint does not contain."""
        self._applied.clear()
        left: list[_Element] = []
        for element in self._elements:
            place = element.source, element.of
            if len(self._applied[place]) < done.get(place, 0):
                self._applied[place].append(element)
            else:
                left.append(element)
        if self._replay_draw is None:
            for element in left:
                self._apply(element)
            return
        for moves, elements in groupby(left, key=lambda each: isinstance(each, _Pushed | _Marked)):
            if moves:
                self._replay_shuffled(list(elements), self._replay_draw)
            else:
                for element in elements:
                    self._apply(element)

    def _replay_shuffled(self, elements: Sequence[_Element], draw: random.Random) -> None:
        """Do these elements again in a drawn order that keeps that of each partition. Elements of
        several partitions are on their way at the same time.
        """
        queues: dict[_Place, deque[_Element]] = defaultdict(deque)
        for element in elements:
            queues[element.source, element.of].append(element)
        while queues:
            for place in draw.sample(list(queues), draw.randint(1, len(queues))):
                self._change(queues[place].popleft())
                if not queues[place]:
                    del queues[place]
            self._attempt.settle()

    def _apply(self, element: _Element) -> None:
        """Do what an element says, and process everything that follows from it."""
        self._change(element)
        if not isinstance(element, _Named):
            self._attempt.settle()

    def _change(self, element: _Element) -> None:
        """Do what an element says to its partition."""
        source, of, attempt = element.source, element.of, self._attempt
        partition = self._partition(source, of)
        if not isinstance(element, _Named):
            attempt.start()
        self._applied[source, of].append(element)
        match element:
            case _Named():
                partition.named = True
                self._add_partition(source, of)
            case _Pushed(end=end):
                partition.end = end
            case _Marked(watermark=watermark):
                attempt.set_watermark(source, of, watermark)
            case _Ended():
                partition.closed = True
                attempt.end_split(source, of, partition.end)
                if self._has_ended(source):
                    attempt.end_source(source)

    def _begin(self) -> None:
        """Give partition 0 to each source that tells time, and of which the test has named no
        partition, before the first element. A topic has a partition also if no process writes to
        it.
        """
        if self._begun:
            return
        self._begun = True
        for uid, source in self._sources.items():
            named = any(each.named for each in self._partitions.get(uid, {}).values())
            if self.graph.tells_time(uid) and not named:
                self._do(_Named(uid, TopicPartition(source.topic, 0)))

    def _add_partition(self, source: Uid, of: TopicPartition) -> None:
        attempt = self._attempt
        if not attempt.started or not self.graph.tells_time(source):
            topic, partition = of
            attempt.add_split(
                SourceSplit(source=source, topic=topic, partition=partition, offset=0)
            )
            return
        manifest = attempt.checkpoint()
        attempt.close()
        self._attempt = self._new_attempt(attempt.parallelism, manifest)
        self._attempt.start()

    def _has_ended(self, source: Uid) -> bool:
        named = [each for each in self._partitions.get(source, {}).values() if each.named]
        return bool(named) and all(each.closed for each in named)

    def _check_running(self) -> None:
        if self._stopped:
            raise PipelineError(
                "The test has drained this job, so it processes nothing more."
                if self._drained
                else "The test has stopped this job, so it processes nothing more. crash() starts "
                "it again, from the checkpoint with which it stopped."
            )

    def _check_open(self, source: Uid, of: TopicPartition) -> None:
        self.name(source, of)
        if self._partition(source, of).closed:
            raise PipelineError(
                f"The test has ended partition {of.partition} of source {source!r}, so nothing "
                "follows in it."
            )

    # --- checkpoints and attempts -----------------------------------------------------------------

    def _note_checkpoint(self, manifest: Manifest) -> None:
        """Note a completed checkpoint, and commit what was in front of its barriers."""
        splits = {(each.source, each.topic_partition): each for each in manifest.splits}
        done = {}
        for place, applied in self._applied.items():
            split = splits.get(place)
            offset = 0 if split is None else split.offset
            read = applied[:]
            while read and (
                split is None or (isinstance(last := read[-1], _Pushed) and last.end > offset)
            ):
                read.pop()
            done[place] = len(read)
        self._checkpoint = _Checkpoint(manifest, done)
        for kept in self.job.kept.values():
            kept.commit(manifest.checkpoint)

    def _new_attempt(self, parallelism: int, manifest: Manifest | None) -> PipelineAttempt:
        self._attempts += 1
        partitions = [
            PartitionOffsets(
                source=uid, topic=of.topic, partition=of.partition, start=0, earliest=0
            )
            for uid, known in self._partitions.items()
            for of, partition in known.items()
            if partition.named
        ]
        attempt = PipelineAttempt(self.job, self._attempts, parallelism, manifest, partitions)
        for uid in self._partitions:
            if self._has_ended(uid):
                attempt.end_source(uid)
        return attempt

    def _forget_partitions(self, manifest: Manifest | None) -> None:
        """Take the partitions back to a checkpoint. Their records are revealed again later."""
        splits = (
            {} if manifest is None else {(s.source, s.topic_partition): s for s in manifest.splits}
        )
        for uid, partitions in self._partitions.items():
            for of, partition in partitions.items():
                split = splits.get((uid, of))
                partition.named = split is not None
                partition.end = 0 if split is None else split.offset
                partition.closed = split is not None and split.end_offset is not None

    def _partition(self, source: Uid, of: TopicPartition) -> PushedPartition:
        return self._partitions.setdefault(source, {}).setdefault(of, PushedPartition())

    def _open_reader(self, group: str) -> PartitionReader:
        job = JobName(self._attempt.graph.name)
        uid = next(uid for uid in self._sources if consumer_group(job, uid) == group)
        return PushedReader(self._partitions[uid], self._batch)
