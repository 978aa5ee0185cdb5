"""One peer of a slot: what waits to be sent to it, and the socket once there is one.

The mailbox thread sends; while the socket takes everything, it does so by itself and wakes nobody.
What the socket does not take waits here for the I/O thread (`sockets`), which alone closes, and
alone tells of losses. The lock is held for one system call that does not block.

Invariant: bytes leave in the order of `send`; parts are immutable and are dropped only when sent,
so no frame changes while it is under way.
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
"""Parts that one `sendmsg` is given; the kernel takes 1024 (IOV_MAX)."""

WAITING_PARTS_MAX: Final = 1 << 20
"""Parts that may wait for one peer. Credits keep far below it: it finds a caller without any."""


class PeerConnection:
    """The way to one peer; made before the connection is, so that early frames can wait."""

    def __init__(self, peer: int) -> None:
        self.peer = peer
        self.reader = FrameReader()
        self.socket: socket.socket | None = None
        self.writing = False
        """Whether something waits for the I/O thread to send it."""
        self._lock = threading.Lock()
        self._parts: deque[bytes | memoryview] = deque()
        self._closed = False

    @property
    def closed(self) -> bool:
        """No connection will come, or it is gone."""
        return self._closed

    @property
    def drained(self) -> bool:
        """Whether nothing waits to be sent."""
        return not self._parts

    def attach(self, connection: socket.socket) -> None:
        """The handshake is done: what waits may be sent by the I/O thread from now on."""
        with self._lock:
            self.socket = connection
            self.writing = bool(self._parts)

    def send(self, channel: int, payload: Sequence[bytes]) -> bool:
        """Send one frame or let it wait; whether the I/O thread has something new to write."""
        size = sum(map(len, payload))
        check(size <= MAX_FRAME_BYTES, f"a frame of {size} bytes, the limit is {MAX_FRAME_BYTES}")
        return self._send([frame_head(size, channel), *payload])

    def write(self) -> None:
        """Send what waits, as far as the socket takes it. I/O thread; OSError if it broke."""
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
        """Forget what waits and close the socket; what is sent from now on is dropped."""
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
                # It would block, or the connection is lost: the I/O thread finds out which.
                return self._needs_writer()
            return bool(self._parts) and self._needs_writer()

    def _needs_writer(self) -> bool:
        if self.writing or self.socket is None:
            return False
        self.writing = True
        return True

    def _drop(self, sent: int) -> None:
        """Take so many bytes off the front."""
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
