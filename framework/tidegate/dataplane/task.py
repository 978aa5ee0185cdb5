"""A subtask: the loop body that the slot's mailbox thread runs, a batch at a time.

`SourceTask` reads splits, `InputTask` reads channels through the alignment machine; both push
batches through an `OperatorChain`, and both take their part of a checkpoint the same way
(`_Subtask.take_snapshot`): sinks begin to prepare, keyed state is frozen, the barrier goes
downstream, and when everything that was handed to I/O threads is durable, the subtask acknowledges.

Invariants: nothing is consumed between the last barrier of a checkpoint and its snapshot; nothing
is emitted between the snapshot and the barrier downstream; a subtask whose leaves cannot take more
does not read. `step` never blocks, but for a source told how long it may wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from tidegate.checkpoint.alignment import (
    Alignment,
    AlignmentInstruction,
    Block,
    ChannelInputEnded,
    TakeSnapshot,
    Unblock,
)
from tidegate.dataplane.operators.chain import OperatorChain
from tidegate.dataplane.subtask_context import SubtaskContext
from tidegate.errors import check
from tidegate.graph.stream_graph import DEAD_LETTERS
from tidegate.ids import CheckpointId, SubtaskId, TransactionalId
from tidegate.protocol.snapshots import (
    KeyedSnapshot,
    PreparedTransaction,
    SourceSplit,
    SubtaskSnapshot,
)
from tidegate.stream_elements import Barrier, EndOfInput, RecordBatch, StreamElement


class Reader(Protocol):
    """A source's reader, as far as a task drives it."""

    def open(self, splits: Sequence[SourceSplit]) -> None: ...
    def poll(self, timeout_s: float) -> list[RecordBatch]: ...
    def take_dead_letters(self) -> list[RecordBatch]: ...
    def limit_polls(self, share: float) -> None: ...
    def last_timestamp_ms(self) -> int: ...
    def finished(self) -> bool: ...
    def snapshot(self) -> tuple[SourceSplit, ...]: ...
    def commit(self, splits: Sequence[SourceSplit], checkpoint: CheckpointId) -> None: ...
    def lag(self) -> int | None: ...
    def connection_error(self) -> str: ...
    def close(self) -> None: ...


class Gate(Protocol):
    """The input channels of a subtask."""

    def next_element(self) -> tuple[int, StreamElement] | None: ...
    def next_control(self) -> tuple[int, StreamElement] | None: ...
    def block(self, channel: int) -> None: ...
    def unblock(self, channel: int) -> None: ...


class CheckpointResponder(Protocol):
    """Where a subtask reports: the slot passes it on to the JobMaster."""

    def acknowledge(
        self,
        checkpoint: CheckpointId,
        snapshot: SubtaskSnapshot,
        *,
        alignment_ms: int,
        sync_ms: int,
    ) -> None:
        """The subtask's part of a checkpoint is durable."""
        ...

    def decline(self, checkpoint: CheckpointId, subtask: SubtaskId, reason: str) -> None:
        """The subtask's part of a checkpoint could not be made; the attempt goes on."""
        ...

    def input_ended(self, subtask: SubtaskId) -> None:
        """The last record of a bounded run went through."""
        ...


