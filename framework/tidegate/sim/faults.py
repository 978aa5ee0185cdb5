"""The faults of a run: the rates that its seed draws, and the faults drawn from these rates.

A run may be calm or wild, and each kind of fault is absent in many runs. A fault that is always
present can hide a bug that appears only without it (swarm testing: Groce et al., ISSTA 2012). All
faults end at a given time. After this time the job must reach its end.

Faults are bounded so that no loss is expected: together they last less than a transaction may stay
open. There is one exception. In a few runs no broker answers for about that long, once, soon after
a publication or the end of a transaction. The protocol checker decides whether a loss that is
stated then is allowed.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Final

from tidegate.sim.blobs import AT_ONCE, StorageVerdict
from tidegate.sim.kafka.faults import (
    PROCEED,
    Api,
    Call,
    Code,
    Verdict,
    answer_lost,
    refused,
    unreachable,
)
from tidegate.sim.processes import StartOutcome
from tidegate.sim.scheduler import Scheduler, SimProcess

GIVEN_UP_S: Final = 1.0
"""Time in seconds that a client waits for a storage that does not answer."""
LATE_S_MAX: Final = 5.0
STALLED_S_MAX: Final = 3.0
BLACKOUTS: Final = 0.05
"""Share of the runs that have a blackout."""
BLACKOUT: Final = (0.8, 2.0)
KILLS_OF_BUSY: Final = 1.0
STARTS_FAIL_MAX: Final = 0.4
RARE: Final = 0.25
"""Share of the runs that have a given kind of the rare faults."""
NOTICED_S_MAX: Final = 0.5
"""Longest time in seconds until a client notices a broken connection to a broker."""

_COORDINATOR: Final = frozenset(
    {Api.INIT_PRODUCER_ID, Api.ADD_PARTITIONS, Api.END_TXN, Api.DESCRIBE_TRANSACTIONS}
)
_MOVED: Final = (
    Code.NOT_COORDINATOR,
    Code.COORDINATOR_LOAD_IN_PROGRESS,
    Code.COORDINATOR_NOT_AVAILABLE,
)
_BUSY: Final = (Code.CONCURRENT_TRANSACTIONS,)


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRates:
    """The fault rates of a run. Shares are from 0 to 1, times are in seconds."""

    wild_s: float
    """Time during which faults happen."""
    kill: float
    """Number of kills per second, of any process."""
    freeze: float
    """Number of freezes per second."""
    frozen_s: float
    """Average duration of a freeze."""
    at_steps: float
    """Share of the faults that come right after a step of the commit protocol, not at any turn."""
    storage_slow: float
    """Share of the requests that are slow. The next attributes are shares of requests, too."""
    storage_fails: float
    storage_unknown: float
    kafka_slow: float
    kafka_lost: float
    kafka_unanswered: float
    kafka_refused: float
    outages: float
    """Number of outages of all brokers per second."""
    outage_s: float
    """Average duration of an outage."""
    partitions: float
    """Number of network partitions per second."""
    kafka_stalled: float = 0.0
    """Share of the requests that take seconds, longer than the timeout of some checkpoints."""
    kafka_rejected: float = 0.0
    """Share of the produce requests that a leader refuses permanently."""

    blackout: float = 0.0
    """Duration of the one blackout, as a share of the transaction timeout. 0 means no blackout."""
    starts_fail: float = 0.0
    """Share of the processes that cannot be started, or that end at once."""

    @classmethod
    def drawn(cls, chance: random.Random) -> FaultRates:
        """Draw the rates of a run.

        A tenth of the runs has only delays. In the others, each kind of fault is absent in half.
        """
        calm = chance.random() < 0.1

        def weight(most: float) -> float:
            absent = calm or chance.random() < 0.5
            share = chance.random() ** 2
            return 0.0 if absent else most * share

        return cls(
            wild_s=4.0 + 18.0 * chance.random() ** 2,
            kill=weight(2.0),
            freeze=weight(1.0),
            frozen_s=0.2 + 8.0 * chance.random() ** 2,
            at_steps=chance.random(),
            storage_slow=chance.random(),
            storage_fails=weight(0.1),
            storage_unknown=weight(0.1),
            kafka_slow=chance.random(),
            kafka_lost=weight(0.1),
            kafka_unanswered=weight(0.1),
            kafka_refused=weight(0.1),
            outages=weight(0.2),
            outage_s=0.2 + 5.0 * chance.random(),
            partitions=weight(0.3),
        )

    def with_rare_ones(self, chance: random.Random, *, busy: bool, hasty: bool) -> FaultRates:
        """Add the faults that most runs do not have.

        If records always wait (`busy`), processes are killed, too. If checkpoints have a short
        timeout (`hasty`), some requests take longer than this timeout.
        """

        def weight(most: float, share: float = RARE) -> float:
            some = chance.random()
            return most * some**2 if chance.random() < share and self.any() else 0.0

        return replace(
            self,
            kill=max(self.kill, weight(KILLS_OF_BUSY, float(busy))),
            kafka_stalled=weight(0.4, 1.0 if hasty else RARE),
            kafka_rejected=weight(0.3),
            blackout=chance.uniform(*BLACKOUT) if chance.random() < BLACKOUTS else 0.0,
        )

    def with_failing_starts(self, chance: random.Random) -> FaultRates:
        """Add processes that do not start, in half of the runs that have any fault."""
        share = STARTS_FAIL_MAX * chance.random() ** 2
        fails = chance.random() < 0.5 and self.any()
        return replace(self, starts_fail=share if fails else 0.0)

    def any(self) -> bool:
        """Return whether the run has any fault other than delays."""
        return any(
            getattr(self, field.name)
            for field in fields(self)
            if field.name not in {"wild_s", "at_steps", "frozen_s", "outage_s"}
            and not field.name.endswith("_slow")
        )

    def __str__(self) -> str:
        return ", ".join(
            f"{field.name} {getattr(self, field.name):.3g}"
            for field in fields(self)
            if getattr(self, field.name)
        )


class RequestFaults:
    """The verdicts for processes, storage and brokers, drawn from the rates of a run.

    After `stop` there are only delays.
    """

    def __init__(self, scheduler: Scheduler, weights: FaultRates) -> None:
        self._scheduler, self._weights = scheduler, weights
        self._chance = scheduler.random_for("trouble")
        self._starts = scheduler.random_for("starts")
        self._refused: set[str] = set()
        """Roles whose last start failed."""
        self._outage_until_s = -1.0
        self.hanging: Callable[[SimProcess, str], StorageVerdict | None] | None = None
        """A function that returns the verdict of a call to a hanging storage (`mishaps.py`).

        It returns None for a call that does not hang.
        """
        self.over = False

    def stop(self) -> None:
        """End all faults."""
        self.over = True
        self._outage_until_s = -1.0

    def outage(self, seconds: float) -> None:
        """Let no broker answer for some seconds."""
        if not self.over:
            # An ordinary outage must not end a blackout early.
            self._outage_until_s = max(self._outage_until_s, self._scheduler.now + seconds)

    # --- processes ------------------------------------------------------------------------------

    def of_start(self, role: str) -> StartOutcome:
        """Draw the outcome of a start: the `processes.Births` of the run.

        Two starts of one role never fail in a row, because a job that fails to start five times is
        allowed to fail.
        """
        draw = self._starts.random
        fails = not self.over and draw() < self._weights.starts_fail and role not in self._refused
        if not fails:
            self._refused.discard(role)
            return StartOutcome.LIVES
        self._refused.add(role)
        return StartOutcome.REFUSED if draw() < 0.5 else StartOutcome.DIES

    # --- storage --------------------------------------------------------------------------------

    def of_storage(self, process: SimProcess, kind: str, path: str) -> StorageVerdict:
        """Return the verdict of a storage request, as in `blobs.StorageFaults`."""
        del path
        hanging = None if self.hanging is None else self.hanging(process, kind)
        if hanging is not None:
            return hanging
        weights, draw = self._weights, self._chance.random
        if draw() >= weights.storage_slow:
            delays_s = (0.0, 0.0)
        else:
            delays_s = (_delay(self._chance), _delay(self._chance))
        if self.over:
            return StorageVerdict(request_s=delays_s[0], answer_s=delays_s[1])
        if weights.storage_fails and draw() < weights.storage_fails:
            return StorageVerdict(request_s=delays_s[0], fails=True)
        if weights.storage_unknown and draw() < weights.storage_unknown:
            return self._unknown(kind)
        if delays_s == (0.0, 0.0):
            return AT_ONCE
        return StorageVerdict(request_s=delays_s[0], answer_s=delays_s[1])

    def _unknown(self, kind: str) -> StorageVerdict:
        what = self._chance.random()
        if what < 0.3 or kind in {"get", "list"}:
            return StorageVerdict(request_lost=True, given_up_s=GIVEN_UP_S)
        if what < 0.7:
            return StorageVerdict(given_up_s=GIVEN_UP_S)
        late_s = GIVEN_UP_S + LATE_S_MAX * self._chance.random()
        return StorageVerdict(request_s=late_s, given_up_s=GIVEN_UP_S)

    # --- brokers --------------------------------------------------------------------------------

    def decide(self, call: Call) -> Verdict:
        """Return the verdict of a broker request, as in `kafka.faults.Faults`."""
        weights, draw = self._weights, self._chance.random
        if draw() >= weights.kafka_slow:
            request_s = answer_s = 0.0
        else:
            request_s, answer_s = _delay(self._chance), _delay(self._chance)
        if not self.over:
            wrong = self._wrong(call, request_s, answer_s)
            if wrong is not None:
                return wrong
            if weights.kafka_stalled and draw() < weights.kafka_stalled:
                answer_s += STALLED_S_MAX * draw()
        if request_s == answer_s == 0.0:
            return PROCEED
        return Verdict(request_s=request_s, answer_s=answer_s)

    def _wrong(self, call: Call, request_s: float, answer_s: float) -> Verdict | None:
        weights, draw = self._weights, self._chance.random
        if self._scheduler.now < self._outage_until_s:
            return unreachable(request_s + 0.05)
        if weights.kafka_lost and draw() < weights.kafka_lost:
            return unreachable(request_s + NOTICED_S_MAX * draw())
        if weights.kafka_unanswered and draw() < weights.kafka_unanswered:
            return answer_lost(request_s, NOTICED_S_MAX * draw())
        if weights.kafka_refused and draw() < weights.kafka_refused:
            code = _refusal(call, self._chance)
            if code is not None:
                return refused(code, answer_s)
        rejected = weights.kafka_rejected if call.api is Api.PRODUCE else 0.0
        if rejected and draw() < rejected:
            return refused(Code.OUT_OF_ORDER_SEQUENCE_NUMBER, answer_s)
        return None


def _refusal(call: Call, chance: random.Random) -> Code | None:
    if call.api in _COORDINATOR:
        busy = call.api in {Api.INIT_PRODUCER_ID, Api.ADD_PARTITIONS, Api.END_TXN}
        return chance.choice(_MOVED + _BUSY if busy else _MOVED)
    if call.api in {
        Api.PRODUCE,
        Api.FETCH,
        Api.WRITE_MARKERS,
        Api.LIST_OFFSETS,
        Api.OFFSET_FOR_LEADER_EPOCH,
    }:
        return Code.NOT_LEADER_OR_FOLLOWER
    return None


def _delay(chance: random.Random) -> float:
    """Draw a delay in seconds: mostly about a millisecond, sometimes a hundred."""
    return float(0.0005 * 10 ** (2.5 * chance.random() ** 3))


class FaultSchedule:
    """The times of kills, freezes, outages and partitions, with exponential intervals."""

    def __init__(self, rates: dict[str, float], chance: random.Random) -> None:
        self._rates, self._chance = rates, chance
        self._total = sum(rates.values())

    def next_in_s(self) -> float:
        """Return the time until the next fault; infinite if there are no faults."""
        return self._chance.expovariate(self._total) if self._total else math.inf

    def draw(self) -> str:
        """Draw the kind of the next fault."""
        point = self._chance.random() * self._total
        for kind, rate in self._rates.items():
            point -= rate
            if point < 0:
                return kind
        return next(iter(self._rates))
