"""The port for data between slot processes: frames in order, one connection per pair of slots.

The port moves opaque frames and does not know their content. `dataplane/channels` handles credit,
barriers and batches. The driver is `drivers/exchange`, with Unix sockets on one host and TCP
between hosts. A slot process listens before it registers, and connects when its deployment names
its peers.

Invariant: frames from one slot to another arrive complete, unaltered, once, and in the order in
which they were sent. Otherwise `on_lost` is called, and no later frame of that peer arrives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from tidegate.errors import ExchangeError

MAX_FRAME_BYTES: Final = 16 << 20
"""Size of the largest frame in bytes. Kafka refuses records above 1 MiB by default. 16 MiB leave
room for the result of a step, and limit the memory that a peer can make this process allocate.
"""

Frame = tuple[int, bytes]
"""A channel number, which the user of the exchange assigns, and the payload."""

OnFrames = Callable[[int, list[Frame]], None]
"""A callback with the peer's ordinal and the frames of one read, in order."""

OnLost = Callable[[int, ExchangeError], None]
"""A callback with the peer's ordinal and the error. It is called at most once per peer, and never
after the peer has closed the connection in an orderly way.
"""


class Exchange(Protocol):
    """The connections of one slot, for one attempt of one job."""

    @property
    def address(self) -> str:
        """The address to which peers connect: `unix:PATH` or `host:port`."""
        ...

    def connect(
        self,
        peers: Mapping[int, str],
        *,
        post: Callable[[Callable[[], None]], None],
        on_frames: OnFrames,
        on_lost: OnLost,
    ) -> None:
        """Connect to the peers, whose addresses are given by ordinal, and begin to deliver. Called
        once.

        Return at once. Frames that are sent before the connections exist wait on both sides. A
        peer that cannot be reached, or is of another job or attempt, is lost. Both callbacks run
        where `post` runs its actions: in the mailbox thread. Frames that arrive together are one
        action.
        """
        ...

    def send(self, peer: int, channel: int, payload: Sequence[bytes]) -> None:
        """Send one frame, whose payload is the joined parts. Never block.

        The caller may change the sequence at once. The parts are not copied, so they must never
        change. Callers limit the waiting frames (by credit). A frame to a peer that is lost or has
        closed is dropped. InternalError if a frame is larger than MAX_FRAME_BYTES.
        """
        ...

    def close(self) -> None:
        """Send the waiting frames for two seconds at most, end the streams, and free everything.
        Idempotent.

        No action is posted after the return. A peer without a connection gets no message: if it
        waits for this slot, it counts the slot as lost.
        """
        ...
