"""Strikes the processes of a backfill, as the cells of `backfill_cells` define it.

The process that reaches the point is held there, the victim is struck, and the process continues.
The recovery depends on the victim:

- If a **driver** or its **JVM** is killed, the command ends, and all processes of its session end
  by themselves. The repeated command continues, and is struck too
  (`kill_one_after_the_other`).
- If a **driver**, its **JVM** or a **Python worker** is frozen, the command hangs, and Spark does
  not notice. A second command takes over the job, as if from another host, because no process can
  prove that the first one is dead. When the second one has claimed, the victim is continued. Its
  command must end as fenced, and the second one is struck then (`freeze_one_after_the_other`).
- If a **Python worker** is killed, Spark replaces it, and the wave continues
  (`strike_in_session`).
- If an **executor's JVM** is killed or frozen, Spark drops it together with its outputs, and the
  wave continues without it. One that is frozen in a task is continued after the wave. All frozen
  ones must exit soon (`strike_in_session`, on a standalone cluster).

Cells of one version, signal and victim share a job. A cell that goes wrong ends its job, and the
remaining cells continue with a new job.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import psutil

from integration.faults.kill_matrix.backfill_cells import (
    DRIVER,
    EXECUTOR,
    FREEZE,
    JVM,
    KILL,
    PIPELINES,
    VICTIMS,
    WORKER,
    Cell,
)
from integration.faults.kill_matrix.backfill_subject import (
    WAIT_S,
    WAVE,
    BackfillSubject,
    ends_well,
    short,
    tail,
    until,
    until_snapped,
)
from integration.faults.kill_matrix.scenarios import EXACT, Result, Stage
from integration.faults.kill_matrix.subject import WrongError
from integration.faults.kill_points.kill_points import Trap
from integration.spark.drivers import Driver
from integration.spark.entries import RUNS, task_runs
from integration.spark.processes import is_alive
from integration.spark.standalone import EXECUTOR_CLASS, Cluster, standalone_cluster

ON_CLUSTER: Final = {
    "spark.executor.memory": "512m",
    # Spark drops a frozen executor after twelve seconds instead of two minutes.
    "spark.network.timeout": "12s",
    "spark.network.timeoutInterval": "2s",
    "spark.executor.heartbeatInterval": "2s",
}
WAVE_BEGINS: Final = Trap("driver.wave", holds=True)
FENCED: Final = "failed: FencedError"


@dataclass(slots=True)
class ExecutedCell:
    """A cell that was carried out."""

    cell: Cell
    recovery_s: tuple[float, ...] = ()
    verdict: str = EXACT

    def result(self, stage: Stage) -> Result:
        """Return the result that is recorded."""
        cell = self.cell
        return Result(
            cell=cell.key,
            name=f"{VICTIMS[cell.victim]}: {cell.point.says}",
            version=cell.version,
            pipeline=cell.pipeline,
            signal=cell.signal,
            seed=stage.seed,
            kills=1,
            recovery_s=tuple(round(each, 2) for each in self.recovery_s),
            verdict=self.verdict,
            date=stage.date,
        )


class Series:
    """Cells of one version, signal and victim. They share a job, until one goes wrong."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self._cells = {cell.key: cell for cell in cells}

    @property
    def cells(self) -> Sequence[str]:
        """Names of the cells."""
        return list(self._cells)

    def run(self, cells: Sequence[str], stage: Stage) -> Iterator[Result]:
        """Carry out these cells (see `scenarios.Scenario`)."""
        left = [self._cells[key] for key in cells]
        while left:
            done = _job(left, stage)
            for executed in done:
                yield executed.result(stage)
            left = left[len(done) :]


