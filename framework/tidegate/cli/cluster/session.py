"""The work of the session cluster's client commands, after their arguments are parsed.

It is separate from `commands.py`, so that help does not import what this module needs. Results go
to stdout, in JSON for scripts. Everything else goes to stderr.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from tidegate.cli.run.control_socket import LocalRun, find_local_runs, stop_local_run
from tidegate.cli.run.local_run import finished_code
from tidegate.config import Config
from tidegate.config_load import load, load_with_origins
from tidegate.controlplane.client.client import Client
from tidegate.controlplane.client.preflight import (
    RunOptions,
    check_kafka,
    class_settings,
    load_for_submit,
    make_submission,
    steps_that_drain,
)
from tidegate.drivers.endpoint import bracketed
from tidegate.drivers.system import SystemDrivers
from tidegate.errors import ConfigError, ExternalError, RefusedError, RpcError
from tidegate.message_text import clause, counted
from tidegate.protocol.job_state import ENDED, JobState
from tidegate.protocol.reports import JobList, JobReport
from tidegate.terminal.display import (
    describe,
    print_drain,
    print_left_out,
    print_status,
    process_lines,
    process_rows,
    report_json,
)
from tidegate.terminal.options import job_name

FAILED = 1
ENDS_AS = {True: JobState.FINISHED, False: JobState.CANCELED}
"""State of a job that was stopped with a final checkpoint (True) or without one (False)."""


def configuration(command_line: dict[str, Any]) -> Config:
    """Return the effective configuration of a server or a client in the working folder."""
    return load(environment=dict(os.environ), command_line=command_line)


def with_jobmanager(command_line: dict[str, Any], at: str | None) -> dict[str, Any]:
    """Return the settings of the command line, with the host and the port of `at` added.

    Raise ConfigError if `at` is not HOST:PORT.
    """
    if at is None:
        return command_line
    host, colon, port = at.rpartition(":")
    if not (colon and host and port.isdecimal()):
        raise ConfigError(f"--jobmanager {at!r} is not HOST:PORT, as in jobmanager:6123.")
    named = {"jobmanager.host": host.strip("[]"), "jobmanager.port": int(port)}
    return {**command_line, **named}


def submit_job(
    reference: str,
    folder: Path,
    command_line: dict[str, Any],
    options: RunOptions,
    *,
    installed: Path | None,
    as_json: bool,
) -> None:
    """Build, check and submit a job.

    On the cluster's hosts, relative paths start at `installed`, or at `folder` if it is None. Raise
    RefusedError for an error in the job or its environment, and RpcError if no JobManager answers.
    """
    pipeline = load_for_submit(reference, folder)
    config = load(
        folder=folder,
        environment=dict(os.environ),
        class_statement=class_settings(pipeline),
        command_line=command_line,
    )
    submission, graph, archive = make_submission(reference, folder, pipeline, config, options)
    submission = msgspec.structs.replace(submission, working_folder=str(installed or folder))
    try:
        check_kafka(graph, config, SystemDrivers())
    except ExternalError as error:  # no job runs yet that could wait for the end of an outage
        raise RefusedError(str(error)) from error
    print_left_out(submission.job, archive)
    print_drain(submission.job, steps_that_drain(graph, options))
    with _client(config) as client:
        _wait_until_up(client, config)
        client.submit(submission, archive.data)
    if as_json:
        print(json.dumps({"job": submission.job, "submission": submission.id}))
    else:
        print_status(
            f"{submission.job}: submitted; tidegate status {submission.job} shows how it goes"
        )


def list_jobs(at: str | None, *, as_json: bool) -> None:
    """Print the local runs of this folder, and the jobs and TaskManagers of a session cluster.

    With local runs, and without an address, a session cluster need not exist.
    """
    runs = local_runs(at)
    try:
        config, named = _configuration_and_name(at)
        with _client(config, named=named, without_run=_without_run(at)) as client:
            found = client.list()
    except RpcError:
        if not runs:
            raise
        found = None
    if as_json:
        print(json.dumps(_list_json(runs, found)))
        return
    for run in runs:
        print(f"{run.job}: {_run_text(run)}")
    if found is None:
        return
    for job in found.jobs:
        print(f"{job.job}: {describe(job, None)}")
    if not found.jobs:
        print("no jobs: tidegate submit MODULE:CLASS starts one")
    slots = sum(slots for _, _, slots in found.task_managers)
    print(f"{counted(len(found.task_managers), 'TaskManager')} with {counted(slots, 'slot')}")
    for id_, _, count in found.task_managers:
        print(f"  {id_}: {count}")


def show_job(job: str, at: str | None, *, as_json: bool) -> None:
    """Print the report of a job: of a local run of this folder, or of a session cluster."""
    name = job_name(job)
    for run in (each for each in local_runs(at) if each.job == name):
        if as_json:
            rows = [] if run.report is None else process_rows(run.report)
            print(json.dumps({**_run_json(run), "processes": rows}))
        else:
            print(f"{run.job}: {_run_text(run)}")
            _print_processes(run.report)
            _print_details(run.report)
        return
    config, named = _configuration_and_name(at)
    with _client(config, named=named, without_run=_without_run(at, name)) as client:
        report = client.report(name)
    if as_json:
        print(json.dumps({**report_json(report), "processes": process_rows(report)}))
    else:
        print(f"{report.job}: {describe(report, None)}")
        _print_processes(report)
        _print_details(report)


def end_job(
    job: str, at: str | None, *, final_checkpoint: bool, drain: bool = False, as_json: bool
) -> int:
    """Stop a job, wait for its end and return the exit code. With `drain`, all timers and windows
    fire first.

    A named JobManager may be restarting, so the command waits for it. At the default address none
    may ever have been, so one unanswered request is enough. Raise RpcError if no JobManager
    answers.
    """
    name = job_name(job)
    progress = StopProgress(name, "stop" if final_checkpoint else "cancel")
    for run in (each for each in local_runs(at) if each.job == name):
        report = stop_local_run(
            run, final_checkpoint=final_checkpoint, drain=drain, on_report=progress.show
        )
        _print(report, as_json=as_json)
        ended_so = report.state is ENDS_AS[final_checkpoint]
        return finished_code(report, bounded=False) if ended_so else FAILED
    config, named = _configuration_and_name(at)
    without_run = _without_run(at, name)
    with _client(config, named=named, without_run=without_run) as client:
        if named:
            _wait_until_up(client, config, without_run=without_run)
        else:
            client.list()
        report = client.stop_and_wait(
            name, final_checkpoint=final_checkpoint, drain=drain, on_report=progress.show
        )
    _print(report, as_json=as_json)
    if report.state not in ENDED:
        what = "stop" if final_checkpoint else "cancel"
        print_status(
            f"tidegate: Job {name} has not ended, because its JobMaster cannot start. "
            f"{report.start_refused} The JobManager carries out the {what} when the JobMaster "
            f"starts: tidegate status {name} shows it. If the JobManager itself is restarted "
            f"before, repeat the command."
        )
        return FAILED
    if report.state is not ENDS_AS[final_checkpoint]:
        return FAILED
    return finished_code(report, bounded=False)


class StopProgress:
    """A printer of the cause for which a stop waits. It prints each cause once."""

    def __init__(self, job: str, what: str) -> None:
        self._job, self._what = job, what
        self._printed = ""

    def show(self, report: JobReport) -> None:
        """Print why the job has not ended yet, if the report has a reason that is not printed."""
        cause = report.storage_trouble or report.start_refused or report.waiting_for
        if report.state in ENDED or not cause or cause == self._printed:
            return
        self._printed = cause
        print_status(f"{self._job}: the {self._what} waits: {cause.rstrip('.')}.")


def _configuration_and_name(at: str | None) -> tuple[Config, bool]:
    """Return the configuration, and whether the user has named a JobManager: with `at`, in the file
    or in the environment.
    """
    config, origins = load_with_origins(
        environment=dict(os.environ), command_line=with_jobmanager({}, at)
    )
    return config, not origins.keys().isdisjoint({"jobmanager.host", "jobmanager.port"})


def local_runs(at: str | None) -> list[LocalRun]:
    """Return the local runs of this folder; none if the user has named a JobManager."""
    return find_local_runs(Path.cwd()) if at is None else []


def _without_run(at: str | None, job: str = "") -> str:
    """Return that this folder has no local run; empty if the user has named a JobManager."""
    if at is not None:
        return ""
    which = f"tidegate run of job {job!r}" if job else "tidegate run"
    others = ", ".join(sorted({run.job for run in local_runs(at)}))
    here = f" Here runs: {others}." if others else ""
    return f"No {which} is under way in {Path.cwd()}.{here} "


def _run_text(run: LocalRun) -> str:
    state = "starting" if run.report is None else describe(run.report, None)
    return f"{state} (local run, process {run.pid})"


def _run_json(run: LocalRun) -> dict[str, Any]:
    report = {"job": run.job} if run.report is None else report_json(run.report)
    return {**report, "local_run_pid": run.pid}


def _list_json(runs: list[LocalRun], found: JobList | None) -> dict[str, Any]:
    jobs = [] if found is None else [report_json(job) for job in found.jobs]
    managers = () if found is None else found.task_managers
    return {
        "jobs": [*map(_run_json, runs), *jobs],
        "task_managers": [{"id": id_, "pid": pid, "slots": slots} for id_, pid, slots in managers],
    }


@contextmanager
def _client(config: Config, *, named: bool = True, without_run: str = "") -> Iterator[Client]:
    """Connect to the JobManager. `without_run` is a sentence about the runs of this folder, which
    begins the error if no JobManager answers. `named` is false for the default address.
    """
    drivers = SystemDrivers()
    at = config.jobmanager
    address = f"{bracketed(at.host)}:{at.port}"
    client = Client(drivers.rpc, drivers.clock, address)
    try:
        yield client
    except RpcError as error:
        if not named:
            raise RpcError(
                f"{without_run}No JobManager answers at {address}, the default address. Repeat "
                "the command in the folder where the run was started. For a session cluster add "
                "--jobmanager HOST:PORT, or set jobmanager.host and jobmanager.port: stop and "
                f"cancel then wait for a JobManager that restarts. ({clause(error)})."
            ) from error
        raise RpcError(
            f"{without_run}No JobManager has answered at {address}{_unless_known(at.host)}. Start "
            "one there with tidegate jobmanager. Or say where one runs with --jobmanager "
            f"HOST:PORT, or set jobmanager.host and jobmanager.port. ({clause(error)})."
        ) from error
    finally:
        client.close()


def _unless_known(host: str) -> str:
    """Return a clause that says that the host's name is unknown here; empty if the name is known.

    gRPC reports an unknown name in the same way as a host that does not answer.
    """
    try:
        socket.getaddrinfo(host, None)
    except OSError:
        return ", and this machine does not know that name"
    return ""


def _wait_until_up(client: Client, config: Config, *, without_run: str = "") -> None:
    """Wait for the JobManager, which may be starting, and print what the command waits for."""
    try:
        client.list()
    except RpcError:
        at = config.jobmanager
        print_status(f"{without_run}waiting for the JobManager at {bracketed(at.host)}:{at.port}")
        client.wait_until_up()


def _print(report: JobReport, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(report_json(report)))
        return
    print(f"{report.job}: {describe(report, None)}")
    _print_details(report)


def _print_processes(report: JobReport | None) -> None:
    for line in () if report is None else process_lines(report):
        print(line)


def _print_details(report: JobReport | None) -> None:
    if report is None:
        return
    for call in report.hanging_calls:
        print(f"stack of step {call.step!r}:\n{call.stack}")
    for note in report.notes:
        print(note)
    if report.error is not None:
        print(f"last failure: {report.error.message}")
