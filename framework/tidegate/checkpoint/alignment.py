"""Barrier alignment of one subtask: when to take its snapshot, and which channels wait for it.

The task (`dataplane/input_task.py`) reports each barrier and each end of input that it reads from a
channel. It carries out the returned instructions before it reads anything else. It does not read a
blocked channel, so the credit of that channel runs out and the sender is backpressured. Sources do
not use this class: they have no channels and take their snapshot when the barrier is injected. This
module knows nothing of snapshots, state or messages.

Theory of operation. Checkpoint ids only grow. In mode exactly_once at most one checkpoint is being
aligned. The first barrier of a new id starts its alignment and drops an older alignment: the older
checkpoint cannot complete any more. Each barrier blocks its channel. The last barrier takes the
snapshot and unblocks all channels. Completing, dropping or cancelling an alignment does not lower
`_newest`: a late barrier with an id up to `_newest` starts no alignment. In mode at_least_once no
channel is ever blocked. Barriers are counted per id, and an id that is complete drops the older
ids.

EndOfInput does not close a channel. Barriers still follow on that channel, and the alignment waits
for them.

Invariant 6: no record that follows a barrier on its channel is consumed before the snapshot is
taken.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final, Literal

from tidegate.errors import check
from tidegate.ids import CheckpointId
from tidegate.stream_elements import Barrier

Mode = Literal["exactly_once", "at_least_once"]

PENDING_IDS_MAX: Final = 50
"""The most checkpoints counted at the same time in mode at_least_once (the limit of Flink). Only
aborted checkpoints accumulate, and the attempt fails long before 50 in a row are aborted.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Read nothing from this channel until `Unblock` names it."""

    channel: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Unblock:
    """Read from these channels again."""

    channels: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeSnapshot:
    """Forward the barrier and take the subtask's snapshot now, before any other element is read."""

    barrier: Barrier


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelInputEnded:
    """EndOfInput has arrived on every channel, so no record follows. Returned once."""


AlignmentInstruction = Block | Unblock | TakeSnapshot | ChannelInputEnded


class AlignmentState(enum.Enum):
    """The state of an exactly-once alignment, for display."""

    IDLE = "idle"
    ALIGNING = "aligning"


class Alignment:
    """The alignment state machine of one subtask with `channels` input channels,
    numbered from 0.
    """

    def __init__(self, channels: int, mode: Mode = "exactly_once") -> None:
        check(channels >= 1, f"alignment of {channels} channels: sources have none and need none")
        self._channels = channels
        self._blocking = mode == "exactly_once"
        #: The newest id that was started or cancelled. Barriers up to this id start no alignment.
        self._newest: CheckpointId | None = None
        #: Per checkpoint that is not complete: the channels whose barrier has arrived. In mode
        #: exactly_once there is at most one id, and its channels are exactly the blocked ones.
        self._received: dict[CheckpointId, set[int]] = {}
        #: The last barrier id of each channel. If the ids of a channel do not grow, its sender has
        #: a bug.
        self._last: list[CheckpointId | None] = [None] * channels
        self._ended: set[int] = set()

    @property
    def state(self) -> AlignmentState:
        """The present state: ALIGNING while channels are blocked."""
        return AlignmentState.ALIGNING if self.blocked else AlignmentState.IDLE

    @property
    def blocked(self) -> frozenset[int]:
        """The channels that must not be read now."""
        if not self._blocking:
            return frozenset()
        return frozenset(channel for received in self._received.values() for channel in received)

    def barrier(self, channel: int, barrier: Barrier) -> list[AlignmentInstruction]:
        """Handle a barrier that was read from a channel. InternalError if the channel is blocked,
        or if barriers of one channel do not have growing ids.
        """
        self._check_open(channel)
        last = self._last[channel]
        check(
            last is None or last < barrier.checkpoint,
            f"channel {channel}: barrier {barrier.checkpoint} follows barrier {last}",
        )
        self._last[channel] = barrier.checkpoint
        if self._blocking:
            return self._align(channel, barrier)
        return self._count(channel, barrier)

    def end_of_input(self, channel: int) -> list[AlignmentInstruction]:
        """Handle the end of a channel's input: no record follows on this channel, but
        barriers may.
        """
        self._check_open(channel)
        check(channel not in self._ended, f"channel {channel} ended twice")
        self._ended.add(channel)
        return [ChannelInputEnded()] if len(self._ended) == self._channels else []

    def cancel(self, checkpoint: CheckpointId) -> list[AlignmentInstruction]:
        """Handle the abort of a checkpoint: stop waiting for it and for older ones, and never start
        its alignment later.
        """
        if self._newest is None or checkpoint > self._newest:
            self._newest = checkpoint
        return self._drop_alignments(through=checkpoint)

    def validate(self) -> None:
        """Check the invariants of this object between two calls; for tests and the simulator."""
        for checkpoint, received in self._received.items():
            check(0 < len(received) < self._channels, f"{checkpoint}: complete or empty, yet kept")
            check(
                self._newest is not None and checkpoint <= self._newest,
                f"{checkpoint} is being aligned but newer than the newest, {self._newest}",
            )
        check(not self._blocking or len(self._received) <= 1, "two alignments at once")
        check(len(self._received) <= PENDING_IDS_MAX, "too many ids are counted")

    def __repr__(self) -> str:
        pending = {str(checkpoint): sorted(got) for checkpoint, got in self._received.items()}
        return f"<Alignment {self.state.value} of {self._channels}, {pending=}, {self._newest=!s}>"

    # --- exactly once ---------------------------------------------------------------------------

    def _align(self, channel: int, barrier: Barrier) -> list[AlignmentInstruction]:
        instructions: list[AlignmentInstruction] = []
        checkpoint = barrier.checkpoint
        if self._newest is None or checkpoint > self._newest:
            # Only one checkpoint is pending at a time, so an older one cannot complete any more.
            instructions += self._drop_alignments(through=checkpoint)
            self._newest = checkpoint
            self._received[checkpoint] = set()
        received = self._received.get(checkpoint)
        if received is None:
            return instructions  # late: the checkpoint is complete, dropped or cancelled
        if len(received) + 1 < self._channels:
            received.add(channel)
            return [*instructions, Block(channel=channel)]
        del self._received[checkpoint]
        instructions.append(TakeSnapshot(barrier=barrier))
        if received:
            instructions.append(Unblock(channels=tuple(sorted(received))))
        return instructions

    # --- at least once --------------------------------------------------------------------------

    def _count(self, channel: int, barrier: Barrier) -> list[AlignmentInstruction]:
        checkpoint = barrier.checkpoint
        if self._newest is None or checkpoint > self._newest:
            self._newest = checkpoint
            self._received[checkpoint] = set()
            if len(self._received) > PENDING_IDS_MAX:
                del self._received[min(self._received)]
        received = self._received.get(checkpoint)
        if received is None:
            return []
        received.add(channel)
        if len(received) < self._channels:
            return []
        self._drop_alignments(through=checkpoint)
        return [TakeSnapshot(barrier=barrier)]

    # --- both -----------------------------------------------------------------------------------

    def _drop_alignments(self, through: CheckpointId) -> list[AlignmentInstruction]:
        channels: set[int] = set()
        for checkpoint in [known for known in self._received if known <= through]:
            channels |= self._received.pop(checkpoint)
        if not channels or not self._blocking:
            return []
        return [Unblock(channels=tuple(sorted(channels)))]

    def _check_open(self, channel: int) -> None:
        check(0 <= channel < self._channels, f"channel {channel} of {self._channels}")
        check(channel not in self.blocked, f"channel {channel} is blocked, but an element was read")
