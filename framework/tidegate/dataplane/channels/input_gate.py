"""The receiving side of channels: the elements that wait for a subtask, and their order.

An `InputChannel` is a bounded queue of elements. An `InputGate` holds all channels of one subtask,
and takes elements from them in turn. A channel from the same slot holds batches by reference. A
channel from another slot holds encoded frames, which are decoded when the subtask reaches them. It
returns a credit for each data frame whose last batch was taken. A blocked channel therefore holds
at most `capacity` frames. Its sender then stops, while all other channels of the connection
continue.

`record_writer` (same slot), `slot_channels` (other slots) and `input_task` call this module,
all in the mailbox thread. Invariant: elements leave a channel in the order of their arrival, and no
element leaves a blocked channel. `checkpoint/alignment` decides which channel to block, and when.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Literal

from tidegate.dataplane.channels.frames import FrameCodec
from tidegate.errors import ExchangeError, check
from tidegate.graph.plan import PlanEdge
from tidegate.ids import SubtaskIndex
from tidegate.stream_elements import Barrier, EndOfInput, RecordBatch, StreamElement, Watermark

ElementKind = Literal["records", "barrier", "end_of_input", "watermark"]


class InputChannel:
    """The queue of one channel at its receiver.

    `capacity` counts data entries: batches from the same slot, or frames (= credits) from another
    slot. A channel without a codec is local. A channel with a codec returns credits to the sender
    by `send_credit`.
    """

    __slots__ = (
        "_batches",
        "_codec",
        "_data",
        "_gate",
        "_is_ready",
        "_queue",
        "_send_credit",
        "_unannounced_credit",
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
        send_credit: Callable[[int], None] | None = None,
    ) -> None:
        self.edge = edge
        self.sender = sender
        self.capacity = capacity
        self.index = 0
        """Position of the channel in the gate."""
        self.blocked = False
        self._codec = codec
        self._send_credit = send_credit
        self._queue: deque[StreamElement | bytes] = deque()
        self._batches: deque[RecordBatch] = deque()  # the rest of the frame that was begun
        self._data = 0  # data entries held, including a frame that was begun
        self._unannounced_credit = 0  # data frames taken whose credits were not returned yet
        self._gate: InputGate | None = None
        self._is_ready = False

    def attach(self, gate: InputGate, index: int) -> None:
        """Attach the channel to its gate. The gate calls this once."""
        self._gate = gate
        self.index = index

    @property
    def depth(self) -> int:
        """Number of data entries that wait: batches from the same slot, or frames from another
        slot.
        """
        return self._data

    @property
    def unannounced_credit(self) -> int:
        """Number of data frames that were taken and whose credits were not returned yet."""
        return self._unannounced_credit

    def __len__(self) -> int:
        """Return the number of entries that wait, including control elements."""
        return len(self._queue) + bool(self._batches)

    def put(self, element: StreamElement) -> None:
        """Add an element. A caller that adds batches checks `depth` first."""
        if isinstance(element, RecordBatch):
            self._data += 1
        elif (
            isinstance(element, Watermark)
            and self._queue
            and isinstance(self._queue[-1], Watermark)
        ):
            self._queue.pop()  # so a channel that is blocked for long holds one watermark, not many
        self._queue.append(element)
        self._announce()

    def offer_frame(self, payload: bytes) -> None:
        """Add an encoded data frame. Raise ExchangeError if the sender had no credit for it."""
        if self._data + self._unannounced_credit >= self.capacity:
            raise ExchangeError(
                f"Subtask {self.sender} sent more than {self.capacity} frames without credit along "
                f"the edge {self.edge.source_node} -> {self.edge.target_node}."
            )
        self._data += 1
        self._queue.append(payload)
        self._announce()

    def peek_kind(self) -> ElementKind | None:
        """Return the kind of the next element, None if no element waits. The channel may be
        blocked.
        """
        if self._batches:
            return "records"
        if not self._queue:
            return None
        match self._queue[0]:
            case Barrier():
                return "barrier"
            case EndOfInput():
                return "end_of_input"
            case Watermark():
                return "watermark"
            case _:
                return "records"

    def pop(self) -> StreamElement:
        """Take the next element. Raise InternalError if the channel is blocked or empty."""
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
        """Block the channel until `unblock`. The sender stops when its credits are used up."""
        self.blocked = True
        if self._is_ready and self._gate is not None:
            self._gate.unmark_ready(self)
            self._is_ready = False

    def unblock(self) -> None:
        """Undo `block`. This does nothing if the channel is not blocked."""
        self.blocked = False
        self._announce()

    def still_ready(self) -> bool:
        """Return whether the channel has another turn. The gate calls this after it took an
        element.
        """
        self._is_ready = bool(self._batches or self._queue)
        return self._is_ready

    def _next_of_frame(self) -> RecordBatch:
        batch = self._batches.popleft()
        if not self._batches:
            self._data -= 1
            self._unannounced_credit += 1
            # Half of the credits are returned at once. This needs few credit frames. A sender
            # without credits gets some before the receiver has used up everything that was sent.
            if self._unannounced_credit * 2 >= self.capacity and self._send_credit is not None:
                returned_credit, self._unannounced_credit = self._unannounced_credit, 0
                self._send_credit(returned_credit)
        return batch

    def _announce(self) -> None:
        if self._is_ready or self.blocked or self._gate is None:
            return
        if self._queue or self._batches:
            self._is_ready = True
            self._gate.mark_ready(self)


class InputGate:
    """All input channels of one subtask, by edge and sender. The gate takes one element of each in
    turn.
    """

    __slots__ = ("_ready", "channels")

    def __init__(self, channels: Sequence[InputChannel]) -> None:
        self.channels = tuple(channels)
        self._ready: deque[InputChannel] = deque()  # unblocked and not empty, each once
        for index, channel in enumerate(self.channels):
            channel.attach(self, index)

    def __len__(self) -> int:
        """Return the number of channels."""
        return len(self.channels)

    def available(self) -> bool:
        """Return whether `next_element` returns an element."""
        return bool(self._ready)

    def next_element(self) -> tuple[int, StreamElement] | None:
        """Return the channel index and the next element, from the unblocked channels in turn.

        Return None if no element waits.
        """
        if not self._ready:
            return None
        channel = self._ready.popleft()
        element = channel.pop()
        if channel.still_ready():
            self._ready.append(channel)
        return channel.index, element

    def next_control(self) -> tuple[int, StreamElement] | None:
        """Do the same for channels whose first element is a control element. Records stay in their
        queues.

        A subtask whose outputs can take no records calls this, so that barriers can pass. A
        watermark passes too, because one stands directly before each barrier.
        """
        for _ in range(len(self._ready)):
            if self._ready[0].peek_kind() != "records":
                return self.next_element()
            self._ready.rotate(-1)
        return None

    def block(self, index: int) -> None:
        """Take no elements from a channel until it is unblocked."""
        self.channels[index].block()

    def unblock(self, index: int) -> None:
        """Take elements from the channel again."""
        self.channels[index].unblock()

    def unblock_all(self) -> None:
        """Take elements from all channels again."""
        for channel in self.channels:
            if channel.blocked:
                channel.unblock()

    def depth(self) -> int:
        """Return the number of data entries that wait in all channels."""
        return sum(channel.depth for channel in self.channels)

    def mark_ready(self, channel: InputChannel) -> None:
        """Add a channel to the turns. The channel calls this when it has an element and is not
        blocked.
        """
        self._ready.append(channel)

    def unmark_ready(self, channel: InputChannel) -> None:
        """Remove a channel from the turns. The channel calls this when it is blocked."""
        self._ready.remove(channel)
