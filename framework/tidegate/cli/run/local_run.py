"""The work of `tidegate run` after its arguments are parsed: prepare, start, watch and stop.

It is separate from `command.py`, so that help does not import what this module needs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tidegate.bootstrap import local_cluster
from tidegate.cli.run.control_socket import RunSocket
from tidegate.cli.run.create_topics import create_missing_topics, partitions_of, print_created
from tidegate.cli.run.stopping import (
    RunInterruptedError,
    RunStop,
    SecondInterruptError,
    StoppedBeforeStartError,
)
from tidegate.cli.run.user_output import UserOutput
from tidegate.config import SLOTS_MAX, Config
from tidegate.config_load import load
from tidegate.controlplane.client.lock import RunLock
from tidegate.controlplane.client.preflight import (
    RunOptions,
    check_environment,
    class_settings,
    load_for_submit,
    make_submission,
    steps_that_drain,
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
    TidegateError,
)
from tidegate.message_text import counted
from tidegate.protocol.errors import KINDS
from tidegate.protocol.job_state import JobState
from tidegate.storage_location import with_absolute_folders
from tidegate.terminal.display import Display, open_display, print_status

if TYPE_CHECKING:
    from tidegate.api.code.archive import CodeArchive
    from tidegate.drivers.process.prestart import Prestarted
    from tidegate.protocol.reports import JobReport
    from tidegate.protocol.submission import Submission

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
    create_topics: str | None = None,
) -> int:
    """Run the job to its end and return the exit code.

    `jobmanager` is a prestarted process, or None. The caller discards it. `create_topics` is the
    text of `--create-topics`.
    """
    open_ = functools.partial(open_display, as_json=as_json)
    # What user code prints while it is imported must not stand between JSON lines.
    importing = contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext()
    try:
        report, display = run_to_end(
            reference,
            folder,
            command_line,
            options,
            open_=open_,
            jobmanager=jobmanager,
            importing=importing,
            create_topics=create_topics,
        )
    except RunInterruptedError:
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
    importing: contextlib.AbstractContextManager[Any] | None = None,
    create_topics: str | None = None,
) -> tuple[JobReport, Display]:
    """Run the job to its end and return its last report, and the display that has shown it.

    `open_` makes the display. `origin` says in errors where the settings are from. The pipeline is
    imported inside `importing`. Raise RunInterruptedError if the run ends at once, and
    a TidegateError if the job cannot be started.
    """
    with importing or contextlib.nullcontext():
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
        partitions = partitions_of(create_topics, config.job.parallelism)
        if partitions is not None:
            print_created(create_missing_topics(graph, config, partitions), partitions)
        check_environment(graph, config, folder, SystemDrivers())
        display = open_(submission, config)
        display.left_out(archive)
        display.drains(steps_that_drain(graph, options))
        try:
            return _run(submission, archive, config, folder, display, jobmanager), display
        except SecondInterruptError:
            display.interrupted()
            raise


def _run(
    submission: Submission,
    archive: CodeArchive,
    config: Config,
    folder: Path,
    display: Display,
    jobmanager: Prestarted | None,
) -> JobReport:
    """Run the job on a cluster of its own and return its last report."""
    job = submission.job
    stop = RunStop(job, display)
    with contextlib.ExitStack() as cleanup:
        cleanup.enter_context(stop)
        visible = cleanup.enter_context(RunSocket(folder, job, stop))
        if visible.problem:
            print_status(f"{job}: other terminals cannot find this run: {visible.problem}")
        cluster = local_cluster(
            with_absolute_folders(config, folder),
            on_restart=display.jobmanager_restarted,
            jobmanager=jobmanager,
        )
        cleanup.callback(cluster.close)
        display.jobmanager_pid = lambda: cluster.pid
        client = cluster.client()
        stop.attach(client, lambda: cluster.restarts)
        if stop.is_requested:
            print_status(f"{job}: stopped before the job was started")
            raise StoppedBeforeStartError
        cleanup.enter_context(display)
        output = cleanup.enter_context(
            UserOutput(folder / config.logs.dir / job, as_json=display.is_json)
        )
        with stop.submitting(config.checkpoint.dir):
            client.submit(submission, archive.data)
        report = client.wait(job, on_report=stop.reported)
        output.drain()
        display.end(report)
    return report


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
            f"The job needs {counted(config.job.parallelism, 'slot')}, one for each of its "
            f"parallel subtasks, and this run would have {slots * managers}: "
            f"{counted(managers, 'TaskManager')} with {counted(slots, 'slot')} each. Give it more "
            "(--slots, --task-managers) or lower --parallelism."
        )
    each = math.ceil(config.job.parallelism / managers)
    if each > SLOTS_MAX:
        raise ConfigError(
            f"The job needs {counted(config.job.parallelism, 'slot')}, one for each of its "
            f"parallel subtasks, and a TaskManager has {SLOTS_MAX} at most. Start more of them: "
            f"--task-managers {math.ceil(config.job.parallelism / SLOTS_MAX)}."
        )
    slots_each = dataclasses.replace(config.taskmanager, slots=each)
    return dataclasses.replace(config, taskmanager=slots_each)
