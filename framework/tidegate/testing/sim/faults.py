"""What goes wrong in a run: weights that its seed draws, and the verdicts and blows they give.

A run may be calm or wild, and each kind of fault is missing in many runs: what always hurts a
little hides what hurts only when everything else is well (swarm testing: Groce et al., ISSTA
2012). All faults end at a time; from then on the job must get to its end.

Faults are bounded so that nothing is lost by right: together they last less than a transaction may
stay open. But for one: in few runs there is a blackout, once, in which no broker answers for about
as long as that, soon after a publication. Whether a loss is stated then by right, the watch judges.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Final

from tidegate.testing.sim.blobs import AT_ONCE, StorageVerdict
from tidegate.testing.sim.kafka.faults import (
    PROCEED,
    Api,
    Call,
    Code,
    Verdict,
    answer_lost,
    refused,
    unreachable,
)
from tidegate.testing.sim.processes import StartOutcome
from tidegate.testing.sim.scheduler import Scheduler, SimProcess

GIVEN_UP_S: Final = 1.0
"""How long a client waits for a storage that does not answer."""
LATE_S_MAX: Final = 5.0
STALLED_S_MAX: Final = 3.0
BLACKOUTS: Final = 0.05
"""Share of the runs that have one."""
BLACKOUT: Final = (0.8, 2.0)
KILLS_OF_BUSY: Final = 1.0
STARTS_FAIL_MAX: Final = 0.4
RARE: Final = 0.25
"""Share of the runs that know one of the rare faults."""
NOTICED_S_MAX: Final = 0.5
"""Until a broken connection to a broker is noticed."""

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
    """How bad a run is. Shares are from 0 to 1, times in seconds."""

    wild_s: float
    """So long faults happen."""
    kill: float
    """Kills of any process, per second."""
    freeze: float
    """Freezes, per second."""
    frozen_s: float
    """How long one lasts, on average."""
    at_steps: float
    """Share of blows that fall right after a step of the commit protocol, not at any turn."""
    storage_slow: float
    """Share of requests that take their time; so below."""
    storage_fails: float
    storage_unknown: float
    kafka_slow: float
    kafka_lost: float
    kafka_unanswered: float
    kafka_refused: float
    outages: float
    """Outages of all brokers, per second."""
    outage_s: float
    """How long one lasts, on average."""
    partitions: float
    """Partitions of the network, per second."""
    kafka_stalled: float = 0.0
    """Share of requests that take seconds, longer than some checkpoints may."""
    kafka_rejected: float = 0.0
    """Share of produce requests that a leader refuses for good."""

    blackout: float = 0.0
    """Of the transaction timeout, the share for which no broker answers, once; 0: never."""
    starts_fail: float = 0.0
    """Share of the processes that can not be started, or end at once."""

    @classmethod
    def drawn(cls, chance: random.Random) -> FaultRates:
        """Of a run: a tenth has nothing but delays, and each kind is missing in half of others."""
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
        """And what most runs do not have.

        Where records always wait (`busy`) some process is killed too, and where checkpoints are
        soon given up (`hasty`) some requests take longer than that.
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
        """And, in half of the runs in which anything goes wrong, processes that do not start."""
        share = STARTS_FAIL_MAX * chance.random() ** 2
        fails = chance.random() < 0.5 and self.any()
        return replace(self, starts_fail=share if fails else 0.0)

    def any(self) -> bool:
        """Whether anything goes wrong at all."""
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
    """Verdicts for storage and brokers by the weights of a run; quiet after `stop`."""

    def __init__(self, scheduler: Scheduler, weights: FaultRates) -> None:
        self._scheduler, self._weights = scheduler, weights
        self._chance = scheduler.random_for("trouble")
        self._starts = scheduler.random_for("starts")
        self._refused: set[str] = set()
        """Roles whose last start has failed."""
        self._outage_until_s = -1.0
        self.hanging: Callable[[SimProcess, str], StorageVerdict | None] | None = None
        """Of calls to a storage that hangs (`mishaps.py`); None for those that return."""
        self.over = False

    def stop(self) -> None:
        """From now on nothing goes wrong."""
        self.over = True
        self._outage_until_s = -1.0

    def outage(self, seconds: float) -> None:
        """No broker answers for so long."""
        if not self.over:
            # One of the blows must not make a blackout shorter.
            self._outage_until_s = max(self._outage_until_s, self._scheduler.now + seconds)

    # --- processes ------------------------------------------------------------------------------

    def of_start(self, role: str) -> StartOutcome:
        """`processes.Births`. Never twice in a row for one role: who can not be started five times
        is given up by right.
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
        """`blobs.StorageFaults`."""
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
        """`kafka.faults.Faults`."""
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
    """Mostly a millisecond, sometimes a hundred."""
    return float(0.0005 * 10 ** (2.5 * chance.random() ** 3))


class FaultSchedule:
    """When processes are killed and frozen, brokers fail and networks split: exponential times."""

    def __init__(self, rates: dict[str, float], chance: random.Random) -> None:
        self._rates, self._chance = rates, chance
        self._total = sum(rates.values())

    def next_in_s(self) -> float:
        """Until the next blow; infinite where there is none."""
        return self._chance.expovariate(self._total) if self._total else math.inf

    def draw(self) -> str:
        """Which it is."""
        point = self._chance.random() * self._total
        for kind, rate in self._rates.items():
            point -= rate
            if point < 0:
                return kind
        return next(iter(self._rates))
