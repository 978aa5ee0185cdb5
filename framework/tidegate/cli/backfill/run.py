"""Does the work of `tidegate backfill` after its arguments are parsed.

It finds the recorded backfill or begins one, prints the plan, runs the waves and records the end.
The order matters. Checks that can refuse the command run before Spark starts, and Spark starts
before the backfill is recorded.

The module is separate from `command.py`, so that `--help` does not import what this module needs.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec

from tidegate.backfill.driver import Backfill, WaveCompleted, WaveLoop, run_in_turn
from tidegate.backfill.ends import parse_to
from tidegate.backfill.executor import Executor, InProcessExecutor
from tidegate.backfill.plan import Planner, refuse_passed_ends
from tidegate.backfill.record import BackfillRecords, continued
from tidegate.bootstrap import WAVE_TASK, task_host
from tidegate.cli.backfill.output import BackfillJson, BackfillText
from tidegate.cli.run.local_run import DONE, FAILED, INTERRUPTED, STOPPED
from tidegate.config import BackfillSettings, Config
from tidegate.config_load import load
from tidegate.controlplane.client.lock import RunLock
from tidegate.controlplane.client.preflight import (
    RunOptions,
    check_environment,
    class_settings,
    load_for_submit,
    make_submission,
)
from tidegate.drivers.kafka.jars import cache_folder
from tidegate.drivers.system import SystemDrivers
from tidegate.errors import ConfigError, PipelineError, RefusedError, TidegateError
from tidegate.masking import masked_text
from tidegate.protocol.reports import add_counts
from tidegate.storage_location import is_url, locate
from tidegate.terminal.display import print_left_out, print_status
from tidegate.user_exceptions import Interrupted

IN_PROCESS: Final = "in-process"
PACKAGES: Final = "packages"
SPARK_LOG: Final = "spark.log"
PROGRESS_S: Final = 5.0

if TYPE_CHECKING:
    from tidegate.backfill.spark.session import BackfillSession

Progress = Callable[[], tuple[int, int] | None]
"""Returns the numbers of finished tasks and of all tasks. None means that they are not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillOptions:
    """The options of the command that concern the backfill itself, not the job."""

    to: str
    dry_run: bool
    new: bool
    job_is_stopped: bool
    verbose: bool


def execute(
    reference: str,
    folder: Path,
    command_line: dict[str, Any],
    options: RunOptions,
    asked: BackfillOptions,
    *,
    as_json: bool,
) -> int:
    """Run the backfill and return the exit code."""
    to = parse_to(asked.to)
    pipeline = load_for_submit(reference, folder)
    config = load(
        folder=folder,
        environment=dict(os.environ),
        class_statement=class_settings(pipeline),
        command_line=command_line,
    )
    submission, graph, archive = make_submission(reference, folder, pipeline, config, options)
    output = (BackfillJson if as_json else BackfillText)(submission.job)
    drivers = SystemDrivers()
    url = config.checkpoint.dir
    storage = drivers.blob_store(locate(url, folder))
    with RunLock(folder, url, submission.job):
        here = _tasks_run_here(config.backfill.master)
        check_environment(graph, config, folder, drivers, live=False, tasks_run_here=here)
        records = BackfillRecords(storage, submission.job, config.to_dict())
        found = records.find(has_lock=not is_url(url), job_is_stopped=asked.job_is_stopped)
        recorded = None if asked.new else found
        planner = Planner(graph, config, drivers, storage)
        if recorded is None:
            ends = planner.ends(submission.job, to)
            submission = msgspec.structs.replace(submission, ends=ends)
        else:
            changed = records.changed_modules(recorded.submission, archive)
            submission = continued(recorded.submission, submission, asked.to, changed)
            if recorded.finished:
                output.done_before()
                return DONE
        plan = planner.plan(submission)
        if recorded is None:
            refuse_passed_ends(to, plan.partitions)
        output.plan(plan)
        _check_engine(config)
        if asked.dry_run:
            return DONE
        with _engine(config, folder, verbose=asked.verbose) as (executor, loop, progress):
            executor.check(config)
            total = _Total(output)
            # Another client may have submitted the job while Spark started.
            seen = records.find(has_lock=not is_url(url), job_is_stopped=asked.job_is_stopped)
            if (seen and seen.submission.id) != (found and found.submission.id):
                raise RefusedError(_overtaken_message(submission.job))
            if recorded is None:
                print_left_out(submission.job, archive)
                submission = records.begin(submission, archive, submission.ends, asked.to)
            backfill = Backfill(
                submission,
                config,
                drivers,
                executor,
                wave_offsets=config.backfill.wave_records,
                wave_span_ms=config.backfill.wave_span,
                on_wave=total.add,
                wanted=lambda: records.owns_job(submission.id),
            )
            with _Ticker(output, progress):
                return _run(backfill, loop, records, total, output)


def _run(
    backfill: Backfill,
    loop: WaveLoop,
    records: BackfillRecords,
    total: _Total,
    output: BackfillText,
) -> int:
    with _Signals(output) as signals:
        try:
            finished = backfill.run(loop, stop=signals.asked)
        except KeyboardInterrupt:
            output.abandoned()
            return INTERRUPTED
        except TidegateError as error:
            if isinstance(error, RefusedError | PipelineError | ConfigError) and not total.waves:
                raise
            for note in getattr(error, "__notes__", ()):
                print_status(masked_text(note.rstrip()))
            print_status(f"tidegate: {masked_text(str(error))}")
            return FAILED
    if not finished:
        output.stopped()
        return STOPPED
    records.finish(total.records_in, total.records_out, total.late)
    output.end(total.records_in, total.records_out, total.late)
    return DONE


