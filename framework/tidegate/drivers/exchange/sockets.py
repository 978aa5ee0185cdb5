"""A slot's exchange over sockets: one connection per peer, one I/O thread for all of them.

The slot listens before it registers. Its deployment lists the peers, and then the slot with the
lower ordinal dials the slot with the higher one. A connection has one of these states:

    pending     accepted, has not sent its handshake; it is closed after five seconds
    dialled     being connected, or waits for `HandshakeAccepted`
    linked      belongs to a `PeerConnection`; frames flow

A linked connection is read only after `connect` was called, because frames have no receiver before.
The frames of one read go to the mailbox as one action. When all peers are linked, the listener is
closed and its folder removed, so that a killed slot leaves no folder behind.

A peer that closes without `EndOfStream` is lost. `close` writes the data that waits, sends
`EndOfStream`, and then waits for the peer to close. If this slot closed first, data that the peer
has not read yet could be destroyed.

The I/O thread owns the selector and all states. Other threads pass commands to it and wake it. Only
the I/O thread calls `post`. It does not interpret credits and channels.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from tidegate.drivers.exchange import addresses
from tidegate.drivers.exchange.handshake import (
    AcceptedConnection,
    HandshakeFailed,
    PendingConnection,
    handshake,
    lost_error,
    receive,
    rejection_reason,
)
from tidegate.drivers.exchange.link import PeerConnection
from tidegate.drivers.exchange.wire import (
    END_OF_STREAM,
    EXCHANGE_CHANNEL,
    HandshakeAccepted,
    HandshakeRejected,
    HandshakeRequest,
    exchange_frame,
)
from tidegate.drivers.process.user_forks import end_if_forked
from tidegate.errors import ExchangeError, InternalError, check
from tidegate.ports.exchange import Frame, OnFrames, OnLost

HANDSHAKE_TIMEOUT_S: Final = 5.0
"""The maximum time for the handshake of an accepted connection, in seconds. A slot sends it at
once, a port scanner never.
"""

PENDING_CONNECTIONS_MAX: Final = 256
"""The maximum number of connections before the end of their handshake. A job has at most this many
slots.
"""

CONNECT_TIMEOUT_S: Final = 60.0
"""The maximum time from `connect` until all peers are linked, in seconds. Peers are deployed
together, but the slowest may have to import a large program before it dials.
"""

CLOSE_TIMEOUT_S: Final = 2.0
"""The maximum time to write waiting data and `EndOfStream` and to wait for the peers to close, in
seconds.
"""

NEVER: Final = float("inf")

Post = Callable[[Callable[[], None]], None]


class SocketExchange:
    """An implementation of `ports.exchange.Exchange`. It listens as soon as it is made: on a Unix
    socket, or on a port of `host`, which peers dial as `reached_as`.
    """

    def __init__(
        self,
        *,
        job: str,
        attempt: int,
        ordinal: int,
        host: str | None = None,
        reached_as: str | None = None,
    ) -> None:
        self._job = job
        self._attempt = attempt
        self._ordinal = ordinal
        self._listener: addresses.Listener | None = addresses.listen(host, reached_as)
        self._address = self._listener.address
        self._commands: deque[Callable[[], None]] = deque()
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_read.setblocking(False)
        self._wake_write.setblocking(False)
        self._closed = False
        # `connect` writes this before the I/O thread begins to connect; both threads read it.
        self._peer_connections: dict[int, PeerConnection] = {}
        # Only the I/O thread uses the attributes from here on.
        self._post: Post = _ignore
        self._on_frames: OnFrames = _ignore
        self._on_lost: OnLost = _ignore
        self._connect_called = False
        self._accepted_early: dict[
            int, PendingConnection
        ] = {}  # accepted before `connect`, by ordinal
        self._pending: set[PendingConnection] = set()
        self._connect_deadline = NEVER
        self._close_deadline = NEVER
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake_read, selectors.EVENT_READ, self._run_commands)
        self._selector.register(self._listener.socket, selectors.EVENT_READ, self._accept)
        self._thread = threading.Thread(target=self._run, name="exchange", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        return self._address

    def connect(
        self, peers: Mapping[int, str], *, post: Post, on_frames: OnFrames, on_lost: OnLost
    ) -> None:
        check(not self._peer_connections, "an exchange is connected once")
        check(self._ordinal not in peers, "a slot has no connection to itself")
        self._peer_connections = {peer: PeerConnection(peer) for peer in peers}
        self._command(partial(self._begin, dict(peers), post, on_frames, on_lost))

    def send(self, peer: int, channel: int, payload: Sequence[bytes]) -> None:
        check(0 <= channel < EXCHANGE_CHANNEL, f"channel number {channel} is not one of a caller's")
        end_if_forked()
        link = self._peer_connections[peer]
        if link.send(channel, payload):
            self._command(partial(self._watch, link))

    def close(self) -> None:
        if not self._closed:
            self._command(self._send_end_of_stream)
        self._closed = True
        self._thread.join(CLOSE_TIMEOUT_S + 3.0)
        check(not self._thread.is_alive(), "the exchange's thread does not end")

    # --- the I/O thread -------------------------------------------------------------------------

    def _command(self, action: Callable[[], None]) -> None:
        self._commands.append(action)
        with contextlib.suppress(OSError):  # a full socket wakes it too, or the thread has ended
            self._wake_write.send(b"\0")

    def _run(self) -> None:
        try:
            while not self._ended():
                for key, events in self._selector.select(self._timeout()):
                    self._handle(key.data, events)
                self._expire(time.monotonic())
        except BaseException as error:
            for link in self._peer_connections.values():
                self._report_lost(link, f"the exchange's own thread failed: {error!r}")
            raise
        finally:
            self._free()

    def _handle(self, owner: object, events: int) -> None:
        # An earlier event of the same round may have closed the connection of this event.
        match owner:
            case PeerConnection():
                if events & selectors.EVENT_WRITE and owner.socket is not None:
                    self._write(owner)
                if events & selectors.EVENT_READ and owner.socket is not None:
                    self._read(owner, owner.socket)
            case PendingConnection():
                if owner in self._pending and events & selectors.EVENT_WRITE:
                    self._send_handshake_request(owner)
                if owner in self._pending and events & selectors.EVENT_READ:
                    self._continue_handshake(owner)
            case _:
                check(callable(owner), f"no handler for events of {owner!r}")
                owner()  # type: ignore[operator]  # checked: `_run_commands` or `_accept`

    def _run_commands(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._wake_read.recv(4096)
        while self._commands:
            self._commands.popleft()()

    def _begin(
        self, peers: Mapping[int, str], post: Post, on_frames: OnFrames, on_lost: OnLost
    ) -> None:
        self._post, self._on_frames, self._on_lost = post, on_frames, on_lost
        self._connect_called = True
        self._connect_deadline = time.monotonic() + CONNECT_TIMEOUT_S
        for peer, address in peers.items():
            if peer in self._accepted_early:
                self._attach(self._accepted_early.pop(peer), self._peer_connections[peer], [])
            elif peer > self._ordinal:
                self._dial(self._peer_connections[peer], address)
        for pending in self._accepted_early.values():
            pending.socket.close()  # the deployment does not list it as a peer of this slot
        self._accepted_early.clear()
        self._close_listener_when_connected()

    # --- before frames flow ---------------------------------------------------------------------

    def _dial(self, link: PeerConnection, address: str) -> None:
        try:
            connection = addresses.dial(address)
        except OSError as error:
            self._report_lost(link, f"{address} cannot be reached: {error}")
            return
        pending = PendingConnection(connection, self._connect_deadline, link)
        self._pending.add(pending)
        self._selector.register(connection, selectors.EVENT_WRITE, pending)

    def _send_handshake_request(self, pending: PendingConnection) -> None:
        """Send the handshake request, now that the dialled connection is made or has failed."""
        if pending.link is None:
            raise InternalError("an accepted connection waits to be connected")
        receiver = pending.link.peer
        request = HandshakeRequest(
            job=self._job, attempt=self._attempt, sender=self._ordinal, receiver=receiver
        )
        try:
            pending.socket.send(
                exchange_frame(request)
            )  # always fits into the buffer of a new socket
        except OSError as error:  # also raised if the connection was not made
            self._drop_pending(pending)
            self._report_lost(pending.link, f"it cannot be reached: {error}")
            return
        self._selector.modify(pending.socket, selectors.EVENT_READ, pending)

    def _accept(self) -> None:
        if self._listener is None:
            return
        try:
            connection, _ = self._listener.socket.accept()
        except OSError:
            return  # the peer closed the connection while it waited
        if len(self._pending) >= PENDING_CONNECTIONS_MAX:
            connection.close()
            return
        addresses.prepare(connection)
        pending = PendingConnection(connection, time.monotonic() + HANDSHAKE_TIMEOUT_S, None)
        self._pending.add(pending)
        self._selector.register(connection, selectors.EVENT_READ, pending)

    def _continue_handshake(self, pending: PendingConnection) -> None:
        match handshake(pending):
            case HandshakeRequest() as request:
                self._answer(pending, request)
            case AcceptedConnection(frames=frames) if pending.link is not None:
                self._pending.discard(pending)
                self._selector.unregister(pending.socket)
                self._attach(pending, pending.link, frames)
            case HandshakeFailed(why=why):
                self._drop_pending(pending)
                if pending.link is not None:
                    self._report_lost(pending.link, why)
            case _:  # not complete yet
                pass

    def _answer(self, pending: PendingConnection, request: HandshakeRequest) -> None:
        reason = rejection_reason(
            request, job=self._job, attempt=self._attempt, ordinal=self._ordinal
        )
        link = self._peer_connections.get(request.sender) if self._connect_called else None
        if reason is None and (
            request.sender in self._accepted_early
            or (self._connect_called and not _is_unconnected(link))
        ):
            reason = f"slot {request.sender} has, or had, its connection already, or needs none"
        answer = exchange_frame(
            HandshakeAccepted() if reason is None else HandshakeRejected(reason=reason)
        )
        with contextlib.suppress(OSError):  # if the peer is gone, the first read detects it
            pending.socket.send(answer)
        if reason is not None:
            self._drop_pending(pending)
            return
        self._pending.discard(pending)
        self._selector.unregister(pending.socket)
        if link is None:
            self._accepted_early[request.sender] = pending
        else:
            self._attach(pending, link, [])

    def _attach(
        self, pending: PendingConnection, link: PeerConnection, frames: list[Frame]
    ) -> None:
        # Remove the folder before frames flow, so that a slot that is killed later leaves none.
        self._close_listener_when_connected(link)
        link.attach(pending.socket)
        self._selector.register(pending.socket, _interest(link), link)
        self._deliver(link, frames)

    def _close_listener_when_connected(self, last: PeerConnection | None = None) -> None:
        """Close the listener if all links except `last` have their connection."""
        if not any(
            _is_unconnected(link) and link is not last for link in self._peer_connections.values()
        ):
            self._connect_deadline = NEVER
            self._close_listener()

    # --- frames ---------------------------------------------------------------------------------

    def _watch(self, link: PeerConnection) -> None:
        """Register the events that the link needs now."""
        if link.socket is not None:
            self._selector.modify(link.socket, _interest(link), link)

    def _write(self, link: PeerConnection) -> None:
        try:
            link.write()
        except OSError as error:
            self._report_lost(link, f"the connection broke: {error}")
            return
        if not link.writing:
            self._watch(link)

    def _read(self, link: PeerConnection, connection: socket.socket) -> None:
        try:
            frames = receive(connection, link.reader)
        except (ExchangeError, OSError) as error:
            self._report_lost(link, f"the connection broke: {error}")
            return
        self._deliver(link, frames)

    def _deliver(self, link: PeerConnection, frames: list[Frame]) -> None:
        """Post one action for all frames of a read. `EndOfStream` can only be the last of them."""
        own = frames and frames[-1][0] == EXCHANGE_CHANNEL
        own_message = frames.pop()[1] if own else None
        if frames:
            self._post(partial(self._on_frames, link.peer, frames))
        if own_message is None:
            return
        if own_message == END_OF_STREAM:
            self._drop(link)
        else:
            self._report_lost(link, "it said something else than goodbye")

    def _report_lost(self, link: PeerConnection, why: str) -> None:
        """Close a link that ends without `EndOfStream`, and post `on_lost`."""
        if link.closed:
            return
        self._drop(link)
        error = lost_error(
            link.peer, why, job=self._job, attempt=self._attempt, ordinal=self._ordinal
        )
        self._post(partial(self._on_lost, link.peer, error))

    def _drop(self, link: PeerConnection) -> None:
        if link.socket is not None:
            self._selector.unregister(link.socket)
        link.close()

    def _drop_pending(self, pending: PendingConnection) -> None:
        self._pending.discard(pending)
        self._selector.unregister(pending.socket)
        pending.socket.close()

    # --- time and the end -----------------------------------------------------------------------

    def _timeout(self) -> float | None:
        """Return the seconds until the next deadline; None if there is no deadline."""
        deadlines = [pending.deadline for pending in self._pending]
        due = min(self._connect_deadline, self._close_deadline, *deadlines, NEVER)
        return None if due == NEVER else max(0.0, due - time.monotonic())

    def _expire(self, now: float) -> None:
        for pending in [known for known in self._pending if known.deadline <= now]:
            self._drop_pending(pending)
            if pending.link is not None:
                self._report_lost(
                    pending.link, f"it did not answer within {CONNECT_TIMEOUT_S:.0f} s"
                )
        if now >= self._connect_deadline:
            self._connect_deadline = NEVER
            for link in self._peer_connections.values():
                if _is_unconnected(link):
                    self._report_lost(link, f"it did not connect within {CONNECT_TIMEOUT_S:.0f} s")

    def _send_end_of_stream(self) -> None:
        self._post = _ignore
        self._connect_deadline = NEVER
        self._close_deadline = time.monotonic() + CLOSE_TIMEOUT_S
        for link in self._peer_connections.values():
            if _is_unconnected(link) and link.drained:
                self._drop(link)  # it has no connection and no data waits for it
            else:
                link.send(EXCHANGE_CHANNEL, (END_OF_STREAM,))
                self._watch(link)
        for pending in list(self._pending):
            if pending.link is None or pending.link.closed:
                self._drop_pending(pending)
        self._close_listener_when_connected()

    def _ended(self) -> bool:
        """Return whether the exchange was closed, and every link is closed or the time is over."""
        if self._close_deadline == NEVER:
            return False
        late = time.monotonic() >= self._close_deadline
        return late or all(link.closed for link in self._peer_connections.values())

    def _close_listener(self) -> None:
        if self._listener is not None:
            self._selector.unregister(self._listener.socket)
            self._listener.close()
            self._listener = None

    def _free(self) -> None:
        self._close_listener()
        for pending in [*self._pending, *self._accepted_early.values()]:
            pending.socket.close()
        for link in self._peer_connections.values():
            link.close()
        self._selector.close()
        self._wake_read.close()
        self._wake_write.close()


def _is_unconnected(link: PeerConnection | None) -> bool:
    """Return whether the connection of the link is still missing."""
    return link is not None and link.socket is None and not link.closed


def _interest(link: PeerConnection) -> int:
    return selectors.EVENT_READ | (selectors.EVENT_WRITE if link.writing else 0)


def _ignore(*_: object) -> None:
    """Ignore actions before `connect` and while the exchange closes."""
