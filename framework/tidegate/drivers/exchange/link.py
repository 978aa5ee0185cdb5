"""One peer of a slot: the data that waits to be sent to the peer, and the socket once it exists.

The mailbox thread sends. While the socket accepts all data, the mailbox thread writes to it
directly and does not wake the I/O thread. Data that the socket does not accept waits here for the
I/O thread (`sockets`). Only the I/O thread closes the connection and reports its loss. The lock is
held only for one call of a `send` or `write`, whose system calls do not block.

Invariant: bytes leave in the order of the `send` calls. Parts are immutable and are dropped only
after they are sent, so no frame changes while it waits.
"""

from __future__ import annotations

import itertools
import socket
import threading
from collections import deque
from collections.abc import Sequence
from typing import Final

from tidegate.drivers.exchange.wire import FrameReader, frame_head
from tidegate.errors import check
from tidegate.ports.exchange import MAX_FRAME_BYTES

PARTS_PER_CALL: Final = 512
"""The maximum number of parts in one `sendmsg`; the kernel allows 1024 (IOV_MAX)."""

WAITING_PARTS_MAX: Final = 1 << 20
"""The maximum number of parts that may wait for one peer. Credits keep the number far below this
limit, so only a caller that ignores credits exceeds it.
"""


class PeerConnection:
    """The connection to one peer. The object exists before its socket, so that early frames can
    wait in it.
    """

    def __init__(self, peer: int) -> None:
        self.peer = peer
        self.reader = FrameReader()
        self.socket: socket.socket | None = None
        self.writing = False
        """Whether data waits for the I/O thread to send it."""
        self._lock = threading.Lock()
        self._parts: deque[bytes | memoryview] = deque()
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether the connection is gone, or will never exist."""
        return self._closed

    @property
    def drained(self) -> bool:
        """Whether no data waits to be sent."""
        return not self._parts

    def attach(self, connection: socket.socket) -> None:
        """Set the socket after the handshake. From now on the I/O thread may send the data that
        waits.
        """
        with self._lock:
            self.socket = connection
            self.writing = bool(self._parts)

    def send(self, channel: int, payload: Sequence[bytes]) -> bool:
        """Send one frame or let it wait. Return whether the I/O thread must be woken to write it.
        InternalError if the frame or the waiting data is too large.
        """
        size = sum(map(len, payload))
        check(size <= MAX_FRAME_BYTES, f"a frame of {size} bytes, the limit is {MAX_FRAME_BYTES}")
        return self._send([frame_head(size, channel), *payload])

    def write(self) -> None:
        """Send the data that waits, as far as the socket accepts it. OSError if the connection is
        broken. Only the I/O thread calls this.
        """
        with self._lock:
            while self._parts and self.socket is not None:
                parts = list(itertools.islice(self._parts, PARTS_PER_CALL))
                try:
                    sent = self.socket.sendmsg(parts)
                except BlockingIOError:
                    return
                self._drop(sent)
            self.writing = False

    def close(self) -> None:
        """Drop the data that waits and close the socket. Later frames are dropped."""
        with self._lock:
            self._closed = True
            self.writing = False
            self._parts.clear()
            if self.socket is not None:
                self.socket.close()
                self.socket = None

    def _send(self, parts: list[bytes]) -> bool:
        with self._lock:
            if self._closed:
                return False
            waited = bool(self._parts)
            self._parts.extend(parts)
            check(len(self._parts) <= WAITING_PARTS_MAX, f"too much waits for slot {self.peer}")
            if waited or self.socket is None or len(parts) > PARTS_PER_CALL:
                return self._needs_writer()
            try:
                self._drop(self.socket.sendmsg(parts))
            except OSError:
                # The call would block, or the connection is lost: the I/O thread finds out which.
                return self._needs_writer()
            return bool(self._parts) and self._needs_writer()

    def _needs_writer(self) -> bool:
        if self.writing or self.socket is None:
            return False
        self.writing = True
        return True

    def _drop(self, sent: int) -> None:
        """Remove the first `sent` bytes of the data that waits."""
        parts = self._parts
        while sent > 0:
            first = parts[0]
            if len(first) > sent:
                parts[0] = memoryview(first)[sent:]
                return
            sent -= len(first)
            parts.popleft()
        while parts and not parts[0]:
            parts.popleft()  # an empty part has no byte that could be reported as sent
