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

from tests.simulator.blobs import AT_ONCE, StorageVerdict
from tests.simulator.kafka.faults import (
    PROCEED,
    Api,
    Call,
    Code,
    Verdict,
    answer_lost,
    refused,
    unreachable,
)
from tests.simulator.processes import StartOutcome
from tests.simulator.scheduler import Scheduler, SimProcess

CLIENT_TIMEOUT_S: Final = 1.0
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

    fault_period_s: float
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
    def drawn(cls, rng: random.Random) -> FaultRates:
        """Draw the rates of a run.

        A tenth of the runs has only delays. In the others, each kind of fault is absent in half.
        """
        calm = rng.random() < 0.1

        def draw_rate(most: float) -> float:
            absent = calm or rng.random() < 0.5
            share = rng.random() ** 2
            return 0.0 if absent else most * share

        return cls(
            fault_period_s=4.0 + 18.0 * rng.random() ** 2,
            kill=draw_rate(2.0),
            freeze=draw_rate(1.0),
            frozen_s=0.2 + 8.0 * rng.random() ** 2,
            at_steps=rng.random(),
            storage_slow=rng.random(),
            storage_fails=draw_rate(0.1),
            storage_unknown=draw_rate(0.1),
            kafka_slow=rng.random(),
            kafka_lost=draw_rate(0.1),
            kafka_unanswered=draw_rate(0.1),
            kafka_refused=draw_rate(0.1),
            outages=draw_rate(0.2),
            outage_s=0.2 + 5.0 * rng.random(),
            partitions=draw_rate(0.3),
        )

    def with_rare_ones(self, rng: random.Random, *, busy: bool, short_timeouts: bool) -> FaultRates:
        """Add the faults that most runs do not have.

        If records always wait (`busy`), processes are killed, too. If checkpoints have a short
        timeout (`short_timeouts`), some requests take longer than this timeout.
        """

        def draw_rate(most: float, share: float = RARE) -> float:
            some = rng.random()
            return most * some**2 if rng.random() < share and self.any() else 0.0

        return replace(
            self,
            kill=max(self.kill, draw_rate(KILLS_OF_BUSY, float(busy))),
            kafka_stalled=draw_rate(0.4, 1.0 if short_timeouts else RARE),
            kafka_rejected=draw_rate(0.3),
            blackout=rng.uniform(*BLACKOUT) if rng.random() < BLACKOUTS else 0.0,
        )

    def with_failing_starts(self, rng: random.Random) -> FaultRates:
        """Add processes that do not start, in half of the runs that have any fault."""
        share = STARTS_FAIL_MAX * rng.random() ** 2
        fails = rng.random() < 0.5 and self.any()
        return replace(self, starts_fail=share if fails else 0.0)

    def any(self) -> bool:
        """Return whether the run has any fault other than delays."""
        return any(
            getattr(self, field.name)
            for field in fields(self)
            if field.name not in {"fault_period_s", "at_steps", "frozen_s", "outage_s"}
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

    def __init__(self, scheduler: Scheduler, fault_rates: FaultRates) -> None:
        self._scheduler, self._fault_rates = scheduler, fault_rates
        self._rng = scheduler.random_for("trouble")
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
        """Draw the outcome of a start: the `DrawStartOutcome` of the run.

        Two starts of one role never fail in a row, because a job that fails to start five times is
        allowed to fail.
        """
        draw = self._starts.random
        fails = (
            not self.over and draw() < self._fault_rates.starts_fail and role not in self._refused
        )
        if not fails:
            self._refused.discard(role)
            return StartOutcome.STARTED
        self._refused.add(role)
        return StartOutcome.REFUSED if draw() < 0.5 else StartOutcome.EXITS_AT_ONCE

    # --- storage --------------------------------------------------------------------------------

    def of_storage(self, process: SimProcess, kind: str, path: str) -> StorageVerdict:
        """Return the verdict of a storage request, as in `blobs.StorageFaults`."""
        del path
        hanging = None if self.hanging is None else self.hanging(process, kind)
        if hanging is not None:
            return hanging
        fault_rates, draw = self._fault_rates, self._rng.random
        if draw() >= fault_rates.storage_slow:
            delays_s = (0.0, 0.0)
        else:
            delays_s = (_delay(self._rng), _delay(self._rng))
        if self.over:
            return StorageVerdict(request_s=delays_s[0], answer_s=delays_s[1])
        if fault_rates.storage_fails and draw() < fault_rates.storage_fails:
            return StorageVerdict(request_s=delays_s[0], fails=True)
        if fault_rates.storage_unknown and draw() < fault_rates.storage_unknown:
            return self._unknown(kind)
        if delays_s == (0.0, 0.0):
            return AT_ONCE
        return StorageVerdict(request_s=delays_s[0], answer_s=delays_s[1])

    def _unknown(self, kind: str) -> StorageVerdict:
        what = self._rng.random()
        if what < 0.3 or kind in {"get", "list"}:
            return StorageVerdict(request_lost=True, timeout_s=CLIENT_TIMEOUT_S)
        if what < 0.7:
            return StorageVerdict(timeout_s=CLIENT_TIMEOUT_S)
        late_s = CLIENT_TIMEOUT_S + LATE_S_MAX * self._rng.random()
        return StorageVerdict(request_s=late_s, timeout_s=CLIENT_TIMEOUT_S)

    # --- brokers --------------------------------------------------------------------------------

    def decide(self, call: Call) -> Verdict:
        """Return the verdict of a broker request, as in `kafka.faults.Faults`."""
        fault_rates, draw = self._fault_rates, self._rng.random
        if draw() >= fault_rates.kafka_slow:
            request_s = answer_s = 0.0
        else:
            request_s, answer_s = _delay(self._rng), _delay(self._rng)
        if not self.over:
            wrong = self._draw_fault(call, request_s, answer_s)
            if wrong is not None:
                return wrong
            if fault_rates.kafka_stalled and draw() < fault_rates.kafka_stalled:
                answer_s += STALLED_S_MAX * draw()
        if request_s == answer_s == 0.0:
            return PROCEED
        return Verdict(request_s=request_s, answer_s=answer_s)

    def _draw_fault(self, call: Call, request_s: float, answer_s: float) -> Verdict | None:
        fault_rates, draw = self._fault_rates, self._rng.random
        if self._scheduler.now < self._outage_until_s:
            return unreachable(request_s + 0.05)
        if fault_rates.kafka_lost and draw() < fault_rates.kafka_lost:
            return unreachable(request_s + NOTICED_S_MAX * draw())
        if fault_rates.kafka_unanswered and draw() < fault_rates.kafka_unanswered:
            return answer_lost(request_s, NOTICED_S_MAX * draw())
        if fault_rates.kafka_refused and draw() < fault_rates.kafka_refused:
            code = _refusal(call, self._rng)
            if code is not None:
                return refused(code, answer_s)
        rejected = fault_rates.kafka_rejected if call.api is Api.PRODUCE else 0.0
        if rejected and draw() < rejected:
            return refused(Code.OUT_OF_ORDER_SEQUENCE_NUMBER, answer_s)
        return None


def _refusal(call: Call, rng: random.Random) -> Code | None:
    if call.api in _COORDINATOR:
        busy = call.api in {Api.INIT_PRODUCER_ID, Api.ADD_PARTITIONS, Api.END_TXN}
        return rng.choice(_MOVED + _BUSY if busy else _MOVED)
    if call.api in {
        Api.PRODUCE,
        Api.FETCH,
        Api.WRITE_MARKERS,
        Api.LIST_OFFSETS,
        Api.OFFSET_FOR_LEADER_EPOCH,
    }:
        return Code.NOT_LEADER_OR_FOLLOWER
    return None


def _delay(rng: random.Random) -> float:
    """Draw a delay in seconds: mostly about a millisecond, sometimes a hundred."""
    return float(0.0005 * 10 ** (2.5 * rng.random() ** 3))


class FaultSchedule:
    """The times of kills, freezes, outages and partitions, with exponential intervals."""

    def __init__(self, rates: dict[str, float], rng: random.Random) -> None:
        self._rates, self._rng = rates, rng
        self._total = sum(rates.values())

    def next_in_s(self) -> float:
        """Return the time until the next fault; infinite if there are no faults."""
        return self._rng.expovariate(self._total) if self._total else math.inf

    def draw(self) -> str:
        """Draw the kind of the next fault."""
        point = self._rng.random() * self._total
        for kind, rate in self._rates.items():
            point -= rate
            if point < 0:
                return kind
        return next(iter(self._rates))
