"""The sending side of channels: which subtask gets a record, and how the record travels there.

A record writer is one end of an edge, in one sending subtask. `ForwardWriter` has one channel.
`KeyGroupWriter` splits batches by the key group of each record. A local channel puts batches into
the receiver's queue by reference. A remote channel buffers small batches into frames, and sends a
frame when the receiver has granted credit for it.

A subtask calls its record writers in the mailbox thread. Invariants:

- Within each channel, elements leave in the order in which they were emitted. A barrier therefore
  sends the buffered records first. It also queues behind frames that wait for credit, although it
  needs no credit itself.
- There are never more data frames in flight than the receiver has granted.
- The data that waits here is bounded, because a task emits only while `writable` is true, and one
  batch of input at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from tidegate.dataplane.channels.frames import (
    MAX_ENCODED_BATCHES,
    EncodedBatch,
    FrameCodec,
    control_frame,
    data_frame,
)
from tidegate.dataplane.channels.input_gate import InputChannel
from tidegate.dataplane.columns import origin_of, slice_batch, split
from tidegate.dataplane.refusals import Refusals
from tidegate.errors import UserCodeError, check, check_complete
from tidegate.graph.key_groups import key_groups, owners
from tidegate.ports.exchange import MAX_FRAME_BYTES
from tidegate.stream_elements import Control, RecordBatch, Watermark
from tidegate.user_exceptions import described, process_ends

FRAME_RECORDS: Final = 512
"""Number of records after which a frame is sent. The cost of a frame (about 20 us at both ends) is
then 0.04 us per record. A receiver still changes channels a thousand times a second.
"""

FRAME_BYTES: Final = 64 << 10
"""Number of bytes after which a frame is sent: with 8 credits, half a MiB in flight per channel."""

SendFrame = Callable[[Sequence[bytes]], None]


class OutputChannel(Protocol):
    """The channel to one receiving subtask."""

    def put(self, batch: RecordBatch) -> None:
        """Send a batch that is not empty. The channel owns the batch from now on."""
        ...

    def put_control(self, element: Control) -> None:
        """Send a control element, after everything that was put before."""
        ...

    def writable(self) -> bool:
        """Return whether another batch may be put."""
        ...

    def flush(self) -> None:
        """Send the buffered records, as far as credit allows."""
        ...

    def set_refusals(self, refusals: Refusals) -> None:
        """Apply this policy to records that cannot be sent."""
        ...


class LocalOutputChannel:
    """A channel to a subtask of the same slot. It puts elements into the receiver's queue."""

    __slots__ = ("_input",)

    def __init__(self, receiver: InputChannel) -> None:
        self._input = receiver

    def put(self, batch: RecordBatch) -> None:
        self._input.put(batch)

    def put_control(self, element: Control) -> None:
        self._input.put(element)

    def writable(self) -> bool:
        return self._input.depth < self._input.capacity

    def flush(self) -> None:
        """Do nothing, because this channel buffers nothing."""

    def set_refusals(self, refusals: Refusals) -> None:
        """Do nothing, because every record can be passed by reference."""


class RemoteOutputChannel:
    """A channel to a subtask of another slot. It buffers encoded batches into frames, and sends
    frames as credit allows.

    `credit` begins with the initial credits. `add_credit` adds the credits that the receiver
    returns.
    """

    __slots__ = (
        "_buffered_bytes",
        "_buffered_records",
        "_capacity",
        "_codec",
        "_encoded_batches",
        "_flush_due",
        "_records_per_batch",
        "_send",
        "_waiting",
        "credit",
    )

    def __init__(self, codec: FrameCodec, initial_credit: int, send: SendFrame) -> None:
        self.credit = initial_credit
        """Number of data frames that may be sent now."""
        self._capacity = initial_credit
        self._codec = codec
        self._send = send
        self._encoded_batches: list[EncodedBatch] = []  # of the frame that is being filled
        self._buffered_records = 0
        self._buffered_bytes = 0
        self._flush_due = False
        self._waiting: deque[list[bytes] | Control] = (
            deque()
        )  # begins with a data frame, or is empty
        self._records_per_batch = 64  # adapts to the size of records: about a frame's bytes

    @property
    def waiting(self) -> int:
        """Number of frames that wait for credit, or behind a frame that waits for credit."""
        return len(self._waiting)

    @property
    def buffered(self) -> int:
        """Number of records in the frame that is being filled."""
        return self._buffered_records

    def put(self, batch: RecordBatch) -> None:
        size = len(batch)
        # Equal parts of about a frame each. Most batches are one part, and are not copied.
        parts = round(size / self._records_per_batch)
        if parts <= 1:
            self._buffer(self._codec.encode(batch))
            return
        for part in range(parts):
            start, stop = part * size // parts, (part + 1) * size // parts
            self._buffer(self._codec.encode(slice_batch(batch, start, stop)))

    def put_control(self, element: Control) -> None:
        self._finish_frame()
        if self._waiting:
            if isinstance(element, Watermark) and isinstance(self._waiting[-1], Watermark):
                self._waiting.pop()  # the newer one says all that the older one has said
            self._waiting.append(element)
        else:
            self._send((control_frame(element),))

    def writable(self) -> bool:
        return not self._waiting

    def flush(self) -> None:
        if not self._encoded_batches:
            return
        if self.credit > 0:
            self._finish_frame()
        else:
            self._flush_due = True  # the frame continues to grow until credit arrives

    def set_refusals(self, refusals: Refusals) -> None:
        self._codec.refusals = refusals

    def add_credit(self, frames: int) -> None:
        """Add credits that the receiver returned. Raise InternalError if they were never spent."""
        self.credit += frames
        check(
            frames > 0 and self.credit <= self._capacity,
            f"{frames} credits came back on the edge {self._codec.edge}, which makes "
            f"{self.credit} of {self._capacity}",
        )
        self._send_waiting()
        if self._flush_due and self.credit > 0:
            self._finish_frame()

    def _buffer(self, encoded_batches: list[EncodedBatch]) -> None:
        for encoded_batch in encoded_batches:
            size = encoded_batch.size
            if self._buffered_bytes + size > MAX_FRAME_BYTES // 2:
                self._finish_frame()
            self._encoded_batches.append(encoded_batch)
            self._buffered_records += encoded_batch.records
            self._buffered_bytes += size
            ideal = FRAME_BYTES * encoded_batch.records // size
            self._records_per_batch = min(FRAME_RECORDS, max(1, ideal))
            if (
                self._buffered_records >= FRAME_RECORDS
                or self._buffered_bytes >= FRAME_BYTES
                or len(self._encoded_batches) >= MAX_ENCODED_BATCHES
            ):
                self._finish_frame()

    def _finish_frame(self) -> None:
        """Finish the frame that is being filled, and send it or let it wait."""
        self._flush_due = False
        if not self._encoded_batches:
            return
        frame = data_frame(self._encoded_batches)
        self._encoded_batches = []
        self._buffered_records = self._buffered_bytes = 0
        self._waiting.append(frame)
        self._send_waiting()

    def _send_waiting(self) -> None:
        waiting = self._waiting
        while waiting:
            first = waiting[0]
            if isinstance(first, list):
                if self.credit == 0:
                    return
                self.credit -= 1
                self._send(first)
            else:
                self._send((control_frame(first),))
            waiting.popleft()


