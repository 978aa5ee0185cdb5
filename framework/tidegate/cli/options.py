"""Options that several commands share: how a job is given, and where its cluster is.

Types only, and the reading of NAME=VALUE; nothing heavy is imported, because help reads this.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from tidegate.ids import JobName

PipelineArgument = Annotated[str, typer.Argument(help="MODULE:CLASS, from the working folder.")]
Parameters = Annotated[
    list[str] | None,
    typer.Option("--set", help="A parameter of the pipeline: NAME=VALUE. Repeatable."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--config", "-c", help="A setting: checkpoint.interval=1s. Repeatable."),
]
Brokers = Annotated[
    str | None, typer.Option("--kafka", help="Brokers, HOST:PORT,...; else kafka.bootstrap.")
]
Parallelism = Annotated[
    int | None, typer.Option("--parallelism", "-p", help="Subtasks of each step.")
]
CheckpointInterval = Annotated[
    str | None, typer.Option(help='Time between checkpoints, with a unit: "1 s".')
]
Bounded = Annotated[
    bool, typer.Option("--bounded", help="Read up to the present end offsets, then stop.")
]
Restore = Annotated[str, typer.Option(help="latest, none (begin anew), or the id of a checkpoint.")]
AcceptLoss = Annotated[
    bool, typer.Option("--accept-loss", help="Go on after output was lost (docs/errors.md).")
]
TakeOver = Annotated[
    bool, typer.Option("--take-over", help="Use a job name that another storage has used.")
]
JobArgument = Annotated[str, typer.Argument(help="The pipeline's name, as in its class statement.")]
JobManagerAt = Annotated[
    str | None,
    typer.Option("--jobmanager", help="HOST:PORT; else jobmanager.host and jobmanager.port."),
]
AsJson = Annotated[bool, typer.Option("--json", help="For scripts: one JSON value.")]


def job_name(text: str) -> JobName:
    """The name of a job; ConfigError for what no pipeline can be named."""
    from tidegate.errors import ConfigError
    from tidegate.ids import JOB_NAME, JobName

    if re.fullmatch(JOB_NAME, text) is None:
        raise ConfigError(
            f"{text!r} is no name of a pipeline, which has lower-case letters, digits and hyphens, "
            "63 at most."
        )
    return JobName(text)


def pairs(given: list[str] | None, option: str, example: str) -> dict[str, str]:
    """Each NAME=VALUE; ConfigError, with an example of the command, for anything else."""
    found: dict[str, str] = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not (equals and name):
            from tidegate.errors import ConfigError

            raise ConfigError(f"{option} {text!r} is not NAME=VALUE. {example}")
        found[name.strip()] = value
    return found


def chosen(**given: object | None) -> dict[str, object]:
    """Settings that the command line gives, by dotted key with `__` for the dot."""
    return {key.replace("__", "."): value for key, value in given.items() if value is not None}
