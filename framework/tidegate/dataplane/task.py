"""A subtask: the loop body that the slot's mailbox thread runs, one batch at a time.

`SourceTask` reads splits. `InputTask` reads channels through the alignment machine. Both push
batches through an `OperatorChain`, and both take their part of a checkpoint in the same way
(`_Subtask.take_snapshot`). Sinks begin to prepare, keyed state is frozen, and the barrier goes
downstream. The subtask acknowledges when everything that it handed to I/O threads is durable.

Timers and windows that are due fire in pieces, one in each step. Meanwhile the subtask takes no
records. It takes a barrier between two pieces, and the snapshot holds what has not fired. A final
barrier waits for what is due, as long as the outputs can take it: so the results of a run that has
read its input do not depend on its last piece.

Invariants: nothing is consumed between the last barrier of a checkpoint and its snapshot. Nothing
is emitted between the snapshot and the barrier downstream. A subtask whose outputs cannot take more
reads no records and fires nothing. `step` never blocks, except that a source may wait up to
`timeout_s` for records.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from tidegate.checkpoint.alignment import (
    Alignment,
    AlignmentInstruction,
    Block,
    ChannelInputEnded,
    TakeSnapshot,
    Unblock,
)
from tidegate.dataplane.final_wait import FinalWait
from tidegate.dataplane.operators.chain import OperatorChain
from tidegate.dataplane.pending_snapshot import PendingSnapshot
from tidegate.dataplane.sources.emission import WatermarkEmission
from tidegate.dataplane.sources.watermarks import SourceWatermarks
from tidegate.dataplane.subtask_context import SubtaskContext
from tidegate.dataplane.task_interfaces import CheckpointResponder, Gate, Reader
from tidegate.dataplane.time.valve import WatermarkValve
from tidegate.errors import check
from tidegate.graph.stream_graph import DEAD_LETTERS
from tidegate.ids import CheckpointId, TransactionalId
from tidegate.protocol.subtask_snapshot import (
    SourceSplit,
    SubtaskSnapshot,
)
from tidegate.stream_elements import (
    MAX_MS,
    MIN_MS,
    Barrier,
    EndOfInput,
    RecordBatch,
    StreamElement,
    Watermark,
)


class _Subtask:
    """The common part of source tasks and input tasks: the chain and the snapshot."""

    def __init__(
        self,
        context: SubtaskContext,
        chain: OperatorChain,
        checkpoint_responder: CheckpointResponder,
    ) -> None:
        self.context, self.chain, self._checkpoint_responder = context, chain, checkpoint_responder
        self.subtask = context.subtask
        self._final_wait = FinalWait(chain, self._now)

    def step(self, timeout_s: float) -> bool:
        """Process one batch. Return False if there was nothing to do."""
        raise NotImplementedError

    def trigger(self, barrier: Barrier) -> None:
        """Inject a barrier (sources only)."""

    def due_in_s(self) -> float:
        """Return the seconds until the clock gives the subtask something to do; infinity if it does
        not, or if the outputs cannot take the results now.
        """
        return self.chain.due_in_s() if self.chain.writable() else math.inf

    def slowest_watermark(self) -> tuple[int, str] | None:
        """Return the least watermark of the steps with their own time, and the name of the step.
        None if the subtask has no such step, or if it is idle.
        """
        marks = [mark for mark in self.chain.step_watermarks() if not mark.idle]
        return min(
            (
                (
                    MIN_MS if mark.watermark_ms is None else mark.watermark_ms,
                    f"{mark.uid}: subtask {self.subtask.index}",
                )
                for mark in marks
            ),
            default=None,
        )

    def _fire(self) -> bool:
        """Fire one piece of what is due. Return whether there was any."""
        fires = self.chain.firing
        if fires:
            self.chain.fire()
        return fires

    def flush(self) -> None:
        """Send the records that record writers hold back to fill their frames."""
        for record_writer in self.chain.record_writers:
            record_writer.flush()

    def checkpoint_completed(
        self,
        checkpoint: CheckpointId,
        *,
        committed: Sequence[TransactionalId],
        reusable: Sequence[TransactionalId],
    ) -> None:
        """Handle a checkpoint that is published and committed.

        The subtask no longer reports the transactions in `committed` in its acknowledgements. It
        may use the ids in `reusable` again, because the journal no longer lists them.
        """
        for sink in self.chain.sinks.values():
            sink.ended(committed, checkpoint)
            sink.freed(reusable)

    def checkpoint_aborted(self, checkpoint: CheckpointId) -> None:
        """Handle a checkpoint that was declined or has expired. What is prepared stays so."""

    def close(self) -> None:
        """Close the user's functions and the clients that may be closed."""
        self.chain.close()

    def take_snapshot(
        self,
        barrier: Barrier,
        splits: tuple[SourceSplit, ...] = (),
        alignment_ms: int = 0,
        *,
        drained: bool = False,
    ) -> None:
        """Take the synchronous part of a snapshot. The acknowledgement follows when the rest is
        durable.
        """
        started = self._now()
        pending_snapshot = PendingSnapshot(
            parts=1 + len(self.chain.sinks) + len(self.chain.keyed),
            splits=splits,
            watermarks=self.chain.step_watermarks(),
            alignment_ms=alignment_ms,
            drained=drained,
            done=lambda completed_snapshot: self._acknowledge(
                barrier.checkpoint, completed_snapshot
            ),
        )
        for sink in self.chain.sinks.values():
            sink.prepare(
                barrier.checkpoint, pending_snapshot.transactions_prepared, final=barrier.final
            )
        for state in self.chain.keyed.values():
            state.snapshot(
                pending_snapshot.state_stored,
                lambda reason: self._checkpoint_responder.decline(
                    barrier.checkpoint, self.subtask, reason
                ),
            )
        for record_writer in self.chain.record_writers:
            record_writer.emit_control(barrier)
        pending_snapshot.sync_phase_done(round((self._now() - started) * 1000))

    def _acknowledge(self, checkpoint: CheckpointId, completed_snapshot: PendingSnapshot) -> None:
        snapshot = SubtaskSnapshot(
            vertex=self.subtask.vertex,
            index=self.subtask.index,
            keyed=tuple(completed_snapshot.keyed),
            splits=completed_snapshot.splits,
            transactions=tuple(completed_snapshot.transactions),
            drained=completed_snapshot.drained,
            watermarks=completed_snapshot.watermarks,
        )
        self._checkpoint_responder.acknowledge(
            checkpoint,
            snapshot,
            alignment_ms=completed_snapshot.alignment_ms,
            sync_ms=completed_snapshot.sync_ms,
        )

    def _now(self) -> float:
        """Return the monotonic time in seconds."""
        return self.context.drivers.clock.monotonic()

    def _end_output(self) -> None:
        for record_writer in self.chain.record_writers:
            record_writer.emit_control(EndOfInput())
        self._checkpoint_responder.input_ended(self.subtask)


