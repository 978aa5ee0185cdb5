"""A subtask of a source: it reads splits, and injects the barriers that the JobMaster triggers.

Each step does one thing: it injects a barrier, fires a piece of what is due, emits a batch that was
read, or reads. A barrier comes after all records that were read before it. Directly before it the
subtask emits the watermark of these records, so every subtask behind an exchange has the same
watermark at this checkpoint.

Invariant: the positions in a snapshot are those behind the last record that was emitted.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from tidegate.dataplane.chain import OperatorChain
from tidegate.dataplane.sources.watermarks import SourceWatermarks
from tidegate.dataplane.subtask import Subtask
from tidegate.dataplane.subtask_context import SubtaskContext
from tidegate.dataplane.task_interfaces import CheckpointResponder, Reader
from tidegate.errors import check
from tidegate.graph.stream_graph import DEAD_LETTERS
from tidegate.ids import CheckpointId, TransactionalId
from tidegate.protocol.subtask_snapshot import SourceSplit
from tidegate.stream_elements import MAX_MS, MIN_MS, Barrier, RecordBatch, Watermark


class WatermarkEmission:
    """The watermark that a source has emitted last, and the time at which the next may follow:
    at most one in `job.watermark_interval`.

    A watermark that changes after a longer silence follows at once. A barrier does not wait for the
    interval, and the interval begins again with the watermark in front of it.

    Invariant: nothing follows the end of time.
    """

    def __init__(self, watermarks: SourceWatermarks | None, interval_ms: int) -> None:
        """Emit the combination of `watermarks`. If it is None, only the end of time is emitted."""
        self._watermarks, self._interval_s = watermarks, interval_ms / 1000
        self._next_s = -math.inf
        self._last: Watermark | None = None

    @property
    def has_drained(self) -> bool:
        """Whether the end of time was emitted."""
        return self._last is not None and self._last.timestamp_ms == MAX_MS

    def due_s(self) -> float:
        """Return the monotonic time in seconds at which the next watermark may follow. It is
        infinity as long as the watermark does not change.
        """
        if self._watermarks is None or self.has_drained or self._watermarks.current() == self._last:
            return math.inf
        return self._next_s

    def take(self, now_s: float) -> Watermark:
        """Return the watermark, which is emitted now."""
        check(self._watermarks is not None, "only a source with watermarks emits one")
        self._last = self._watermarks.current()  # type: ignore[union-attr]
        self._next_s = now_s + self._interval_s
        return self._last

    def take_end(self) -> Watermark:
        """Return the end of time, which is emitted now."""
        self._last = Watermark(MAX_MS)
        return self._last


class SourceTask(Subtask):
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
        watermark directly before it. Return False if it waits (`FinalWait`).
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
