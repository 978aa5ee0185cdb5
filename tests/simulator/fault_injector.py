"""The injector of faults in processes, brokers and the network, at turns that the seed draws.

A fault has a random time. It does not happen at this time, because then the cluster is usually
idle. It happens some turns later, or right after the next step of the commit protocol. Most bugs
need a fault within a burst of turns, and such a burst takes almost no time.
"""

from __future__ import annotations

from typing import Final

from tests.simulator.cluster import SimCluster, host_of, kind_of
from tests.simulator.faults import FaultRates, FaultSchedule
from tests.simulator.network import without_faults
from tests.simulator.scheduler import SimProcess

TURNS_MAX: Final = 150
STEP_TURNS_MAX: Final = 12
BETWEEN_HOSTS: Final = 0.5
"""Share of the partitions that separate only hosts. Others separate any processes."""


class FaultInjector:
    """The injector of the faults of one run."""

    def __init__(self, world: SimCluster, fault_rates: FaultRates) -> None:
        self._world, self._fault_rates = world, fault_rates
        self._scheduler = world.scheduler
        self._rng = world.scheduler.random_for("blows")
        rates = {
            "kill": fault_rates.kill,
            "freeze": fault_rates.freeze,
            "outage": fault_rates.outages,
            "partition": fault_rates.partitions,
        }
        self._fault_schedule = FaultSchedule(
            {kind: rate for kind, rate in rates.items() if rate}, self._rng
        )
        self._due: list[tuple[int, str]] = []
        """Due faults: the turn and the kind of each."""
        self._after_step: list[str] = []
        self._steps = 0
        self._blackout_s: float | None = None
        self._awaits_end = False
        self._awaited = 0
        self._blackout_turn: int | None = None
        self.blackout_ends_s = 0.0
        self.kills = self.freezes = 0
        self.over = False

    def begin(self) -> None:
        """Draw the time of the next fault."""
        wait_s = self._fault_schedule.next_in_s()
        if wait_s < self._fault_rates.fault_period_s:
            self._scheduler.call_later(wait_s, self._draw_fault)

    def black_out(self, seconds: float) -> None:
        """Let no broker answer for some seconds, once.

        The blackout begins soon after the next publication or the next EndTxn. After an EndTxn,
        some transactions of the publication are committed and others are not.
        """
        self._blackout_s = seconds
        self._awaits_end = self._rng.random() < 0.5
        self._awaited = self._count_of_awaited()

    def stop(self) -> None:
        """End all faults: thaw all frozen processes, and make the network whole and calm."""
        self.over = True
        self._due.clear()
        self._after_step.clear()
        self._blackout_s = None
        world = self._world
        world.request_faults.stop()
        world.network.heal()
        world.network.delivery = without_faults
        for process in self._scheduler.processes:
            world.thaw(process)

    def between(self) -> None:
        """Inject the due faults. The scheduler calls it before each turn (`Scheduler.between`)."""
        if self._after_step and self._steps != self._world.watch.steps:
            turn = self._scheduler.turns + self._rng.randrange(STEP_TURNS_MAX)
            self._due.append((turn, self._after_step.pop()))
        self._steps = self._world.watch.steps
        if self._blackout_s is not None:
            self._await_moment(self._blackout_s)
        if self._due and self._scheduler.turns >= self._due[0][0]:
            self._inject(self._due.pop(0)[1])

    def _count_of_awaited(self) -> int:
        watch = self._world.watch
        return watch.ends if self._awaits_end else len(watch.journal.checkpoints)

    def _await_moment(self, seconds: float) -> None:
        now = self._scheduler.turns
        if self._blackout_turn is None:
            if self._count_of_awaited() > self._awaited:
                self._blackout_turn = now + self._rng.randrange(STEP_TURNS_MAX)
        elif now >= self._blackout_turn:
            self._blackout_s = None
            self.blackout_ends_s = self._scheduler.now + seconds
            self._record_event("a blackout: no broker answers for %.2f s", seconds)
            self._world.request_faults.outage(seconds)

    def _draw_fault(self) -> None:
        if self.over:
            return
        kind = self._fault_schedule.draw()
        if self._rng.random() < self._fault_rates.at_steps:
            self._after_step.append(kind)
            self._steps = self._world.watch.steps
        else:
            self._due.append((self._scheduler.turns + self._rng.randrange(TURNS_MAX), kind))
        self.begin()

    def _inject(self, kind: str) -> None:
        match kind:
            case "kill":
                victim = self._victim()
                if victim is not None:
                    self.kills += 1
                    self._scheduler.story.record(self._scheduler.now, victim.name, "is killed")
                    victim.kill()
            case "freeze":
                victim = self._victim()
                if victim is not None:
                    self._freeze(victim)
            case "outage":
                seconds = self._lasts(self._fault_rates.outage_s)
                self._record_event("no broker answers for %.2f s", seconds)
                self._world.request_faults.outage(seconds)
            case _:
                self._partition()

    def _freeze(self, victim: SimProcess) -> None:
        self.freezes += 1
        self._world.freeze(victim)
        self._scheduler.call_later(
            self._lasts(self._fault_rates.frozen_s), lambda: self._world.thaw(victim)
        )

    def _partition(self) -> None:
        alive = [process for process in self._scheduler.processes if process.alive]
        if len(alive) < 2:
            return
        one = self._rng.sample(alive, self._rng.randint(1, len(alive) - 1))
        both = self._rng.random() < 0.7
        if self._rng.random() < BETWEEN_HOSTS:
            hosts = {host_of(process) for process in one[: len(one) // 2 + 1]}
            one = [process for process in alive if host_of(process) in hosts]
        other = [process for process in alive if process not in one]
        self._record_event("a partition around %s", ", ".join(process.name for process in one))
        self._world.network.partition(one, other, both_ways=both)
        self._scheduler.call_later(self._lasts(2.0), self._world.network.heal)

    def _victim(self) -> SimProcess | None:
        """Draw a victim: first a kind of process, then a process of this kind.

        A user process is never a victim, because the plan decides when it ends.
        """
        kinds: dict[str, list[SimProcess]] = {}
        for process in self._scheduler.processes:
            if process.alive and not process.frozen and process.parent is not None:
                kinds.setdefault(kind_of(process), []).append(process)
        if not kinds:
            return None
        return self._rng.choice(kinds[self._rng.choice(sorted(kinds))])

    def _lasts(self, mean_s: float) -> float:
        return min(self._rng.expovariate(1 / mean_s), 30.0)

    def _record_event(self, what: str, *details: object) -> None:
        self._scheduler.story.record(self._scheduler.now, "world", what, *details)