class SourceTask(_Subtask):
    """A subtask that reads splits and injects the barriers that the JobMaster triggers."""

    def __init__(
        self,
        context: SubtaskContext,
        chain: OperatorChain,
        checkpoint_responder: CheckpointResponder,
        reader: Reader,
        splits: Sequence[SourceSplit],
        *,
        ends_input: bool = True,
        drains: bool = False,
        fires: bool = False,
        input_over: bool = False,
        watermarks: SourceWatermarks | None = None,
        tells_time: bool = False,
    ) -> None:
        """Create the task. Without `ends_input` it sends no EndOfInput at the end of its splits.

        The next wave then continues the input, and only `has_ended` reports that the splits are
        read. With `drains`, all timers and windows fire at the end of the input; `fires` says
        whether the job has any. With `input_over` the task reads nothing, because the restored
        checkpoint was taken during a stop with a drain. `watermarks` has the watermarks of the
        splits, if the source declares a strategy. With `tells_time`, a source without a strategy
        also tells the steps behind that it has no splits, and that time ends.
        """
        super().__init__(context, chain, checkpoint_responder)
        self._ends_input, self._drains, self._fires = ends_input, drains or input_over, fires
        self._input_over = input_over
        """Whether nothing more is read: `drain` was called, or an earlier attempt has drained."""
        self._output_ended = False
        self.reader, self._splits = reader, splits
        self._emit = chain.from_source()
        self._emit_dead_letters = chain.from_source(DEAD_LETTERS)
        self._pending: deque[RecordBatch] = deque()
        self._barriers: deque[Barrier] = deque()
        self._started = self._ended = self._final = False
        self._snapshots: dict[CheckpointId, tuple[SourceSplit, ...]] = {}
        self.watermarks = watermarks
        interval_ms = 0 if watermarks is None else context.config.job.watermark_interval
        self._emission = WatermarkEmission(watermarks, interval_ms)
        self._tells_time = tells_time or watermarks is not None
        self._has_to_tell = tells_time and watermarks is None and not splits
        """Whether the steps behind do not know yet that the source has no splits."""

    def start(self) -> None:
        """Start to read. At this time every slot is ready, and the transactions that older attempts
        left at the broker are fenced.
        """
        if not self._started:
            self._started = self.chain.reading = True
            self.reader.open(self._splits)

    def has_ended(self) -> bool:
        """Return whether the task has read its splits to their ends."""
        return self._ended

    def reads(self) -> bool:
        """Return whether a step might read now, so that it makes sense to wait for records."""
        over = self._ended or self._input_over or self._final
        idle = not (self._pending or self._barriers or over)
        return self._started and idle and self.chain.writable() and not self.chain.firing

    def lag(self) -> int | None:
        """Return the number of records between the position and the ends of the partitions, None if
        unknown.
        """
        return self.reader.lag() if self._started else None

    def slowest_watermark(self) -> tuple[int, str] | None:
        """Return the least watermark of the source and of the steps with their own time, and the
        partition or the step that holds it back. None if there are no watermarks, or if all
        partitions and steps are idle.
        """
        of_steps = super().slowest_watermark()
        slowest = None if self.watermarks is None else self.watermarks.slowest()
        if self.watermarks is None or slowest is None:
            return of_steps
        where = f"{self.subtask.vertex}: {slowest.topic}-{slowest.partition}"
        own = self.watermarks.current().timestamp_ms, where
        return own if of_steps is None else min(own, of_steps)

    def connection_error(self) -> str:
        """Return why the source cannot read, as a sentence; empty if it can."""
        return self.reader.connection_error()

    def due_in_s(self) -> float:
        """Return the seconds until a watermark, a timer or a window is due by the clock."""
        if not self.reads():
            return math.inf
        return min(super().due_in_s(), self._emission.due_s() - self._now())

    def trigger(self, barrier: Barrier) -> None:
        """Queue a barrier. The task injects it between two batches, after the records that it
        already read.
        """
        self._barriers.append(barrier)

    def drain(self) -> None:
        """End the input here. All timers and windows fire, and then the output ends."""
        self._input_over = self._drains = True

    def step(self, timeout_s: float) -> bool:
        """Inject a barrier, fire what is due, emit a batch that was read, or read."""
        if not self._started:
            return False
        if self._barriers and not self._pending:
            return self._pass_barrier()
        if self._final or not self.chain.writable():
            return False
        if self._fire() or (not self._output_ended and self._advance_time()):
            return True
        if self._pending:
            self.context.counters.batches += 1
            batch = self._pending.popleft()
            if self.watermarks is not None:
                self.watermarks.observe(batch)
            self._emit(batch)
            return True
        if self._now() >= self._emission.due_s():
            self._emit_watermark()
            if self.chain.firing:
                return True
        if self._ended or self._input_over:
            return self._end()
        self._read(timeout_s)
        return bool(self._pending) or self._ended

    def checkpoint_completed(
        self,
        checkpoint: CheckpointId,
        *,
        committed: Sequence[TransactionalId],
        reusable: Sequence[TransactionalId],
    ) -> None:
        """Do what every subtask does, and commit the positions to the consumer group, for lag
        monitors.
        """
        super().checkpoint_completed(checkpoint, committed=committed, reusable=reusable)
        splits = self._snapshots.pop(checkpoint, None)
        if splits:
            self.reader.commit(splits, checkpoint)

    def checkpoint_aborted(self, checkpoint: CheckpointId) -> None:
        """Drop the checkpoint's positions, which are not committed."""
        self._snapshots.pop(checkpoint, None)

    def close(self) -> None:
        """Close the chain, then the consumer."""
        super().close()
        self.reader.close()

    def _advance_time(self) -> bool:
        """Emit what is due by the clock. Or tell the steps behind, once, that the source has no
        splits. Return whether there was anything to do.
        """
        if self.chain.advance_processing_time():
            return True
        due, self._has_to_tell = self._has_to_tell, False
        if due:
            self.chain.advance(Watermark(MIN_MS, idle=True))
        return due

    def _read(self, timeout_s: float) -> None:
        if self.watermarks is None:
            batches = self.reader.poll(timeout_s)
        else:
            began_s = self._now()
            batches = self.reader.poll(timeout_s)
            got = {batch.topic_partition for batch in batches}
            self.watermarks.polled(began_s, self._now(), got, self.reader.at_end)
        for batch in self.reader.take_dead_letters():
            self._emit_dead_letters(batch)
        for batch in batches:
            self.context.counters.records_in += len(batch)
        self._pending.extend(batches)
        if not self._pending and self.reader.finished():
            self._ended = True

    def _end(self) -> bool:
        """End the output, after everything has fired if the input drains. Return whether there was
        anything to do.
        """
        self._ended, self.chain.reading = True, False
        if not self._ends_input or self._output_ended:
            return False
        if not self._drains:
            self._emit_watermark()  # what is due fires before the end
            self.chain.emit_watermarks()
            if self.chain.firing:
                return True
        if self._drains and self._tells_time and not self._emission.has_drained:
            self.chain.advance(self._emission.take_end())
            return True
        self._output_ended = True
        self._end_output()
        return True

    def _pass_barrier(self) -> bool:
        """Inject the next barrier, or fire a piece of what is due before a final one, also by the
        watermark directly before it. Return False if it waits (`final_wait.py`).
        """
        if self._barriers[0].final and not self._final and self.chain.writable():
            self._emit_watermark()
            self.chain.emit_watermarks()
            if self._fire():
                return True
        if self._barriers[0].final and self._final_wait.holds(due=self.chain.firing):
            return False
        self._inject(self._barriers.popleft())
        return True

    def _emit_watermark(self) -> None:
        """Emit the watermark of what was emitted so far, if it has changed. The chain must be able
        to take it: otherwise the splits of a snapshot have it, and it is emitted later.
        """
        takes = not self.chain.firing and self.chain.writable()
        if takes and self._emission.due_s() != math.inf:
            self.chain.advance(self._emission.take(self._now()))

    def _inject(self, barrier: Barrier) -> None:
        check(not self._pending, "a barrier is injected only after all that was read is emitted")
        splits = self.reader.snapshot()
        # Every subtask behind an exchange then has the same watermark at this checkpoint.
        self._emit_watermark()
        if self.watermarks is not None:
            splits = self.watermarks.in_splits(splits)
        self.chain.emit_watermarks()
        self._snapshots[barrier.checkpoint] = splits
        self._final = barrier.final
        self.take_snapshot(barrier, splits, drained=self._fires and self._emission.has_drained)