def _tasks_run_here(master: str) -> bool:
    """Return whether the tasks certainly run on this machine. spark-submit chooses the master."""
    from tidegate.backfill.spark.master import is_on_this_machine
    from tidegate.backfill.spark.session import is_submitted

    return master == IN_PROCESS or (is_on_this_machine(master) and not is_submitted())


def _overtaken_message(job: str) -> str:
    return (
        f"Job {job!r} was submitted again while this command started. Check which cluster or"
        " command runs the job, then run this command again."
    )


def _check_engine(config: Config) -> None:
    """Check the master and all that a Spark session needs, without a start of Spark.

    Raise ConfigError or UserError with the remedy, and SparkError if the master does not answer.
    """
    settings = config.backfill
    if settings.master == IN_PROCESS:
        return
    from tidegate.backfill.spark.installation import check_installed
    from tidegate.backfill.spark.java import find_java
    from tidegate.backfill.spark.master import check_form, check_needs, check_reachable
    from tidegate.backfill.spark.session import is_submitted
    from tidegate.backfill.spark.spark_settings import check_settings
    from tidegate.backfill.spark.worker_checks import check_storage

    if is_submitted():
        if settings.spark:
            print_status(
                "The settings of [backfill.spark] have no effect, because spark-submit has started"
                " Spark. Give them to spark-submit: --conf spark.NAME=VALUE."
            )
        return
    check_form(settings.master)
    check_settings(settings.spark, settings.master)
    check_needs(settings.master, settings.spark)
    check_storage(settings.master, config.checkpoint.dir)
    check_installed()
    find_java()
    check_reachable(settings.master)


@contextmanager
def _engine(
    config: Config, folder: Path, *, verbose: bool
) -> Iterator[tuple[Executor, WaveLoop, Progress]]:
    """Yield the executor of tasks, the loop that calls the waves, and the progress of a wave.

    With the master `in-process`, no module of Spark is imported.
    """
    settings = config.backfill
    if settings.master == IN_PROCESS:
        yield InProcessExecutor(task_host()), run_in_turn, lambda: None
        return
    from tidegate.backfill.spark.executor import SparkExecutor
    from tidegate.backfill.spark.spark_errors import spark_translated, texts_in
    from tidegate.backfill.spark.stream import make_wave_loop

    log = folder / config.logs.dir / SPARK_LOG
    with texts_in(log), spark_translated(), _session(settings, log, verbose=verbose) as session:
        _ship(session, settings)
        executor = SparkExecutor(session, WAVE_TASK)
        yield executor, make_wave_loop(session), executor.progress


def _session(settings: BackfillSettings, log: Path, *, verbose: bool) -> BackfillSession:
    """Return the session of spark-submit, or start one."""
    from tidegate.backfill.spark.master import with_retries
    from tidegate.backfill.spark.session import adopt_session, is_submitted, start_session
    from tidegate.backfill.spark.spark_settings import properties_of

    if is_submitted():
        return adopt_session()
    return start_session(
        with_retries(settings.master),
        properties=properties_of(settings.spark),
        log=log,
        verbose=verbose,
        timeout_s=settings.start_timeout / 1000,
    )


def _ship(session: BackfillSession, settings: BackfillSettings) -> None:
    """Send the packages to the workers, if `ship` is set and the master is not local."""
    from tidegate.backfill.spark.master import is_local
    from tidegate.backfill.spark.packing import make_archive
    from tidegate.backfill.spark.worker_checks import check_platform

    if not settings.ship or is_local(session.master):
        return
    check_platform(session)
    session.ship(make_archive(cache_folder() / PACKAGES))


class _Total:
    """The counts of records and waves of this command."""

    def __init__(self, output: BackfillText) -> None:
        self.records_in = self.records_out = self.waves = 0
        self.late: dict[str, int] = {}
        self._output = output

    def add(self, wave: WaveCompleted) -> None:
        self.waves += 1
        self.records_in += wave.records_in
        self.records_out += wave.records_out
        self.late = add_counts([self.late, wave.late])
        self._output.wave(wave)


class _Ticker:
    """A context in which a thread reports the progress of the wave every `PROGRESS_S` seconds."""

    def __init__(self, output: BackfillText, progress: Progress) -> None:
        self._output, self._progress = output, progress
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._tick, name="progress", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _tick(self) -> None:
        while not self._over.wait(PROGRESS_S):
            found = self._progress()
            if found is not None:
                self._output.progress(*found)


class _Signals:
    """Signal handlers. The first Ctrl-C (or SIGTERM) ends the backfill after its present wave, and
    a second one ends it at once.
    """

    def __init__(self, output: BackfillText) -> None:
        self._output = output
        self._stop_requested = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for name in (signal.SIGINT, signal.SIGTERM):
            self._before[name] = signal.signal(name, self._interrupted)
        return self

    def __exit__(self, *_: object) -> None:
        for name, handler in self._before.items():
            signal.signal(name, handler)

    def asked(self) -> bool:
        """Return whether the backfill must end after the present wave."""
        return self._stop_requested

    def _interrupted(self, _signal: int, _frame: FrameType | None) -> None:
        if self._stop_requested:
            self._output.abandoning()
            raise Interrupted
        self._stop_requested = True
        self._output.stopping()
