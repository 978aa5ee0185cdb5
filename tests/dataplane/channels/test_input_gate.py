"""Input channels and gates: turns, blocking, credits given back, limits kept."""

from __future__ import annotations

import pytest

from tests.dataplane.channels.parts import batch, codec, edge
from tidegate.dataplane.channels.frames import data_frame
from tidegate.dataplane.channels.input_gate import InputChannel, InputGate
from tidegate.errors import ExchangeError, InternalError
from tidegate.ids import Attempt, CheckpointId, SubtaskIndex
from tidegate.stream_elements import Barrier, EndOfInput, StreamElement

BARRIER = Barrier(CheckpointId(Attempt(1), 1))


def local(sender: int = 0, capacity: int = 4) -> InputChannel:
    return InputChannel(edge(), SubtaskIndex(sender), capacity)


def remote(granted: list[int], capacity: int = 4) -> InputChannel:
    return InputChannel(edge(), SubtaskIndex(0), capacity, codec(), granted.append)


def frame(*firsts: int) -> bytes:
    return b"".join(data_frame([codec().encode(batch(first, 2))[0] for first in firsts]))


def drain(gate: InputGate) -> list[tuple[int, StreamElement]]:
    taken = []
    while (found := gate.next_element()) is not None:
        taken.append(found)
    return taken


def test_input_gate_reads_its_channels_in_turn() -> None:
    channels = [local(0), local(1), local(2)]
    gate = InputGate(channels)
    assert (len(gate), gate.available(), gate.next_element()) == (3, False, None)
    for channel in channels:
        for first in range(3):
            channel.put(batch(first, 1))
    assert gate.depth() == 9
    taken = drain(gate)
    assert [index for index, _ in taken] == [0, 1, 2] * 3
    assert [element for index, element in taken if index == 1] == [batch(n, 1) for n in range(3)]
    assert gate.depth() == 0


def test_a_busy_channel_does_not_starve_another() -> None:
    busy, calm = local(0), local(1)
    gate = InputGate([busy, calm])
    busy.put(batch(0, 1))
    calm_came = None
    for turn in range(10):
        busy.put(batch(turn + 1, 1))
        if turn == 3:
            calm.put(BARRIER)
        found = gate.next_element()
        assert found is not None
        if found[0] == 1:
            calm_came = turn
    assert calm_came is not None
    assert calm_came <= 4


def test_blocked_channel_gives_no_element() -> None:
    first, second = local(0), local(1)
    gate = InputGate([first, second])
    first.put(BARRIER)
    first.put(batch(0, 1))
    second.put(batch(5, 1))
    assert gate.next_element() == (0, BARRIER)
    gate.block(0)
    assert drain(gate) == [(1, batch(5, 1))]
    first.put(EndOfInput())
    assert not gate.available()
    assert first.peek_kind() == "records"
    with pytest.raises(InternalError, match="blocked"):
        first.pop()
    gate.unblock_all()
    gate.unblock_all()
    assert gate.available()
    assert drain(gate) == [(0, batch(0, 1)), (0, EndOfInput())]


def test_unblocking_one_leaves_the_others_blocked() -> None:
    channels = [local(0), local(1)]
    gate = InputGate(channels)
    for index, channel in enumerate(channels):
        gate.block(index)
        channel.put(batch(index, 1))
    gate.unblock(1)
    assert [index for index, _ in drain(gate)] == [1]


def test_input_channel_shows_the_kind_of_its_next_element() -> None:
    granted: list[int] = []
    channel = remote(granted)
    assert channel.peek_kind() is None
    channel.offer_frame(frame(0, 10))
    channel.put(BARRIER)
    channel.put(EndOfInput())
    seen = []
    while (kind := channel.peek_kind()) is not None:
        seen.append(kind)
        channel.pop()
    assert seen == ["records", "records", "barrier", "end_of_input"]


def test_frame_counts_in_channel_depth_until_its_last_batch_is_taken() -> None:
    granted: list[int] = []
    channel = remote(granted, capacity=2)
    gate = InputGate([channel])
    channel.offer_frame(frame(0, 10, 20))
    channel.offer_frame(frame(30))
    channel.put(BARRIER)
    assert (channel.depth, len(channel)) == (2, 3)
    elements = []
    depths = []
    while (found := gate.next_element()) is not None:
        elements.append(found[1])
        depths.append((channel.depth, list(granted)))
    assert elements == [batch(0, 2), batch(10, 2), batch(20, 2), batch(30, 2), BARRIER]
    assert depths == [(2, []), (2, []), (1, [1]), (0, [1, 1]), (0, [1, 1])]


def test_channel_returns_credits_in_halves_of_its_capacity() -> None:
    granted: list[int] = []
    channel = remote(granted, capacity=8)
    for first in range(8):
        channel.offer_frame(frame(first))
    for _ in range(7):
        channel.pop()
    assert granted == [4]
    assert channel.unannounced_credit == 3
    channel.pop()
    assert (granted, channel.unannounced_credit) == ([4, 4], 0)


def test_frame_sent_without_credit_is_refused() -> None:
    channel = remote([], capacity=2)
    channel.offer_frame(frame(0))
    channel.offer_frame(frame(1))
    with pytest.raises(ExchangeError, match="credit"):
        channel.offer_frame(frame(2))


def test_pop_of_an_empty_channel_is_refused() -> None:
    with pytest.raises(InternalError, match="empty"):
        local().pop()