class RecordWriter:
    """The common part of all record writers. Control elements go to every channel, after the
    records that were emitted before.
    """

    def __init__(self, channels: Sequence[OutputChannel]) -> None:
        check(channels, "a record writer needs a channel")
        self.channels = tuple(channels)

    def emit(self, batch: RecordBatch) -> None:
        """Send a batch. The record writer owns it from now on. Call this only while `writable` is
        true.
        """
        raise NotImplementedError

    def emit_control(self, element: Control) -> None:
        """Send a control element along every channel."""
        for channel in self.channels:
            channel.put_control(element)

    def writable(self) -> bool:
        """Return whether every channel can take another batch. A task that may not write must not
        read.
        """
        return all(channel.writable() for channel in self.channels)

    def flush(self) -> None:
        """Send the buffered records. This is called when the mailbox has no other work."""
        for channel in self.channels:
            channel.flush()

    def set_refusals(self, refusals: Refusals) -> None:
        """Apply this policy to records that cannot be sent."""
        for channel in self.channels:
            channel.set_refusals(refusals)


class ForwardWriter(RecordWriter):
    """A record writer with one channel, to the subtask of the same index."""

    def __init__(self, channel: OutputChannel) -> None:
        super().__init__((channel,))
        self._channel = channel

    def emit(self, batch: RecordBatch) -> None:
        """Send a batch along the channel."""
        if batch.values:
            self._channel.put(batch)

    def writable(self) -> bool:
        """Return whether the channel can take another batch."""
        return self._channel.writable()


class KeyGroupWriter(RecordWriter):
    """A record writer that sends each record to the subtask that owns the group of the record's
    key.

    The records of a key keep their order. `channels` are in the order of receiving subtasks. `step`
    is the sending step, for errors of the key function.
    """

    def __init__(
        self,
        key: Callable[[Any], Any],
        key_encoder: Callable[[Any], bytes],
        max_parallelism: int,
        channels: Sequence[OutputChannel],
        *,
        step: str,
    ) -> None:
        super().__init__(channels)
        self._key, self._key_encoder = key, key_encoder
        self._step = step
        self._max_parallelism = max_parallelism
        self._owners = owners(len(channels), max_parallelism)

    def emit(self, batch: RecordBatch) -> None:
        """Split a batch by receiver and send the parts. Raise UserCodeError if the key function
        fails.
        """
        if not batch.values:
            return
        receivers: list[int] = []
        try:
            # The keys are not sent; the receiver computes them again. Encoding and decoding a text
            # takes as long as reading a field (65 ns), and would make the frame larger. Except for
            # the key function, this is one pass in C. After an error, the length of the list
            # identifies the failing record, without a second call of the user's function.
            # A dict from keys to receivers would take 50 ns in place of 100 if there were few keys.
            # With 100,000 keys, each visit would miss the caches and take 420 ns.
            keys_bytes = map(self._key_encoder, map(self._key, batch.values))
            groups = key_groups(keys_bytes, self._max_parallelism)
            receivers.extend(map(self._owners.__getitem__, groups))
            check_complete(len(receivers), len(batch.values))
        except process_ends():
            raise
        except BaseException as error:
            raise self._key_error(batch, len(receivers), error) from error
        first = receivers[0]
        if receivers.count(first) == len(receivers):
            self.channels[first].put(batch)
            return
        for receiver, part in split(batch, receivers, len(self.channels)):
            self.channels[receiver].put(part)

    def _key_error(self, batch: RecordBatch, index: int, error: BaseException) -> UserCodeError:
        return UserCodeError(
            f"key_by after step {self._step!r} failed for the record that came from "
            f"{origin_of(batch, index)}: {described(error)}"
        )