class _Subtask:
    """What source and input tasks share: the chain and the snapshot."""

    def __init__(
        self, runtime: SubtaskContext, chain: OperatorChain, coordination: CheckpointResponder
    ) -> None:
        self.runtime, self.chain, self._coordination = runtime, chain, coordination
        self.subtask = runtime.subtask

    def step(self, timeout_s: float) -> bool:
        """Do one batch's work; False if there was none to do."""
        raise NotImplementedError

    def trigger(self, barrier: Barrier) -> None:
        """Inject a barrier (sources only)."""

    def flush(self) -> None:
        """Send what outlets hold back for fuller frames."""
        for outlet in self.chain.outlets:
            outlet.flush()

    def checkpoint_completed(
        self,
        checkpoint: CheckpointId,
        *,
        ended: Sequence[TransactionalId],
        freed: Sequence[TransactionalId],
    ) -> None:
        """Published and committed: transactions that ended are carried no more; ids that the
        journal names no more may be used again.
        """
        for sink in self.chain.sinks.values():
            sink.ended(ended, checkpoint)
            sink.freed(freed)

    def checkpoint_aborted(self, checkpoint: CheckpointId) -> None:
        """Declined or expired; what was prepared stays prepared."""

    def close(self) -> None:
        """Close the user's functions and the clients that may be closed."""
        self.chain.close()

    def take_snapshot(
        self, barrier: Barrier, splits: tuple[SourceSplit, ...] = (), alignment_ms: int = 0
    ) -> None:
        """The synchronous part, now; the acknowledgement follows when the rest is durable."""
        started = self._now()
        gathering = _PendingSnapshot(
            parts=1 + len(self.chain.sinks) + len(self.chain.keyed),
            splits=splits,
            alignment_ms=alignment_ms,
            done=lambda gathered: self._acknowledge(barrier.checkpoint, gathered),
        )
        for sink in self.chain.sinks.values():
            sink.prepare(barrier.checkpoint, gathering.transactions_prepared, final=barrier.final)
        for keyed in self.chain.keyed.values():
            keyed.state.snapshot(
                gathering.state_stored,
                lambda reason: self._coordination.decline(barrier.checkpoint, self.subtask, reason),
            )
        for outlet in self.chain.outlets:
            outlet.emit_control(barrier)
        gathering.sync_phase_done(round((self._now() - started) * 1000))

    def _acknowledge(self, checkpoint: CheckpointId, gathered: _PendingSnapshot) -> None:
        snapshot = SubtaskSnapshot(
            vertex=self.subtask.vertex,
            index=self.subtask.index,
            keyed=tuple(gathered.keyed),
            splits=gathered.splits,
            transactions=tuple(gathered.transactions),
        )
        self._coordination.acknowledge(
            checkpoint, snapshot, alignment_ms=gathered.alignment_ms, sync_ms=gathered.sync_ms
        )

    def _now(self) -> float:
        return self.runtime.drivers.clock.monotonic()

    def _end_output(self) -> None:
        for outlet in self.chain.outlets:
            outlet.emit_control(EndOfInput())
        self._coordination.input_ended(self.subtask)


class SourceTask(_Subtask):
    """Reads splits; injects the barriers that the JobMaster triggers."""

    def __init__(
        self,
        runtime: SubtaskContext,
        chain: OperatorChain,
        coordination: CheckpointResponder,
        reader: Reader,
        splits: Sequence[SourceSplit],
        *,
        ends_input: bool = True,
    ) -> None:
        """Without `ends_input` the source says by `has_ended` that it has read its splits to their
        ends, and sends no EndOfInput: more follows in the next wave.
        """
        super().__init__(runtime, chain, coordination)
        self._ends_input = ends_input
        self.reader, self._splits = reader, splits
        self._emit = chain.from_source()
        self._emit_dead_letters = chain.from_source(DEAD_LETTERS)
        self._pending: deque[RecordBatch] = deque()
        self._barriers: deque[Barrier] = deque()
        self._started = self._ended = self._final = False
        self._snapshots: dict[CheckpointId, tuple[SourceSplit, ...]] = {}

    def start(self) -> None:
        """Read: every slot is ready, and what older attempts left at the broker is fenced."""
        if not self._started:
            self._started = True
            self.reader.open(self._splits)

    def has_ended(self) -> bool:
        """Whether it has read its splits to their ends."""
        return self._ended

    def reads(self) -> bool:
        """Whether a step might read now, so that waiting for records makes sense."""
        idle = not (self._pending or self._barriers or self._ended or self._final)
        return self._started and idle and self.chain.writable()

    def lag(self) -> int | None:
        """Records between what was read and the ends of the partitions; None if not known."""
        return self.reader.lag() if self._started else None

    def connection_error(self) -> str:
        """Why the source cannot read, as a sentence; empty if it can."""
        return self.reader.connection_error()

    def trigger(self, barrier: Barrier) -> None:
        """Queue a barrier; it is injected between two batches, after what was already read."""
        self._barriers.append(barrier)

    def step(self, timeout_s: float) -> bool:
        """Emit a batch that was read, inject a barrier, or read."""
        if not self._started:
            return False
        if self._barriers and not self._pending:
            # Also where a sink waits for a transaction slot: it has nothing to prepare then.
            self._inject(self._barriers.popleft())
            return True
        if self._final or not self.chain.writable():
            return False
        if self._pending:
            self.runtime.counters.batches += 1
            self._emit(self._pending.popleft())
            return True
        if self._ended:
            return False
        self._read(timeout_s)
        return bool(self._pending)

    def checkpoint_completed(
        self,
        checkpoint: CheckpointId,
        *,
        ended: Sequence[TransactionalId],
        freed: Sequence[TransactionalId],
    ) -> None:
        """As for every subtask; and tell the consumer group how far we are, for lag monitors."""
        super().checkpoint_completed(checkpoint, ended=ended, freed=freed)
        splits = self._snapshots.pop(checkpoint, None)
        if splits:
            self.reader.commit(splits, checkpoint)

    def checkpoint_aborted(self, checkpoint: CheckpointId) -> None:
        """Its positions are not told to the consumer group."""
        self._snapshots.pop(checkpoint, None)

    def close(self) -> None:
        """Close the consumer too."""
        super().close()
        self.reader.close()

    def _read(self, timeout_s: float) -> None:
        batches = self.reader.poll(timeout_s)
        for batch in self.reader.take_dead_letters():
            self._emit_dead_letters(batch)
        for batch in batches:
            self.runtime.counters.records_in += len(batch)
        self._pending.extend(batches)
        if not self._pending and self.reader.finished():
            self._ended = True
            if self._ends_input:
                self._end_output()

    def _inject(self, barrier: Barrier) -> None:
        check(not self._pending, "a barrier is injected only after all that was read is emitted")
        splits = self._snapshots[barrier.checkpoint] = self.reader.snapshot()
        self._final = barrier.final
        self.take_snapshot(barrier, splits)


