"""A mailbox without a slot: what the exchange posts, run by the test."""

from __future__ import annotations

import queue
import time
from collections import defaultdict
from collections.abc import Callable, Mapping

from tidegate.drivers.exchange import SocketExchange
from tidegate.errors import ExchangeError
from tidegate.ports.exchange import Frame

PATIENCE_S = 10.0


class Slot:
    """An exchange, its mailbox, and what came."""

    def __init__(
        self, ordinal: int, *, host: str | None = None, job: str = "job", attempt: int = 1
    ) -> None:
        self.exchange = SocketExchange(job=job, attempt=attempt, ordinal=ordinal, host=host)
        self.address = self.exchange.address
        self.mailbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.frames: dict[int, list[Frame]] = defaultdict(list)
        self.lost: dict[int, ExchangeError] = {}
        self.posts = 0

    def connect(self, peers: Mapping[int, str]) -> None:
        self.exchange.connect(
            peers, post=self.mailbox.put, on_frames=self._on_frames, on_lost=self._on_lost
        )

    def run_until(self, holds: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
        """Run the mailbox until something holds."""
        until = time.monotonic() + patience_s
        while not holds():
            left = until - time.monotonic()
            assert left > 0, f"not within {patience_s} s; lost: {self.lost}"
            try:
                self.mailbox.get(timeout=min(left, 0.05))()
            except queue.Empty:
                continue

    def run_rest(self) -> None:
        """Run what was posted."""
        while not self.mailbox.empty():
            self.mailbox.get()()

    def _on_frames(self, peer: int, frames: list[Frame]) -> None:
        self.posts += 1
        self.frames[peer].extend(frames)

    def _on_lost(self, peer: int, error: ExchangeError) -> None:
        assert peer not in self.lost, "lost twice"
        self.lost[peer] = error
