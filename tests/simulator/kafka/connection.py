"""The delivery of the requests of one process to the fake brokers, and its freeze and kill.

Calls block only in `Clock.sleep` of the process's own clock. A sent request arrives at the time
that the hook of faults decides, even if the sender is frozen or dead by then.

A process can be frozen (its clients pause until it is thawed) and killed (its clients never run
again). The brokers notice neither, and its open transactions stay open.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, Generic, TypeVar

from tests.simulator.kafka.faults import (
    PROCEED,
    BrokerError,
    Call,
    Code,
    Faults,
    LostPart,
    Verdict,
)
from tests.simulator.kafka.timeline import ROUNDING_S, Timeline
from tidegate.errors import check
from tidegate.ports.clock import Clock

T = TypeVar("T")

REQUEST_TIMEOUT_S: Final = 10.0
"""Time after which a client stops waiting for an answer. tidegate sets it for kafka-python, and
librdkafka uses about the same time.
"""


class Exchange(Generic[T]):
    """A request that was sent, and the result that its sender receives."""

    __slots__ = ("_answer", "_failure", "heard_s")

    def __init__(self, heard_s: float) -> None:
        self.heard_s = heard_s
        """Time at which the sender has the answer or stops waiting, in seconds."""
        self._answer: list[T] = []
        self._failure: Code | None = Code.NO_ANSWER

    def fail(self, code: Code) -> None:
        """Let the sender receive this error."""
        self._failure = code

    def handle(self, act: Callable[[], T], *, is_answered: bool) -> None:
        """Run the request at the broker. The sender gets the answer if `is_answered`."""
        try:
            answer = act()
        except BrokerError as error:
            if is_answered:
                self._failure = error.code
            return
        if is_answered:
            self._answer.append(answer)
            self._failure = None

    def result(self) -> T:
        """Return the answer. Raise BrokerError if the request failed or has no answer."""
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
        """Send a request and wait for the answer. `act` is the work of the broker.

        Raise BrokerError if the request failed or has no answer.
        """
        check(not self._killed, f"process {self.name} was killed and continues all the same")
        self.timeline.run_due()
        verdict = self._faults.decide(call)
        if verdict is PROCEED:
            return act()
        sent_request = self._sent(verdict, act)
        self.sleep_until(sent_request.heard_s)
        return sent_request.result()

    def send(
        self, call: Call, act: Callable[[], T], answered: Callable[[Exchange[T]], None]
    ) -> float:
        """Send a request, and call `answered` at the time that is returned: when the sender has
        the answer or stops waiting.
        """
        sent_request = self._sent(self._faults.decide(call), act)
        if sent_request.heard_s <= self.timeline.now_s():
            answered(sent_request)
        else:
            self.later(sent_request.heard_s, partial(answered, sent_request))
        return sent_request.heard_s

    def verdict(self, call: Call) -> Verdict:
        """Return the verdict of a request whose delivery the caller simulates itself."""
        return self._faults.decide(call)

    def later(self, due_s: float, action: Callable[[], Any]) -> None:
        """Let the clients of the process run an action at a time, unless they are dead by then."""
        self.timeline.at(due_s, partial(self._go_on, action))

    def sleep_until(self, due_s: float) -> None:
        """Block until a time, then run all actions that are due."""
        while (left_s := due_s - self.timeline.now_s()) > ROUNDING_S:
            self.clock.sleep(left_s)
        self.timeline.run_due()

    def freeze(self) -> None:
        """Freeze the clients and their own threads, as SIGSTOP does."""
        self._frozen = True

    def thaw(self) -> None:
        """Let the clients continue, as SIGCONT does. Missed actions run now."""
        self._frozen = False
        held, self._held = self._held, []
        for action in held:
            self.later(self.timeline.now_s(), action)

    def kill(self, *, drop_in_flight: bool = False) -> None:
        """Kill the clients, as SIGKILL does. With `drop_in_flight`, lose the requests in flight."""
        self._killed, self._drops = True, drop_in_flight
        self._held.clear()

    def _sent(self, verdict: Verdict, act: Callable[[], T]) -> Exchange[T]:
        now_s = self.timeline.now_s()
        takes_s = verdict.request_s + verdict.answer_s
        sent_request: Exchange[T] = Exchange(now_s + min(takes_s, REQUEST_TIMEOUT_S))
        if verdict.refusal is not None:
            sent_request.fail(verdict.refusal)
            return sent_request
        if verdict.lost is LostPart.REQUEST:
            return sent_request
        is_answered = verdict.lost is None and takes_s <= REQUEST_TIMEOUT_S

        def arrive() -> None:
            if not self._drops:
                sent_request.handle(act, is_answered=is_answered)

        if verdict.request_s > 0:
            self.timeline.at(now_s + verdict.request_s, arrive)
        else:
            arrive()
        return sent_request

    def _go_on(self, action: Callable[[], Any]) -> None:
        if self._killed:
            return
        if self._frozen:
            self._held.append(action)
        else:
            action()
