"""The work of `tidegate run` after its arguments are parsed: prepare, start, watch and stop.

It is separate from `run.py`, so that help does not import what this module needs.
"""

from __future__ import annotations

import functools
import math
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from tidegate.bootstrap import local_cluster
from tidegate.cli.display import Display, open_display, print_status
from tidegate.config import SLOTS_MAX, Config
from tidegate.config_load import load
from tidegate.controlplane.client.lock import RunLock
from tidegate.controlplane.client.preflight import (
    RunOptions,
    check_environment,
    class_settings,
    load_for_submit,
    make_submission,
)
from tidegate.controlplane.jobmaster.events import StopEnd
from tidegate.drivers.system import SystemDrivers
from tidegate.errors import (
    CodeMismatchError,
    ConfigError,
    CorruptCheckpointError,
    NotAllowedError,
    PipelineError,
    RefusedError,
    RpcError,
    TidegateError,
)
from tidegate.protocol.errors import KINDS
from tidegate.protocol.job_state import ENDED, JobState

if TYPE_CHECKING:
    from tidegate.controlplane.client.client import Client
    from tidegate.drivers.process.prestart import Prestarted
    from tidegate.ids import JobName
    from tidegate.protocol.messages import Submission
    from tidegate.protocol.reports import JobReport

DONE, FAILED, REFUSED, STOPPED, STOPPED_WITHOUT_CHECKPOINT, INTERRUPTED = 0, 1, 2, 3, 4, 130

REFUSALS: Final[frozenset[type[TidegateError]]] = frozenset(
    {ConfigError, CorruptCheckpointError, NotAllowedError, PipelineError, RefusedError}
)
"""The errors that stop a job's first attempt before the attempt has started anything."""


def execute(
    reference: str,
    folder: Path,
    command_line: dict[str, Any],
    options: RunOptions,
    *,
    as_json: bool,
    jobmanager: Prestarted | None = None,
) -> int:
    """Run the job to its end and return the exit code.

    `jobmanager` is a prestarted process, or None. The caller discards it.
    """
    open_ = functools.partial(open_display, as_json=as_json)
    try:
        report, display = run_to_end(
            reference, folder, command_line, options, open_=open_, jobmanager=jobmanager
        )
    except SecondInterruptError:
        return INTERRUPTED
    return _exit_code(report, display, bounded=options.bounded)


def run_to_end(
    reference: str,
    folder: Path,
    command_line: dict[str, Any],
    options: RunOptions,
    *,
    open_: Callable[[Submission, Config], Display],
    jobmanager: Prestarted | None,
    origin: str = "the command line",
) -> tuple[JobReport, Display]:
    """Run the job to its end and return its last report, and the display that has shown it.

    `open_` makes the display. `origin` says in errors where the settings are from. Raise
    SecondInterruptError after a second Ctrl-C, and a TidegateError if the job cannot be started.
    """
    pipeline = load_for_submit(reference, folder)
    config = load(
        folder=folder,
        environment=dict(os.environ),
        class_statement=class_settings(pipeline),
        command_line=command_line,
        origin=origin,
    )
    config = with_enough_slots(config, command_line)
    submission, graph, archive = make_submission(reference, folder, pipeline, config, options)
    with RunLock(folder, config.checkpoint.dir, submission.job):
        check_environment(graph, config, folder, SystemDrivers())
        display = open_(submission, config)
        display.left_out(archive)
        cluster = local_cluster(
            config, on_restart=display.jobmanager_restarted, jobmanager=jobmanager
        )
        display.jobmanager_pid = lambda: cluster.pid
        client = cluster.client()
        stop = _Stop(client, submission.job, display, lambda: cluster.restarts)
        try:
            with display, stop:
                client.submit(submission, archive.data)
                report = client.wait(submission.job, on_report=stop.reported)
                display.end(report)
        except SecondInterruptError:
            display.interrupted()
            raise
        finally:
            cluster.close()
    return report, display


