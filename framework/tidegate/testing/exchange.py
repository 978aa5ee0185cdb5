"""The exchange between the slots of a pipeline test: encoded frames in queues, in one process.

The attempt delivers the frames, one by one and in any order of the connections. So a test can draw
from which subtask another one receives first. As with sockets, the frames of one connection keep
their order, and a receiver gets bytes and never the records themselves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from tidegate.ports.exchange import Exchange, Frame, OnFrames, OnLost


class Connections:
    """The exchanges of all slots of an attempt, and the frames between them."""

    def __init__(self, slots: int) -> None:
        self.exchanges = [SlotExchange(self, ordinal) for ordinal in range(slots)]
        self._frames: dict[tuple[int, int], deque[Frame]] = {
            (sender, receiver): deque()
            for sender in range(slots)
            for receiver in range(slots)
            if sender != receiver
        }

    def pairs(self) -> list[tuple[int, int]]:
        """Return every connection, as sender and receiver."""
        return list(self._frames)

    def put(self, sender: int, receiver: int, frame: Frame) -> None:
        """Queue a frame."""
        self._frames[sender, receiver].append(frame)

    def deliver(self, sender: int, receiver: int) -> bool:
        """Deliver the oldest frame of a connection. Return False if no frame waits."""
        frames = self._frames[sender, receiver]
        if not frames:
            return False
        self.exchanges[receiver].receive(sender, [frames.popleft()])
        return True


class SlotExchange:
    """The `ports.exchange.Exchange` of one slot."""

    address = "in this process"

    def __init__(self, connections: Connections, ordinal: int) -> None:
        self._connections, self._ordinal = connections, ordinal
        self.receive: OnFrames = _no_receiver
        """The receiver of the frames for this slot, with the ordinal of their sender."""

    def connect(
        self,
        peers: Mapping[int, str],
        *,
        post: Callable[[Callable[[], None]], None],
        on_frames: OnFrames,
        on_lost: OnLost,
    ) -> None:
        """Note the receiver of the frames. Every peer is there, and none is ever lost."""
        del peers, post, on_lost
        self.receive = on_frames

    def send(self, peer: int, channel: int, payload: Sequence[bytes]) -> None:
        """Queue a frame for another slot."""
        self._connections.put(self._ordinal, peer, (channel, b"".join(payload)))

    def close(self) -> None:
        """Do nothing: the queues end with the attempt."""


def _no_receiver(peer: int, frames: list[Frame]) -> None:
    """Do nothing: the slot is not connected yet."""


if TYPE_CHECKING:
    _: Exchange = SlotExchange(Connections(1), 0)
