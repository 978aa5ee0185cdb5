"""The simulated network's faults: each does exactly what its real counterpart does.

Goal: a test that draws faults must know their meaning. Method: a server or a pair of slots runs in
processes of its own, with one fault at a time, chosen and not drawn. At the end there is one digest
per seed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from tests.simulator.exchange import SimExchange
from tests.simulator.network import BASE_LATENCY_S, Copies, Network
from tests.simulator.network_conditions import MessageFaults, NetworkConditions
from tests.simulator.rpc import RpcNetwork
from tests.simulator.scheduler import Scheduler, SimProcess
from tests.simulator.tests.contracts import VIRTUAL_S_MAX
from tests.simulator.trace import Trace
from tidegate.errors import ExchangeError, RpcError
from tidegate.ports.exchange import Frame
from tidegate.protocol.messages import Acknowledge, ListJobs, Message, Refused


class Calls:
    """A server that notes what it handles, and a client; `message_faults` by kind of message."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.message_faults: dict[str, list[Copies]] = {"call": [], "reply": []}
        self.network = Network(scheduler, self._fate)
        self.here, self.there = scheduler.process("client"), scheduler.process("server")
        self.rpc_network = RpcNetwork(self.network)
        self.handled: list[str] = []
        self.server = self.rpc_network.of(self.there).serve(self._handle)
        self.client = self.rpc_network.of(self.here).connect(self.server.address)
        self.outcomes: dict[str, str] = {}

    def call(self, name: str, timeout_s: float = 10.0) -> None:
        """Call in parallel with the test. `outcomes` says how the call ended, and when."""

        def call() -> None:
            began_s = self.scheduler.now
            try:
                reply = self.client.call(Refused(reason=name), timeout_s)
                assert reply == Refused(reason=f"to {name}")
                outcome = "replied"
            except RpcError as error:
                outcome = str(error).rpartition("failed: ")[2][:10]
            self.outcomes[name] = f"{outcome} after {self.scheduler.now - began_s:.1f} s"

        self.here.start(call, name=name)

    def run(self, seconds: float) -> None:
        """Let virtual time pass."""
        self.scheduler.call_later(seconds, _nothing)
        self.scheduler.run(self.scheduler.now + seconds)

    def _handle(self, message: Message) -> Message:
        assert isinstance(message, Refused)
        self.handled.append(message.reason)
        return Refused(reason=f"to {message.reason}")

    def _fate(self, _sender: SimProcess, _receiver: SimProcess, kind: str) -> Copies:
        chosen = self.message_faults[kind]
        return chosen.pop(0) if chosen else (BASE_LATENCY_S,)


@pytest.fixture
def scheduler() -> Iterator[Scheduler]:
    scheduler = Scheduler(1)
    yield scheduler
    scheduler.close()
    assert [error for _, error in scheduler.bugs] == []


@pytest.fixture
def calls(scheduler: Scheduler) -> Calls:
    return Calls(scheduler)