def _job(cells: Sequence[Cell], stage: Stage) -> list[ExecutedCell]:
    """Run one job, and return the cells that were struck, up to and including the first that
    failed.
    """
    first = cells[0]
    folder = stage.new_folder(f"backfill {first.version} {first.signal} {first.victim}")
    done: list[ExecutedCell] = []
    pipeline = PIPELINES[first.pipeline]
    with BackfillSubject.made(stage.broker(first.version).bootstrap, folder, pipeline) as subject:
        try:
            _attack_of(first)(subject, cells, done, stage)
            subject.judge_the_whole()
        except (AssertionError, WrongError, TimeoutError, subprocess.TimeoutExpired) as error:
            (folder / "story.txt").write_text(str(error), encoding="utf-8")
            # An error after the last cell is the verdict of every cell.
            at_the_end = len(done) == len(cells) and isinstance(error, WrongError)
            for executed in done if at_the_end else done[-1:]:
                executed.verdict = short(error)
    return done


Attack = Callable[[BackfillSubject, Sequence[Cell], list[ExecutedCell], Stage], None]


def _attack_of(cell: Cell) -> Attack:
    """Return the function that carries out the cells of a victim and a signal."""
    if cell.victim == EXECUTOR or (cell.victim, cell.signal) == (WORKER, KILL):
        return strike_in_session
    return kill_one_after_the_other if cell.signal == KILL else freeze_one_after_the_other


def kill_one_after_the_other(
    subject: BackfillSubject, cells: Sequence[Cell], done: list[ExecutedCell], stage: Stage
) -> None:
    """Run drivers, each of which continues where the previous one was killed. Do not strike the
    last one.
    """
    del stage
    for cell in cells:
        done.append(ExecutedCell(cell))
        subject.write(2 * WAVE)
        with subject.driver(Trap(cell.point.point, holds=True)) as driver:
            holder = until_snapped(driver, 0)
            driver.look()
            os.kill(_victim(driver, cell, holder), signal.SIGKILL)
            driver.plan.release(0)
            said = driver.lines()
            code = driver.process.wait(WAIT_S)
            lost = code == 1 and said[-1:] and said[-1].startswith("failed: SparkLostError")
            if code != -signal.SIGKILL if cell.victim == DRIVER else not lost:
                raise WrongError(f"the driver ended with {code} and said {said}: {tail(driver)}")
            until(driver.is_gone, "no process of the driver is left")
        subject.judge_so_far()
    subject.judge_at_the_end()


@dataclass(frozen=True, slots=True)
class Frozen:
    """A driver that hangs because of a frozen process, and its context."""

    driver: Driver
    victim: int
    context: ExitStack

    def thaw(self) -> None:
        """Continue the victim. Raise WrongError unless the driver ends as fenced, and leaves no
        process.
        """
        os.kill(self.victim, signal.SIGCONT)
        said = self.driver.lines()
        code = self.driver.process.wait(WAIT_S)
        if code != 1 or not said[-1:] or not said[-1].startswith(FENCED):
            raise WrongError(
                f"a driver that was frozen ended with {code} and said {said}: {tail(self.driver)}"
            )
        until(self.driver.is_gone, "no process of the driver that was frozen is left")
        self.context.close()


def freeze_one_after_the_other(
    subject: BackfillSubject, cells: Sequence[Cell], done: list[ExecutedCell], stage: Stage
) -> None:
    """Run drivers, each of which takes over from a frozen one. Freeze it when the frozen one has
    ended.
    """
    del stage
    with ExitStack() as all_of_them:
        before: Frozen | None = None
        for cell in cells:
            done.append(ExecutedCell(cell))
            subject.write(2 * WAVE)
            context = all_of_them.enter_context(ExitStack())
            driver = context.enter_context(subject.driver(Trap(cell.point.point, holds=True)))
            holder = until_snapped(driver, 0)
            if before is not None:
                before.thaw()
                subject.judge_so_far()
            driver.look()
            victim = _victim(driver, cell, holder)
            freeze(victim)
            driver.plan.release(0)
            before = Frozen(driver, victim, context)
        with subject.driver(Trap("slot.wrote", holds=True)) as last:
            until_snapped(last, 0)
            if before is not None:
                before.thaw()
            last.plan.release(0)
            ends_well(last)


