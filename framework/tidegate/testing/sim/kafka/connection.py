"""How requests of one process travel to the fake brokers, and how that process is stopped.

Calls block by `Clock.sleep` of the process's own clock and by nothing else. What was sent arrives
when the hook of faults says, whatever has become of the sender by then.

A process can be frozen (nothing of its clients goes on until it is thawed) and killed (nothing goes
on ever again). Brokers notice neither: its open transactions stay open.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, Generic, TypeVar

from tidegate.errors import check
from tidegate.ports.clock import Clock
from tidegate.testing.sim.kafka.faults import (
    PROCEED,
    BrokerError,
    Call,
    Code,
    Faults,
    Lost,
    Verdict,
)
from tidegate.testing.sim.kafka.timeline import ROUNDING_S, Timeline

T = TypeVar("T")

REQUEST_TIMEOUT_S: Final = 10.0
"""After so long a client gives a request up: kafka-python by our setting, and librdkafka about so.
"""


class Exchange(Generic[T]):
    """A request that was sent, and what its sender hears of it."""

    __slots__ = ("_answer", "_failure", "heard_s")

    def __init__(self, heard_s: float) -> None:
        self.heard_s = heard_s
        """When the sender has the answer, or gives up."""
        self._answer: list[T] = []
        self._failure: Code | None = Code.NO_ANSWER

    def fail(self, code: Code) -> None:
        """The sender hears this."""
        self._failure = code

    def handle(self, act: Callable[[], T], *, heard: bool) -> None:
        """At the broker; `heard`: the answer reaches the sender."""
        try:
            answer = act()
        except BrokerError as error:
            if heard:
                self._failure = error.code
            return
        if heard:
            self._answer.append(answer)
            self._failure = None

    def result(self) -> T:
        """The answer; BrokerError where there is none."""
        if self._failure is not None:
            raise BrokerError(self._failure)
        return self._answer[0]


class Connection:
    """All connections of one process to one cluster."""

    def __init__(self, name: str, clock: Clock, timeline: Timeline, faults: Faults) -> None:
        self.name = name
        self.clock = clock
        self.timeline = timeline
        self._faults = faults
        self._frozen = self._killed = self._drops = False
        self._held: list[Callable[[], None]] = []

    def ask(self, call: Call, act: Callable[[], T]) -> T:
        """Send a request and wait for the answer; `act` is what the broker does. BrokerError."""
        check(not self._killed, f"process {self.name} was killed and goes on all the same")
        self.timeline.run_due()
        verdict = self._faults.decide(call)
        if verdict is PROCEED:
            return act()
        exchange = self._sent(verdict, act)
        self.sleep_until(exchange.heard_s)
        return exchange.result()

    def send(
        self, call: Call, act: Callable[[], T], answered: Callable[[Exchange[T]], None]
    ) -> float:
        """Send a request, and call `answered` when its answer is heard; says when that will be."""
        exchange = self._sent(self._faults.decide(call), act)
        if exchange.heard_s <= self.timeline.now_s():
            answered(exchange)
        else:
            self.later(exchange.heard_s, partial(answered, exchange))
        return exchange.heard_s

    def verdict(self, call: Call) -> Verdict:
        """What becomes of a request that its sender does not wait for in one place."""
        return self._faults.decide(call)

    def later(self, due_s: float, action: Callable[[], Any]) -> None:
        """Have the process's clients do something at a time, if they can by then."""
        self.timeline.at(due_s, partial(self._go_on, action))

    def sleep_until(self, due_s: float) -> None:
        """Block, then see to what has become due."""
        while (left_s := due_s - self.timeline.now_s()) > ROUNDING_S:
            self.clock.sleep(left_s)
        self.timeline.run_due()

    def freeze(self) -> None:
        """SIGSTOP: the clients' own threads stand still, too."""
        self._frozen = True

    def thaw(self) -> None:
        """SIGCONT: what should have been done meanwhile is done now."""
        self._frozen = False
        held, self._held = self._held, []
        for action in held:
            self.later(self.timeline.now_s(), action)

    def kill(self, *, drop_in_flight: bool = False) -> None:
        """SIGKILL. With `drop_in_flight` requests that have not arrived yet never do."""
        self._killed, self._drops = True, drop_in_flight
        self._held.clear()

    def _sent(self, verdict: Verdict, act: Callable[[], T]) -> Exchange[T]:
        now_s = self.timeline.now_s()
        takes_s = verdict.request_s + verdict.answer_s
        exchange: Exchange[T] = Exchange(now_s + min(takes_s, REQUEST_TIMEOUT_S))
        if verdict.refusal is not None:
            exchange.fail(verdict.refusal)
            return exchange
        if verdict.lost is Lost.REQUEST:
            return exchange
        heard = verdict.lost is None and takes_s <= REQUEST_TIMEOUT_S

        def arrive() -> None:
            if not self._drops:
                exchange.handle(act, heard=heard)

        if verdict.request_s > 0:
            self.timeline.at(now_s + verdict.request_s, arrive)
        else:
            arrive()
        return exchange

    def _go_on(self, action: Callable[[], Any]) -> None:
        if self._killed:
            return
        if self._frozen:
            self._held.append(action)
        else:
            action()
