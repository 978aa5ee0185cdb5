"""The exchange between slots over the simulated network: the `ports.exchange` of one process.

The protocol is that of the real driver, message for message. The slot with the lower ordinal dials,
sends `HandshakeRequest` and waits for `HandshakeAccepted`. A slot of another job or attempt is
refused. Items that arrive before `connect` wait. `close` sends `EndOfStream` and waits up to
`CLOSE_TIMEOUT_S` for the peers to close. A peer that ends in another way is lost.

The ownership of frames is also that of the real driver. The parts of a frame are kept without a
copy until the other end reads them, which is later than with a socket. Code that changes a part
after sending it therefore shows up as an error.

As in the real driver, one thread of the slot process does all this work. A frozen slot therefore
neither answers a handshake nor closes a connection. Frames on the connection arrive whole.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from tests.simulator.network import Closed, End, Network
from tests.simulator.scheduler import SimProcess, SimThread
from tests.simulator.threads import SimEvent
from tidegate.drivers.exchange.handshake import lost_error, rejection_reason
from tidegate.drivers.exchange.sockets import CLOSE_TIMEOUT_S, CONNECT_TIMEOUT_S, NEVER
from tidegate.drivers.exchange.wire import (
    EXCHANGE_CHANNEL,
    EndOfStream,
    HandshakeAccepted,
    HandshakeRejected,
    HandshakeRequest,
)
from tidegate.errors import check
from tidegate.ports.exchange import MAX_FRAME_BYTES, Exchange, Frame, OnFrames, OnLost

Post = Callable[[Callable[[], None]], None]
Sent = tuple[int, tuple[bytes, ...]]
"""A frame in flight: its channel, and the sent parts themselves without a copy."""

_END_OF_STREAM = EndOfStream()
_ACCEPTED = HandshakeAccepted()


class _Link:
    """One peer: its connection, and the items that wait for the connection."""

    __slots__ = ("closed", "end", "peer", "waiting")

    def __init__(self, peer: int) -> None:
        self.peer = peer
        self.end: End | None = None
        self.waiting: list[Sent | EndOfStream] = []
        self.closed = False

    def put(self, item: Sent | EndOfStream) -> None:
        if self.end is not None:
            self.end.send(item)
        elif not self.closed:
            self.waiting.append(item)

    def attach(self, end: End) -> None:
        self.end = end
        for item in self.waiting:
            end.send(item)
        self.waiting.clear()

    def drop(self) -> None:
        """Close the link. Nothing more is sent or received."""
        self.closed = True
        self.waiting.clear()
        if self.end is not None:
            self.end.close()
            self.end = None

    @property
    def open(self) -> bool:
        """Whether the link still waits for its connection."""
        return self.end is None and not self.closed


class SimExchange:
    """The `ports.exchange.Exchange` of one process. It listens from its creation on."""

    def __init__(
        self, network: Network, process: SimProcess, *, job: str, attempt: int, ordinal: int
    ) -> None:
        self._network, self._process = network, process
        self._scheduler = process.scheduler
        self._job, self._attempt, self._ordinal = job, attempt, ordinal
        self.address = network.listen(process, self._accept)
        self._listens = True
        self._links: dict[int, _Link] = {}
        self._pending_connections: dict[End, _Link | None] = {}
        """Ends without a completed handshake, each with the link that dialled, or None."""
        self._early: dict[int, tuple[End, list[Any]]] = {}
        """Ends accepted before `connect`, with the items received since then, by ordinal."""
        self._post: Post = _ignore
        self._on_frames: OnFrames = _ignore
        self._on_lost: OnLost = _ignore
        self._begun = self._closed = False
        self._connect_deadline = self._close_deadline = NEVER
        self._work: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._idle = False
        self._freed = SimEvent(self._scheduler)
        self._thread: SimThread = process.start(self._run, name="exchange")

    def connect(
        self, peers: Mapping[int, str], *, post: Post, on_frames: OnFrames, on_lost: OnLost
    ) -> None:
        self._scheduler.maybe_switch()
        check(not self._links, "an exchange is connected once")
        check(self._ordinal not in peers, "a slot has no connection to itself")
        self._links = {peer: _Link(peer) for peer in peers}
        self._hand(self._begin, dict(peers), post, on_frames, on_lost)

    def send(self, peer: int, channel: int, payload: Sequence[bytes]) -> None:
        self._scheduler.maybe_switch()
        check(0 <= channel < EXCHANGE_CHANNEL, f"channel number {channel} is not one of a caller's")
        parts = tuple(payload)
        size = sum(map(len, parts))
        check(size <= MAX_FRAME_BYTES, f"a frame of {size} bytes, the limit is {MAX_FRAME_BYTES}")
        self._links[peer].put((channel, parts))

    def close(self) -> None:
        self._scheduler.maybe_switch()
        if not self._closed:
            self._closed = True
            self._hand(self._send_end_of_stream)
        check(self._freed.wait(CLOSE_TIMEOUT_S + 3.0), "the exchange's thread does not end")

    # --- from the network, in no thread ---------------------------------------------------------

    def _accept(self, end: End) -> None:
        end.receive = partial(self._received, end)
        self._pending_connections[end] = None

    def _received(self, end: End, items: list[Any]) -> None:
        self._hand(self._take, end, items)

    def _hand(self, step: Callable[..., None], *arguments: Any) -> None:
        """Queue a step for the exchange's own thread."""
        self._work.append((step, arguments))
        if self._idle:
            self._idle = False
            self._scheduler.wake(self._thread)

    # --- the exchange's own thread --------------------------------------------------------------

    def _run(self) -> None:
        while not self._ended():
            while self._work:
                step, arguments = self._work.popleft()
                step(*arguments)
            if not self._ended():
                due = min(self._connect_deadline, self._close_deadline)
                self._idle = True
                self._scheduler.wait(None if due == NEVER else due - self._scheduler.now)
                self._idle = False
                self._expire()
        self._free()

    def _begin(
        self, peers: Mapping[int, str], post: Post, on_frames: OnFrames, on_lost: OnLost
    ) -> None:
        self._post, self._on_frames, self._on_lost = post, on_frames, on_lost
        self._begun = True
        self._connect_deadline = self._scheduler.now + CONNECT_TIMEOUT_S
        for peer, address in peers.items():
            if peer in self._early:
                end, items = self._early.pop(peer)
                self._attach(self._links[peer], end, items)
            elif peer > self._ordinal:
                self._dial(self._links[peer], address)
        for end, _ in self._early.values():
            end.close()  # the plan has no connection between its slot and this slot
        self._early.clear()
        self._close_listener_when_connected()

    def _dial(self, link: _Link, address: str) -> None:
        end = self._network.dial(self._process, address)
        end.receive = partial(self._received, end)
        self._pending_connections[end] = link
        end.send(
            HandshakeRequest(
                job=self._job, attempt=self._attempt, sender=self._ordinal, receiver=link.peer
            )
        )

    def _take(self, end: End, items: list[Any]) -> None:
        """Handle the items received on a connection, in order."""
        if end in self._pending_connections:
            self._handle_handshake(end, items)
            return
        for link in self._links.values():
            if link.end is end:
                self._deliver(link, items)
                return
        for early, read in self._early.values():
            if early is end:
                read.extend(items)

    def _handle_handshake(self, end: End, items: list[Any]) -> None:
        link = self._pending_connections.pop(end)
        match items[0]:
            case HandshakeRequest() as request if link is None:
                self._answer(end, request, items[1:])
            case HandshakeAccepted() if link is not None:
                self._attach(link, end, items[1:])
            case HandshakeRejected(reason=reason) if link is not None:
                end.close()
                self._lose(link, f"it refused the connection: {reason}")
            case Closed(why=why) if link is not None:
                self._lose(link, f"it cannot be reached: {why}")
            case _:
                end.close()

    def _answer(self, end: End, request: HandshakeRequest, items: list[Any]) -> None:
        reason = rejection_reason(
            request, job=self._job, attempt=self._attempt, ordinal=self._ordinal
        )
        link = self._links.get(request.sender) if self._begun else None
        taken = request.sender in self._early or (self._begun and not (link and link.open))
        if reason is None and taken:
            reason = f"slot {request.sender} has, or had, its connection already, or needs none"
        if reason is not None:
            end.send(HandshakeRejected(reason=reason))
            end.close()
            return
        end.send(_ACCEPTED)
        if link is None:
            self._early[request.sender] = end, items
        else:
            self._attach(link, end, items)

    def _attach(self, link: _Link, end: End, items: list[Any]) -> None:
        link.attach(end)
        self._close_listener_when_connected()
        if items:
            self._deliver(link, items)

    def _deliver(self, link: _Link, items: list[Any]) -> None:
        """Post one action for all frames. Another kind of item can only be the last item."""
        last = None if type(items[-1]) is tuple else items[-1]
        frames: list[Frame] = [
            (item[0], b"".join(item[1])) for item in items if type(item) is tuple
        ]
        if frames:
            self._post(partial(self._on_frames, link.peer, frames))
        match last:
            case None:
                pass
            case Closed(why=why) if not any(type(item) is EndOfStream for item in items):
                self._lose(link, why)
            case _:
                link.drop()

    def _lose(self, link: _Link, why: str) -> None:
        """Report the loss of a peer whose link ends without `EndOfStream`."""
        if link.closed:
            return
        link.drop()
        error = lost_error(
            link.peer, why, job=self._job, attempt=self._attempt, ordinal=self._ordinal
        )
        self._post(partial(self._on_lost, link.peer, error))

    # --- time and the end -----------------------------------------------------------------------

    def _expire(self) -> None:
        if self._scheduler.now >= self._connect_deadline:
            self._connect_deadline = NEVER
            for link in self._links.values():
                if link.open:
                    self._lose(link, f"it did not connect within {CONNECT_TIMEOUT_S:.0f} s")

    def _send_end_of_stream(self) -> None:
        self._post = _ignore
        self._connect_deadline = NEVER
        self._close_deadline = self._scheduler.now + CLOSE_TIMEOUT_S
        for link in self._links.values():
            if link.open and not link.waiting:
                link.drop()  # no item waits for this peer
            else:
                link.put(_END_OF_STREAM)
        self._close_listener_when_connected()

    def _ended(self) -> bool:
        """Return whether the exchange is closed, and all peers have closed or timed out."""
        if self._close_deadline == NEVER:
            return False
        late = self._scheduler.now >= self._close_deadline
        return late or all(link.closed for link in self._links.values())

    def _close_listener_when_connected(self) -> None:
        if not any(link.open for link in self._links.values()):
            self._connect_deadline = NEVER
            self._close_listener()

    def _close_listener(self) -> None:
        if self._listens:
            self._listens = False
            self._network.unlisten(self.address)

    def _free(self) -> None:
        self._close_listener()
        for end in self._pending_connections:
            end.close()
        for end, _ in self._early.values():
            end.close()
        for link in self._links.values():
            link.drop()
        self._freed.set()


def _ignore(*_: object) -> None:
    """Ignore an action. It is used before `connect` and while the exchange closes."""


if TYPE_CHECKING:

    def _(network: Network, process: SimProcess) -> Exchange:
        return SimExchange(network, process, job="", attempt=0, ordinal=0)
