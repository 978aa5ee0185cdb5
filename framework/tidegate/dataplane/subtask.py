"""The common part of all subtasks: the chain, and the subtask's part of a checkpoint.

`take_snapshot` is the same for sources and inputs. Sinks begin to prepare, keyed state is frozen,
and the barrier goes downstream. The subtask acknowledges when everything that it handed to I/O
threads is durable. When a subtask takes its snapshot is decided in `source_task.py` and
`input_task.py`.

Invariant: nothing is emitted between the snapshot and the barrier downstream.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tidegate.dataplane.chain import OperatorChain
from tidegate.dataplane.final_wait import FinalWait
from tidegate.dataplane.pending_snapshot import PendingSnapshot
from tidegate.dataplane.subtask_context import SubtaskContext
from tidegate.dataplane.task_interfaces import CheckpointResponder
from tidegate.ids import CheckpointId, TransactionalId
from tidegate.protocol.subtask_snapshot import SourceSplit, SubtaskSnapshot
from tidegate.stream_elements import MIN_MS, Barrier, EndOfInput


class Subtask:
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
