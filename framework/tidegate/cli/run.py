"""`tidegate run`: a pipeline on this machine, from its class to its end.

It checks everything that can be checked, starts a cluster of local processes that lives as long as
this command, submits the job and shows how it goes. Ctrl-C stops the job with a final checkpoint; a
second Ctrl-C leaves at once, and the next run recovers. Parsing and printing only: the work is in
`controlplane/client` and `bootstrap`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

EXAMPLE = "Example: tidegate run pipelines.order_totals:OrderTotals --set minimum=5 -p 4"


def run(
    pipeline: Annotated[str, typer.Argument(help="MODULE:CLASS, from the working folder.")],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="A parameter of the pipeline: NAME=VALUE. Repeatable."),
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option("--config", "-c", help="A setting: checkpoint.interval=1s. Repeatable."),
    ] = None,
    kafka: Annotated[
        str | None, typer.Option(help="Brokers, HOST:PORT,...; else kafka.bootstrap.")
    ] = None,
    parallelism: Annotated[
        int | None, typer.Option("--parallelism", "-p", help="Subtasks of each step.")
    ] = None,
    slots: Annotated[int | None, typer.Option(help="Slots of each TaskManager.")] = None,
    task_managers: Annotated[int | None, typer.Option(help="Local TaskManagers.")] = None,
    checkpoint_interval: Annotated[
        str | None, typer.Option(help='Time between checkpoints, with a unit: "1 s".')
    ] = None,
    bounded: Annotated[
        bool, typer.Option("--bounded", help="Read up to the present end offsets, then stop.")
    ] = False,
    restore: Annotated[
        str, typer.Option(help="latest, none (begin anew), or the id of a checkpoint.")
    ] = "latest",
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Go on after output was lost; see the docs.")
    ] = False,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Use a job name that another storage has used.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object per report, and one at the end.")
    ] = False,
) -> None:
    """Run a pipeline on this machine, with a cluster of its own, until it ends or Ctrl-C.

    It continues from the job's last checkpoint where there is one (--restore none begins anew).
    Exit code: 0 done, 1 the job failed, 2 refused, 130 interrupted.

    Example: tidegate run pipelines.order_totals:OrderTotals --set minimum=5 -p 4
    """
    from tidegate.cli.running import execute
    from tidegate.controlplane.client.preflight import RunOptions

    dotted = _pairs(config, "--config")
    given: dict[str, object | None] = {
        "kafka.bootstrap": kafka,
        "job.parallelism": parallelism,
        "taskmanager.slots": slots,
        "cluster.task_managers": task_managers,
        "checkpoint.interval": checkpoint_interval,
    }
    command_line = {**dotted, **{key: v for key, v in given.items() if v is not None}}
    options = RunOptions(
        params=_pairs(settings, "--set"),
        bounded=bounded,
        restore=restore,
        accept_loss=accept_loss,
        take_over=take_over,
    )
    code = execute(pipeline, Path.cwd(), command_line, options, as_json=as_json)
    raise typer.Exit(code)


def _pairs(given: list[str] | None, option: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not (equals and name):
            from tidegate.errors import ConfigError

            raise ConfigError(f"{option} {text!r} is not NAME=VALUE. {EXAMPLE}")
        pairs[name.strip()] = value
    return pairs
