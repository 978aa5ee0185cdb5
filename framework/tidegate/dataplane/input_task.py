"""A subtask behind an exchange: it reads channels, and aligns their barriers.

The alignment machine (`checkpoint/alignment.py`) decides when a channel is blocked and when the
snapshot is due. The valve (`time/valve.py`) combines the watermarks of the channels. While the
outputs are full, the newest combined watermark waits here, so that a barrier can pass.

Invariant: nothing is consumed between the last barrier of a checkpoint and its snapshot.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tidegate.checkpoint.alignment import (
    Alignment,
    AlignmentInstruction,
    Block,
    ChannelInputEnded,
    TakeSnapshot,
    Unblock,
)
from tidegate.dataplane.chain import OperatorChain
from tidegate.dataplane.subtask import Subtask
from tidegate.dataplane.subtask_context import SubtaskContext
from tidegate.dataplane.task_interfaces import CheckpointResponder, Gate
from tidegate.dataplane.time.valve import WatermarkValve
from tidegate.ids import CheckpointId
from tidegate.stream_elements import (
    MAX_MS,
    Barrier,
    EndOfInput,
    RecordBatch,
    StreamElement,
    Watermark,
)


class InputTask(Subtask):
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
