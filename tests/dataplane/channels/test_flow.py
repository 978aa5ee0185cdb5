"""Credits, blocking and barriers under random schedules; and the proof that the checks can fail.

Goal: per channel, what arrives is what was sent, in order, control elements included; never more
data frames are under way than there are credits; none is lost. Method: two slots with several
channels between them, a seeded script of sends, flushes, deliveries, turns, blocks; the sum of all
credits is counted after every step, and at the end everything is unblocked and drained. The same
run on channels with a planted mistake must fail.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.dataplane.channels.parts import Network, batch, codec, edge
from tidegate.dataplane.channels.frames import (
    FrameKind,
    control_frame,
    credit_frame,
    data_frame,
    frame_kind,
    read_control,
    read_credit,
)
from tidegate.dataplane.channels.input_gate import InputChannel, InputGate
from tidegate.dataplane.channels.record_writer import RemoteOutputChannel
from tidegate.errors import ExchangeError, InternalError
from tidegate.ids import Attempt, CheckpointId, SubtaskIndex
from tidegate.ports.exchange import Frame
from tidegate.stream_elements import Barrier, Control, EndOfInput, RecordBatch

CHANNELS = 3
STEPS = 400


class Broken(Exception):
    """An invariant of the flow does not hold."""


def must(holds: object, what: str) -> None:
    if not holds:
        raise Broken(what)


class Flow:
    """Slot 0 sends, slot 1 receives; time passes when `step` says so."""

    def __init__(
        self,
        seed: int,
        make_sender: type[RemoteOutputChannel] = RemoteOutputChannel,
        make_input: type[InputChannel] = InputChannel,
        make_gate: type[InputGate] = InputGate,
    ) -> None:
        self.random = random.Random(seed)
        self.credit = self.random.choice([2, 3, 8])
        self.network = Network()
        there, self.here = self.network.exchange(0), self.network.exchange(1)
        self.senders = [
            make_sender(codec(), self.credit, partial(there.send, 1, number))
            for number in range(CHANNELS)
        ]
        self.inputs = [
            make_input(
                edge(number),
                SubtaskIndex(0),
                self.credit,
                codec(),
                partial(self._send_credit, number),
            )
            for number in range(CHANNELS)
        ]
        self.gate = make_gate(self.inputs)
        there.connect({}, post=_now, on_frames=self._at_sender, on_lost=_never)
        self.here.connect({}, post=_now, on_frames=self._at_receiver, on_lost=_never)
        self.sent: list[list[object]] = [[] for _ in range(CHANNELS)]
        self.received: list[list[object]] = [[] for _ in range(CHANNELS)]
        self.number = 0

    def run(self) -> None:
        for _ in range(STEPS):
            self.step()
            self.check_credits()
        self.gate.unblock_all()
        for channel in self.senders:
            channel.put_control(EndOfInput())
        for trace in self.sent:
            trace.append(EndOfInput())
        while self.network.deliver() or self.take():
            for channel in self.senders:
                channel.flush()
            self.check_credits()
        self.check_end()

    def step(self) -> None:
        channel = self.random.randrange(CHANNELS)
        sender = self.senders[channel]
        match self.random.randrange(8):
            case 0 | 1 | 2 if sender.writable():
                size = self.random.choice([1, 3, 200, 700])
                sender.put(batch(self.number, size))
                self.sent[channel].extend(range(self.number, self.number + size))
                self.number += size
            case 3:
                self.number += 1
                barrier = Barrier(CheckpointId(Attempt(1), self.number))
                sender.put_control(barrier)
                self.sent[channel].append(barrier)
            case 4:
                sender.flush()
            case 5:
                self.network.deliver()
            case 6:
                self.take()
            case 7:
                if self.random.random() < 0.5:
                    self.gate.block(channel)
                else:
                    self.gate.unblock(channel)
            case _:
                pass

    def take(self) -> bool:
        found = self.gate.next_element()
        if found is None:
            return False
        index, element = found
        must(not self.inputs[index].blocked, "an element left a blocked channel")
        trace = self.received[index]
        if isinstance(element, RecordBatch):
            trace.extend(element.offsets)
        else:
            trace.append(element)
        must(trace == self.sent[index][: len(trace)], f"channel {index} is out of order: {trace}")
        return True

    def check_credits(self) -> None:
        for number, (sender, receiver) in enumerate(zip(self.senders, self.inputs, strict=True)):
            data = receiver.depth + sum(
                channel == number and frame_kind(payload) is FrameKind.DATA
                for channel, payload in self.network.ways[0, 1]
            )
            coming = sum(
                read_credit(payload)
                for channel, payload in self.network.ways[1, 0]
                if channel == number
            )
            must(sender.credit >= 0, f"channel {number} sent without credit")
            must(data <= self.credit, f"{data} frames under way with {self.credit} credits")
            total = sender.credit + data + coming + receiver.unannounced_credit
            must(total == self.credit, f"channel {number} has {total} of {self.credit} credits")

    def check_end(self) -> None:
        must(self.received == self.sent, "something did not arrive")
        for sender, receiver in zip(self.senders, self.inputs, strict=True):
            home = sender.credit + receiver.unannounced_credit
            must(home == self.credit, f"{home} of {self.credit} credits are home")
            must(not sender.waiting and not sender.buffered, "something was never sent")

    def _send_credit(self, number: int, frames: int) -> None:
        self.here.send(0, number, (credit_frame(frames),))

    def _at_sender(self, peer: int, frames: list[Frame]) -> None:
        for number, payload in frames:
            self.senders[number].add_credit(read_credit(payload))

    def _at_receiver(self, peer: int, frames: list[Frame]) -> None:
        for number, payload in frames:
            if frame_kind(payload) is FrameKind.DATA:
                self.inputs[number].offer_frame(payload)
            else:
                self.inputs[number].put(read_control(payload))


def _now(action: Callable[[], None]) -> None:
    action()


def _never(peer: int, error: Exception) -> None:
    raise error


@given(st.integers(0, 2**32))
def test_channels_keep_order_and_credits_under_every_random_schedule(seed: int) -> None:
    Flow(seed).run()


# --- channels with a mistake: each must be found within a few seeds ------------------------------


class LosesCredits(InputChannel):
    __slots__ = ()

    def pop(self) -> RecordBatch | Control:
        element = super().pop()
        if self._unannounced_credit and self._queue:
            self._unannounced_credit -= 1
        return element


class GrantsTwice(InputChannel):
    __slots__ = ()

    def pop(self) -> RecordBatch | Control:
        before = self._unannounced_credit
        element = super().pop()
        if self._unannounced_credit > before:
            self._unannounced_credit += 1
        return element


class BarrierOvertakesWhatWaits(RemoteOutputChannel):
    __slots__ = ()

    def put_control(self, element: Control) -> None:
        self._finish_frame()
        self._send((control_frame(element),))


class BarrierOvertakesWhatIsGathered(RemoteOutputChannel):
    __slots__ = ()

    def put_control(self, element: Control) -> None:
        if self._waiting:
            self._waiting.append(element)
        else:
            self._send((control_frame(element),))


class SendsWithoutCredit(RemoteOutputChannel):
    __slots__ = ()

    def _finish_frame(self) -> None:
        if self._encoded_batches:
            self._send(data_frame(self._encoded_batches))
            self._encoded_batches = []
            self._buffered_records = self._buffered_bytes = 0


class ForgetsAFlush(RemoteOutputChannel):
    __slots__ = ()

    def add_credit(self, frames: int) -> None:
        self.credit += frames


class IgnoresBlocking(InputChannel):
    __slots__ = ()

    def block(self) -> None:
        self.blocked = True


MISTAKES: list[tuple[str, dict[str, type]]] = [
    ("credits leak", {"make_input": LosesCredits}),
    ("credits multiply", {"make_input": GrantsTwice}),
    ("a barrier overtakes waiting frames", {"make_sender": BarrierOvertakesWhatWaits}),
    ("a barrier overtakes gathered records", {"make_sender": BarrierOvertakesWhatIsGathered}),
    ("frames go without credit", {"make_sender": SendsWithoutCredit}),
    ("frames wait for ever", {"make_sender": ForgetsAFlush}),
    ("blocked channels are read", {"make_input": IgnoresBlocking}),
]


@pytest.mark.parametrize("mistake", [parts for _, parts in MISTAKES], ids=[n for n, _ in MISTAKES])
def test_flow_check_finds_a_planted_mistake_in_a_channel(mistake: dict[str, type]) -> None:
    found = 0
    for seed in range(20):
        try:
            Flow(seed, **mistake).run()
        except (Broken, InternalError, ExchangeError):  # the channels' own checks find some
            found += 1
    assert found >= 10