def strike_in_session(
    subject: BackfillSubject, cells: Sequence[Cell], done: list[ExecutedCell], stage: Stage
) -> None:
    """Run one driver, and strike one process after the other in its waves."""
    subject.write((2 * len(cells) + 3) * WAVE)
    traps = [trap for cell in cells for trap in (Trap(cell.point.point, holds=True), WAVE_BEGINS)]
    cluster, changes = None, {}
    if cells[0].victim == EXECUTOR:
        cluster = cluster_of(stage)
        changes = {"master": cluster.master, "properties": ON_CLUSTER}
    runs = subject.job.folder / "runs"
    runs.mkdir()
    with subject.driver(*traps, environment={RUNS: str(runs)}, **changes) as driver:
        for number, cell in enumerate(cells):
            done.append(ExecutedCell(cell))
            holder = until_snapped(driver, 2 * number)
            again, at_ms = _repeated(runs), round(time.time() * 1000)
            victim = (
                _victim(driver, cell, holder) if cluster is None else _executor(cluster, holder)
            )
            os.kill(victim, signal.SIGKILL if cell.signal == KILL else signal.SIGSTOP)
            driver.plan.release(2 * number)
            until_snapped(driver, 2 * number + 1)
            if cell.point.in_task and _repeated(runs) <= again:
                raise WrongError("no task was run again, so the test proves nothing")
            if cell.signal == FREEZE and cell.point.in_task:
                with suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGCONT)
            driver.plan.release(2 * number + 1)
            if cell.point.in_task:
                # The lost run has left a transaction open, which the claim of the next wave aborts.
                done[-1].recovery_s = ((subject.first_output(at_ms) - at_ms) / 1000,)
            if cell.signal == FREEZE:
                # The next wave detects a frozen executor that was idle, and its worker kills it.
                until(partial(_is_gone, victim), "the frozen executor has exited")
            subject.judge_so_far()
        ends_well(driver)
    if cluster is not None:
        until(lambda: not executors_of(cluster), "no executor is left")


def _victim(driver: Driver, cell: Cell, holder: int) -> int:
    return {DRIVER: driver.process.pid, JVM: driver.jvm, WORKER: holder}[cell.victim]


def freeze(pid: int) -> None:
    """Stop a process, and wait until it has stopped."""
    os.kill(pid, signal.SIGSTOP)
    until(
        lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED, f"process {pid} is stopped"
    )


def _is_gone(pid: int) -> bool:
    try:
        return not is_alive(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return True


def _repeated(runs: Path) -> int:
    """Return the number of tasks that were run more than once."""
    return sum(len(found) > 1 for found in task_runs(runs).values())


# --- a standalone cluster -------------------------------------------------------------------------


def cluster_of(stage: Stage) -> Cluster:
    """Return a cluster of two workers, which Spark treats as two hosts. All users share it."""

    def start(folder: Path, stack: ExitStack) -> Cluster:
        return stack.enter_context(standalone_cluster(folder, hosts=("127.0.0.1", "127.0.0.2")))

    return stage.shared("standalone", start)


def executors_of(cluster: Cluster) -> list[psutil.Process]:
    """Return the JVMs of executors that run now."""
    return [
        child
        for worker in cluster.workers
        for child in psutil.Process(worker.pid).children(recursive=True)
        if is_alive(child) and _is_executor(child)
    ]


def _executor(cluster: Cluster, holder: int) -> int:
    """Return the executor in which a held task runs, or any if the held process is not a task."""
    above = {process.pid for process in psutil.Process(holder).parents()}
    running = executors_of(cluster)
    found = [each for each in running if each.pid in above] or running
    return found[0].pid


def _is_executor(process: psutil.Process) -> bool:
    try:
        return any(EXECUTOR_CLASS in word for word in process.cmdline())
    except psutil.NoSuchProcess:
        return False
