"""What a TaskManager and its zygote say to each other, over a Unix socket pair.

Frames are a length and one JSON object; JSON because a person may want to read them in a trace, and
because there are few. The socket is the zygote's command line: at its end the zygote ends. Both
ends have one reader and one writer.
"""

from __future__ import annotations

import socket
import struct

import msgspec

from tidegate.errors import InternalError
from tidegate.protocol.messages import StartSlot

_LENGTH = struct.Struct("!I")
FRAME_BYTES_MAX = 16 << 20
"""A StartSlot holds the settings of a job: kilobytes. A larger length is a broken stream."""


class Fork(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Fork a slot; answered by Forked or NotForked."""

    start: StartSlot


class Kill(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """SIGKILL a child that is not reaped yet."""

    pid: int


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Everything is imported."""

    pid: int


class Forked(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The slot's process exists."""

    index: int
    pid: int


class NotForked(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The operating system refused the fork."""

    index: int
    reason: str


class Exited(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A slot's process was reaped; status as subprocess gives it."""

    index: int
    pid: int
    status: int


Command = Fork | Kill
Notice = Ready | Forked | NotForked | Exited

_encoder = msgspec.json.Encoder()
_commands: msgspec.json.Decoder[Command] = msgspec.json.Decoder(Command)
_notices: msgspec.json.Decoder[Notice] = msgspec.json.Decoder(Notice)


def send(connection: socket.socket, frame: Command | Notice) -> None:
    """Write one frame; OSError when the other end is gone."""
    data = _encoder.encode(frame)
    connection.sendall(_LENGTH.pack(len(data)) + data)


def receive_command(connection: socket.socket) -> Command | None:
    """The next command; None when the TaskManager is gone."""
    data = _receive(connection)
    return None if data is None else _commands.decode(data)


def receive_notice(connection: socket.socket) -> Notice | None:
    """The next notice; None when the zygote is gone."""
    data = _receive(connection)
    return None if data is None else _notices.decode(data)


def _receive(connection: socket.socket) -> bytes | None:
    head = _exactly(connection, _LENGTH.size)
    if head is None:
        return None
    (length,) = _LENGTH.unpack(head)
    if length > FRAME_BYTES_MAX:
        raise InternalError(f"A frame of {length} bytes between TaskManager and zygote.")
    return _exactly(connection, length)


def _exactly(connection: socket.socket, length: int) -> bytes | None:
    data = bytearray()
    while len(data) < length:
        try:
            chunk = connection.recv(length - len(data))
        except ConnectionError:
            return None
        if not chunk:
            return None
        data += chunk
    return bytes(data)
