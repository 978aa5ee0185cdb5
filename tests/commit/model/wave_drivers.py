"""The steps of a backfill's driver: decide, fence, collect reports, check, publish, end."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from tests.commit.model.broker import Txn, init_producer, verdict
from tests.commit.model.search import Violation
from tests.commit.model.wave_runs import path_of, tid_of
from tests.commit.model.wave_state import (
    COMMIT,
    DEAD,
    DECIDE,
    DONE,
    REPORTED,
    RUN,
    SENT,
    Driver,
    Level,
    Publication,
    WaveBounds,
    WaveState,
)

Step = tuple[str, WaveState]
Collection = tuple[tuple[int | None, ...], ...]
"""The run whose report the driver has, or None, for each level and task."""


@dataclass(frozen=True, slots=True)
class DriverSteps:
    """The steps that the driver of one attempt can take in one state."""

    bounds: WaveBounds
    state: WaveState
    number: int

    @property
    def me(self) -> Driver:
        """The driver."""
        return self.state.drivers[self.number]

    def all(self) -> Iterator[Step]:
        """Every step that it may take now."""
        match self.me.does:
            case "decide" | "commit":
                yield from self._commit_pending()
                if not self.me.unended:
                    yield (
                        self._fence()
                        if self.me.does == DECIDE
                        else self._go("has ended all", self.me._replace(does=DONE))
                    )
            case "run":
                yield from self._publish()
            case _:
                pass

    def _go(self, label: str, me: Driver) -> Step:
        return f"driver {self.number} {label}", self.state.with_driver(self.number, me)

    @property
    def _is_latest(self) -> bool:
        return self.number == len(self.state.drivers) - 1

    def _commit_pending(self) -> Iterator[Step]:
        me, state = self.me, self.state
        for txn in me.unended:
            found = verdict(state.broker, txn)
            if found == "done":
                rest = tuple(each for each in me.unended if each != txn)
                yield self._go(f"sees {txn.tid} committed", me._replace(unended=rest))
            elif found == "lost":
                if self._is_latest:
                    raise Violation(f"a published transaction is lost: {txn}")
                yield self._go(f"finds {txn.tid} gone", me._replace(does=DEAD))
            elif (txn.tid, txn.epoch) not in state.ends:
                ends = state.ends | {(txn.tid, txn.epoch)}
                label = f"driver {self.number} sends EndTxn {txn.tid}"
                yield label, state._replace(ends=ends)

    def _fence(self) -> Step:
        """Abort what older attempts have open and no publication names, then run the tasks."""
        broker, named = self.state.broker, {txn.tid for txn in self.me.named}
        for row in broker:
            if row.tid[0] < self.number and row.tid not in named:
                broker, _ = init_producer(broker, row.tid)
        over = all(position == self.bounds.waves for position in self.me.positions)
        label, after = self._go("fences", self.me._replace(does=DONE if over else RUN))
        return label, after._replace(broker=broker)

    # --- the publication ------------------------------------------------------------------------

    def _publish(self) -> Iterator[Step]:
        for chosen in self._collections():
            publication = self._publication(chosen)
            opened = all(
                verdict(self.state.broker, txn) == "open" for txn in publication.pending_commits
            )
            if not self._passes(chosen) or not opened:
                continue
            if not self._is_latest:
                yield self._go("is fenced", self.me._replace(does=DEAD))
                return
            pending_commits, positions = publication.pending_commits, publication.positions
            driver = Driver(COMMIT, self.me.begins, positions, pending_commits, pending_commits)
            label, after = self._go(f"publishes the runs {chosen}", driver)
            yield label, after._replace(publications=(*after.publications, publication))

    def _collections(self) -> Iterator[Collection]:
        """A report of each task, of any run that has reported."""
        flat: list[list[int | None]] = []
        for level, tasks in enumerate(self._levels):
            for runs in tasks:
                reported = [
                    number for number, run in enumerate(runs) if run.status in {SENT, REPORTED}
                ]
                flat.append([*reported, None] if self._may_lack(level) else [*reported])
        for chosen in itertools.product(*flat):
            rest = iter(chosen)
            collection = tuple(tuple(itertools.islice(rest, size)) for size in self.bounds.widths)
            if any(run is not None for run in collection[-1]):
                yield collection

    def _may_lack(self, level: int) -> bool:
        broken = self.bounds.broken
        left_out = broken == "a split left out of a publication" and level == 0
        return broken == "publication before all reports" or left_out

    @property
    def _levels(self) -> tuple[Level, ...]:
        return self.state.tasks[self.number]

    def _passes(self, chosen: Collection) -> bool:
        """The run check: each task has one run in all reports."""
        broken = self.bounds.broken
        if broken == "runs not compared":
            return True
        for level in range(1, len(chosen)):
            if broken == "runs of the last level only" and level != self.bounds.last:
                continue
            for task, run in enumerate(chosen[level]):
                if run is None:
                    continue
                consumed = self._levels[level][task][run].consumed
                for read, reported in zip(consumed, chosen[level - 1], strict=True):
                    is_known = read >= 0 and reported is not None
                    if is_known and read != reported:
                        return False
        return True

    def _publication(self, chosen: Collection) -> Publication:
        """The publication of these reports. A split without a report is restored as a new one."""
        last = self.bounds.last
        pending_commits: list[Txn] = []
        files = []
        for task, run in enumerate(chosen[last]):
            if run is None:
                continue
            report = self._levels[last][task][run]
            path = path_of(self.bounds, self.number, task, run)
            files.append((path, report.holds))
            if report.holds:
                tid = tid_of(self.bounds, self.number, task, run)
                pending_commits.append(Txn(tid, report.epoch, report.holds))
        positions = tuple(
            0 if run is None else min(position + 1, self.bounds.waves)
            for run, position in zip(chosen[0], self.me.begins, strict=True)
        )
        return Publication(positions, tuple(pending_commits), tuple(files))
