"""The common part of all subtasks: the chain, and the subtask's part of a checkpoint.

`take_snapshot` is the same for sources and inputs. Sinks begin to prepare, keyed state is frozen,
and the barrier goes downstream. The subtask acknowledges when everything that it handed to I/O
threads is durable. When a subtask takes its snapshot is decided in `source_task.py` and
`input_task.py`.

Invariant: nothing is emitted between the snapshot and the barrier downstream.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from tidegate.dataplane.chain import OperatorChain
from tidegate.dataplane.subtask_context import SubtaskContext
from tidegate.dataplane.task_interfaces import CheckpointResponder
from tidegate.errors import check
from tidegate.ids import CheckpointId, TransactionalId
from tidegate.protocol.subtask_snapshot import (
    KeyedSnapshot,
    PreparedTransaction,
    SourceSplit,
    StepWatermark,
    SubtaskSnapshot,
)
from tidegate.stream_elements import MIN_MS, Barrier, EndOfInput


class PendingSnapshot:
    """The parts of one subtask's snapshot while they become durable. The mailbox thread makes all
    calls.

    A task hands the parts to I/O threads. When the last one is durable, the snapshot is complete,
    and the task acknowledges it.
    """

    def __init__(
        self,
        *,
        parts: int,
        splits: tuple[SourceSplit, ...],
        watermarks: tuple[StepWatermark, ...],
        alignment_ms: int,
        drained: bool,
        done: Callable[[PendingSnapshot], None],
    ) -> None:
        self._missing, self._done = parts, done
        self.splits, self.alignment_ms, self.drained = splits, alignment_ms, drained
        self.watermarks = watermarks
        self.keyed: list[KeyedSnapshot] = []
        self.transactions: list[PreparedTransaction] = []
        self.sync_ms = 0

    def transactions_prepared(self, transactions: tuple[PreparedTransaction, ...]) -> None:
        """Take the prepared transactions of one sink."""
        self.transactions.extend(transactions)
        self._part_done()

    def state_stored(self, snapshot: KeyedSnapshot) -> None:
        """Take the stored state of one step."""
        self.keyed.append(snapshot)
        self._part_done()

    def sync_phase_done(self, sync_ms: int) -> None:
        """Note the end of the synchronous part, and its duration."""
        self.sync_ms = sync_ms
        self._part_done()

    def _part_done(self) -> None:
        self._missing -= 1
        check(self._missing >= 0, "a part of a snapshot was reported twice")
        if self._missing == 0:
            self._done(self)


FINAL_WAIT_S: Final = 1.0
"""The longest wait, in seconds, in which no channel takes a record."""


class FinalWait:
    """The wait of a final barrier for outputs that take nothing.

    Before a final barrier, a subtask fires what is due. If channels have no credit, it waits: the
    subtasks behind take their records soon. It does not wait for a sink, which may wait for the
    transactional id that only this checkpoint frees. A subtask behind a channel may have such a
    sink too, so the wait has a limit. Then the barrier passes, and what is due is in the state: the
    next run fires it.
    """

    def __init__(self, chain: OperatorChain, now_s: Callable[[], float]) -> None:
        self._chain, self._now_s = chain, now_s
        self._since_s: float | None = None

    def holds(self, *, due: bool) -> bool:
        """Return whether the barrier waits: something is due, and only channels are full."""
        chain = self._chain
        full = not chain.writable() and all(sink.writable() for sink in chain.sinks.values())
        if not (full and due):
            self._since_s = None
            return False
        now_s = self._now_s()
        if self._since_s is None:
            self._since_s = now_s
        return now_s - self._since_s < FINAL_WAIT_S


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
