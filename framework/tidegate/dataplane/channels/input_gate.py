"""The receiving side of channels: what waits for a subtask, and in which turn it is taken.

An `InputChannel` is a bounded queue of elements; an `InputGate` is all channels of one subtask,
taken in turn. A channel from the same slot holds batches by reference. One from another slot holds
encoded frames, decoded when the subtask comes to them, and gives a credit back for each data frame
whose last batch was taken: so a blocked channel holds `credits` frames at most, and its sender
stops, while all other channels of the connection flow on.

Called by `outlet` (same slot), `slot_channels` (other slots) and `dataplane/task`, all in the
mailbox thread. Invariant: elements leave a channel in the order in which they came, and none leaves
a blocked channel. Which channel to block, and when, is decided by `checkpoint/alignment`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Literal

from tidegate.dataplane.channels.frames import FrameCodec
from tidegate.errors import ExchangeError, check
from tidegate.graph.plan import PlanEdge
from tidegate.ids import SubtaskIndex
from tidegate.stream_elements import Barrier, EndOfInput, RecordBatch, StreamElement

ElementKind = Literal["records", "barrier", "end_of_input"]


class InputChannel:
    """One channel's queue at its receiver.

    `capacity` is in data entries: batches from the same slot, frames (= credits) from another.
    Without a codec the channel is local; with one, `grant` sends credits back to the sender.
    """

    __slots__ = (
        "_batches",
        "_codec",
        "_data",
        "_gate",
        "_grant",
        "_listed",
        "_queue",
        "_ungranted",
        "blocked",
        "capacity",
        "edge",
        "index",
        "sender",
    )

    def __init__(
        self,
        edge: PlanEdge,
        sender: SubtaskIndex,
        capacity: int,
        codec: FrameCodec | None = None,
        grant: Callable[[int], None] | None = None,
    ) -> None:
        self.edge = edge
        self.sender = sender
        self.capacity = capacity
        self.index = 0
        """Position in the gate."""
        self.blocked = False
        self._codec = codec
        self._grant = grant
        self._queue: deque[StreamElement | bytes] = deque()
        self._batches: deque[RecordBatch] = deque()  # what is left of the frame begun
        self._data = 0  # data entries held, a begun frame included
        self._ungranted = 0  # data frames taken whose credits were not sent back yet
        self._gate: InputGate | None = None
        self._listed = False

    def attach(self, gate: InputGate, index: int) -> None:
        """Called once, by the gate."""
        self._gate = gate
        self.index = index

    @property
    def depth(self) -> int:
        """Data entries that wait: batches from the same slot, frames from another."""
        return self._data

    @property
    def unannounced_credit(self) -> int:
        """Data frames that were taken and whose credits were not sent back yet."""
        return self._ungranted

    def __len__(self) -> int:
        """Entries that wait, control elements included."""
        return len(self._queue) + bool(self._batches)

    def put(self, element: StreamElement) -> None:
        """Add an element; who adds batches looks at `depth` first."""
        if isinstance(element, RecordBatch):
            self._data += 1
        self._queue.append(element)
        self._announce()

    def offer_frame(self, payload: bytes) -> None:
        """Add an encoded data frame; ExchangeError if the sender had no credit for it."""
        if self._data + self._ungranted >= self.capacity:
            raise ExchangeError(
                f"subtask {self.sender} sent more than {self.capacity} frames without credit along "
                f"the edge {self.edge.source_node} -> {self.edge.target_node}"
            )
        self._data += 1
        self._queue.append(payload)
        self._announce()

    def peek_kind(self) -> ElementKind | None:
        """What `pop` would return; None if nothing waits. A blocked channel may be looked at."""
        if self._batches:
            return "records"
        if not self._queue:
            return None
        match self._queue[0]:
            case Barrier():
                return "barrier"
            case EndOfInput():
                return "end_of_input"
            case _:
                return "records"

    def pop(self) -> StreamElement:
        """Take the next element; InternalError if the channel is blocked or empty."""
        check(not self.blocked, "an element was taken from a blocked channel")
        if self._batches:
            return self._next_of_frame()
        check(self._queue, "an element was taken from an empty channel")
        entry = self._queue.popleft()
        if isinstance(entry, bytes):
            check(self._codec is not None, "an encoded frame came to a channel of the same slot")
            self._batches.extend(self._codec.decode(entry))  # type: ignore[union-attr]
            return self._next_of_frame()
        if isinstance(entry, RecordBatch):
            self._data -= 1
        return entry

    def block(self) -> None:
        """Take nothing from it until `unblock`; the sender stops when its credits are used up."""
        self.blocked = True
        if self._listed and self._gate is not None:
            self._gate.unmark_ready(self)
            self._listed = False

    def unblock(self) -> None:
        """The inverse of `block`; harmless where it was not blocked."""
        self.blocked = False
        self._announce()

    def still_listed(self) -> bool:
        """Called by the gate after it took an element: whether the channel has another turn."""
        self._listed = bool(self._batches or self._queue)
        return self._listed

    def _next_of_frame(self) -> RecordBatch:
        batch = self._batches.popleft()
        if not self._batches:
            self._data -= 1
            self._ungranted += 1
            # Half of the credits at once: few credit frames, and a sender that has none left gets
            # some before all that it sent is used up.
            if self._ungranted * 2 >= self.capacity and self._grant is not None:
                granted, self._ungranted = self._ungranted, 0
                self._grant(granted)
        return batch

    def _announce(self) -> None:
        if self._listed or self.blocked or self._gate is None:
            return
        if self._queue or self._batches:
            self._listed = True
            self._gate.mark_ready(self)


class InputGate:
    """All input channels of one subtask, by edge and sender; one element of each in turn."""

    __slots__ = ("_ready", "channels")

    def __init__(self, channels: Sequence[InputChannel]) -> None:
        self.channels = tuple(channels)
        self._ready: deque[InputChannel] = deque()  # unblocked and not empty, each once
        for index, channel in enumerate(self.channels):
            channel.attach(self, index)

    def __len__(self) -> int:
        """Number of channels."""
        return len(self.channels)

    def available(self) -> bool:
        """Whether `next_element` returns one."""
        return bool(self._ready)

    def next_element(self) -> tuple[int, StreamElement] | None:
        """Channel index and element, from the unblocked channels in turn; None if nothing waits."""
        if not self._ready:
            return None
        channel = self._ready.popleft()
        element = channel.pop()
        if channel.still_listed():
            self._ready.append(channel)
        return channel.index, element

    def next_control(self) -> tuple[int, StreamElement] | None:
        """The same, of channels at whose head a control element stands; records stay.

        For a subtask whose leaves can take no records: barriers are let through.
        """
        for _ in range(len(self._ready)):
            if self._ready[0].peek_kind() != "records":
                return self.next_element()
            self._ready.rotate(-1)
        return None

    def block(self, index: int) -> None:
        """Take nothing from a channel until it is unblocked."""
        self.channels[index].block()

    def unblock(self, index: int) -> None:
        """Take from the channel again."""
        self.channels[index].unblock()

    def unblock_all(self) -> None:
        """Take from all channels again."""
        for channel in self.channels:
            if channel.blocked:
                channel.unblock()

    def depth(self) -> int:
        """Data entries that wait in all channels."""
        return sum(channel.depth for channel in self.channels)

    def mark_ready(self, channel: InputChannel) -> None:
        """Called by a channel that has an element and is not blocked."""
        self._ready.append(channel)

    def unmark_ready(self, channel: InputChannel) -> None:
        """Called by a channel that is blocked."""
        self._ready.remove(channel)
