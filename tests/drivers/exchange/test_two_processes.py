"""Two slot processes: four channels, one of them blocked; and a slot that is killed.

Goal: what is said of the exchange holds between processes, for Unix sockets and for TCP. Method:
the other process is `sending_slot`; this one receives, and blocks one channel until the others have
ended.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import defaultdict
from collections.abc import Iterator
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

import pytest

from tests.contracts.exchange import Slot
from tests.drivers.exchange.mailbox import socket_slot
from tests.drivers.exchange.sending_slot import (
    BARRIER_EVERY,
    BATCH,
    CREDITS,
    SOURCES,
    TOTALS,
    batches,
    channels,
    send,
)
from tidegate.dataplane.channels.input_gate import InputGate
from tidegate.errors import ExchangeError
from tidegate.stream_elements import Barrier, EndOfInput, RecordBatch

RECORDS = 50_000
"""Records of each of four sources: 200,000 in all."""

Sender = tuple[BaseProcess, Connection]


@pytest.fixture(params=[None, "127.0.0.1"], ids=["unix", "tcp"])
def host(request: pytest.FixtureRequest) -> str | None:
    value: str | None = request.param
    return value


@pytest.fixture
def receiver(host: str | None) -> Iterator[Slot]:
    slot = socket_slot(1, host=host)
    yield slot
    slot.exchange.close()


@pytest.fixture
def sender(host: str | None) -> Iterator[Sender]:
    ours, keys_of_slot_1 = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=send, args=(keys_of_slot_1, host, RECORDS))
    process.start()
    keys_of_slot_1.close()
    yield process, ours
    process.kill()
    process.join()
    process.close()
    ours.close()


class Received:
    """The elements that came out of a gate, checked as they come."""

    def __init__(self, gate: InputGate) -> None:
        self.gate = gate
        self.offsets: dict[int, int] = defaultdict(int)  # next, by channel
        self.barriers: dict[int, int] = defaultdict(int)
        self.ended: set[int] = set()
        self.deepest = 0

    def take(self) -> None:
        while (found := self.gate.next_element()) is not None:
            index, element = found
            next_offset = self.offsets[index]
            if isinstance(element, RecordBatch):
                assert element.topic_partition is not None
                assert element.topic_partition.topic == self.gate.channels[index].edge.source_node
                assert element.offsets == list(range(next_offset, next_offset + len(element)))
                self.offsets[index] += len(element)
            elif isinstance(element, EndOfInput):
                self.ended.add(index)
            else:
                assert isinstance(element, Barrier)
                self.barriers[index] += BARRIER_EVERY
                assert element.checkpoint.counter == self.barriers[index]
                assert next_offset == self.barriers[index] * BATCH  # none overtook it
        depths = [channel.depth for channel in self.gate.channels]
        self.deepest = max(self.deepest, *depths)


def start(receiver: Slot, sender: Sender) -> tuple[Received, list[ExchangeError], list[int]]:
    """Connected; with the indexes of the channels from slot 0."""
    _, pipe = sender
    here = channels(receiver, 1)
    lost: list[ExchangeError] = []
    here.connect(
        [pipe.recv(), receiver.address],
        post=receiver.mailbox.append,
        on_lost=lambda _, error: lost.append(error),
    )
    pipe.send(receiver.address)
    gate = here.gate(TOTALS)
    return Received(gate), lost, [c.index for c in gate.channels if c.sender == 0]


def test_blocked_channel_does_not_delay_other_channels_and_loses_no_record(
    receiver: Slot, sender: Sender
) -> None:
    received, lost, (blocked, *others) = start(receiver, sender)
    received.gate.block(blocked)

    def others_ended() -> bool:
        received.take()
        return received.ended == set(others)

    receiver.run_until(others_ended, 60)
    assert received.offsets[blocked] == 0
    assert received.gate.channels[blocked].depth == CREDITS
    received.gate.unblock_all()

    def all_ended() -> bool:
        received.take()
        return received.ended == {blocked, *others}

    receiver.run_until(all_ended, 60)
    assert [received.offsets[n] for n in (blocked, *others)] == [RECORDS] * len(SOURCES)
    full_barriers = len(batches(SOURCES[0], RECORDS)) // BARRIER_EVERY * BARRIER_EVERY
    assert [received.barriers[n] for n in (blocked, *others)] == [full_barriers] * len(SOURCES)
    assert received.deepest <= CREDITS
    assert sender[1].recv() == "sent"
    receiver.exchange.close()
    assert not lost


def test_a_killed_slot_is_lost_at_once(receiver: Slot, sender: Sender) -> None:
    received, lost, _ = start(receiver, sender)

    def flows() -> bool:
        received.take()
        return any(received.offsets.values())

    receiver.run_until(flows)
    process, _ = sender
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    receiver.run_until(lambda: bool(lost), 10.0)  # its socket's end shows it: no time has to pass
    assert len(lost) == 1
    assert "Slot 1 lost slot 0" in str(lost[0])
