"""`RowSender`: the rows for everything that a task's channels send.

A frame becomes a row, with its position in the order of all senders. A barrier becomes the marker
that ends its channel. An empty channel has a marker too. The marker carries the run and the number
of frames, so that a receiver notices a missing row.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.dataplane.channels.frames import FrameKind, frame_kind
from tidegate.errors import check
from tidegate.protocol.waves import FIRST, LAST, Row


class RowSender:
    """The rows of one run of a task, in the order in which they were sent."""

    def __init__(self, index: int, run: bytes) -> None:
        self._index, self._run = index, run
        self._rows: list[Row] = []
        self._frames: dict[tuple[int, int], int] = {}
        """Number of frames sent, by edge and receiver."""
        self._ended: set[tuple[int, int]] = set()
        self._seq = 0
        self.ord = 0
        """Position of the rows that are sent now, among the rows of all senders. It only grows
        along each channel.
        """

    def open(self, edge: int, receiver: int) -> None:
        """Register a channel, before anything is sent along it."""
        self._frames[edge, receiver] = 0

    def send(self, edge: int, receiver: int, parts: Sequence[bytes]) -> None:
        """Send a frame, or the barrier that ends the channel."""
        channel = edge, receiver
        check(channel not in self._ended, "a frame is sent behind its channel's marker")
        frame = b"".join(parts)
        if frame_kind(frame) is FrameKind.BARRIER:
            self._ended.add(channel)
            self._add(channel, LAST, self._frames[channel], frame)
            return
        self._frames[channel] += 1
        self._add(channel, self.ord, self._seq, frame)
        self._seq += 1

    def fail(self) -> None:
        """Send a failure row to every receiver whose channel has no marker yet. No marker will
        follow.
        """
        for channel in self._frames.keys() - self._ended:
            self._add(channel, FIRST, 0, b"")

    def take(self) -> list[Row]:
        """Return the rows that were sent since the last call."""
        rows, self._rows = self._rows, []
        return rows

    def _add(self, channel: tuple[int, int], ord_: int, seq: int, frame: bytes) -> None:
        edge, receiver = channel
        self._rows.append(Row(receiver, edge, self._index, ord_, seq, self._run, frame))
