"""The order of rows by Kafka's time: it grows, stays below the markers, and mixes sources as live.

The sources and senders are the true ones; what a source reads is made up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from tidegate.dataplane.channels.frames import VERSION, FrameKind, control_frame
from tidegate.dataplane.source_task import SourceTask
from tidegate.dataplane.waves.order import (
    POLLS_MAX,
    TIME_MS_MAX,
    TimedSource,
    TimeOrder,
    poll_shares,
)
from tidegate.dataplane.waves.sending import RowSender
from tidegate.ids import Attempt, CheckpointId, VertexId
from tidegate.protocol.waves import LAST, Row
from tidegate.stream_elements import Barrier

NOW_MS = 1_800_000_000_000
RUN = bytes(8)
DATA = bytes((VERSION, FrameKind.DATA))
MARKER = control_frame(Barrier(CheckpointId(Attempt(1), 1), final=True))

timestamps = st.one_of(
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.integers(NOW_MS - 10, NOW_MS + 10),
    st.just(-1),
)


class Source:
    """A source task whose polls end at the given timestamps; each poll is sent as one frame."""

    def __init__(self, sender: RowSender, edge: int, ends_ms: Sequence[int]) -> None:
        self._sender, self._edge, self._ends_ms = sender, edge, list(ends_ms)
        self._pending: int | None = None
        self._read = -1
        self.reader = self
        sender.open(edge, 0)

    def reads(self) -> bool:
        return self._pending is None

    def last_timestamp_ms(self) -> int:
        return self._read

    def step(self, timeout_s: float) -> bool:
        del timeout_s
        if self._pending is not None:
            self._sender.send(self._edge, 0, (DATA, self._pending.to_bytes(8, signed=True)))
            self._pending = None
            return True
        if not self._ends_ms:
            return False
        self._pending = self._read = self._ends_ms.pop(0)
        return True


def timed(sender: RowSender, edge: int, ends_ms: Sequence[int]) -> TimedSource:
    return TimedSource(cast("SourceTask", Source(sender, edge, ends_ms)), sender, NOW_MS)


def rows_of(index: int, *sources: Sequence[int]) -> list[Row]:
    """The rows of a sender whose sources take turns. Edges count the sources."""
    sender = RowSender(index, RUN)
    steps = [timed(sender, edge, ends_ms) for edge, ends_ms in enumerate(sources)]
    while sum(each.step(0.0) for each in steps):
        pass
    for edge in range(len(sources)):
        sender.send(edge, 0, (MARKER,))
    return sender.take()


def received(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row.ord, row.sender, row.seq))


def times(rows: list[Row]) -> list[int]:
    """The times of the frames, in the order in which a receiver takes them."""
    return [int.from_bytes(row.frame[2:], signed=True) for row in received(rows) if row.ord < LAST]


@given(st.lists(timestamps), st.integers(-1, 1 << 63))
def test_time_order_of_a_source_only_grows_and_stays_below_the_marker(
    given_ms: list[int], now_ms: int
) -> None:
    order = TimeOrder(now_ms)
    before = order.ord
    for timestamp_ms in given_ms:
        order.advance(timestamp_ms)
        assert before <= order.ord < LAST
        before = order.ord


def test_order_of_the_largest_timestamp_is_below_the_marker() -> None:
    order = TimeOrder(1 << 63)
    order.advance(TIME_MS_MAX)
    for _ in range(3):
        order.advance(-1)
    assert (TIME_MS_MAX << 21) + POLLS_MAX < LAST
    assert order.ord == (TIME_MS_MAX << 21) + 3


@given(st.lists(st.lists(st.lists(timestamps, max_size=8), min_size=2, max_size=2), max_size=3))
def test_the_frames_of_a_channel_stay_in_their_order_and_before_its_marker(
    senders: list[list[list[int]]],
) -> None:
    rows = [row for index, each in enumerate(senders) for row in rows_of(index, *each)]
    channels: dict[tuple[int, int], list[Row]] = {}
    for row in received(rows):
        channels.setdefault((row.sender, row.edge), []).append(row)
    for of_channel in channels.values():
        *frames, marker = of_channel
        assert marker.frame == MARKER
        assert [row.seq for row in frames] == sorted(row.seq for row in frames)
        assert marker.seq == len(frames)


@given(st.integers(1, 50), st.integers(1, 50), st.booleans())
def test_frames_of_sources_with_different_rates_are_merged_by_timestamp(
    fast: int, slow: int, together: bool
) -> None:
    """Both in one task, and each in a task of its own."""
    first = [NOW_MS - 10_000 + fast * number for number in range(50)]
    second = [NOW_MS - 10_000 + slow * number for number in range(50)]
    rows = rows_of(0, first, second) if together else rows_of(0, first) + rows_of(1, second)
    assert times(rows) == sorted(first + second)


def test_timestamp_in_the_future_does_not_delay_later_frames() -> None:
    good = [NOW_MS - 300, NOW_MS - 200, NOW_MS - 100]
    wild = [NOW_MS - 250, 1 << 60, NOW_MS - 150]
    assert times(rows_of(0, wild) + rows_of(1, good)) == [
        NOW_MS - 300,
        NOW_MS - 250,
        1 << 60,
        NOW_MS - 200,
        NOW_MS - 150,
        NOW_MS - 100,
    ]


def test_frames_of_sources_without_timestamps_alternate() -> None:
    rows = rows_of(0, [-1] * 3) + rows_of(1, [-1] * 3)
    assert [row.sender for row in received(rows) if row.ord < LAST] == [0, 1, 0, 1, 0, 1]


def test_poll_share_of_a_source_is_proportional_to_its_records() -> None:
    fast, slow, none = VertexId("fast"), VertexId("slow"), VertexId("none")
    assert poll_shares({fast: 4000, slow: 10, none: 0}) == {fast: 1.0, slow: 0.0025, none: 0.0}
    assert poll_shares({none: 0}) == {none: 1.0}
    assert poll_shares({}) == {}
