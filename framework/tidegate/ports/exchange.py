"""The way between slot processes: frames in order, one connection for each pair of slots.

The port moves opaque frames and knows nothing of what they hold: credits, barriers and batches are
`dataplane/channels`' matter. Driver: `drivers/exchange` (Unix sockets on one host, TCP across). The
slot process listens before it registers, and connects when its deployment names the peers.

Invariant: frames from one slot to another arrive complete, unaltered, once and in the order in
which they were sent, or `on_lost` is called and nothing more of that peer arrives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from tidegate.errors import ExchangeError

MAX_FRAME_BYTES: Final = 16 << 20
"""Bytes of the largest frame. Kafka refuses records above 1 MiB unless told otherwise; 16 leave
room for what a step makes of one, and bound what a peer can make this process allocate."""

Frame = tuple[int, bytes]
"""A channel number and the payload; numbers are given by those who use the exchange."""

OnFrames = Callable[[int, list[Frame]], None]
"""Peer's ordinal and the frames of one read, in order."""

OnLost = Callable[[int, ExchangeError], None]
"""Peer's ordinal and why; called at most once per peer, and never after an orderly goodbye."""


class Exchange(Protocol):
    """One slot's end of all its connections, for one attempt of one job."""

    @property
    def address(self) -> str:
        """Where peers connect to: `unix:PATH` or `host:port`."""
        ...

    def connect(
        self,
        peers: Mapping[int, str],
        *,
        post: Callable[[Callable[[], None]], None],
        on_frames: OnFrames,
        on_lost: OnLost,
    ) -> None:
        """Join the peers, addresses by ordinal, and begin to deliver; called once.

        Returns at once: what is sent meanwhile waits, on both sides, and a peer that cannot be
        reached, or is of another job or attempt, is lost. Both callbacks run where `post` runs its
        actions, which is the mailbox thread; frames that arrive together are one action.
        """
        ...

    def send(self, peer: int, channel: int, payload: Sequence[bytes]) -> None:
        """Send one frame whose payload is the parts, joined; never blocks.

        The sequence is the caller's again at once; the parts are not copied, so they must never
        change. Callers bound what waits here (credits do). What is sent to a peer that is lost or
        has said goodbye is dropped. InternalError for more than MAX_FRAME_BYTES.
        """
        ...

    def close(self) -> None:
        """Send what waits (for two seconds at most), say goodbye, free everything. Idempotent.

        Nothing is posted once this has returned. A peer that was never linked is told nothing: if
        it waits for this slot, it loses it.
        """
        ...
