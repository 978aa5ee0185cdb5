"""Makes faults of a backfill that are not a strike at one point of a wave.

Each cell has its own job.

The faults are:

- A slow task, of which Spark runs a copy.
- An output of a level that is lost before all tasks of the next level have read it.
- Workers that die as often as Spark tolerates, and once more.
- A crash, after which the number of executors or the parallelism is different.
- A broker that restarts in the middle of a wave.

Each cell requires that its fault has happened: a copy ran, a task was repeated, or a process was
killed.

Outputs are lost on one core. There the tasks of a level run one after the other, so the first task
has read an output that the second one misses. Spark repeats the sender, and its second run has
another run id. Spark 4.3 compares checksums, and repeats the whole level, or fails the job if it
cannot do that. If the checksums are off, only the run check of the driver protects tasks of the
last level, and it must refuse the wave.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from integration.faults.kill_matrix.backfill_cells import SECTION
from integration.faults.kill_matrix.backfill_strikes import (
    ON_CLUSTER,
    WAVE_BEGINS,
    cluster_of,
    freeze,
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
from integration.spark.drivers import LOCAL
from integration.spark.entries import RUNS, task_runs
from tidegate.drivers.kafka.embedded import EmbeddedKafka

RUN_AGAIN: Final = "the wave is run again"
NOT_ONE_EXECUTION: Final = "are not of one execution"
ONE_CORE: Final = "local[1,4]"
FAILURES_MAX: Final = 4
"""Number of failures of one task after which Spark fails the job, in `local[N,4]` and by default on
other masters.
"""
CHECKSUMS: Final = (
    "spark.sql.shuffle.orderIndependentChecksum.enabled",
    "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch",
)
SPECULATION: Final = {
    **ON_CLUSTER,
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.5",
    "spark.speculation.minTaskRuntime": "100ms",
}
DOWN_S: Final = 2.0
SHUFFLED: Final = re.compile(r"shuffle_(\d+)_(\d+)_")

Run = Callable[[BackfillSubject, Stage], str]
"""A function that makes the fault, runs the backfill to its end, and returns a note for readers of
the record.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault of one job."""

    name: str
    words: str
    signal: str
    run: Run
    pipeline: str = "keyed"
    job: str = "Totals"
    kills: int = 1
    own_broker: bool = False


# --- copies of slow tasks -------------------------------------------------------------------------


def a_copy_runs(subject: BackfillSubject, stage: Stage, *, frozen: bool) -> str:
    """Hold one task until its copy has replaced it."""
    cluster = cluster_of(stage)
    runs = new_folder_of_runs(subject)
    subject.write(4 * WAVE)
    with subject.driver(
        Trap("slot.flushed", holds=True),
        WAVE_BEGINS,
        environment={RUNS: str(runs)},
        master=cluster.master,
        properties=SPECULATION,
        speculation=True,
    ) as driver:
        slow = until_snapped(driver, 0)
        if frozen:
            freeze(slow)
        until_snapped(driver, 1)
        copied = [found for found in task_runs(runs).values() if len(found) > 1]
        if not copied or RUN_AGAIN in driver.logged():
            raise WrongError(f"no copy of the slow task has replaced it: {tail(driver)}")
        driver.plan.release(0)
        if frozen:
            _continue(slow)
        driver.plan.release(1)
        ends_well(driver)
    return "a copy of the task ran, and the wave was not run again"


def _continue(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGCONT)
    except ProcessLookupError:
        return  # Spark kills the slower one of two copies


# --- lost outputs ---------------------------------------------------------------------------------


def an_output_is_lost(
    subject: BackfillSubject,
    stage: Stage,
    *,
    level: int,
    point: str,
    retries: bool,
    refuses: bool,
) -> str:
    """Delete the output of one task of a level when the first task of the next level has read all
    of it and waits at `point`.

    `refuses` says whether the run check must refuse the wave.
    """
    del stage
    runs = new_folder_of_runs(subject)
    subject.write(3 * WAVE)
    checksums = dict.fromkeys(CHECKSUMS, str(retries).lower())
    with subject.driver(
        Trap(point, holds=True),
        environment={RUNS: str(runs)},
        master=ONE_CORE,
        properties=checksums,
    ) as driver:
        until_snapped(driver, 0)
        lose_an_output(subject.job.folder)
        driver.plan.release(0)
        ends_well(driver)
        logged = driver.logged()
    again = [key for key, found in task_runs(runs).items() if key[1] == level and len(found) > 1]
    failed = RUN_AGAIN in logged
    if not again and not (retries and failed):
        raise WrongError(f"no task of level {level} was run again: {tail(driver)}")
    refused = NOT_ONE_EXECUTION in logged
    if refuses and not refused:
        raise WrongError(f"the run check has refused no wave: {tail(driver)}")
    if not again:
        return "Spark failed the job at once, and the driver ran the wave again"
    if refused:
        return "a task was run again, and the run check refused the wave"
    return f"a task was run again, and Spark {'failed the job' if failed else 'repeated the level'}"


def lose_an_output(folder: Path) -> None:
    """Delete the files of one task of the newest shuffle."""
    files: dict[tuple[int, int], list[Path]] = {}
    for path in folder.glob("tidegate-spark-*/local/blockmgr-*/*/shuffle_*"):
        found = SHUFFLED.match(path.name)
        if found:
            files.setdefault((int(found[1]), int(found[2])), []).append(path)
    if not files:
        raise WrongError("there is no shuffle file to lose")
    for path in files[max(files)]:
        path.unlink()


# --- failures up to the limit ---------------------------------------------------------------------


def a_task_fails(subject: BackfillSubject, stage: Stage, *, times: int, gives_up: bool) -> str:
    """Kill the worker of the one task that has a sink, `times` times in sequence."""
    del stage
    subject.write(2 * WAVE)
    settings = subject.options.settings | ({"restart.strategy": "none"} if gives_up else {})
    traps = [Trap("slot.flushed")] * times
    with subject.driver(*traps, parallelism=1, settings=settings) as driver:
        if gives_up:
            said = driver.lines()
            code = driver.process.wait(WAIT_S)
            if code != 1 or not said[-1:] or not said[-1].startswith("failed: SparkError"):
                raise WrongError(f"the driver ended with {code} and said {said}: {tail(driver)}")
            until(driver.is_gone, "no process of the driver is left")
        else:
            ends_well(driver)
        if len(driver.plan.snapped()) != times:
            raise WrongError(f"only {len(driver.plan.snapped())} of {times} workers were killed")
        failed = "The Spark job failed" in driver.logged() or gives_up
    if failed != (times >= FAILURES_MAX):
        raise WrongError(f"after {times} failures Spark {'has' if failed else 'has not'} failed")
    subject.judge_at_the_end(parallelism=1)
    return "the Spark job failed" if failed else "Spark ran the task again"


# --- another cluster after a crash ----------------------------------------------------------------


def resumed(subject: BackfillSubject, stage: Stage, *, parallelism: int) -> str:
    """Kill the driver after a publication, and continue with more cores."""
    del stage
    subject.write(4 * WAVE)
    with subject.driver(Trap("jobmaster.published")) as driver:
        until(lambda: driver.process.poll() is not None, "the driver is killed")
        until(driver.is_gone, "no process of the driver is left")
        if len(driver.plan.snapped()) != 1:
            raise WrongError(f"the driver ended by itself: {tail(driver)}")
    subject.judge_at_the_end(master="local[4,4]", parallelism=parallelism)
    return f"the backfill moved from {LOCAL} with 2 subtasks to local[4,4] with {parallelism}"


# --- a broker that restarts -----------------------------------------------------------------------


def the_broker_restarts(subject: BackfillSubject, stage: Stage, *, point: str) -> str:
    """Kill the only broker while a process waits at a point, and start it again after `DOWN_S`
    seconds.
    """
    broker = broker_to_kill(stage, subject.job.bootstrap)
    subject.write(3 * WAVE)
    with subject.driver(Trap(point, holds=True)) as driver:
        until_snapped(driver, 0)
        broker.kill(0)
        driver.plan.release(0)
        time.sleep(DOWN_S)
        broker.restart(0)
        ends_well(driver)
        again = RUN_AGAIN in driver.logged()
    return "the wave was run again" if again else "the wave continued"


def broker_of(stage: Stage, version: str) -> EmbeddedKafka:
    """Return a cluster of one node, which cells may kill."""

    def start(folder: Path, stack: ExitStack) -> EmbeddedKafka:
        cluster = EmbeddedKafka.start(version, directory=folder, owned=True)
        return stack.enter_context(cluster)

    return stage.shared(f"broker {version}", start)


def broker_to_kill(stage: Stage, bootstrap: str) -> EmbeddedKafka:
    """Return the node at this address."""
    [found] = [
        each
        for version in ("3.9.1", "4.3.0")
        if (each := broker_of(stage, version)).bootstrap == bootstrap
    ]
    return found


def new_folder_of_runs(subject: BackfillSubject) -> Path:
    """Make the folder in which tasks leave a file when they begin."""
    folder = subject.job.folder / "runs"
    folder.mkdir()
    return folder


FAULTS: Final = (
    Fault(
        name="copy-of-a-slow-task",
        words="a task is slow, and Spark runs a copy of it",
        signal="speculation",
        run=partial(a_copy_runs, frozen=False),
    ),
    Fault(
        name="copy-of-a-frozen-task",
        words="a worker is frozen, Spark runs a copy of its task, and the worker is continued",
        signal="SIGSTOP, speculation",
        run=partial(a_copy_runs, frozen=True),
    ),
    *(
        Fault(
            name=f"lost-{job.lower()}-level-{level}-{'with' if retries else 'without'}-retry",
            words=f"an output of level {level} of {levels} is lost, and Spark's checksums are "
            f"{'on' if retries else 'off'}",
            signal="lost files",
            pipeline=pipeline,
            job=job,
            run=partial(
                an_output_is_lost,
                level=level,
                point=point,
                retries=retries,
                # When one output is lost, Spark drops all outputs of that executor. So it repeats
                # whole levels, except the last one, whose reports it already has.
                refuses=not retries and level == levels - 2,
            ),
        )
        for retries in (True, False)
        for pipeline, job, levels, level, point in (
            ("keyed", "Totals", 2, 0, "slot.flushed"),
            ("three levels", "ThreeLevels", 3, 0, "slot.uploaded"),
            ("three levels", "ThreeLevels", 3, 1, "slot.flushed"),
        )
    ),
    *(
        Fault(
            name=f"{times}-failures{'-of-the-command' if gives_up else ''}",
            words=f"the worker of one task is killed {times} times in a row"
            f"{', and the job never restarts' if gives_up else ''}",
            signal="SIGKILL",
            kills=times,
            run=partial(a_task_fails, times=times, gives_up=gives_up),
        )
        for times, gives_up in ((3, False), (4, False), (4, True))
    ),
    Fault(
        name="other-executors",
        words="the driver is killed, and the next one has twice as many cores",
        signal="SIGKILL",
        pipeline="two sinks",
        job="TwoSinks",
        run=partial(resumed, parallelism=2),
    ),
    Fault(
        name="other-parallelism",
        words="the driver is killed, and the next one has another parallelism",
        signal="SIGKILL",
        run=partial(resumed, parallelism=3),
    ),
    *(
        Fault(
            name=f"broker-restarts-{point.partition('.')[2]}",
            words=f"the broker is killed and started again at `{point}`",
            signal="SIGKILL",
            own_broker=True,
            run=partial(the_broker_restarts, point=point),
        )
        for point in ("slot.wrote", "jobmaster.published")
    ),
)


@dataclass(frozen=True, slots=True)
class Alone:
    """A fault on one version of Kafka."""

    version: str
    fault: Fault

    @property
    def cells(self) -> Sequence[str]:
        """Name of the only cell."""
        pipeline = self.fault.pipeline.replace(" ", "-")
        return [f"{SECTION}/{self.version}/{pipeline}/fault/{self.fault.name}"]

    def run(self, cells: Sequence[str], stage: Stage) -> Iterator[Result]:
        """Make the fault (see `scenarios.Scenario`)."""
        fault = self.fault
        folder = stage.new_folder(f"backfill {self.version} {fault.name}")
        broker = (broker_of if fault.own_broker else Stage.broker)(stage, self.version)
        verdict, note = EXACT, ""
        with BackfillSubject.made(broker.bootstrap, folder, fault.job) as subject:
            try:
                note = fault.run(subject, stage)
                subject.judge_the_whole()
            except (AssertionError, WrongError, TimeoutError, subprocess.TimeoutExpired) as error:
                (folder / "story.txt").write_text(str(error), encoding="utf-8")
                verdict = short(error)
        yield Result(
            cell=cells[0],
            name=fault.words,
            version=self.version,
            pipeline=fault.pipeline,
            signal=fault.signal,
            seed=stage.seed,
            kills=fault.kills,
            recovery_s=(),
            verdict=verdict,
            date=stage.date,
            note=note,
        )


SAMPLE: Final = tuple(
    (version, fault)
    for version, name in (
        ("4.3.0", "copy-of-a-slow-task"),
        ("4.3.0", "lost-threelevels-level-1-without-retry"),
        ("4.3.0", "4-failures"),
    )
    for fault in FAULTS
    if fault.name == name
)
"""The faults of the sample in `make test`."""
