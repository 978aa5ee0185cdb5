"""Bytes on a connection between two slots: frames, and the four messages of the exchange's own.

    frame      u32 payload size | u32 channel | payload          (big-endian)

Channel 0xFFFFFFFF is the exchange's own: its payload is one of the messages below as msgpack. Who
dials says `HandshakeRequest` and sends nothing before `HandshakeAccepted`; a connection of another
job, attempt or slot is answered with `HandshakeRejected`. `EndOfStream` is the last frame of a slot
that ends in order: what follows it is no loss. No secret is in it: it keeps attempts apart, not
attackers.

Pure; called by `sockets`. Invariant: `FrameReader` gives each frame once, whole, in order, however
the bytes were torn apart on the way, and never allocates more than the largest frame.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

import msgspec

from tidegate.errors import ExchangeError
from tidegate.ports.exchange import MAX_FRAME_BYTES, Frame

OWN_CHANNEL: Final = 0xFFFF_FFFF
MAGIC: Final = "tidegate-exchange-1"
"""Name and version of this protocol; another one is refused by name."""

READ_BYTES: Final = 256 << 10
"""Of one read: what a Unix socket of Linux buffers by default (208 KiB) fits in it."""

_HEAD = Struct(">II")


class HandshakeRequest(msgspec.Struct, frozen=True, kw_only=True, tag="hello"):
    """Who dials, and whom it means to reach."""

    magic: str = MAGIC
    job: str
    attempt: int
    sender: int
    receiver: int


class HandshakeAccepted(msgspec.Struct, frozen=True, kw_only=True, tag="welcome"):
    """Frames may flow, both ways."""


class HandshakeRejected(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """The connection is none of this attempt."""

    reason: str


class EndOfStream(msgspec.Struct, frozen=True, kw_only=True, tag="goodbye"):
    """The sender has done its part and sends nothing more; it waits for nothing either."""


OwnMessage = HandshakeRequest | HandshakeAccepted | HandshakeRejected | EndOfStream

_encoder = msgspec.msgpack.Encoder()
GOODBYE: Final = _encoder.encode(EndOfStream())
"""Its payload; it holds nothing, so there is one only."""

_decoder: msgspec.msgpack.Decoder[OwnMessage] = msgspec.msgpack.Decoder(OwnMessage)


def frame_head(size: int, channel: int) -> bytes:
    """What stands before a payload of that size."""
    return _HEAD.pack(size, channel)


def own_frame(message: OwnMessage) -> bytes:
    """A message of the exchange's own as a whole frame."""
    payload = _encoder.encode(message)
    return _HEAD.pack(len(payload), OWN_CHANNEL) + payload


def read_own(payload: bytes) -> OwnMessage:
    """The inverse of `own_frame`, of its payload; ExchangeError if it is no such message."""
    try:
        return _decoder.decode(payload)
    except msgspec.DecodeError as error:
        raise ExchangeError(f"a message of the exchange cannot be read: {error}") from error


class FrameReader:
    """Cuts a stream of bytes into frames; the socket reads straight into `space`.

    It holds `room` bytes, and for a time more where a frame is larger; no frame may exceed `limit`.
    """

    def __init__(self, room: int = READ_BYTES, limit: int = MAX_FRAME_BYTES) -> None:
        self._room = room
        self._limit = limit
        self._buffer = bytearray(room)
        self._filled = 0

    @property
    def empty(self) -> bool:
        """Whether no frame was begun."""
        return self._filled == 0

    def space(self) -> memoryview:
        """Where the next bytes go; never empty."""
        return memoryview(self._buffer)[self._filled :]

    def take(self, received: int) -> list[Frame]:
        """The frames that are complete with so many bytes more; ExchangeError for one too large."""
        buffer = self._buffer
        filled = self._filled + received
        frames: list[Frame] = []
        at, needed = 0, 0
        with memoryview(buffer) as view:
            while filled - at >= _HEAD.size:
                size, channel = _HEAD.unpack_from(buffer, at)
                if size > self._limit:
                    raise ExchangeError(
                        f"a frame of {size} bytes is announced, and {self._limit} is the limit; "
                        "whoever sends this is no slot of this version"
                    )
                end = at + _HEAD.size + size
                if end > filled:
                    needed = end - at
                    break
                # A copy: the buffer is read into again while the frame still waits for its subtask.
                frames.append((channel, bytes(view[at + _HEAD.size : end])))
                at = end
            rest = bytes(view[at:filled])
        self._keep(rest, needed)
        return frames

    def _keep(self, rest: bytes, needed: int) -> None:
        """Begin the buffer with what is left, with room for the frame that it begins."""
        room = max(self._room, needed)
        if room != len(self._buffer):
            self._buffer = bytearray(room)
        self._buffer[: len(rest)] = rest
        self._filled = len(rest)
