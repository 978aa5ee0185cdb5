"""What `tidegate run` does, once its words are parsed: prepare, start, watch, stop.

Apart from `run.py` so that help does not pay for what this imports.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidegate.bootstrap import local_cluster
from tidegate.cli.display import Display, open_display
from tidegate.cli.run import with_enough_slots
from tidegate.config_load import load
from tidegate.controlplane.client.lock import JobLock
from tidegate.controlplane.client.preflight import (
    RunOptions,
    check_world,
    class_settings,
    load_for_submit,
    make_submission,
)
from tidegate.drivers.bundle import RealDrivers
from tidegate.errors import RpcError

if TYPE_CHECKING:
    from tidegate.controlplane.client.client import Client
    from tidegate.ids import JobName
    from tidegate.protocol.messages import JobReport

DONE, FAILED, INTERRUPTED = 0, 1, 130


def execute(
    reference: str,
    folder: Path,
    command_line: dict[str, Any],
    options: RunOptions,
    *,
    as_json: bool,
) -> int:
    """Run the job to its end; the exit code."""
    pipeline = load_for_submit(reference, folder)
    config = load(
        folder=folder,
        environment=dict(os.environ),
        class_statement=class_settings(pipeline),
        command_line=command_line,
    )
    config = with_enough_slots(config, command_line)
    submission, graph = make_submission(reference, folder, pipeline, config, options)
    with JobLock(folder, config.checkpoint.storage, submission.job):
        check_world(graph, config, folder, RealDrivers())
        display = open_display(submission, config, as_json=as_json)
        cluster = local_cluster(config, on_restart=display.jobmanager_restarted)
        display.jobmanager_pid = lambda: cluster.pid
        try:
            with display, _interrupts(cluster.client(), submission.job, display):
                client = cluster.client()
                client.submit(submission)
                report = client.wait(submission.job, on_report=display.show)
                display.end(report)
        except _LeftError:
            display.left()
            return INTERRUPTED
        finally:
            cluster.close()
    return DONE if report.state == "FINISHED" else _exit_code(report, display)


def _exit_code(report: JobReport, display: Display) -> int:
    if report.state == "CANCELED":
        return INTERRUPTED
    display.failed(report)
    user_mistake = report.error is not None and report.error.kind in {
        "CodeMismatchError",
        "RefusedError",
        "PipelineError",
        "ConfigError",
    }
    return 2 if user_mistake else FAILED


class _LeftError(Exception):
    """The second Ctrl-C."""


@contextmanager
def _interrupts(client: Client, job: JobName, display: Display) -> Iterator[None]:
    """The first Ctrl-C (or SIGTERM) stops the job with a final checkpoint, the second one
    leaves.
    """
    asked = False

    def stop(_signal: int, _frame: object) -> None:
        nonlocal asked
        if asked:
            raise _LeftError
        asked = True
        display.stopping()
        try:
            client.stop(job)
        except RpcError as error:
            print(f"tidegate: the stop could not be delivered: {error}", file=sys.stderr)

    before = {name: signal.signal(name, stop) for name in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)