class TestCalls:
    def test_a_lost_request_is_not_handled_and_a_lost_reply_is_not_heard(
        self, calls: Calls
    ) -> None:
        calls.message_faults["call"] = [()]
        calls.call("request")
        calls.run(11)
        calls.message_faults["reply"] = [()]
        calls.call("reply")
        calls.run(11)
        assert calls.outcomes == dict.fromkeys(("request", "reply"), "no reply w after 10.0 s")
        assert calls.handled == ["reply"]

    def test_a_request_that_comes_twice_is_handled_twice_and_answered_once(
        self, calls: Calls
    ) -> None:
        calls.message_faults["call"] = [(0.1, 3.0)]
        calls.call("twice")
        calls.run(1)
        assert calls.handled == ["twice"]
        assert calls.outcomes == {"twice": "replied after 0.1 s"}
        calls.run(5)
        assert calls.handled == ["twice", "twice"]

    def test_calls_overtake_each_other(self, calls: Calls) -> None:
        calls.message_faults["call"] = [(2.0,), (1.0,)]
        calls.call("first")
        calls.run(0.5)
        calls.call("second")
        calls.run(5)
        assert calls.handled == ["second", "first"]

    def test_late_request_is_handled_after_its_caller_timed_out(self, calls: Calls) -> None:
        calls.message_faults["call"] = [(5.0,)]
        calls.call("late", timeout_s=1.0)
        calls.run(2)
        assert calls.handled == []
        calls.run(5)
        assert calls.outcomes == {"late": "no reply w after 1.0 s"}
        assert calls.handled == ["late"]

    def test_partition_delays_requests_until_it_heals(self, calls: Calls) -> None:
        calls.network.partition([calls.here], [calls.there])
        calls.call("gives up")
        calls.run(15)
        calls.call("still waits")
        calls.run(5)
        assert calls.handled == []
        calls.network.heal()
        calls.run(1)
        assert calls.handled == ["gives up", "still waits"]
        assert calls.outcomes == {
            "gives up": "no reply w after 10.0 s",
            "still waits": "replied after 5.0 s",
        }

    def test_a_partition_may_have_one_direction(self, calls: Calls) -> None:
        calls.network.partition([calls.there], [calls.here], both_ways=False)
        calls.call("heard")
        calls.run(11)
        assert calls.handled == ["heard"]
        assert calls.outcomes == {"heard": "no reply w after 10.0 s"}

    def test_a_frozen_server_is_silent_and_handles_when_it_wakes_up(self, calls: Calls) -> None:
        calls.there.freeze()
        calls.call("to a zombie")
        calls.run(11)
        assert calls.handled == []
        calls.there.thaw()
        calls.run(1)
        assert calls.handled == ["to a zombie"]
        assert calls.outcomes == {"to a zombie": "no reply w after 10.0 s"}

    def test_the_death_of_a_server_is_heard_at_once_but_not_through_a_partition(
        self, calls: Calls
    ) -> None:
        calls.message_faults["call"] = [(1.0,), (1.0,)]
        calls.call("under way")
        calls.run(0.5)
        calls.there.kill()
        calls.run(1)
        calls.call("to the dead")
        calls.run(2)
        assert calls.outcomes == {
            "under way": "no process after 0.5 s",
            "to the dead": "no process after 1.0 s",
        }
        calls.network.partition([calls.there], [calls.here])
        calls.call("in the dark")
        calls.run(11)
        assert calls.outcomes["in the dark"] == "no reply w after 10.0 s"
        assert calls.handled == []

    def test_cut_connection_fails_pending_calls_that_may_still_be_handled(
        self, calls: Calls
    ) -> None:
        calls.message_faults["call"] = [(1.0,)]
        calls.call("cut")
        calls.run(0.5)
        calls.network.cut([calls.here], [calls.there])
        calls.run(2)
        assert calls.outcomes == {"cut": "no process after 0.5 s"}
        assert calls.handled == ["cut"]
        calls.call("again")
        calls.run(1)
        assert calls.outcomes["again"] == "replied after 0.0 s"

    def test_request_of_a_killed_client_is_handled_and_its_reply_is_dropped(
        self, calls: Calls
    ) -> None:
        calls.message_faults["call"] = [(1.0,)]
        calls.call("testament")
        calls.run(0.5)
        calls.here.kill()
        calls.run(2)
        assert calls.handled == ["testament"]
        assert calls.outcomes == {}


class Slots:
    """Two slots in processes of their own, connected, whose mailboxes run at once."""

    def __init__(
        self, scheduler: Scheduler, network: Network | None = None, freeze: int | None = None
    ) -> None:
        self.scheduler = scheduler
        self.network = network or Network(scheduler)
        self.processes = [scheduler.process(f"slot {n}") for n in range(2)]
        if freeze is not None:
            self.processes[freeze].freeze()
        self.exchanges = [
            SimExchange(self.network, process, job="job", attempt=1, ordinal=n)
            for n, process in enumerate(self.processes)
        ]
        self.frames: list[list[Frame]] = [[], []]
        self.lost: list[list[str]] = [[], []]
        for n in range(2):
            self._connect(n)
        self.run(1)

    def run(self, seconds: float) -> None:
        self.scheduler.call_later(seconds, _nothing)
        self.scheduler.run(self.scheduler.now + seconds)

    def send(self, sender: int, *payloads: Any) -> None:
        """Each payload as one frame of one part, from a thread of the sender."""

        def send() -> None:
            for payload in payloads:
                self.exchanges[sender].send(1 - sender, 0, (payload,))

        self.processes[sender].start(send, name="sender")

    def close(self, slot: int) -> None:
        self.processes[slot].start(self.exchanges[slot].close, name="closer")

    def _connect(self, n: int) -> None:
        def on_frames(_peer: int, frames: list[Frame]) -> None:
            self.frames[n] += frames

        def on_lost(_peer: int, error: ExchangeError) -> None:
            self.lost[n].append(str(error))

        self.exchanges[n].connect(
            {1 - n: self.exchanges[1 - n].address}, post=_now, on_frames=on_frames, on_lost=on_lost
        )


@pytest.fixture
def slots(scheduler: Scheduler) -> Slots:
    return Slots(scheduler)


