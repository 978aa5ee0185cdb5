"""The messages between a TaskManager and its fork server, over a Unix socket pair.

A frame is a length and one JSON object. It is JSON because a person may want to read it in a trace,
and because there are few frames. The fork server exits when the socket ends. Each end has one
reader and one writer.
"""

from __future__ import annotations

import socket
import struct

import msgspec

from tidegate.errors import InternalError
from tidegate.protocol.messages import StartSlot

_LENGTH = struct.Struct("!I")
FRAME_BYTES_MAX = 16 << 20
"""The maximum length of a frame in bytes. A StartSlot contains the settings of a job, which take
kilobytes. A larger length means a broken stream.
"""


class Fork(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The command to fork a slot; the answer is Forked or NotForked."""

    start: StartSlot


class Kill(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The command to send SIGKILL to a child that is not reaped yet."""

    pid: int


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The notice that everything is imported."""

    pid: int


class Forked(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The notice that the slot's process exists."""

    index: int
    pid: int


class NotForked(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The notice that the operating system refused the fork."""

    index: int
    reason: str


class Exited(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The notice that a slot's process was reaped. `status` has the form that `subprocess` uses."""

    index: int
    pid: int
    status: int


class StacksDumped(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The notice that no thread of a slot can run, with the stacks of its threads. `code` is the
    slot's description of its user code.
    """

    index: int
    pid: int
    code: str
    dump: str


Command = Fork | Kill
Notice = Ready | Forked | NotForked | StacksDumped | Exited

_encoder = msgspec.json.Encoder()
_commands: msgspec.json.Decoder[Command] = msgspec.json.Decoder(Command)
_notices: msgspec.json.Decoder[Notice] = msgspec.json.Decoder(Notice)


def send(connection: socket.socket, frame: Command | Notice) -> None:
    """Write one frame. OSError if the other end is gone."""
    data = _encoder.encode(frame)
    connection.sendall(_LENGTH.pack(len(data)) + data)


def receive_command(connection: socket.socket) -> Command | None:
    """Read the next command. None if the TaskManager is gone."""
    data = _receive(connection)
    return None if data is None else _commands.decode(data)


def receive_notice(connection: socket.socket) -> Notice | None:
    """Read the next notice. None if the fork server is gone."""
    data = _receive(connection)
    return None if data is None else _notices.decode(data)


def _receive(connection: socket.socket) -> bytes | None:
    head = _exactly(connection, _LENGTH.size)
    if head is None:
        return None
    (length,) = _LENGTH.unpack(head)
    if length > FRAME_BYTES_MAX:
        raise InternalError(f"A frame of {length} bytes between TaskManager and fork server.")
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
