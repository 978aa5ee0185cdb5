"""The contract of `ports/exchange.py`: the behaviour of every connection between slots.

A test class inherits it and gives a `world` that makes slots. Each slot is an exchange, a mailbox
that the test runs, and the frames that came. The slot checks that callbacks run only in the
mailbox, that no peer is lost twice, and that nothing comes from a lost peer.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Protocol

import pytest

from tests.contracts.surroundings import TIMEOUT_S, ContractEnvironment
from tidegate.errors import ExchangeError, InternalError
from tidegate.ports.exchange import MAX_FRAME_BYTES, Exchange, Frame

SOON_S = 10.0
"""A bound for a machine that is busy with other things, not a figure."""
_STEP_S = 0.002


class Slot:
    """An exchange, its mailbox, and what came."""

    def __init__(self, exchange: Exchange, environment: ContractEnvironment) -> None:
        self.exchange = exchange
        self.address = exchange.address
        self.mailbox: deque[Callable[[], None]] = deque()
        self.frames: dict[int, list[Frame]] = defaultdict(list)
        self.lost: dict[int, ExchangeError] = {}
        self.posts = 0
        self._around = environment
        self._running = False

    def connect(self, peers: Mapping[int, str]) -> None:
        self.exchange.connect(
            peers, post=self.mailbox.append, on_frames=self._on_frames, on_lost=self._on_lost
        )

    def run_until(self, holds: Callable[[], bool], timeout_s: float = TIMEOUT_S) -> None:
        """Run the mailbox until something holds."""
        until = self._around.clock.monotonic() + timeout_s
        while not holds():
            assert self._around.clock.monotonic() < until, f"not in {timeout_s} s; {self.lost=}"
            if not self.mailbox:
                self._around.clock.sleep(_STEP_S)
            self.run_rest()

    def run_rest(self) -> None:
        """Run what was posted."""
        self._running = True
        while self.mailbox:
            self.mailbox.popleft()()
        self._running = False

    def _on_frames(self, peer: int, frames: list[Frame]) -> None:
        assert self._running, "called elsewhere than where `post` runs its actions"
        assert peer not in self.lost, "frames of a lost peer"
        assert frames
        assert all(type(payload) is bytes for _, payload in frames)
        self.posts += 1
        self.frames[peer].extend(frames)

    def _on_lost(self, peer: int, error: ExchangeError) -> None:
        assert self._running, "called elsewhere than where `post` runs its actions"
        assert peer not in self.lost, "lost twice"
        self.lost[peer] = error


class ExchangeWorld(Protocol):
    """Where slots live."""

    environment: ContractEnvironment

    def slot(self, ordinal: int, *, job: str = "job", attempt: int = 1) -> Slot:
        """A slot that listens; it is closed after the test."""
        ...

    def break_off(self, slot: Slot) -> None:
        """Have its connections end as if its process were killed: without a goodbye."""
        ...

    def unused_address(self) -> str:
        """An address without a listener."""
        ...


class ExchangeContract:
    """Inherit, and override the fixture `world`."""

    @pytest.fixture
    def world(self) -> Iterator[ExchangeWorld]:
        raise NotImplementedError

    @pytest.fixture
    def long_farewell(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A close timeout so long that a test fails if an exchange waits for it, also on a slow
        machine.
        """
        for driver in ("tidegate.drivers.exchange.sockets", "tests.simulator.exchange"):
            monkeypatch.setattr(f"{driver}.CLOSE_TIMEOUT_S", 6 * SOON_S)

    # --- frames ---

    def test_frames_arrive_whole_and_in_order_both_ways(self, world: ExchangeWorld) -> None:
        low, high = pair(world)
        dice = random.Random(5)
        sent: dict[int, list[Frame]] = {0: [], 1: []}
        for number in range(600):
            size = dice.choice([0, 1, 100, 5_000, 70_000])
            parts = [b"%06d" % number, b"", dice.randbytes(size)]
            channel = dice.randrange(5)
            low.exchange.send(1, channel, parts)
            high.exchange.send(0, channel, tuple(parts))
            sent[0].append((channel, b"".join(parts)))
        low.run_until(lambda: len(low.frames[1]) == 600)
        high.run_until(lambda: len(high.frames[0]) == 600)
        assert low.frames[1] == sent[0]
        assert high.frames[0] == sent[0]

    def test_frame_without_content_is_delivered(self, world: ExchangeWorld) -> None:
        low, high = pair(world)
        low.exchange.send(1, 1, ())
        low.exchange.send(1, 2, (b"", b""))
        high.run_until(lambda: len(high.frames[0]) == 2)
        assert high.frames[0] == [(1, b""), (2, b"")]

    def test_many_slots_connect_in_any_order(self, world: ExchangeWorld) -> None:
        slots = [world.slot(ordinal) for ordinal in range(5)]
        order = list(enumerate(slots))
        random.Random(3).shuffle(order)
        for number, slot in order:
            slot.connect({n: peer.address for n, peer in enumerate(slots) if n != number})
            for peer in range(5):
                if peer != number:
                    slot.exchange.send(peer, number, (b"from %d" % number,))
        for number, slot in enumerate(slots):
            others = [n for n in range(5) if n != number]
            slot.run_until(partial(_heard_of, slot, 4))
            assert {n: slot.frames[n] for n in others} == {n: [(n, b"from %d" % n)] for n in others}
            assert not slot.lost

    def test_largest_frame_is_delivered_and_a_larger_frame_is_a_bug(
        self, world: ExchangeWorld
    ) -> None:
        low, high = pair(world)
        low.exchange.send(1, 0, (b"x" * (MAX_FRAME_BYTES - 1), b"y"))
        with pytest.raises(InternalError, match="limit"):
            low.exchange.send(1, 0, (b"x" * MAX_FRAME_BYTES, b"y"))
        for channel in (2**32 - 1, -1):
            with pytest.raises(InternalError, match="channel"):
                low.exchange.send(1, channel, (b"x",))
        low.exchange.send(1, 2**32 - 2, (b"last",))
        high.run_until(lambda: len(high.frames[0]) == 2)
        assert len(high.frames[0][0][1]) == MAX_FRAME_BYTES
        assert high.frames[0][1] == (2**32 - 2, b"last")

    @pytest.mark.parametrize("linked", [True, False])
    def test_caller_may_reuse_its_list_of_parts_after_send(
        self, world: ExchangeWorld, linked: bool
    ) -> None:
        low, high = world.slot(0), world.slot(1)
        low.connect({1: high.address})
        if linked:
            high.connect({0: low.address})
            low.exchange.send(1, 0, (b"first",))
            high.run_until(lambda: bool(high.frames[0]))
        parts: list[bytes] = []
        for number in range(50):
            parts[:] = [b"%d" % number, b"x" * 20_000]
            low.exchange.send(1, 1, parts)
        parts[:] = [b"used for something else"]
        if not linked:
            high.connect({0: low.address})
        high.run_until(lambda: len(high.frames[0]) == 50 + linked)
        assert [payload for _, payload in high.frames[0][linked:]] == [
            b"%d" % number + b"x" * 20_000 for number in range(50)
        ]

    def test_received_frame_does_not_change_when_more_frames_arrive(
        self, world: ExchangeWorld
    ) -> None:
        low, high = pair(world)
        for number in range(200):
            low.exchange.send(1, 0, (b"%06d" % number * 1000,))
            if number % 20 == 19:
                high.run_until(lambda: len(high.frames[0]) > number)  # noqa: B023  # ends first
        assert [payload for _, payload in high.frames[0]] == [
            b"%06d" % n * 1000 for n in range(200)
        ]

    # --- before and without a reader ---

    def test_frames_received_before_connect_are_delivered_after_connect(
        self, world: ExchangeWorld
    ) -> None:
        low, high = world.slot(0), world.slot(1)
        low.connect({1: high.address})
        low.exchange.send(1, 4, (b"early",))
        world.environment.clock.sleep(0.1)
        assert not high.mailbox
        high.connect({0: low.address})
        high.run_until(lambda: high.frames[0] == [(4, b"early")])

    def test_connect_and_send_do_not_wait_for_the_peer(self, world: ExchangeWorld) -> None:
        """The other slot is there, and does nothing: no greeting, no reading."""
        low, high = world.slot(0), world.slot(1)
        began = world.environment.clock.monotonic()
        low.connect({1: high.address})
        for _ in range(100):
            low.exchange.send(1, 0, (b"x" * 100_000,))  # far more than a socket buffers
        assert world.environment.clock.monotonic() - began < SOON_S
        high.connect({0: low.address})
        high.run_until(lambda: len(high.frames[0]) == 100)

    def test_many_small_frames_are_posted_in_few_actions(self, world: ExchangeWorld) -> None:
        low, high = world.slot(0), world.slot(1)
        low.connect({1: high.address})
        for _ in range(1000):
            low.exchange.send(1, 0, (b"small",))
        high.connect({0: low.address})
        high.run_until(lambda: len(high.frames[0]) == 1000)
        assert high.posts <= 20

    def test_an_exchange_is_connected_once_and_not_to_itself(self, world: ExchangeWorld) -> None:
        low, high = world.slot(0), world.slot(1)
        with pytest.raises(InternalError, match="itself"):
            low.connect({0: low.address, 1: high.address})
        low.connect({1: high.address})
        with pytest.raises(InternalError, match="once"):
            low.connect({1: high.address})

    # --- loss ---

    def test_a_peer_that_goes_without_goodbye_is_lost_once(self, world: ExchangeWorld) -> None:
        low, high = pair(world)
        low.exchange.send(1, 0, (b"hello",))
        high.run_until(lambda: bool(high.frames[0]))
        world.break_off(low)
        high.run_until(lambda: 0 in high.lost)
        assert "Slot 1 lost slot 0 in attempt 1 of job 'job'" in str(high.lost[0])
        for _ in range(10):
            high.exchange.send(0, 0, (b"into the void",))
        world.environment.clock.sleep(0.05)
        high.run_rest()
        assert list(high.lost) == [0]

    def test_frames_received_from_a_lost_peer_are_the_first_frames_that_it_sent(
        self, world: ExchangeWorld
    ) -> None:
        low, high = pair(world)
        sent = [(0, b"%06d" % number * 5_000) for number in range(100)]
        for channel, payload in sent:
            low.exchange.send(1, channel, (payload,))
        high.run_until(lambda: bool(high.frames[0]))
        world.break_off(low)
        high.run_until(lambda: 0 in high.lost)
        assert high.frames[0] == sent[: len(high.frames[0])]

    def test_loss_of_one_peer_does_not_affect_other_peers(self, world: ExchangeWorld) -> None:
        slots = [world.slot(ordinal) for ordinal in range(3)]
        for number, slot in enumerate(slots):
            slot.connect({n: peer.address for n, peer in enumerate(slots) if n != number})
        one, two, three = slots
        one.exchange.send(2, 0, (b"a",))
        two.exchange.send(2, 0, (b"b",))
        three.run_until(lambda: len(three.frames) == 2)
        world.break_off(one)
        three.run_until(lambda: 0 in three.lost)
        two.exchange.send(2, 0, (b"c",))
        three.exchange.send(1, 0, (b"d",))
        three.run_until(lambda: len(three.frames[1]) == 2)
        two.run_until(lambda: two.frames[2] == [(0, b"d")])
        assert list(three.lost) == [0]

    def test_a_peer_that_cannot_be_reached_is_lost(self, world: ExchangeWorld) -> None:
        slot = world.slot(0)
        slot.connect({1: world.unused_address()})
        slot.exchange.send(1, 0, (b"x",))
        slot.run_until(lambda: 1 in slot.lost)
        assert "cannot be reached" in str(slot.lost[1])

    @pytest.mark.parametrize("early", [True, False], ids=["before connect", "after connect"])
    @pytest.mark.parametrize(
        ("job", "attempt"), [("job", 2), ("other", 1)], ids=["another attempt", "another job"]
    )
    def test_a_connection_of_another_attempt_is_refused(
        self, world: ExchangeWorld, job: str, attempt: int, early: bool
    ) -> None:
        target = world.slot(1)
        if not early:
            target.connect({0: world.unused_address()})
        zombie = world.slot(0, job=job, attempt=attempt)
        zombie.connect({1: target.address})
        zombie.exchange.send(1, 0, (b"must not arrive",))
        zombie.run_until(lambda: 1 in zombie.lost)
        assert "refused" in str(zombie.lost[1])
        # The true peer still gets in, and nothing of the zombie's came.
        true = world.slot(0)
        true.connect({1: target.address})
        true.exchange.send(1, 0, (b"the true one",))
        if early:
            target.connect({0: true.address})
        target.run_until(lambda: target.frames[0] == [(0, b"the true one")])
        assert not target.lost

    # --- goodbye ---

    @pytest.mark.parametrize("linked", [True, False])
    def test_peer_that_closes_with_a_goodbye_is_not_lost_and_all_its_frames_arrive(
        self, world: ExchangeWorld, linked: bool
    ) -> None:
        low, high = world.slot(0), world.slot(1)
        low.connect({1: high.address})
        if linked:
            high.connect({0: low.address})
            high.exchange.send(0, 0, (b"here",))
            low.run_until(lambda: bool(low.frames[1]))
        for number in range(50):
            low.exchange.send(1, number, (b"x" * 100_000,))
        closed = world.environment.run_in_parallel(low.exchange.close)
        if not linked:
            world.environment.clock.sleep(0.05)
            high.connect({0: low.address})
        high.run_until(lambda: len(high.frames[0]) == 50)
        high.exchange.send(0, 0, (b"credit that nobody needs",))
        closed()  # so the peer has hung up, and posted what it had to
        for slot in (low, high):
            slot.run_rest()
            assert not slot.lost

    def test_close_does_not_wait_for_a_peer_to_which_no_frame_was_sent(
        self, world: ExchangeWorld, long_farewell: None
    ) -> None:
        waiting = world.slot(1)
        waiting.connect({0: world.unused_address()})
        began = world.environment.clock.monotonic()
        waiting.exchange.close()
        assert world.environment.clock.monotonic() - began < SOON_S

    def test_close_waits_no_longer_than_its_timeout(self, world: ExchangeWorld) -> None:
        low, high = world.slot(0), world.slot(1)
        low.connect({1: high.address})
        for _ in range(100):
            low.exchange.send(1, 0, (b"x" * 100_000,))
        began = world.environment.clock.monotonic()
        low.exchange.close()  # and no peer reads
        assert 1.5 < world.environment.clock.monotonic() - began < SOON_S

    def test_two_slots_may_close_at_the_same_time_and_twice(
        self, world: ExchangeWorld, long_farewell: None
    ) -> None:
        low, high = pair(world)
        low.exchange.send(1, 0, (b"linked",))
        high.run_until(lambda: bool(high.frames[0]))
        began = world.environment.clock.monotonic()
        joins = [world.environment.run_in_parallel(slot.exchange.close) for slot in (low, high)]
        for join in joins:
            join()
        low.exchange.close()
        assert world.environment.clock.monotonic() - began < SOON_S
        for slot in (low, high):
            slot.run_rest()
            assert not slot.lost

    def test_nothing_is_posted_to_the_mailbox_after_close(self, world: ExchangeWorld) -> None:
        low, high = pair(world)
        low.exchange.send(1, 0, (b"linked",))
        high.run_until(lambda: bool(high.frames[0]))
        high.exchange.send(0, 0, (b"under way",))
        low.exchange.close()
        low.mailbox.clear()
        high.exchange.send(0, 0, (b"too late",))
        world.environment.clock.sleep(0.05)
        assert not low.mailbox

    def test_slot_that_closes_before_it_connects_is_lost(self, world: ExchangeWorld) -> None:
        early, dialling = world.slot(1), world.slot(0)
        dialling.connect({1: early.address})
        early.exchange.close()
        dialling.run_until(lambda: 1 in dialling.lost)


def pair(world: ExchangeWorld) -> tuple[Slot, Slot]:
    """Slots 0 and 1, connected."""
    low, high = world.slot(0), world.slot(1)
    low.connect({1: high.address})
    high.connect({0: low.address})
    return low, high


def _heard_of(slot: Slot, peers: int) -> bool:
    return len(slot.frames) == peers