class InputTask(_Subtask):
    """A subtask that reads channels and aligns their barriers."""

    def __init__(
        self,
        context: SubtaskContext,
        chain: OperatorChain,
        checkpoint_responder: CheckpointResponder,
        gate: Gate,
        alignment: Alignment,
        valve: WatermarkValve | None = None,
        sides: Sequence[int] = (),
    ) -> None:
        """Create the task. `valve` has the channels with watermarks, if the subtask has any.
        `sides` has the input to which each channel leads, if the first step has two.
        """
        super().__init__(context, chain, checkpoint_responder)
        self._gate, self._alignment = gate, alignment
        self._valve = valve
        self._due: Watermark | None = None
        """The combined watermark, until the chain can take it."""
        self._postponed: Sequence[AlignmentInstruction] = ()
        """The instructions for a final barrier, while what is due before it still fires."""
        self._heard, self._blocked = False, set[int]()
        """Whether anything has come, so that the sources have started. The channels that wait for
        a barrier.
        """
        chain.reading = False
        self._ends = self._output_ended = self._final = False
        """Whether all channels have ended, so that the end is emitted as soon as nothing is due.
        Whether it was emitted. Whether the final barrier has passed.
        """
        self._emit = chain.entry()
        self._emits = [chain.entry(side) for side in sides]
        """The functions that take the batches of each channel, if there are two inputs."""
        self._first_barriers_s: dict[CheckpointId, float] = {}
        """Monotonic time in seconds of the first barrier of each checkpoint. The snapshot of this
        or a newer checkpoint removes the entry.
        """

    def step(self, timeout_s: float) -> bool:
        """Process one element of an unblocked channel, or fire what is due. This method never
        waits.
        """
        del timeout_s
        # A sink that waits for a transactional id lets barriers pass: it has nothing to prepare.
        writable = self.chain.writable() and not self._final
        if self._postponed:
            return self._take_final_snapshot(writable=writable)
        if writable and not self.chain.firing and self._advance():
            return True
        takes_records = writable and not self.chain.firing
        found = self._gate.next_element() if takes_records else self._gate.next_control()
        if found is None:
            return writable and self._fire()
        self._take(*found)
        return True

    def _take(self, channel: int, element: StreamElement) -> None:
        if not self._heard:
            self._heard = True
            self._note_reading()
        match element:
            case RecordBatch():
                self.context.counters.batches += 1
                (self._emits[channel] if self._emits else self._emit)(element)
            case Barrier():
                self._first_barriers_s.setdefault(element.checkpoint, self._now())
                self._carry_out(self._alignment.barrier(channel, element))
            case EndOfInput():
                if self._valve is not None:
                    self._due = self._valve.end(channel) or self._due
                self._carry_out(self._alignment.end_of_input(channel))
            case Watermark():
                if self._valve is not None:
                    self._due = self._valve.offer(channel, element) or self._due

    def _advance(self) -> bool:
        """Advance time, while nothing is due: to the combined watermark, to the clock, or to the
        end of the input. Return whether there was anything to do.
        """
        due = self._due_now()
        if due is not None:
            self._due = None
            self.chain.advance(due)
            return True
        if self._ends and not self._output_ended:
            self.chain.emit_watermarks()
            if not self.chain.firing:  # what is due fires before the end
                self._output_ended = True
                self._end_output()
            return True
        return not self._output_ended and self.chain.advance_processing_time()

    def _due_now(self) -> Watermark | None:
        """Return the combined watermark that the chain has not got. The end of time waits for the
        end of all inputs: one without watermarks may still have records.
        """
        is_end = self._due is not None and self._due.timestamp_ms == MAX_MS
        return None if is_end and not self._ends else self._due

    def due_in_s(self) -> float:
        """Return the seconds until a timer or a window is due by the clock."""
        return math.inf if self._final or self._output_ended else super().due_in_s()

    def checkpoint_aborted(self, checkpoint: CheckpointId) -> None:
        """Stop the alignment of the checkpoint. Its late barriers are ignored."""
        self._carry_out(self._alignment.cancel(checkpoint))

    def _carry_out(self, instructions: Sequence[AlignmentInstruction]) -> None:
        for number, instruction in enumerate(instructions):
            match instruction:
                case Block(channel=channel):
                    self._gate.block(channel)
                    self._blocked.add(channel)
                    self._note_reading()
                case TakeSnapshot(barrier=barrier):
                    if not self._postponed:
                        self.chain.emit_watermarks()
                    if barrier.final and not self._postponed and self._has_due():
                        self._postponed = instructions[number:]
                        return
                    self.take_snapshot(
                        barrier, alignment_ms=self._take_alignment_ms(barrier.checkpoint)
                    )
                    self._final = barrier.final  # nothing follows a final barrier, and so no timer
                case Unblock(channels=channels):
                    for channel in channels:
                        self._gate.unblock(channel)
                    self._blocked.difference_update(channels)
                    self._note_reading()
                case ChannelInputEnded():
                    self._ends = True
                    self._note_reading()

    def _note_reading(self) -> None:
        """Tell the chain whether the task asks for records of all channels."""
        self.chain.reading = not self._blocked and not self._ends

    def _has_due(self) -> bool:
        return self._due_now() is not None or self.chain.firing

    def _take_final_snapshot(self, *, writable: bool) -> bool:
        """Fire a piece of what is due, let the final barrier pass, or return False: it waits."""
        if writable:
            self.chain.emit_watermarks()
            if self._has_due():
                return self._fire() or self._advance()
        elif self._final_wait.holds(due=self._has_due()):
            return False
        postponed = self._postponed
        self._carry_out(postponed)
        self._postponed = ()
        return True

    def _take_alignment_ms(self, checkpoint: CheckpointId) -> int:
        """Return the milliseconds since the checkpoint's first barrier, and drop all older entries,
        because older checkpoints get no snapshot any more.
        """
        first_s = self._first_barriers_s[checkpoint]
        for known in [each for each in self._first_barriers_s if each <= checkpoint]:
            del self._first_barriers_s[known]
        return round((self._now() - first_s) * 1000)


Task = SourceTask | InputTask