def _exit_code(report: JobReport, display: Display, *, bounded: bool) -> int:
    if report.state is JobState.FINISHED:
        return finished_code(report, bounded=bounded)
    if report.state is JobState.CANCELED:
        return INTERRUPTED
    display.failed(report)
    if report.error is None:
        return FAILED
    kind = KINDS.get(report.error.kind)
    # After a restart the same errors are failures of the job: a topic may have been deleted.
    refused = kind is CodeMismatchError or (kind in REFUSALS and not report.restarts)
    return REFUSED if refused else FAILED


def finished_code(report: JobReport, *, bounded: bool) -> int:
    """Return the exit code of a job that has ended without a failure.

    A stop is the normal end of an unbounded job. A bounded job that was stopped has not read all of
    its input.
    """
    if report.stopped == StopEnd.WITHOUT_CHECKPOINT:
        return STOPPED_WITHOUT_CHECKPOINT
    return STOPPED if report.stopped and bounded else DONE


def with_enough_slots(config: Config, command_line: dict[str, Any]) -> Config:
    """Return a configuration with as many local slots as the job needs.

    A number in a file is raised, because it is meant for jobs that need fewer. Raise ConfigError
    if the command line gives too few slots, or if a TaskManager would need more than `SLOTS_MAX`.
    """
    slots, managers = config.taskmanager.slots, config.cluster.task_managers
    if slots * managers >= config.job.parallelism:
        return config
    if "taskmanager.slots" in command_line:
        raise ConfigError(
            f"The job needs {config.job.parallelism} slots, one for each of its parallel subtasks, "
            f"and this run would have {slots * managers}: {managers} TaskManagers with {slots} "
            "slots each. Give it more (--slots, --task-managers) or lower --parallelism."
        )
    each = math.ceil(config.job.parallelism / managers)
    if each > SLOTS_MAX:
        raise ConfigError(
            f"The job needs {config.job.parallelism} slots, one for each of its parallel subtasks, "
            f"and a TaskManager has {SLOTS_MAX} at most. Start more of them: --task-managers "
            f"{math.ceil(config.job.parallelism / SLOTS_MAX)}."
        )
    slots_each = config.taskmanager.model_copy(update={"slots": each})
    return config.model_copy(update={"taskmanager": slots_each})


class SecondInterruptError(Exception):
    """The second Ctrl-C."""


class _Stop:
    """The first Ctrl-C (or SIGTERM) stops the job with a final checkpoint; a second one exits.

    The stop is sent between two reports, not by the signal handler, which may interrupt any code.
    It is sent again to each new JobManager, because a JobManager keeps it in memory only. Python
    gives signals to the main thread only, so a run in another thread has no Ctrl-C.
    """

    def __init__(
        self, client: Client, job: JobName, display: Display, restarts: Callable[[], int]
    ) -> None:
        self._client, self._job, self._display = client, job, display
        self._restarts = restarts
        self._stop_requested = False
        self._restarts_at_stop: int | None = None
        """Number of JobManager restarts when the stop was last delivered; None if it never was."""
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for name in (signal.SIGINT, signal.SIGTERM):
                self._before[name] = signal.signal(name, self._interrupted)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for name, handler in self._before.items():
            signal.signal(name, handler)

    def reported(self, report: JobReport) -> None:
        """Show a report. Send a requested stop to a JobManager that does not have it yet."""
        self._display.show(report)
        restarts = self._restarts()
        if not self._stop_requested or self._restarts_at_stop == restarts or report.state in ENDED:
            return
        try:
            self._client.stop(self._job)
            self._restarts_at_stop = restarts
        except RefusedError:
            self._restarts_at_stop = (
                restarts  # the job has ended meanwhile, and the next report says so
            )
        except RpcError as error:
            print_status(f"{self._job}: the stop could not be delivered yet: {error}")

    def _interrupted(self, _signal: int, _frame: object) -> None:
        if self._stop_requested:
            raise SecondInterruptError
        self._stop_requested = True
        self._display.stopping()
