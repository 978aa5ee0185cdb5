"""Barrier alignment of one subtask: when its snapshot is taken, and which channels wait for it.

The task (`dataplane/task.py`) calls it for every control element it takes from an input channel and
carries the instructions out before it reads anything else; a blocked channel stays unread, so its
credits run out and its sender backs up. It is not for sources: they have no channels and take their
snapshot when the barrier is injected. It knows nothing of snapshots, state or messages.

Theory of operation. Ids of checkpoints only grow. In mode exactly_once at most one checkpoint is
being aligned: the first barrier of a new id opens it (and gives up an older one, which can complete
nowhere any more), each barrier blocks its channel, the last one takes the snapshot and unblocks
all. What is done, given up or cancelled lowers nothing: barriers of ids up to `newest` that arrive
later start nothing. In mode at_least_once nothing is ever blocked; barriers are counted per id, and
an id that is complete drops the older ones.

The end of a channel's input does not close it: barriers still flow after it, and are waited for.

Invariant 6: no record of a channel that follows its barrier is consumed before the snapshot is
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
"""Checkpoints counted at once in mode at_least_once (Flink's bound): only aborted ones ever pile
up, and 50 of them in a row fail the attempt long before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Read nothing from this channel until it is unblocked."""

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
    """Every channel has said EndOfInput: no record follows. Given once."""


AlignmentInstruction = Block | Unblock | TakeSnapshot | ChannelInputEnded


class AlignmentState(enum.Enum):
    """What an exactly-once alignment is doing; for display."""

    IDLE = "idle"
    ALIGNING = "aligning"


class Alignment:
    """The alignment machine of one subtask with `channels` input channels, numbered from 0."""

    def __init__(self, channels: int, mode: Mode = "exactly_once") -> None:
        check(channels >= 1, f"alignment of {channels} channels: sources have none and need none")
        self._channels = channels
        self._blocking = mode == "exactly_once"
        #: The newest id that was begun or cancelled: barriers up to it begin nothing.
        self._newest: CheckpointId | None = None
        #: Barriers received, by id of the checkpoints not yet complete. At most one id when
        #: blocking, and then exactly the blocked channels.
        self._received: dict[CheckpointId, set[int]] = {}
        #: The last barrier of each channel: ids on a channel only grow, or a sender is broken.
        self._last: list[CheckpointId | None] = [None] * channels
        self._ended: set[int] = set()

    @property
    def state(self) -> AlignmentState:
        """ALIGNING while channels are blocked."""
        return AlignmentState.ALIGNING if self.blocked else AlignmentState.IDLE

    @property
    def blocked(self) -> frozenset[int]:
        """Channels that must not be read now."""
        if not self._blocking:
            return frozenset()
        return frozenset(channel for received in self._received.values() for channel in received)

    def barrier(self, channel: int, barrier: Barrier) -> list[AlignmentInstruction]:
        """A barrier was taken from a channel. InternalError if the channel is blocked."""
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
        """No record follows on this channel; barriers may."""
        self._check_open(channel)
        check(channel not in self._ended, f"channel {channel} ended twice")
        self._ended.add(channel)
        return [ChannelInputEnded()] if len(self._ended) == self._channels else []

    def cancel(self, checkpoint: CheckpointId) -> list[AlignmentInstruction]:
        """The checkpoint was aborted: stop waiting for it, and for older ones, and begin it
        never.
        """
        if self._newest is None or checkpoint > self._newest:
            self._newest = checkpoint
        return self._give_up(through=checkpoint)

    def validate(self) -> None:
        """Check what must hold between any two calls; for tests and the simulator."""
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
            # An older alignment can complete nowhere any more: one checkpoint is under way at a
            # time.
            instructions += self._give_up(through=checkpoint)
            self._newest = checkpoint
            self._received[checkpoint] = set()
        received = self._received.get(checkpoint)
        if received is None:
            return instructions  # late: the checkpoint is done, given up or cancelled
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
        self._give_up(through=checkpoint)
        return [TakeSnapshot(barrier=barrier)]

    # --- both -----------------------------------------------------------------------------------

    def _give_up(self, through: CheckpointId) -> list[AlignmentInstruction]:
        channels: set[int] = set()
        for checkpoint in [known for known in self._received if known <= through]:
            channels |= self._received.pop(checkpoint)
        if not channels or not self._blocking:
            return []
        return [Unblock(channels=tuple(sorted(channels)))]

    def _check_open(self, channel: int) -> None:
        check(0 <= channel < self._channels, f"channel {channel} of {self._channels}")
        check(channel not in self.blocked, f"channel {channel} is blocked, but an element was read")
