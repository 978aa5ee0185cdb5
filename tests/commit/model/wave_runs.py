"""The steps of a wave's tasks: each task may run several times, and any run may continue late."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from tests.commit.model.broker import (
    EMPTY,
    ONGOING,
    Records,
    Row,
    Tid,
    find_row,
    init_producer,
    store,
)
from tests.commit.model.wave_rows import deliveries, receive
from tests.commit.model.wave_state import (
    FAILED,
    OPEN,
    READ,
    REPORTED,
    SENT,
    Path,
    TaskRun,
    WaveBounds,
    WaveState,
)

Step = tuple[str, WaveState]


def tid_of(bounds: WaveBounds, attempt: int, task: int, run: int) -> Tid:
    """The transactional id of a run."""
    return (attempt, task, 0 if bounds.broken == "one id for all runs of a task" else run)


def path_of(bounds: WaveBounds, attempt: int, task: int, run: int) -> Path:
    """Where a run stores its state."""
    return (attempt, task, 0 if bounds.broken == "one folder for all runs of a task" else run)


@dataclass(frozen=True, slots=True)
class RunSteps:
    """The steps that the runs of one attempt's tasks can take in one state."""

    bounds: WaveBounds
    state: WaveState
    attempt: int

    def all(self) -> Iterator[Step]:
        """Every step that they may take now."""
        allowed = self.bounds.runs if self.attempt == 0 else None
        for level, tasks in enumerate(self.state.tasks[self.attempt]):
            most = self.bounds.later_runs if allowed is None else allowed[level]
            for task, runs in enumerate(tasks):
                if len(runs) < most:
                    begins = self._read_splits if level == 0 else self._read_rows
                    yield from begins(level, task)
                if level == self.bounds.last:
                    for number, run in enumerate(runs):
                        yield from self._write(task, number, run)

    def _go(self, what: str, level: int, task: int, number: int, made: TaskRun) -> Step:
        label = f"attempt {self.attempt}, level {level}, task {task}, run {number} {what}"
        return label, self.state.with_run(self.attempt, level, task, number, made)

    # --- input ----------------------------------------------------------------------------------

    def _read_splits(self, level: int, task: int) -> Iterator[Step]:
        """A run of a source reads its split; where each record goes is up to the run."""
        bounds = self.bounds
        position = self.state.drivers[self.attempt].begins[task]
        number = len(self.state.tasks[self.attempt][level][task])
        records: Records = ()
        if position < bounds.waves:
            begin = (position * bounds.sources + task) * bounds.records
            records = tuple(range(begin, begin + bounds.records))
        for sends in self._routed(level, records):
            made = TaskRun(SENT, (), records, sends)
            yield self._go(f"sends {sends}", level, task, number, made)

    def _routed(self, level: int, records: Records) -> Iterator[tuple[Records, ...]]:
        receivers = range(self.bounds.widths[level + 1])
        for chosen in itertools.product(receivers, repeat=len(records)):
            yield tuple(
                tuple(record for record, by in zip(records, chosen, strict=True) if by == receiver)
                for receiver in receivers
            )

    def _read_rows(self, level: int, task: int) -> Iterator[Step]:
        """A run of another task reads rows of every sender at once. What an earlier run has written
        stays readable, so that this stands for reading one sender after the other.
        """
        state, bounds = self.state, self.bounds
        number = len(state.tasks[self.attempt][level][task])
        options = [
            list(deliveries(runs, task, faults=bool(state.faults)))
            for runs in state.tasks[self.attempt][level - 1]
        ]
        for given in itertools.product(*options):
            faults = sum(each.is_fault for each in given)
            if faults > state.faults:
                continue
            label = f"reads {', '.join(each.label for each in given)}"
            received = [receive(each.rows, bounds.broken) for each in given]
            taken = [each for each in received if each is not None]
            made = [TaskRun(FAILED)]
            if len(taken) == len(received):
                consumed = tuple(each.run for each in taken)
                holds = tuple(sorted(record for each in taken for record in each.records))
                made = self._have_read(level, consumed, holds)
            for run in made:
                what = f"{label}, sends {run.sends}" if run.sends else label
                told, after = self._go(what, level, task, number, run)
                yield told, after._replace(faults=state.faults - faults)

    def _have_read(self, level: int, consumed: tuple[int, ...], holds: Records) -> list[TaskRun]:
        if level == self.bounds.last:
            return [TaskRun(READ, consumed, holds)]
        return [TaskRun(SENT, consumed, holds, sends) for sends in self._routed(level, holds)]

    # --- output ---------------------------------------------------------------------------------

    def _write(self, task: int, number: int, run: TaskRun) -> Iterator[Step]:
        """Initialise an id, write and prepare, store the state, report."""
        level, state = self.bounds.last, self.state
        if run.status == READ and run.holds:
            tid = tid_of(self.bounds, self.attempt, task, number)
            broker, epoch = init_producer(state.broker, tid)
            made = run._replace(status=OPEN, epoch=epoch)
            label, after = self._go(f"inits {tid}", level, task, number, made)
            yield label, after._replace(broker=broker)
        elif run.status == READ:
            yield self._report("reports, without output", task, number, run)
        elif run.status == OPEN:
            tid = tid_of(self.bounds, self.attempt, task, number)
            row = find_row(state.broker, tid)
            if row is None or row.epoch != run.epoch or row.status != EMPTY:
                yield self._go("is fenced", level, task, number, TaskRun(FAILED))
                return
            written = Row(tid, ONGOING, run.epoch, run.holds)
            label, after = self._report(f"prepares {run.holds}, reports", task, number, run)
            yield label, after._replace(broker=store(state.broker, written))

    def _report(self, what: str, task: int, number: int, run: TaskRun) -> Step:
        path = path_of(self.bounds, self.attempt, task, number)
        files = [each for each in self.state.files if each[0] != path]
        made = run._replace(status=REPORTED)
        label, after = self._go(what, self.bounds.last, task, number, made)
        return label, after._replace(files=tuple(sorted([*files, (path, run.holds)])))
