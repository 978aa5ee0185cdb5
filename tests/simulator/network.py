"""The network of all simulated processes: messages, connections and partitions.

The network carries two things, as a real network does. A *message* (`carry`) is independent: each
copy of it arrives at its own time. Messages overtake each other, arrive twice or never arrive. The
control calls consist of messages. A *connection* (`dial`, `listen`) is a pair of ends. An item sent
by one end arrives at the other in order and once, until the connection is closed or breaks, or one
of its processes ends. The exchange between slots uses connections. A `Delivery` decides what
happens to each message and to each item of a connection, so the user of the simulator draws or
chooses it.

A *partition* is silence and not an error: items that would arrive during the partition arrive after
it is healed. A partition has two sides, and a process that starts during the partition is on one of
them, too. It is on the side of its parent. The side is drawn for a process that has its own host
(`has_own_host`) or has no parent. `cut` is the opposite of a partition: connections end at once and
both sides know it. A dead process refuses and resets connections, as its kernel would. A frozen
process accepts connections and sends nothing.

All actions of this module run outside the simulated threads, between the turns of the scheduler. An
action must leave its input for a thread of the process, so that a frozen process does not act. The
network does not know the payloads. It passes them on without a copy.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from tests.simulator.scheduler import Scheduler, SimProcess

Copies = tuple[float, ...]
"""Delays in seconds, one for each copy of a message that arrives. An empty tuple loses it."""

Delivery = Callable[[SimProcess, SimProcess, str], Copies]
"""A function from sender, receiver and kind (`call`, `reply`, `frame`) to the delays of the copies.
For a frame only the first copy counts, because a connection does not repeat items. A frame without
copies breaks its connection.
"""

DRAWN: Final = 0.5
"""Probability of either side of a partition for a process whose side is drawn."""
BASE_LATENCY_S: Final = 0.0002
"""Latency of one way without faults, in seconds: a loopback with two context switches."""


class Closed(NamedTuple):
    """The last item that an end receives: the connection is closed."""

    why: str


class Party(Protocol):
    """An object that is notified when its process ends, or when a cut separates it from others."""

    def gone(self) -> None: ...

    def cut(self, others: Collection[SimProcess]) -> None: ...


Accept = Callable[["End"], None]
"""A function that takes the end of a new connection. It must set the `receive` of the end."""


class Network:
    """The network between the processes of one scheduler."""

    def __init__(
        self,
        scheduler: Scheduler,
        delivery: Delivery | None = None,
        has_own_host: Callable[[SimProcess], bool] = lambda _: False,
    ) -> None:
        self.scheduler = scheduler
        self.delivery: Delivery = delivery or without_faults
        """Fate of all messages. It may be replaced while the simulation runs."""
        self._has_own_host = has_own_host
        self.rng = scheduler.random_for("network")
        self._partitions: list[_Partition] = []
        self._held: list[tuple[SimProcess, SimProcess, Callable[[], None]]] = []
        self._listeners: dict[str, tuple[SimProcess, Accept | None]] = {}
        self._parties: dict[SimProcess, dict[Party, None]] = {}
        self._addresses = 0

    # --- messages -------------------------------------------------------------------------------

    def carry(
        self, sender: SimProcess, receiver: SimProcess, kind: str, action: Callable[[], None]
    ) -> None:
        """Run `action` for each copy of a message when it arrives, also if the receiver is dead."""
        arrive = partial(self._arrive, sender, receiver, action)
        for delay_s in self.delivery(sender, receiver, kind):
            self.scheduler.call_later(delay_s, arrive)

    def inform(self, sender: SimProcess, receiver: SimProcess, action: Callable[[], None]) -> None:
        """Run `action` once, for the messages of kernels: refusals and resets are never lost."""
        self.scheduler.call_later(BASE_LATENCY_S, partial(self._arrive, sender, receiver, action))

    def _arrive(self, sender: SimProcess, receiver: SimProcess, action: Callable[[], None]) -> None:
        if not self.hold_back(sender, receiver, action):
            action()

    # --- connections ----------------------------------------------------------------------------

    def new_address(self) -> str:
        """Return an address that was not used before."""
        self._addresses += 1
        return f"sim:{self._addresses}"

    def listen(self, process: SimProcess, accept: Accept) -> str:
        """Accept connections for a process, and return the address.

        A frozen process accepts connections too, because its kernel accepts them.
        """
        address = self.new_address()
        self._listeners[address] = process, accept
        return address

    def unlisten(self, address: str) -> None:
        """Refuse new connections from now on. Accepted connections stay open."""
        process, _ = self._listeners[address]
        self._listeners[address] = process, None

    def dial(self, process: SimProcess, address: str) -> End:
        """Return an end. Its first item makes the connection, or the connection is refused then."""
        known = self._listeners.get(address)
        near = End(self, process)
        far = End(self, known[0] if known else process)
        near.other, far.other = far, near
        far.receive = partial(self._first, address, far)
        self.join(process, near)
        return near

    def _first(self, address: str, far: End, items: list[Any]) -> None:
        process, accept = self._listeners.get(address, (far.process, None))
        if accept is None or not process.alive:
            far.refuse(f"no process listens at {address}")
            return
        self.join(process, far)
        accept(far)
        far.receive(items)

    # --- faults ---------------------------------------------------------------------------------

    def partition(
        self, one: Collection[SimProcess], other: Collection[SimProcess], *, both_ways: bool = True
    ) -> None:
        """Hold back all items from processes of `one` to processes of `other`, until `heal`.

        With `both_ways`, also hold back the opposite direction. Processes that start during the
        partition are on one of its sides, too.
        """
        self._partitions.append(
            _Partition(one, other, both_ways, self._has_own_host, self.rng.random)
        )

    def heal(self) -> None:
        """End all partitions. Items that were held back arrive after `BASE_LATENCY_S`, in their
        order.
        """
        self._partitions.clear()
        held, self._held = self._held, []
        for _, _, action in held:
            self.scheduler.call_later(BASE_LATENCY_S, action)

    def cut(self, one: Collection[SimProcess], other: Collection[SimProcess]) -> None:
        """End all connections and calls between `one` and `other`. Both sides know it at once."""
        for these, those in ((one, other), (other, one)):
            for process in these:
                for party in list(self._parties.get(process, ())):
                    party.cut(those)

    def hold_back(
        self, sender: SimProcess, receiver: SimProcess, action: Callable[[], None]
    ) -> bool:
        """Return whether a partition separates two processes. If so, run `action` after `heal`."""
        for partition in self._partitions:
            if partition.parts(sender, receiver):
                self._held.append((sender, receiver, action))
                return True
        return False

    # --- notifications of ends and cuts ---------------------------------------------------------

    def join(self, process: SimProcess, party: Party) -> None:
        """Notify `party` of the end of its process and of cuts."""
        parties = self._parties.get(process)
        if parties is None:
            parties = self._parties[process] = {}
            process.on_exit.append(partial(self._gone, process))
        parties[party] = None

    def leave(self, process: SimProcess, party: Party) -> None:
        """Stop the notifications of `party`."""
        self._parties.get(process, {}).pop(party, None)

    def _gone(self, process: SimProcess, _status: int) -> None:
        for party in self._parties.pop(process, {}):
            party.gone()


class _Partition:
    """A partition with two sides. Items of the first side do not reach the other side."""

    def __init__(
        self,
        one: Collection[SimProcess],
        other: Collection[SimProcess],
        both_ways: bool,
        has_own_host: Callable[[SimProcess], bool],
        draw: Callable[[], float],
    ) -> None:
        self._both_ways, self._has_own_host, self._draw = both_ways, has_own_host, draw
        self._sides = {process.pid: 1 for process in other} | {process.pid: 0 for process in one}

    def parts(self, sender: SimProcess, receiver: SimProcess) -> bool:
        """Return whether the partition stops items from the sender to the receiver."""
        sides = self._side(sender), self._side(receiver)
        return sides == (0, 1) or (self._both_ways and sides == (1, 0))

    def _side(self, process: SimProcess) -> int:
        """Return the side of a process. The first call for a process decides its side."""
        known = self._sides.get(process.pid)
        if known is None:
            parent = process.parent
            if parent is None or self._has_own_host(process):
                known = int(self._draw() < DRAWN)
            else:
                known = self._side(parent)
            self._sides[process.pid] = known
        return known


class End:
    """The end of a connection in one process.

    `receive` gets the arrived items in order, as a list. The last item of a connection is a
    `Closed`, unless this process has closed its end.
    """

    __slots__ = (
        "_armed",
        "_due",
        "_ending",
        "_last_s",
        "_network",
        "closed",
        "other",
        "process",
        "receive",
    )

    def __init__(self, network: Network, process: SimProcess) -> None:
        self._network = network
        self.process = process
        self.other: End
        self.receive: Callable[[list[Any]], None]
        self._due: deque[tuple[float, Any]] = deque()
        self._last_s = 0.0
        self._armed = self._ending = self.closed = False

    def send(self, item: Any) -> None:
        """Send one item. Drop it if the connection is closed."""
        other = self.other
        if self.closed or other.closed or self._ending:
            return
        copies = self._network.delivery(self.process, other.process, "frame")
        if copies:
            other.put(copies[0], item)
        else:
            self._break("the connection broke: reset by the network")

    def close(self) -> None:
        """Close this end. The other end receives a `Closed` after all items sent before."""
        if not self.closed:
            self._forget()
            self.other.end(BASE_LATENCY_S, "Its process ended, or it closed the connection.")

    def refuse(self, why: str) -> None:
        """Refuse the connection of an end whose address has no listener."""
        self._forget()
        self.other.end(BASE_LATENCY_S, why)

    def gone(self) -> None:
        """Close the end of a process that has ended. Items not yet sent by its kernel are lost."""
        if not self.closed:
            self._forget()
            self.other.lose_some()
            self.other.end(BASE_LATENCY_S, "Its process ended, or it closed the connection.")

    def cut(self, others: Collection[SimProcess]) -> None:
        """Break the connection if it leads to one of these processes."""
        if not self.closed and self.other.process in others:
            self._break("the connection broke: reset by the network")

    def _break(self, why: str) -> None:
        for end in (self, self.other):
            end.lose_some()
            end.end(0.0, why)

    def put(self, delay_s: float, item: Any) -> None:
        """Let an item arrive at this end, after all items in flight. Drop it after a `Closed`."""
        if self._ending:
            return
        scheduler = self._network.scheduler
        arrival_s = self._last_s = max(self._last_s, scheduler.now + delay_s)
        self._due.append((arrival_s, item))
        if not self._armed:
            self._armed = True
            scheduler.call_later(arrival_s - scheduler.now, self._arrive)

    def end(self, delay_s: float, why: str) -> None:
        """Let a `Closed` arrive at this end as its last item."""
        if not self.closed:
            self.put(delay_s, Closed(why))
            self._ending = True

    def lose_some(self) -> None:
        """Keep a random prefix of the items in flight to this end, and lose the others."""
        if self._due:
            arrives = self._network.rng.randint(0, len(self._due))
            while len(self._due) > arrives:
                self._due.pop()
                self._ending = False

    def _arrive(self) -> None:
        """Deliver all items that are due by now, as one read."""
        network = self._network
        if network.hold_back(self.other.process, self.process, self._arrive):
            return
        self._armed = False
        due, now = self._due, network.scheduler.now
        items = []
        while due and due[0][0] <= now:
            items.append(due.popleft()[1])
        if due:
            self._armed = True
            network.scheduler.call_later(due[0][0] - now, self._arrive)
        if items and not self.closed:
            if type(items[-1]) is Closed:
                self._forget()
            self.receive(items)

    def _forget(self) -> None:
        self.closed = True
        self._due.clear()
        self._network.leave(self.process, self)


def without_faults(_sender: SimProcess, _receiver: SimProcess, _kind: str) -> Copies:
    """Return the fate of all messages in a network without faults."""
    return _WITHOUT_FAULTS


_WITHOUT_FAULTS: Final[Copies] = (BASE_LATENCY_S,)