class TestExchange:
    def test_a_partition_holds_frames_up_and_loses_none(self, slots: Slots) -> None:
        slots.network.partition(slots.processes[:1], slots.processes[1:])
        slots.send(0, b"a", b"b")
        slots.run(100)
        assert (slots.frames[1], slots.lost) == ([], [[], []])
        slots.network.heal()
        slots.run(1)
        assert slots.frames[1] == [(0, b"a"), (0, b"b")]

    def test_a_frozen_slot_is_not_lost_and_reads_when_it_wakes_up(self, slots: Slots) -> None:
        slots.processes[1].freeze()
        slots.send(0, b"a")
        slots.run(100)
        assert (slots.frames[1], slots.lost) == ([], [[], []])
        slots.processes[1].thaw()
        slots.run(1)
        assert slots.frames[1] == [(0, b"a")]

    def test_frozen_slot_is_lost_if_it_does_not_connect_within_60_s(
        self, scheduler: Scheduler
    ) -> None:
        slots = Slots(scheduler, freeze=1)
        slots.run(30)
        assert slots.lost == [[], []]
        slots.run(60)
        assert "did not connect within 60 s" in slots.lost[0][0]

    def test_cut_connection_is_reported_as_lost_on_both_sides(self, slots: Slots) -> None:
        slots.network.cut(slots.processes[:1], slots.processes[1:])
        slots.run(1)
        assert all("the connection broke" in lost[0] for lost in slots.lost)

    def test_killed_slot_is_lost_and_only_some_of_its_last_frames_may_arrive(
        self, scheduler: Scheduler
    ) -> None:
        arrived: Counter[int] = Counter()
        for seed in range(30):
            own = Scheduler(seed)
            slots = Slots(own)
            slots.send(0, *(b"%d" % n for n in range(3)))
            own.run(VIRTUAL_S_MAX, partial(_sent, slots))
            slots.processes[0].kill()
            slots.run(1)
            came = [payload for _, payload in slots.frames[1]]
            assert came == [b"0", b"1", b"2"][: len(came)]
            assert len(slots.lost[1]) == 1
            arrived[len(came)] += 1
            own.close()
        assert set(arrived) == {0, 1, 2, 3}

    def test_frozen_slot_receives_the_close_of_its_peer_when_it_wakes_up(
        self, slots: Slots
    ) -> None:
        slots.processes[1].freeze()
        slots.send(0, b"last")
        slots.run(1)
        slots.close(0)
        slots.run(1)
        assert _threads(slots, "closer"), "it waits for the other to hang up"
        slots.run(2)
        assert not _threads(slots, "closer")
        slots.processes[0].kill()
        slots.processes[1].thaw()
        slots.run(1)
        assert slots.frames[1] == [(0, b"last")]
        assert slots.lost == [[], []]

    def test_frame_part_that_is_changed_in_transit_arrives_changed(self, slots: Slots) -> None:
        shared = bytearray(b"as sent")
        slots.send(0, shared)
        slots.run(BASE_LATENCY_S / 2)
        shared[:] = b"changed"
        slots.run(1)
        assert slots.frames[1] == [(0, b"changed")]

    def test_lost_frame_breaks_the_connection(self, scheduler: Scheduler) -> None:
        message_faults: list[Copies] = []
        network = Network(
            scheduler, lambda *_: message_faults.pop(0) if message_faults else (BASE_LATENCY_S,)
        )
        slots = Slots(scheduler, network)
        message_faults += [(0.5,), ()]
        slots.send(0, b"a", b"b", b"c")
        slots.run(2)
        assert [len(lost) for lost in slots.lost] == [1, 1]
        assert slots.frames[1] in ([], [(0, b"a")])


def stormy(seed: int) -> tuple[str, int]:
    """Calls and frames under a drawn weather: the digest of what happened, and how often."""
    scheduler = Scheduler(seed, story=Trace().with_digest())
    message_faults = MessageFaults(
        NetworkConditions.drawn(scheduler.random_for("w")), scheduler.random_for("fates")
    )
    network = Network(scheduler, message_faults)
    slots = Slots(scheduler, network)
    rpc_network = RpcNetwork(network)
    server = rpc_network.of(slots.processes[0]).serve(lambda _: Acknowledge())
    client = rpc_network.of(slots.processes[1]).connect(server.address)

    def call() -> None:
        for _ in range(20):
            try:
                client.call(ListJobs(), 1.0)
                scheduler.record_event("replied")
            except RpcError as error:
                scheduler.record_event("%s", error)

    slots.processes[1].start(call, name="caller")
    slots.send(0, *(b"%d" % n for n in range(50)))
    slots.run(30)
    scheduler.close()
    assert slots.frames[1] == [(0, b"%d" % n) for n in range(len(slots.frames[1]))]
    return scheduler.story.digest(), len(slots.frames[1])


def test_seed_determines_all_network_faults() -> None:
    assert [stormy(seed) for seed in range(20)] == [stormy(seed) for seed in range(20)]
    assert len({stormy(seed) for seed in range(20)}) > 10


def _threads(slots: Slots, name: str) -> list[object]:
    return [one for process in slots.processes for one in process.threads if one.name == name]


def _sent(slots: Slots) -> bool:
    return not _threads(slots, "sender")


def _now(action: Callable[[], None]) -> None:
    action()


def _nothing() -> None:
    """Has time pass."""
