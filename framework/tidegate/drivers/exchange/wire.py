"""The wire format between two slots: frames, and the four messages of the exchange itself.

    frame      u32 payload size | u32 channel | payload          (big-endian)

Channel 0xFFFFFFFF belongs to the exchange: its payload is one of the messages below as msgpack. The
dialling slot sends `HandshakeRequest` and sends nothing else before it receives
`HandshakeAccepted`. A connection of another job, attempt or slot is answered with
`HandshakeRejected`. `EndOfStream` is the last frame of a slot that ends normally: a connection that
closes after it is not a loss. The handshake contains no secret. It separates attempts and does not
protect against attackers.

The module is pure; `sockets` calls it. Invariant: `FrameReader` returns each frame once, complete
and in order, however the bytes were split on the way. It never allocates more than the largest
frame.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

import msgspec

from tidegate.errors import ExchangeError
from tidegate.ports.exchange import MAX_FRAME_BYTES, Frame

EXCHANGE_CHANNEL: Final = 0xFFFF_FFFF
MAGIC: Final = "tidegate-exchange-1"
"""The name and version of this protocol. A peer with another version is rejected, and the reason
names that version.
"""

READ_BYTES: Final = 256 << 10
"""The maximum size of one read in bytes. The default buffer of a Unix socket on Linux (208 KiB)
fits into it.
"""

_HEAD = Struct(">II")


class HandshakeRequest(msgspec.Struct, frozen=True, kw_only=True, tag="hello"):
    """The identity of the dialling slot, and of the slot that it wants to reach."""

    magic: str = MAGIC
    job: str
    attempt: int
    sender: int
    receiver: int


class HandshakeAccepted(msgspec.Struct, frozen=True, kw_only=True, tag="welcome"):
    """The answer that frames may be sent in both directions."""


class HandshakeRejected(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """The answer that the connection does not belong to this slot and attempt."""

    reason: str


class EndOfStream(msgspec.Struct, frozen=True, kw_only=True, tag="goodbye"):
    """The notice that the sender has finished: it sends no further frames and waits for none."""


ExchangeMessage = HandshakeRequest | HandshakeAccepted | HandshakeRejected | EndOfStream

_encoder = msgspec.msgpack.Encoder()
END_OF_STREAM: Final = _encoder.encode(EndOfStream())
"""The payload of every `EndOfStream`: the message has no fields, so all payloads are the same."""

_decoder: msgspec.msgpack.Decoder[ExchangeMessage] = msgspec.msgpack.Decoder(ExchangeMessage)


def frame_head(size: int, channel: int) -> bytes:
    """Return the header of a frame with a payload of that size."""
    return _HEAD.pack(size, channel)


def exchange_frame(message: ExchangeMessage) -> bytes:
    """Return a message of the exchange itself as a complete frame."""
    payload = _encoder.encode(message)
    return _HEAD.pack(len(payload), EXCHANGE_CHANNEL) + payload


def decode_exchange_message(payload: bytes) -> ExchangeMessage:
    """Return the message in the payload of a frame from `exchange_frame`. ExchangeError if the
    payload is not such a message.
    """
    try:
        return _decoder.decode(payload)
    except msgspec.DecodeError as error:
        raise ExchangeError(f"A message of the exchange cannot be read: {error}") from error


class FrameReader:
    """Splits a stream of bytes into frames. The socket reads directly into `space`.

    The buffer has `room` bytes, and temporarily more for a larger frame. No payload may exceed
    `limit` bytes.
    """

    def __init__(self, room: int = READ_BYTES, limit: int = MAX_FRAME_BYTES) -> None:
        self._room = room
        self._limit = limit
        self._buffer = bytearray(room)
        self._filled = 0

    @property
    def empty(self) -> bool:
        """Whether the buffer has no part of an incomplete frame."""
        return self._filled == 0

    def space(self) -> memoryview:
        """Return the part of the buffer for the next bytes. It is never empty."""
        return memoryview(self._buffer)[self._filled :]

    def take(self, received: int) -> list[Frame]:
        """Add `received` bytes that were read into `space`, and return the frames that are now
        complete. ExchangeError if a frame is too large.
        """
        buffer = self._buffer
        filled = self._filled + received
        frames: list[Frame] = []
        at, needed = 0, 0
        with memoryview(buffer) as view:
            while filled - at >= _HEAD.size:
                size, channel = _HEAD.unpack_from(buffer, at)
                if size > self._limit:
                    raise ExchangeError(
                        f"A frame of {size} bytes is announced, and {self._limit} is the limit; "
                        "the sender is not a slot of this version."
                    )
                end = at + _HEAD.size + size
                if end > filled:
                    needed = end - at
                    break
                # A copy: later reads overwrite the buffer while the frame still waits for its
                # subtask.
                frames.append((channel, bytes(view[at + _HEAD.size : end])))
                at = end
            rest = bytes(view[at:filled])
        self._keep(rest, needed)
        return frames

    def _keep(self, rest: bytes, needed: int) -> None:
        """Move the incomplete frame to the start of the buffer, and give the buffer room for the
        complete frame.
        """
        room = max(self._room, needed)
        if room != len(self._buffer):
            self._buffer = bytearray(room)
        self._buffer[: len(rest)] = rest
        self._filled = len(rest)
