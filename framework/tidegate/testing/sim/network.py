"""One network for all simulated processes: messages that may be lost or doubled, connections that
keep their order or break, and partitions.

It carries two things, as a real one does. A *message* (`carry`) is on its own: each copy of it
arrives at its time, so messages overtake each other, come twice or never; control calls are made of
them. A *connection* (`dial`, `listen`) is a pair of ends: what one end sends arrives at the other
in order and once, until the connection is closed, breaks, or one of its processes is gone; the
exchange between slots is made of them. A `Fate` decides about each message and each thing sent
along a connection, so that whoever simulates draws, or chooses, what happens.

A *partition* is silence, not an error: whatever would arrive meanwhile arrives after it was healed,
if anybody still waits. It has two sides, and who starts while it lasts is on one of them, too: a
process is where its parent is, and where that is known of nobody, or it is a host of its own
(`apart`), its side is drawn. `cut` is the opposite: connections end at once and both sides know. A
dead process refuses and resets, as its kernel would; a frozen one accepts and says nothing.

All actions here run in no thread, between the turns of the scheduler; what they bring to a process
must be left for one of its threads, so that a frozen process acts on nothing. Nothing here knows
what is sent; payloads are passed on as they are, uncopied.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from tidegate.testing.sim.scheduler import Scheduler, SimProcess

Copies = tuple[float, ...]
"""After how many seconds each copy of a message arrives; without any, it is lost."""

Fate = Callable[[SimProcess, SimProcess, str], Copies]
"""Sender, receiver and what it is (`call`, `reply`, `frame`): what becomes of it. Of a frame the
first copy counts, because a connection repeats nothing; without any, the connection breaks."""

DRAWN: Final = 0.5
"""Chance of a side for those of whom nothing else says on which they are."""
CALM_S: Final = 0.0002
"""Of one way, where nothing is wrong: a loopback with two context switches."""


class Closed(NamedTuple):
    """The last thing that an end receives: the connection is no more."""

    why: str


class Party(Protocol):
    """What hears that its process is gone, or cut off from others."""

    def gone(self) -> None: ...

    def cut(self, others: Collection[SimProcess]) -> None: ...


Accept = Callable[["End"], None]
"""Gets the end of a new connection, and must set its `receive` before it returns."""


class Network:
    """The ways between the processes of one scheduler."""

    def __init__(
        self,
        scheduler: Scheduler,
        fate: Fate | None = None,
        apart: Callable[[SimProcess], bool] = lambda _: False,
    ) -> None:
        self.scheduler = scheduler
        self.fate: Fate = fate or calm
        """May be replaced while the simulation runs."""
        self._apart = apart
        self.chance = scheduler.random_for("network")
        self._partitions: list[_Partition] = []
        self._held: list[tuple[SimProcess, SimProcess, Callable[[], None]]] = []
        self._listeners: dict[str, tuple[SimProcess, Accept | None]] = {}
        self._parties: dict[SimProcess, dict[Party, None]] = {}
        self._addresses = 0

    # --- messages -------------------------------------------------------------------------------

    def carry(
        self, sender: SimProcess, receiver: SimProcess, kind: str, action: Callable[[], None]
    ) -> None:
        """Run `action` when a copy of a message arrives, for each copy; also at a dead receiver."""
        arrive = partial(self._arrive, sender, receiver, action)
        for delay_s in self.fate(sender, receiver, kind):
            self.scheduler.call_later(delay_s, arrive)

    def inform(self, sender: SimProcess, receiver: SimProcess, action: Callable[[], None]) -> None:
        """The same for what kernels tell each other: refusals and resets are never lost."""
        self.scheduler.call_later(CALM_S, partial(self._arrive, sender, receiver, action))

    def _arrive(self, sender: SimProcess, receiver: SimProcess, action: Callable[[], None]) -> None:
        if not self.silent(sender, receiver, action):
            action()

    # --- connections ----------------------------------------------------------------------------

    def new_address(self) -> str:
        """One that nobody has had."""
        self._addresses += 1
        return f"sim:{self._addresses}"

    def listen(self, process: SimProcess, accept: Accept) -> str:
        """Accept connections, also while the process is frozen: kernels do. The address."""
        address = self.new_address()
        self._listeners[address] = process, accept
        return address

    def unlisten(self, address: str) -> None:
        """Refuse from now on; connections that were accepted stay."""
        process, _ = self._listeners[address]
        self._listeners[address] = process, None

    def dial(self, process: SimProcess, address: str) -> End:
        """An end whose connection is made by the first thing it sends, or refused then."""
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
            far.refuse(f"nobody listens at {address}")
            return
        self.join(process, far)
        accept(far)
        far.receive(items)

    # --- faults ---------------------------------------------------------------------------------

    def partition(
        self, one: Collection[SimProcess], other: Collection[SimProcess], *, both_ways: bool = True
    ) -> None:
        """Silence from each process of `one` to each of `other`, until `heal`; so for whoever is
        started meanwhile.
        """
        self._partitions.append(_Partition(one, other, both_ways, self._apart, self.chance.random))

    def heal(self) -> None:
        """End all partitions; what waited arrives soon, in the order in which it would have."""
        self._partitions.clear()
        held, self._held = self._held, []
        for _, _, action in held:
            self.scheduler.call_later(CALM_S, action)

    def cut(self, one: Collection[SimProcess], other: Collection[SimProcess]) -> None:
        """End all connections and calls between `one` and `other`; both sides know at once."""
        for these, those in ((one, other), (other, one)):
            for process in these:
                for party in list(self._parties.get(process, ())):
                    party.cut(those)

    def silent(self, sender: SimProcess, receiver: SimProcess, action: Callable[[], None]) -> bool:
        """Whether there is a partition between them; if so, `action` follows when it is healed."""
        for partition in self._partitions:
            if partition.parts(sender, receiver):
                self._held.append((sender, receiver, action))
                return True
        return False

    # --- those who must hear of ends ------------------------------------------------------------

    def join(self, process: SimProcess, party: Party) -> None:
        """Have `party` hear of the end of its process, and of cuts."""
        parties = self._parties.get(process)
        if parties is None:
            parties = self._parties[process] = {}
            process.on_exit.append(partial(self._gone, process))
        parties[party] = None

    def leave(self, process: SimProcess, party: Party) -> None:
        """It needs to hear of nothing any more."""
        self._parties.get(process, {}).pop(party, None)

    def _gone(self, process: SimProcess, _status: int) -> None:
        for party in self._parties.pop(process, {}):
            party.gone()


class _Partition:
    """Two sides, the first of which does not reach the other."""

    def __init__(
        self,
        one: Collection[SimProcess],
        other: Collection[SimProcess],
        both_ways: bool,
        apart: Callable[[SimProcess], bool],
        draw: Callable[[], float],
    ) -> None:
        self._both_ways, self._apart, self._draw = both_ways, apart, draw
        self._sides = {process.pid: 1 for process in other} | {process.pid: 0 for process in one}

    def parts(self, sender: SimProcess, receiver: SimProcess) -> bool:
        """Whether what one of them says does not get to the other."""
        sides = self._side(sender), self._side(receiver)
        return sides == (0, 1) or (self._both_ways and sides == (1, 0))

    def _side(self, process: SimProcess) -> int:
        """Decided when somebody first wants to know it."""
        known = self._sides.get(process.pid)
        if known is None:
            parent = process.parent
            if parent is None or self._apart(process):
                known = int(self._draw() < DRAWN)
            else:
                known = self._side(parent)
            self._sides[process.pid] = known
        return known


class End:
    """One process's end of a connection.

    `receive` gets what has arrived, in order, as a list; the last item ever is a `Closed`, unless
    this end was closed here.
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
        """Send one thing; dropped if the connection is no more."""
        other = self.other
        if self.closed or other.closed or self._ending:
            return
        copies = self._network.fate(self.process, other.process, "frame")
        if copies:
            other.put(copies[0], item)
        else:
            self._break("the connection broke: reset by the network")

    def close(self) -> None:
        """Receive nothing any more; the other end is told after all that was sent."""
        if not self.closed:
            self._forget()
            self.other.end(CALM_S, "its process ended, or it closed the connection")

    def refuse(self, why: str) -> None:
        """Of an end that nobody accepts."""
        self._forget()
        self.other.end(CALM_S, why)

    def gone(self) -> None:
        """Its process has ended: what its kernel had not sent yet is lost with it."""
        if not self.closed:
            self._forget()
            self.other.lose_some()
            self.other.end(CALM_S, "its process ended, or it closed the connection")

    def cut(self, others: Collection[SimProcess]) -> None:
        """Break if it leads to one of them."""
        if not self.closed and self.other.process in others:
            self._break("the connection broke: reset by the network")

    def _break(self, why: str) -> None:
        for end in (self, self.other):
            end.lose_some()
            end.end(0.0, why)

    def put(self, delay_s: float, item: Any) -> None:
        """Have something arrive here, after all that is under way; nothing follows the end."""
        if self._ending:
            return
        scheduler = self._network.scheduler
        arrival_s = self._last_s = max(self._last_s, scheduler.now + delay_s)
        self._due.append((arrival_s, item))
        if not self._armed:
            self._armed = True
            scheduler.call_later(arrival_s - scheduler.now, self._arrive)

    def end(self, delay_s: float, why: str) -> None:
        """Have the last thing arrive here."""
        if not self.closed:
            self.put(delay_s, Closed(why))
            self._ending = True

    def lose_some(self) -> None:
        """Of what is under way to here, a beginning arrives: how much, is drawn."""
        if self._due:
            arrives = self._network.chance.randint(0, len(self._due))
            while len(self._due) > arrives:
                self._due.pop()
                self._ending = False

    def _arrive(self) -> None:
        """The first that is due is there; what has come with it is one read."""
        network = self._network
        if network.silent(self.other.process, self.process, self._arrive):
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


def calm(_sender: SimProcess, _receiver: SimProcess, _kind: str) -> Copies:
    """The fate of everything in a network without faults."""
    return _CALM


_CALM: Final[Copies] = (CALM_S,)
