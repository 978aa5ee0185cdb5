"""An executor that runs the tasks of backfill waves in simulated worker processes, as Spark does.

Each task is the real `LevelTask`, on the drivers of its worker. A worker runs one task after the
other. A task runs again if its worker has died or its output is lost. A copy of a task may run in
parallel, and the output of the first run to end counts. A run that the executor no longer waits for
may continue as a zombie. Rows are passed on unchanged, including reports. The reports at the end
are therefore those of the runs that the last level has read.

Only the executor knows which rows it has given to which run. It therefore reports to the protocol
checker whether the returned reports belong to one execution. The driver must detect the same from
markers and run ids.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Final

from tests.simulator.cluster import SimCluster
from tests.simulator.processes import FAILED, guarded
from tests.simulator.scheduler import SimProcess
from tests.simulator.threads import SimQueue
from tests.simulator.wave_faults import WaveFaults
from tidegate.backfill.executor import ORDER, Executor, WaveTasks
from tidegate.config import Config
from tidegate.dataplane.engine import IO_THREADS
from tidegate.dataplane.waves.level_task import LevelTask, TaskHost
from tidegate.errors import SparkError
from tidegate.ports.drivers import Drivers
from tidegate.ports.processes import ExitStatus
from tidegate.protocol.waves import REPORT, Row, TaskId, TaskReport, read_report

START_S: Final = 0.2
"""Longest start of a worker, in seconds. It is forked from a process with all imports done."""
NOTICE_DELAY_S: Final = 0.0005
DIES_AFTER_S: Final = 0.15
SPECULATES_AFTER_S: Final = 0.2
FAILURES_MAX: Final = 4
"""Number of failures of one task after which the wave fails, as a Spark job does."""
ORPHAN_S_MAX: Final = 10.0
"""Longest time in seconds until the workers notice that their driver has died."""


@dataclass(slots=True, eq=False)
class Worker:
    """A process that runs tasks, one at a time."""

    process: SimProcess
    drivers: Drivers
    tasks: SimQueue
    run: _Run | None = None


@dataclass(slots=True, eq=False)
class _Run:
    """One run of a task."""

    task: TaskId
    number: int
    rows: list[Row]
    """Input rows of the run."""
    worker: Worker
    job: _Job
    sent: list[Row] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Ended:
    """The event that a run has sent all its rows, or that its worker has died."""

    run: _Run
    died: bool


@dataclass(frozen=True, slots=True)
class _Slow:
    """The event that a run takes so long that a copy is started."""

    run: _Run


class SimExecutor:
    """The `backfill.executor.Executor` of one driver. `site` is the parent of its workers."""

    def __init__(
        self,
        world: SimCluster,
        driver: SimProcess,
        site: SimProcess,
        faults: WaveFaults,
        rng: random.Random,
    ) -> None:
        self.world, self.faults, self.rng = world, faults, rng
        self.scheduler = world.scheduler
        self.events = SimQueue(self.scheduler)
        self.numbers = count()
        self._driver, self._site = driver, site
        self._names = count(1)
        self._free: deque[Worker] = deque()
        self._workers: list[Worker] = []
        driver.on_exit.append(self._orphan)

    def check(self, config: Config) -> None:
        """Do nothing: all processes of a simulation have the same version."""

    def run(self, wave: WaveTasks) -> list[TaskReport]:
        """Run all tasks, as `Executor.run`. Raise SparkError if a task fails too often."""
        job = _Job(self, wave)
        try:
            return job.run()
        finally:
            self._end_losers()

    def close(self) -> None:
        """Kill all workers, also those that run a task."""
        for worker in self._workers:
            worker.process.kill()

    @property
    def over(self) -> bool:
        """Whether the time of faults is over."""
        return self.world.request_faults.over

    def take_worker(self) -> Worker:
        """Return a free worker, or start a new one."""
        while self._free:
            worker = self._free.popleft()
            if worker.process.alive:
                return worker
        name = f"worker-{self._driver.pid}-{next(self._names)}"
        process = self.scheduler.process(name, self._site)
        worker = Worker(process, self.world.drivers(process), SimQueue(self.scheduler))
        self._workers.append(worker)
        process.on_exit.append(partial(self._died, worker))
        main = guarded(process, partial(self._serve, worker), FAILED)

        def start() -> None:
            if process.alive:
                process.run_main(main)

        self.scheduler.call_later(START_S * self.rng.uniform(0.2, 1.0), start)
        return worker

    def free(self, worker: Worker) -> None:
        """Mark a worker as free, because its task has ended."""
        worker.run = None
        if worker.process.alive:
            self._free.append(worker)

    def later(self, event: _Ended | _Slow, seconds: float) -> None:
        """Put an event into the queue of the driver after some seconds."""
        self.scheduler.call_later(seconds, partial(self.events.put, event))

    def kill(self, run: _Run) -> None:
        """Kill the worker of a run if the run has not ended and the time of faults is not over."""
        if run.worker.run is run and not self.over:
            run.worker.process.kill()

    def _serve(self, worker: Worker) -> ExitStatus:
        """Run the main function of a worker: execute its tasks in an endless loop."""
        host = TaskHost(
            drivers=worker.drivers, io=worker.drivers.threads.pool(IO_THREADS, name="io")
        )
        while True:
            wave, run = worker.tasks.get()
            task = LevelTask(wave.deploys[run.task.index], run.task.level, host, run.number)
            run.job.runs[task.run_id] = run
            self.world.salts.renew(worker.process)
            self.world.watch.record_worker(worker.process, wave.deploys[0].attempt)
            self.scheduler.record_event("%s begins, run %s", run.task, task.run_id)
            for sent in task.run(run.rows):
                run.sent += sent
                self.scheduler.maybe_switch()
            self.scheduler.record_event("%s has ended, run %s", run.task, task.run_id)
            self.later(_Ended(run, died=False), NOTICE_DELAY_S)

    def _died(self, worker: Worker, status: ExitStatus) -> None:
        del status
        if worker.run is not None:
            self.later(_Ended(worker.run, died=True), NOTICE_DELAY_S)

    def _end_losers(self) -> None:
        """Kill the copies and late runs at random. The others continue as zombies."""
        for worker in self._workers:
            if worker.run is not None and self.rng.random() >= self.faults.lingers:
                worker.process.kill()
        self._workers = [worker for worker in self._workers if worker.process.alive]

    def _orphan(self, status: ExitStatus) -> None:
        del status
        self.scheduler.call_later(ORPHAN_S_MAX * self.rng.random(), self.close)


class _Job:
    """The tasks of one wave."""

    def __init__(self, executor: SimExecutor, wave: WaveTasks) -> None:
        self._executor, self._wave = executor, wave
        self._rng, self._faults = executor.rng, executor.faults
        self._outputs: dict[TaskId, _Run] = {}
        """The run whose output counts, for each task."""
        self._lost: dict[TaskId, _Run] = {}
        """The run whose output counted before it was lost, for each task."""
        self.runs: dict[str, _Run] = {}
        """All runs that have begun, by run id."""
        self._running = 0
        self._failures: Counter[TaskId] = Counter()

    def run(self) -> list[TaskReport]:
        """Run the tasks level by level. Return the reports that the last level has passed on."""
        last: list[TaskId] = []
        for level in range(self._wave.levels):
            last = [TaskId(level, index) for index in range(len(self._wave.deploys))]
            self._await(last)
        rows = [row for task in last for row in self._outputs[task].sent]
        reports = [read_report(row.frame) for row in rows if row.edge == REPORT]
        attempt = self._wave.deploys[0].attempt
        self._executor.world.watch.record_wave(attempt, self._flaw(reports))
        return reports

    def _await(self, wanted: Sequence[TaskId]) -> None:
        """Run these tasks until each of them has an output."""
        waiting = deque(wanted)
        while not all(task in self._outputs for task in wanted):
            while waiting and self._running < self._faults.cores:
                self._launch(waiting.popleft())
            if not all(task in self._outputs for task in wanted):
                self._handle(self._executor.events.get())

    def _handle(self, event: _Ended | _Slow) -> None:
        run, worker = event.run, event.run.worker
        if worker.run is not run:
            return  # it has ended, and the worker has another task or has died since
        if isinstance(event, _Slow):
            if run.job is self and run.task not in self._outputs:
                self._executor.scheduler.record_event("a copy of %s, because it is slow", run.task)
                self._start(run.task, run.rows)
            return
        self._executor.free(worker)
        if run.job is not self:
            return  # a zombie
        self._running -= 1
        if not event.died:
            self._outputs.setdefault(run.task, run)
        elif run.task not in self._outputs:
            self._failures[run.task] += 1
            if self._failures[run.task] >= FAILURES_MAX:
                raise SparkError(f"{run.task} has failed {FAILURES_MAX} times.")
            self._start(run.task, run.rows)

    def _launch(self, task: TaskId) -> None:
        senders = [TaskId(task.level - 1, index) for index in range(len(self._wave.deploys))]
        if task.level and self._hits(self._faults.loses):
            lost = self._rng.choice(senders)
            self._lost[lost] = self._outputs.pop(lost)
            self._executor.scheduler.record_event("the output of %s is lost", lost)
            self._await([lost])
        rows = self._rows_for(task, self._outputs)
        if task.level and self._hits(self._faults.tears):
            rows = self._torn(task, rows)
        self._start(task, rows)

    def _start(self, task: TaskId, rows: list[Row]) -> None:
        executor, faults = self._executor, self._faults
        worker = executor.take_worker()
        run = worker.run = _Run(task, next(executor.numbers), rows, worker, self)
        worker.tasks.put((self._wave, run))
        self._running += 1
        if self._hits(faults.dies):
            after_s = self._rng.expovariate(1 / DIES_AFTER_S)
            executor.scheduler.call_later(after_s, partial(executor.kill, run))
        if self._hits(faults.speculates):
            executor.later(_Slow(run), self._rng.expovariate(1 / SPECULATES_AFTER_S))

    def _hits(self, share: float) -> bool:
        return self._rng.random() < share and not self._executor.over

    # --- rows -----------------------------------------------------------------------------------

    def _rows_for(self, task: TaskId, outputs: Mapping[TaskId, _Run]) -> list[Row]:
        """Return the rows that the runs of the previous level have sent to a task."""
        sent = [
            row
            for index in range(len(self._wave.deploys))
            if task.level
            for row in outputs[TaskId(task.level - 1, index)].sent
            if row.receiver == task.index
        ]
        return sorted(sent, key=ORDER)

    def _torn(self, task: TaskId, rows: list[Row]) -> list[Row]:
        """Return a mixture of the rows of two runs of a sender, or all rows but one."""
        again = [sender for sender in self._lost if sender.level == task.level - 1]
        if again:
            sender = self._rng.choice(again)
            others = self._rows_for(task, {**self._outputs, sender: self._lost[sender]})
            torn = [
                row
                for row in sorted({*rows, *others}, key=_whole)
                if (row in rows and row in others) or self._rng.random() < 1 / 2
            ]
            return sorted(torn, key=ORDER)
        channel = [row for row in rows if row.edge != REPORT]
        missing = self._rng.choice(channel) if channel else None  # a task that failed sent none
        return [row for row in rows if row is not missing]

    def _flaw(self, reports: Sequence[TaskReport]) -> str:
        """Return the error in the rows given to the reported runs; empty if they are correct."""
        reported = {report.task: self.runs[report.run] for report in reports}
        tasks = len(self._wave.deploys) * self._wave.levels
        if not len(reported) == len(reports) == tasks:
            return "not every task has one report"
        for task, run in reported.items():
            if Counter(run.rows) != Counter(self._rows_for(task, reported)):
                return f"{task} was given other rows than those that its senders' reports stand for"
        return ""


def _whole(row: Row) -> tuple[object, ...]:
    return tuple(row)


if TYPE_CHECKING:

    def _(executor: SimExecutor) -> Executor:
        return executor
