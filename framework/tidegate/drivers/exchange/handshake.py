"""The first frame in each direction of a connection: the dialling slot sends `HandshakeRequest`,
and the accepting slot answers.

A `PendingConnection` is a connection before the end of its handshake. `sockets` owns its socket and
its deadline. This module checks the messages. Invariant: a connection of another job, attempt or
slot never becomes a link, in whatever order processes start and die.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Final

from tidegate.drivers.exchange.link import PeerConnection
from tidegate.drivers.exchange.wire import (
    EXCHANGE_CHANNEL,
    FrameReader,
    HandshakeAccepted,
    HandshakeRejected,
    HandshakeRequest,
    decode_exchange_message,
)
from tidegate.errors import ExchangeError
from tidegate.message_text import clause
from tidegate.ports.exchange import Frame

HANDSHAKE_BYTES_MAX: Final = 4096
"""The maximum size of the first frame in bytes. A job's name has at most 63 bytes, and the other
fields are small numbers.
"""


class PendingConnection:
    """A connection before the end of its handshake. It was accepted, or it was dialled for `link`
    and waits for the answer.
    """

    def __init__(
        self, connection: socket.socket, deadline: float, link: PeerConnection | None
    ) -> None:
        self.socket = connection
        self.deadline = deadline
        self.link = link
        # The dialling slot knows its peer, and frames may follow the peer's answer. An accepted
        # connection is unknown, so it gets only a small buffer.
        self.reader = (
            link.reader if link else FrameReader(HANDSHAKE_BYTES_MAX, HANDSHAKE_BYTES_MAX - 8)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedConnection:
    """The dialled peer has accepted the connection. `frames` are those that arrived with its
    answer.
    """

    frames: list[Frame]


@dataclass(frozen=True, slots=True, kw_only=True)
class HandshakeFailed:
    """The handshake failed; the connection must be closed."""

    why: str


def receive(connection: socket.socket, reader: FrameReader) -> list[Frame]:
    """Read once and return the frames that are now complete. ExchangeError at the end of the stream
    or for a frame that is too large. OSError if the connection is broken.
    """
    try:
        received = connection.recv_into(reader.space())
    except BlockingIOError:
        return []
    if received == 0:
        raise ExchangeError("Its process ended, or it closed the connection.")
    return reader.take(received)


def handshake(
    pending: PendingConnection,
) -> HandshakeRequest | AcceptedConnection | HandshakeFailed | None:
    """Read the peer's first message and return the result of the handshake. None if the message is
    not complete yet.
    """
    try:
        frames = receive(pending.socket, pending.reader)
        if not frames:
            return None
        channel, payload = frames[0]
        message = decode_exchange_message(payload) if channel == EXCHANGE_CHANNEL else None
    except (ExchangeError, OSError) as error:
        return HandshakeFailed(why=str(error))
    dialled = pending.link is not None
    match message:
        case HandshakeRequest() if not dialled and len(frames) == 1 and pending.reader.empty:
            return message
        case HandshakeAccepted() if dialled:
            return AcceptedConnection(frames=frames[1:])
        case HandshakeRejected(reason=reason) if dialled:
            return HandshakeFailed(why=f"it refused the connection: {reason}")
        case _:
            return HandshakeFailed(why="what it said first is no greeting")


def rejection_reason(
    request: HandshakeRequest, *, job: str, attempt: int, ordinal: int
) -> str | None:
    """Return the reason why a connection does not belong to this slot in this attempt; None if it
    belongs to it.
    """
    if request != HandshakeRequest(
        job=job, attempt=attempt, sender=request.sender, receiver=ordinal
    ):
        return (
            f"this is slot {ordinal} of attempt {attempt} of job {job!r}, and slot "
            f"{request.receiver} of attempt {request.attempt} of job {request.job!r} was asked for "
            f"({request.magic})"
        )
    if request.sender >= ordinal:
        return f"slot {request.sender} does not dial slot {ordinal}: the lower one dials"
    return None


def lost_error(peer: int, why: str, *, job: str, attempt: int, ordinal: int) -> ExchangeError:
    """Return the error that `on_lost` receives."""
    return ExchangeError(
        f"Slot {ordinal} lost slot {peer} in attempt {attempt} of job {job!r}: "
        f"{clause(why)}. The attempt ends and the job is restored."
    )
