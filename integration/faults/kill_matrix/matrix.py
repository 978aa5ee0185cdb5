"""Strikes at every named step of the commit protocol, in the cells that `cells` lists.

Several cells of one Kafka version, pipeline and signal share a job (`Life`). Each strike comes
after the job has recovered from the previous one, and the output is judged after each. At the end
the job is stopped, started again to read the rest of its input, and judged as a whole. A cell that
goes wrong ends its job, and the remaining cells continue with a new job.

A frozen process stays frozen until it was declared lost and replaced, and its successor has
published. Then it may continue, and must exit soon. Slots, TaskManagers and JobMasters outlive the
processes that kill them (see `mains`). So a frozen process comes back as a true zombie, as after a
network partition. A TaskManager is frozen together with its slots, as if its machine hung.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import psutil

from integration.faults.kill_matrix import page_of_steps, report
from integration.faults.kill_matrix.cells import (
    FREEZE,
    JOBMANAGER,
    JOBMASTER,
    KILL,
    PIPELINES,
    SECTION,
    SLOT,
    TASKMANAGER,
    VICTIMS,
    Cell,
    all_cells,
)
from integration.faults.kill_matrix.scenarios import EXACT, Result, Stage
from integration.faults.kill_matrix.subject import Subject, WrongError
from integration.faults.kill_points.kill_points import Trap
from integration.faults.kill_points.killed_runs import Run, runs

RATE = 200
"""Orders per second. At this rate each checkpoint has some orders in every partition."""
HEARTBEAT_TIMEOUT_S = {KILL: 10.0, FREEZE: 3.0}
"""Heartbeat timeout by signal, in seconds. It is short if a process must be declared lost.
Otherwise it is long, so that a slow process on a busy machine is not declared lost.
"""
FREEZE_S = 1.5 * HEARTBEAT_TIMEOUT_S[FREEZE]
"""Seconds for which a process is frozen if no other process declares it lost."""
WAIT_S = 120.0
OPTIONS = ("--task-managers", "2", "--slots", "2")
CONFIG = {
    "checkpoint.interval": "250 ms",
    "restart.strategy": "fixed_delay",
    "restart.delay": "100 ms",
}
JOB_RUN_CELLS_MAX = 12
"""The maximum number of cells of one job. Cells are recorded only after their job was judged."""

report.SECTIONS[SECTION] = (page_of_steps.TITLE, page_of_steps.render)


def scenarios() -> list[Series]:
    """Return one scenario for each job.

    The first job of every version, signal and pipeline comes first, then the second of each. So an
    interrupted run has covered all combinations.
    """
    jobs: dict[tuple[str, str, str], list[Cell]] = {}
    for cell in all_cells():
        jobs.setdefault((cell.version, cell.signal, cell.pipeline), []).append(cell)
    rounds = itertools.zip_longest(*(split_into_runs(cells) for cells in jobs.values()))
    return [Series(job_run.cells) for each in rounds for job_run in each if job_run is not None]


@dataclass(slots=True)
class ExecutedCell:
    """A cell that was carried out."""

    cell: Cell
    kills: int = 0
    recovery_s: tuple[float, ...] = ()
    verdict: str = EXACT


@dataclass(slots=True)
class Life:
    """The cells of one run of the command, with at most one cell at its start and one at its
    end.
    """

    start: Cell | None = None
    middle: list[Cell] = field(default_factory=list)
    end: Cell | None = None

    @property
    def cells(self) -> list[Cell]:
        """The cells in the order in which they are carried out."""
        return [cell for cell in (self.start, *self.middle, self.end) if cell is not None]


def split_into_runs(cells: Sequence[Cell]) -> list[Life]:
    """Distribute cells over as few runs as possible."""
    starts = [cell for cell in cells if cell.step.when == "start"]
    ends = [cell for cell in cells if cell.step.when == "end"]
    middles = [cell for cell in cells if cell.step.when not in {"start", "end"}]
    # In the order of the protocol, each job would strike only one kind of process.
    random.Random(len(middles)).shuffle(middles)
    count = max(len(starts), len(ends), -(-len(middles) // JOB_RUN_CELLS_MAX), 1)
    dealt = [Life(middle=middles[number::count]) for number in range(count)]
    for job_run, cell in zip(dealt, starts, strict=False):
        job_run.start = cell
    for job_run, cell in zip(dealt, ends, strict=False):
        job_run.end = cell
    return [job_run for job_run in dealt if job_run.cells]


class Series:
    """Cells that share a job, until one goes wrong."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self._cells = {cell.key: cell for cell in cells}

    @property
    def cells(self) -> Sequence[str]:
        """Names of the cells."""
        return list(self._cells)

    def run(self, cells: Sequence[str], stage: Stage) -> Iterator[Result]:
        """Carry out these cells (see `scenarios.Scenario`)."""
        left = [self._cells[key] for key in cells]
        first = left[0]
        name = f"{first.version}-{first.pipeline}-{first.signal}"
        rng = stage.rng(name)
        while left:
            done = self._job(split_into_runs(left)[0], rng, stage, name)
            for executed in done:
                yield _result(executed, stage)
            over = {executed.cell.key for executed in done}
            left = [cell for cell in left if cell.key not in over]

    def _job(
        self, job_run: Life, rng: random.Random, stage: Stage, name: str
    ) -> list[ExecutedCell]:
        """Run one job, and return the cells that were struck, up to and including the first that
        failed.
        """
        cell = job_run.cells[0]
        folder = stage.new_folder(name)
        bootstrap = stage.broker(cell.version).bootstrap
        done: list[ExecutedCell] = []
        pipeline = PIPELINES[cell.pipeline]
        with Subject.made(bootstrap, folder, pipeline, seed=stage.seed, rate=RATE) as subject:
            attack = Attack(subject, rng, done, stage)
            try:
                attack.run_cells(job_run)
            except (AssertionError, WrongError) as error:
                (folder / "story.txt").write_text(str(error), encoding="utf-8")
                done[-1].verdict = _short(error)
            try:
                subject.judge_at_the_end(WAIT_S)
            except (AssertionError, WrongError, TimeoutError, RuntimeError) as error:
                (folder / "end.txt").write_text(str(error), encoding="utf-8")
                for executed in done:
                    if executed.verdict == EXACT:
                        executed.verdict = f"the end of its job was wrong: {_short(error)}"
        return done