class InputTask(_Subtask):
    """Reads channels, aligning their barriers."""

    def __init__(
        self,
        runtime: SubtaskContext,
        chain: OperatorChain,
        coordination: CheckpointResponder,
        gate: Gate,
        alignment: Alignment,
    ) -> None:
        super().__init__(runtime, chain, coordination)
        self._gate, self._alignment = gate, alignment
        self._emit = chain.entry()
        self._first_barriers_s: dict[CheckpointId, float] = {}
        """When the first barrier of a checkpoint came, until one as new has its snapshot."""

    def step(self, timeout_s: float) -> bool:
        """Take one element off an unblocked channel; never waits."""
        del timeout_s
        # A sink that waits for a transaction slot lets barriers through: it has nothing to prepare.
        writable = self.chain.writable()
        found = self._gate.next_element() if writable else self._gate.next_control()
        if found is None:
            return False
        channel, element = found
        match element:
            case RecordBatch():
                self.runtime.counters.batches += 1
                self._emit(element)
            case Barrier():
                self._first_barriers_s.setdefault(element.checkpoint, self._now())
                self._carry_out(self._alignment.barrier(channel, element))
            case EndOfInput():
                self._carry_out(self._alignment.end_of_input(channel))
        return True

    def checkpoint_aborted(self, checkpoint: CheckpointId) -> None:
        """Stop aligning for it; late barriers of it start nothing."""
        self._carry_out(self._alignment.cancel(checkpoint))

    def _carry_out(self, instructions: Sequence[AlignmentInstruction]) -> None:
        for instruction in instructions:
            match instruction:
                case Block(channel=channel):
                    self._gate.block(channel)
                case TakeSnapshot(barrier=barrier):
                    self.take_snapshot(barrier, alignment_ms=self._aligned(barrier.checkpoint))
                case Unblock(channels=channels):
                    for channel in channels:
                        self._gate.unblock(channel)
                case ChannelInputEnded():
                    self._end_output()

    def _aligned(self, checkpoint: CheckpointId) -> int:
        """Milliseconds since its first barrier; older ones will have no snapshot any more."""
        first_s = self._first_barriers_s[checkpoint]
        for known in [each for each in self._first_barriers_s if each <= checkpoint]:
            del self._first_barriers_s[known]
        return round((self._now() - first_s) * 1000)


Task = SourceTask | InputTask


class _PendingSnapshot:
    """The parts of one subtask's snapshot, as they become durable; all calls in the mailbox
    thread.
    """

    def __init__(
        self,
        *,
        parts: int,
        splits: tuple[SourceSplit, ...],
        alignment_ms: int,
        done: Callable[[_PendingSnapshot], None],
    ) -> None:
        self._missing, self._done = parts, done
        self.splits, self.alignment_ms = splits, alignment_ms
        self.keyed: list[KeyedSnapshot] = []
        self.transactions: list[PreparedTransaction] = []
        self.sync_ms = 0

    def transactions_prepared(self, transactions: tuple[PreparedTransaction, ...]) -> None:
        self.transactions.extend(transactions)
        self._part_done()

    def state_stored(self, snapshot: KeyedSnapshot) -> None:
        self.keyed.append(snapshot)
        self._part_done()

    def sync_phase_done(self, sync_ms: int) -> None:
        self.sync_ms = sync_ms
        self._part_done()

    def _part_done(self) -> None:
        self._missing -= 1
        check(self._missing >= 0, "a part of a snapshot was reported twice")
        if self._missing == 0:
            self._done(self)
