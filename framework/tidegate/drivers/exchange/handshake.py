"""The first frame on a connection, each way: who dials says `HandshakeRequest`, who accepts
answers.

A `PendingConnection` is a connection that has not come so far. `sockets` owns its socket and its
time; here is what may be said, and what is made of it. Invariant: a connection of another job,
attempt or slot never becomes a link, whatever order processes start and die in.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Final

from tidegate.drivers.exchange.link import PeerConnection
from tidegate.drivers.exchange.wire import (
    OWN_CHANNEL,
    FrameReader,
    HandshakeAccepted,
    HandshakeRejected,
    HandshakeRequest,
    read_own,
)
from tidegate.errors import ExchangeError
from tidegate.ports.exchange import Frame

HELLO_BYTES_MAX: Final = 4096
"""A job's name is 63 bytes at most; the rest is small numbers."""


class PendingConnection:
    """A connection without a link yet: accepted, or dialled for `link` and not yet welcome."""

    def __init__(
        self, connection: socket.socket, deadline: float, link: PeerConnection | None
    ) -> None:
        self.socket = connection
        self.deadline = deadline
        self.link = link
        # Who dialled knows whom, and frames may follow the welcome; nobody else is given much room.
        self.reader = link.reader if link else FrameReader(HELLO_BYTES_MAX, HELLO_BYTES_MAX - 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedConnection:
    """The peer that we dialled takes frames, and sent some already."""

    frames: list[Frame]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The connection is of no use."""

    why: str


def receive(connection: socket.socket, reader: FrameReader) -> list[Frame]:
    """The frames that one read completes; ExchangeError at the end of the stream, OSError."""
    try:
        received = connection.recv_into(reader.space())
    except BlockingIOError:
        return []
    if received == 0:
        raise ExchangeError("its process ended, or it closed the connection")
    return reader.take(received)


def greeting(stranger: PendingConnection) -> HandshakeRequest | AcceptedConnection | Failed | None:
    """Read what the stranger says; None if it is not complete yet."""
    try:
        frames = receive(stranger.socket, stranger.reader)
        if not frames:
            return None
        channel, payload = frames[0]
        message = read_own(payload) if channel == OWN_CHANNEL else None
    except (ExchangeError, OSError) as error:
        return Failed(why=str(error))
    dialled = stranger.link is not None
    match message:
        case HandshakeRequest() if not dialled and len(frames) == 1 and stranger.reader.empty:
            return message
        case HandshakeAccepted() if dialled:
            return AcceptedConnection(frames=frames[1:])
        case HandshakeRejected(reason=reason) if dialled:
            return Failed(why=f"it refused the connection: {reason}")
        case _:
            return Failed(why="what it said first is no greeting")


def rejection_reason(
    hello: HandshakeRequest, *, job: str, attempt: int, ordinal: int
) -> str | None:
    """Why a connection is none of this slot's in this attempt; None if it is one."""
    if hello != HandshakeRequest(job=job, attempt=attempt, sender=hello.sender, receiver=ordinal):
        return (
            f"this is slot {ordinal} of attempt {attempt} of job {job!r}, and slot "
            f"{hello.receiver} of attempt {hello.attempt} of job {hello.job!r} was asked for "
            f"({hello.magic})"
        )
    if hello.sender >= ordinal:
        return f"slot {hello.sender} does not dial slot {ordinal}: the lower one dials"
    return None


def lost(peer: int, why: str, *, job: str, attempt: int, ordinal: int) -> ExchangeError:
    """What `on_lost` is told."""
    return ExchangeError(
        f"slot {ordinal} lost slot {peer} in attempt {attempt} of job {job!r}: {why}; the attempt "
        "ends and the job is restored"
    )