class Attack:
    """The strikes at one job."""

    def __init__(
        self, subject: Subject, rng: random.Random, done: list[ExecutedCell], stage: Stage
    ) -> None:
        self._subject, self._chance, self._done, self._stage = subject, rng, done, stage
        self._job = subject.job
        self._frozen: list[int] = []

    def run_cells(self, job_run: Life) -> None:
        """Carry out one run with its cells.

        Raise AssertionError or WrongError at the first cell that goes wrong. That cell is then the
        last of the finished cells.
        """
        kind = job_run.cells[0].signal
        config = {**CONFIG, "cluster.heartbeat_timeout": f"{HEARTBEAT_TIMEOUT_S[kind]:g} s"}
        traps = [self._trap(job_run.start)] if job_run.start else []
        if job_run.start:
            self._begin(job_run.start)
        with self._subject.running(
            *OPTIONS, traps=traps, config=config, survives=kind == FREEZE
        ) as run:
            try:
                if job_run.start:
                    self._strike_when_reached(run, job_run.start, 0)
                    self._judge(job_run.start)
                for cell in job_run.middle:
                    self._begin(cell)
                    self._strike_in_the_middle(run, cell)
                    self._judge(cell)
                run.until(self._steady, "the job has a checkpoint before the end", WAIT_S)
                if job_run.end:
                    self._begin(job_run.end)
                    run.plan.add(self._trap(job_run.end))
                run.process.send_signal(signal.SIGINT)
                if job_run.end:
                    self._strike_at_the_end(run, job_run.end)
                code = run.wait(WAIT_S)
                if code != 0:
                    raise WrongError(
                        f"the run was stopped, and its exit code was {code}: {run.story()}"
                    )
                self._wake()
                if job_run.end:
                    self._judge(job_run.end)
            finally:
                for pid in self._frozen:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                self._frozen.clear()

    # --- one cell -------------------------------------------------------------------------------

    def _begin(self, cell: Cell) -> None:
        self._done.append(ExecutedCell(cell))

    def _judge(self, cell: Cell) -> None:
        """Judge the visible output after the job has recovered."""
        self._subject.judge_so_far()
        executed = self._done[-1]
        times = ", ".join(f"{each:.1f} s" for each in executed.recovery_s)
        self._stage.say(f"        {cell.key} {times}")

    def _trap(self, cell: Cell) -> Trap:
        most = 1 if cell.step.slow or cell.step.when in {"start", "end", "recovery"} else 3
        return Trap(
            cell.step.point,
            self._chance.randint(1, most),
            stops=cell.own and cell.signal == FREEZE,
            holds=not cell.own,
        )

    def _strike_in_the_middle(self, run: Run, cell: Cell) -> None:
        run.until(self._steady, "the live attempt has a checkpoint", WAIT_S)
        traps = [self._trap(cell)]
        if cell.step.when == "recovery":
            # The recovery begins with a publication of which no transaction is ended.
            traps.insert(0, Trap("jobmaster.published"))
            self._done[-1].kills += 1
        claims = len(self._job.claims())
        number = run.plan.add(*traps) + len(traps) - 1
        self._strike_when_reached(run, cell, number, claims)

    def _strike_when_reached(self, run: Run, cell: Cell, number: int, claims: int = 0) -> None:
        """Wait until the carrier is at the point, strike, and wait until the job has recovered."""
        pid = self._await_trap(run, number)
        at_ms = round(time.time() * 1000)
        if cell.step.when != "middle":
            claims = len(self._job.claims())
        shells = self._strike(run, cell, pid, number)
        seen = 0
        if cell.new_attempt:
            run.until(
                lambda: len(self._job.claims()) > claims,
                "a new attempt has claimed the job",
                WAIT_S,
            )
            since_ms = round(time.time() * 1000)
        else:
            if (cell.victim, cell.signal) == (JOBMANAGER, FREEZE):
                time.sleep(FREEZE_S)
                self._wake(gone=False)
                # By now, silent processes were declared lost. A publication from before may belong
                # to an attempt that has ended.
                time.sleep(1.0)
                seen = self._newest()
            elif cell.signal == FREEZE:
                run.until(
                    lambda: not any(map(runs, shells)),
                    "the frozen processes were declared lost",
                    WAIT_S,
                )
            since_ms = at_ms
        run.until(lambda: self._steady(seen), "the job has a checkpoint after the strike", WAIT_S)
        seen_ms = self._subject.first_output(since_ms, WAIT_S)
        if seen_ms is None:
            raise WrongError(f"there was no output within {WAIT_S:g} s: {run.story()}")
        if (cell.victim, cell.signal) != (JOBMANAGER, FREEZE):
            self._done[-1].recovery_s = ((seen_ms - at_ms) / 1000,)
        self._wake()
        run.until(self._steady, "the job has a checkpoint after the zombie", WAIT_S)

    def _strike_at_the_end(self, run: Run, cell: Cell) -> None:
        number = len(run.plan.traps) - 1
        pid = self._await_trap(run, number)
        self._strike(run, cell, pid, number)
        if (cell.victim, cell.signal) == (JOBMANAGER, FREEZE):
            time.sleep(FREEZE_S)
            self._wake(gone=False)

    def _await_trap(self, run: Run, number: int) -> int:
        trap = run.plan.traps[number]
        pid: int = run.until(
            lambda: run.plan.pid(number), f"a process reaches {trap.point}", WAIT_S
        )
        return pid

    def _strike(self, run: Run, cell: Cell, carrier: int, number: int) -> list[int]:
        """Kill or freeze the cell's victims while the carrier is at the point.

        Return the pids that the other processes know in place of the frozen ones (see `mains`).
        When these pids are gone, the frozen processes were declared lost.
        """
        executed = self._done[-1]
        executed.kills += 1
        if cell.own:
            victims, shells = [carrier], []
        else:
            victims = run.until(lambda: self._victims(run, cell, carrier), f"a {cell.victim} runs")
            # The shell of the first victim decides. If that victim is a TaskManager, the shells of
            # its slots exit only after it continues, because it ends them.
            shells = [_parent(victims[0])]
            for pid in victims:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL if cell.signal == KILL else signal.SIGSTOP)
        if cell.signal == FREEZE:
            self._frozen += victims
        run.plan.release(number)
        return shells

    def _victims(self, run: Run, cell: Cell, carrier: int) -> list[int]:
        """Return the pids to strike. A TaskManager is frozen with its slots."""
        found = run.processes()
        if cell.victim == JOBMANAGER:
            return [process.pid for process in found[JOBMANAGER]]
        if cell.victim == JOBMASTER:
            return [process.pid for process in found[JOBMASTER][:1]]
        slots = found[SLOT]
        if cell.victim == SLOT:
            return [self._chance.choice(slots).pid] if slots else []
        managers = found[TASKMANAGER]
        hosts = {process.pid: _host(process, managers) for process in slots}
        host = hosts.get(carrier) or self._chance.choice([*hosts.values()] or [None])
        if host is None:
            host = self._chance.choice(managers).pid if managers else None
        if host is None:
            return []
        its = [pid for pid, home in hosts.items() if home == host]
        return [host, *its] if cell.signal == FREEZE else [host]

    def _steady(self, after: int = 0) -> bool:
        """Return whether the newest attempt has published, in an entry after `after`."""
        attempt = 0
        published = False
        for entry in self._job.journal():
            if entry["kind"] == "claim":
                attempt, published = entry["number"], False
            elif entry["kind"] == "publication" and entry["attempt"] == attempt:
                published = entry["number"] > after
        return published

    def _newest(self) -> int:
        """Return the number of the journal's newest entry."""
        number: int = self._job.journal()[-1]["number"]
        return number

    # --- zombies --------------------------------------------------------------------------------

    def _wake(self, *, gone: bool = True) -> None:
        """Let all frozen processes continue. They must exit soon, unless `gone` is false."""
        for pid in self._frozen:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        end_s = time.monotonic() + WAIT_S
        while gone and (left := [pid for pid in self._frozen if runs(pid)]):
            if time.monotonic() > end_s:
                raise WrongError(f"the zombies {left} did not exit")
            time.sleep(0.02)
        self._frozen.clear()


def _host(process: psutil.Process, managers: Sequence[psutil.Process]) -> int | None:
    above = {parent.pid for parent in process.parents()}
    return next((manager.pid for manager in managers if manager.pid in above), None)


def _parent(pid: int) -> int:
    try:
        return psutil.Process(pid).ppid()
    except psutil.NoSuchProcess:
        return 0


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def _result(executed: ExecutedCell, stage: Stage) -> Result:
    cell = executed.cell
    return Result(
        cell=cell.key,
        name=f"{VICTIMS[cell.victim]} at {cell.step.point}",
        version=cell.version,
        pipeline=cell.pipeline,
        signal=cell.signal,
        seed=stage.seed,
        kills=executed.kills,
        recovery_s=tuple(round(each, 2) for each in executed.recovery_s),
        verdict=executed.verdict,
        date=stage.date,
    )
