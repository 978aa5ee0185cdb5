"""One attempt of a pipeline under test: the subtasks of all slots, in the calling thread.

The subtasks are those of a job: `SubtaskBuilder` makes them, channels of different slots carry
encoded frames, barriers are aligned, and state is restored from snapshots. Other are only the
drivers (`drivers.py`), the exchange (`SlotExchange`), and the sinks (`kept_records.py`).

`settle` takes the place of the slots' loops. Subtasks and connections take turns, in an order that
the seed draws, until none has anything to do. With seed 0 they take turns in the order of the plan,
those behind before those in front, as in a slot.

A checkpoint may come by itself after some steps of subtasks. Its barriers then pass while records,
watermarks and pieces of bursts are on their way, as in a slot. Steps do not count meanwhile, so a
checkpoint leads to no other one.

Each slot builds the pipeline for itself, so subtasks share no function object. This module knows
neither pushes nor crashes (`run.py`). Invariant: between two calls, nothing is on its way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from msgspec.structs import replace

from tidegate.api.pipeline import build
from tidegate.checkpoint.manifest import Manifest, decode_manifest, encode_manifest, manifest_path
from tidegate.checkpoint.partition_offsets import PartitionOffsets
from tidegate.checkpoint.restore import RestorePlan, restore, slot_of_split
from tidegate.controlplane.journal.job_plan import state_metadata
from tidegate.dataplane.channels.slot_channels import SlotChannels
from tidegate.dataplane.engine import Engine
from tidegate.dataplane.source_task import SourceTask
from tidegate.dataplane.state.local_files import LocalStateFiles
from tidegate.dataplane.task import Task
from tidegate.dataplane.task_builder import SlotContext
from tidegate.errors import ExchangeError, InternalError, StorageError, check
from tidegate.graph.plan import plan
from tidegate.ids import (
    Attempt,
    CheckpointId,
    JobName,
    SubtaskId,
    SubtaskIndex,
    Uid,
    VertexId,
)
from tidegate.ports.drivers import Drivers
from tidegate.ports.exchange import Exchange, Frame, OnFrames, OnLost
from tidegate.protocol.messages import Deploy, RestoredState
from tidegate.protocol.submission import Submission
from tidegate.protocol.subtask_snapshot import SourceSplit, SubtaskSnapshot
from tidegate.stream_elements import Barrier, TopicPartition, Watermark
from tidegate.testing.drivers import WaitingWork
from tidegate.testing.slot_builder import PipelineSlotBuilder, TestedJob


class Connections:
    """The exchanges of all slots of an attempt, and the frames between them.

    The attempt delivers the frames, one by one and in any order of the connections. So a test can
    draw from which subtask another one receives first. As with sockets, the frames of one
    connection keep their order, and a receiver gets bytes and never the records themselves.
    """

    def __init__(self, slots: int) -> None:
        self.exchanges = [SlotExchange(self, ordinal) for ordinal in range(slots)]
        self._frames: dict[tuple[int, int], deque[Frame]] = {
            (sender, receiver): deque()
            for sender in range(slots)
            for receiver in range(slots)
            if sender != receiver
        }

    def pairs(self) -> list[tuple[int, int]]:
        """Return every connection, as sender and receiver."""
        return list(self._frames)

    def put(self, sender: int, receiver: int, frame: Frame) -> None:
        """Queue a frame."""
        self._frames[sender, receiver].append(frame)

    def deliver(self, sender: int, receiver: int) -> bool:
        """Deliver the oldest frame of a connection. Return False if no frame waits."""
        frames = self._frames[sender, receiver]
        if not frames:
            return False
        self.exchanges[receiver].receive(sender, [frames.popleft()])
        return True


class SlotExchange:
    """The `ports.exchange.Exchange` of one slot."""

    address = "in this process"

    def __init__(self, connections: Connections, ordinal: int) -> None:
        self._connections, self._ordinal = connections, ordinal
        self.receive: OnFrames = _no_receiver
        """The receiver of the frames for this slot, with the ordinal of their sender."""

    def connect(
        self,
        peers: Mapping[int, str],
        *,
        post: Callable[[Callable[[], None]], None],
        on_frames: OnFrames,
        on_lost: OnLost,
    ) -> None:
        """Note the receiver of the frames. Every peer is there, and none is ever lost."""
        del peers, post, on_lost
        self.receive = on_frames

    def send(self, peer: int, channel: int, payload: Sequence[bytes]) -> None:
        """Queue a frame for another slot."""
        self._connections.put(self._ordinal, peer, (channel, b"".join(payload)))

    def close(self) -> None:
        """Do nothing: the queues end with the attempt."""


def _no_receiver(peer: int, frames: list[Frame]) -> None:
    """Do nothing: the slot is not connected yet."""


if TYPE_CHECKING:
    _: Exchange = SlotExchange(Connections(1), 0)


BURST_MAX: Final = 4
"""The most turns in a row that a drawn subtask or connection takes. It is below the eight frames of
a channel, so some channels are full and some empty.
"""


class PipelineAttempt:
    """The subtasks of an attempt, from a checkpoint or from the start of the job."""

    def __init__(
        self,
        job: TestedJob,
        number: int,
        parallelism: int,
        manifest: Manifest | None,
        partitions: Sequence[PartitionOffsets],
    ) -> None:
        """Build, restore and open the subtasks. `partitions` are those that the job knows.

        Raise what a submit or a start raises, for example PipelineError.
        """
        self._job, self._number, self.parallelism = job, Attempt(number), parallelism
        self._work = WaitingWork()
        self._engine = Engine(job.drivers.threads, self._fail, self._work)
        self._failure: BaseException | None = None
        self._checkpoints = 0
        self._barrier: Barrier | None = None
        """The barrier that is on its way."""
        self._by_itself = False
        """Whether that barrier came by itself."""
        self._completed: Manifest | None = None
        """The last checkpoint that was asked for."""
        self._steps_left = self._draw_steps()
        """The steps of subtasks until a checkpoint comes by itself."""
        self._snapshots: dict[SubtaskId, SubtaskSnapshot] = {}
        self._started = False
        self._first_splits: dict[SubtaskId, tuple[SourceSplit, ...]] = {}
        """The splits with which each source task starts."""
        self.ended: set[SubtaskId] = set()
        """The subtasks that the end of the input has reached."""
        self.graph = build(job.pipeline, job.params)
        self._plan = plan(self.graph, parallelism, job.max_parallelism)
        self._metadata = state_metadata(self.graph, self._plan, job.config)
        restored = restore(manifest, self._metadata, partitions)
        self._connections = Connections(parallelism)
        self._builders: list[PipelineSlotBuilder] = []
        self._tasks: list[Task] = []
        """The subtasks of all slots, in the order in which they take turns."""
        for ordinal in range(parallelism):
            self._add_slot(ordinal, restored)
        self._turns = [partial(self._step, number) for number in range(len(self._tasks))] + [
            partial(self._connections.deliver, *pair) for pair in self._connections.pairs()
        ]
        for task in self._tasks:
            task.chain.set_piece(job.piece)
            task.chain.open()

    @property
    def started(self) -> bool:
        """Whether the sources read."""
        return self._started

    @property
    def next_processing_ms(self) -> int:
        """The time of the clock at which a step has something to do."""
        return min(task.chain.next_processing_ms for task in self._tasks)

    def start(self) -> None:
        """Let the sources read, if they do not yet."""
        if not self._started:
            self._started = True
            for source in self._sources():
                source.start()
            self.settle()

    def settle(self) -> None:
        """Run everything until no subtask has anything to do. Then check that the state could be
        stored.

        Raise what a subtask raises, for example UserCodeError, BadRecordError or StateValueError.
        """
        while self._turn() or self._turn_after_flush():
            pass
        for builder in self._builders:
            for state in builder.states:
                state.flush()

    def checkpoint(self, *, final: bool = False) -> Manifest:
        """Take a checkpoint of all subtasks, and return it as the storage would hold it."""
        self.start()
        self._completed = None
        self._begin_checkpoint(final=final)
        self.settle()
        check(self._completed is not None, "a barrier did not reach each subtask")
        return cast("Manifest", self._completed)

    def _begin_checkpoint(self, *, final: bool = False, by_itself: bool = False) -> None:
        self._checkpoints += 1
        self._by_itself = by_itself
        self._barrier = Barrier(CheckpointId(self._number, self._checkpoints), final=final)
        self._snapshots.clear()
        for source in self._sources():
            source.trigger(self._barrier)

    def _complete_checkpoint(self, barrier: Barrier) -> None:
        """Complete the checkpoint if all subtasks have acknowledged it."""
        if len(self._snapshots) < len(self._tasks):
            return
        manifest = self._manifest(barrier)
        self._barrier, self._steps_left = None, self._draw_steps()
        for task in self._tasks:
            task.checkpoint_completed(barrier.checkpoint, committed=(), reusable=())
        if self._by_itself:
            self._job.on_checkpoint(manifest)
        else:
            self._completed = manifest

    def _manifest(self, barrier: Barrier) -> Manifest:
        """Return the manifest as a restore reads it from the storage."""
        manifest = Manifest(
            job=JobName(self.graph.name),
            checkpoint=barrier.checkpoint,
            submission_id="",
            created_ms=self._job.drivers.clock.now_ms(),
            final=barrier.final,
            kafka_cluster="",
            fingerprint="",
            plan=self._metadata,
            subtasks=tuple(self._snapshots.values()),
        )
        path = manifest_path(manifest.job, barrier.checkpoint)
        return decode_manifest(encode_manifest(manifest), path)

    def set_watermark(self, uid: Uid, of: TopicPartition, watermark: Watermark) -> None:
        """Set the watermark of a partition."""
        watermarks = self._source_of(uid, of).watermarks
        check(watermarks is not None, f"source {uid!r} has no watermarks")
        watermarks.set(of, watermark)  # type: ignore[union-attr]

    def watermark_of(self, uid: Uid, of: TopicPartition) -> Watermark:
        """Return the watermark of a partition."""
        watermarks = self._source_of(uid, of).watermarks
        check(watermarks is not None, f"source {uid!r} has no watermarks")
        return watermarks.of(of)  # type: ignore[union-attr]

    def add_split(self, split: SourceSplit) -> None:
        """Let a source read one more partition."""
        task = self._source_of(split.source, split.topic_partition)
        self._replace(task, (*self._splits(task), split), ends_input=False)

    def end_split(self, uid: Uid, of: TopicPartition, offset: int) -> None:
        """End a partition at `offset`, up to which it is read."""
        task = self._source_of(uid, of)
        splits = tuple(
            replace(each, end_offset=offset, idle=each.idle or each.watermark_ms is None)
            if each.topic_partition == of
            else each
            for each in self._splits(task)
        )
        self._replace(task, splits, ends_input=False)

    def end_source(self, uid: Uid) -> None:
        """End the input of a source. Everything fires that waits for its watermark only."""
        for old in self._sources():
            if old.subtask.vertex == VertexId(uid):
                self._replace(old, self._splits(old), ends_input=True).drain()

    def close(self) -> None:
        """Close the subtasks. If one raises, the others are closed nevertheless."""
        with ExitStack() as closing:
            for task in self._tasks:
                closing.callback(task.close)

    # --- building -------------------------------------------------------------------------------

    def _add_slot(self, ordinal: int, restored: RestorePlan) -> None:
        job = self._job
        context = SlotContext(
            config=job.config,
            drivers=cast("Drivers", job.drivers),
            counters=job.counters,
            local=job.local / f"{self._number}-{ordinal}",
            earlier=LocalStateFiles(),
            engine=self._engine,
            checkpoint_responder=self,
            ends_input=False,
        )
        # User functions are objects of the graph, so each slot has its own graph, as a process has.
        graph = self.graph if ordinal == 0 else build(job.pipeline, job.params)
        deploy = self._deploy(ordinal, restored)
        builder = PipelineSlotBuilder(deploy, context, (job.pipeline, graph), job)
        channels = SlotChannels(
            self._plan,
            graph,
            ordinal=ordinal,
            initial_credit=job.config.exchange.credits,
            exchange=self._connections.exchanges[ordinal],
        )
        channels.connect([""] * self.parallelism, post=self._post, on_lost=_never_lost)
        self._builders.append(builder)
        self._tasks += builder.tasks(channels)
        for task in self._sources():
            if task.subtask.index == ordinal:
                splits = (s for s in deploy.splits if VertexId(s.source) == task.subtask.vertex)
                self._first_splits[task.subtask] = tuple(splits)

    def _deploy(self, ordinal: int, restored: RestorePlan) -> Deploy:
        job = self._job
        submission = Submission(
            job=JobName(self.graph.name),
            reference="",
            working_folder="",
            params={},
            parallelism=self.parallelism,
            max_parallelism=job.max_parallelism,
            settings={},
            fingerprint="",
            code_digest="",
            python_version="",
            tidegate_version="",
        )
        keyed = restored.keyed[ordinal]
        return Deploy(
            job=submission.job,
            attempt=self._number,
            ordinal=ordinal,
            journal_id="test",
            submission=submission,
            peers=(),
            splits=restored.splits[ordinal],
            restored={uid: RestoredState(snapshots=snapshots) for uid, snapshots in keyed.items()},
            transaction_timeout_ms=0,
            producer_pool_size=0,
            transactional_ids_per_subtask=0,
            watermarks=dict(restored.watermarks),
        )

    def _replace(
        self, old: SourceTask, splits: tuple[SourceSplit, ...], *, ends_input: bool
    ) -> SourceTask:
        """Put a task with other splits in place of a source task that has nothing left to do, and
        return it.
        """
        task = self._builders[old.subtask.index].other_source(old, splits, ends_input=ends_input)
        self._tasks[self._tasks.index(old)] = task
        self._first_splits[task.subtask] = splits
        old.reader.close()
        if self._started:
            task.start()
        return task

    def _splits(self, task: SourceTask) -> tuple[SourceSplit, ...]:
        """Return the splits of a source task, with its positions and the watermarks there."""
        if not self._started:
            return self._first_splits[task.subtask]
        splits = task.reader.snapshot()
        return splits if task.watermarks is None else task.watermarks.in_splits(splits)

    def _sources(self) -> list[SourceTask]:
        return [task for task in self._tasks if isinstance(task, SourceTask)]

    def _source_of(self, uid: Uid, of: TopicPartition) -> SourceTask:
        """Return the task of the subtask that reads a partition."""
        ordinal = slot_of_split(of.topic, of.partition, self.parallelism)
        subtask = SubtaskId(VertexId(uid), SubtaskIndex(ordinal))
        return next(task for task in self._sources() if task.subtask == subtask)

    # --- turns ----------------------------------------------------------------------------------

    def _turn(self) -> bool:
        """Let everything have its turn. Return whether there was anything to do."""
        mailbox = self._engine.mailbox
        worked = mailbox.has_posts()
        mailbox.run_posted()
        worked |= self._work.run_next()
        draw = self._job.draw
        if draw is None:
            for turn in self._turns:
                worked |= turn()
        else:
            for turn in draw.sample(self._turns, len(self._turns)):
                for _ in range(draw.randint(1, BURST_MAX)):
                    if not turn():
                        break
                    worked = True
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        if self._barrier is not None:
            self._complete_checkpoint(self._barrier)
        return worked

    def _turn_after_flush(self) -> bool:
        for task in self._tasks:
            task.flush()
        return self._turn()

    def _step(self, number: int) -> bool:
        worked = self._tasks[number].step(0.0)
        if worked and self._job.checkpoint_every and self._barrier is None:
            self._steps_left -= 1
            if self._steps_left <= 0:
                self._begin_checkpoint(by_itself=True)
        return worked

    def _draw_steps(self) -> int:
        """Return the steps until the next checkpoint that comes by itself."""
        every, draw = self._job.checkpoint_every, self._job.draw
        return every if draw is None or not every else draw.randint(1, 2 * every - 1)

    def _post(self, action: Callable[[], None]) -> None:
        self._engine.post(action, None)

    def _fail(self, error: BaseException, subtask: SubtaskId | None) -> None:
        del subtask
        self._failure = self._failure or error

    # --- reports of subtasks (CheckpointResponder) ------------------------------------------------

    def acknowledge(
        self,
        checkpoint: CheckpointId,
        snapshot: SubtaskSnapshot,
        *,
        alignment_ms: int,
        sync_ms: int,
    ) -> None:
        """Note the part of a subtask in the checkpoint."""
        del checkpoint, alignment_ms, sync_ms
        self._snapshots[SubtaskId(snapshot.vertex, snapshot.index)] = snapshot

    def decline(self, checkpoint: CheckpointId, subtask: SubtaskId, reason: str) -> None:
        """Fail, because the part of a subtask could not be stored."""
        self._fail(StorageError(f"Checkpoint {checkpoint} of {subtask}: {reason}"), subtask)

    def input_ended(self, subtask: SubtaskId) -> None:
        """Note that no record follows in a subtask."""
        self.ended.add(subtask)


def _never_lost(peer: int, error: ExchangeError) -> None:
    raise InternalError(f"slot {peer} of a pipeline test was lost: {error}")
