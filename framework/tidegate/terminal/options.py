"""Options that several commands share: how a job is given, and where its cluster is.

The module has the types of the options, and functions that read NAME=VALUE. It imports nothing
heavy, because help imports this module.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from tidegate.ids import JobName

PipelineArgument = Annotated[
    str,
    typer.Argument(
        help="MODULE:CLASS, from the working folder, or FILE.py:CLASS. Leave the class out if "
        "there is only one."
    ),
]
Parameters = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="A parameter of the pipeline: NAME=VALUE. Repeatable. Give a secret as "
        "TIDEGATE_PARAMS__NAME in the environment instead.",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--config",
        "-c",
        help="A setting: checkpoint.interval=1s. Repeatable. Give a secret in tidegate.toml or the "
        "environment instead: other users can read a command line.",
    ),
]
Brokers = Annotated[
    str | None,
    typer.Option("--kafka", help="Brokers, HOST:PORT,...; else kafka.bootstrap_servers."),
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
Drain = Annotated[
    bool | None,
    typer.Option(
        "--drain/--no-drain",
        help="At the end of --bounded, --drain fires all timers and windows, and no later run "
        "continues. --no-drain fires only what is due, and a later run continues. Without both, "
        "the run drains, and says so at its start.",
        show_default=False,
    ),
]
Restore = Annotated[
    str, typer.Option(help="latest, none (start without state), or the id of a checkpoint.")
]
AcceptLoss = Annotated[
    bool,
    typer.Option(
        "--accept-data-loss", help="Continue after the job has reported a loss of output."
    ),
]
TakeOver = Annotated[
    bool, typer.Option("--take-over", help="Use a job name that another storage has used.")
]
RestoreToOtherCluster = Annotated[
    bool,
    typer.Option(
        "--restore-to-other-cluster",
        help="Restore on a mirror of the Kafka cluster, with the same offsets in every topic.",
    ),
]
As = Annotated[
    str | None,
    typer.Option("--as", help="The job's name, instead of that of the class (job.name)."),
]
JobArgument = Annotated[str, typer.Argument(help="The pipeline's name, as in its class statement.")]
JobManagerAt = Annotated[
    str | None,
    typer.Option("--jobmanager", help="HOST:PORT; else jobmanager.host and jobmanager.port."),
]
CheckBrokers = Annotated[
    bool,
    typer.Option("--brokers", help="Check the brokers of kafka.bootstrap_servers too."),
]
Insecure = Annotated[
    bool,
    typer.Option(
        "--insecure",
        help="Listen beyond the loopback address, although connections between the processes are "
        "neither encrypted nor authenticated: a host that reaches a port can run code as this "
        "user.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="For scripts: one JSON value.")]


def job_name(text: str) -> JobName:
    """Return `text` as the name of a job. Raise ConfigError if no pipeline can have this name."""
    from tidegate.errors import ConfigError
    from tidegate.ids import JOB_NAME, JobName

    if re.fullmatch(JOB_NAME, text) is None:
        raise ConfigError(
            f"{text!r} is no name of a pipeline, which has lower-case letters, digits and hyphens, "
            "63 at most."
        )
    return JobName(text)


CONFIG_EXAMPLE = "Example: -c 'checkpoint.interval=10 s'"
"""The example of an error about `-c`, of the commands that take all settings."""


def parse_pairs(given: list[str] | None, option: str, example: str) -> dict[str, str]:
    """Return the values by name of all NAME=VALUE texts. The last value of a name counts.

    Raise ConfigError, with an example of the command, for a text of another form.
    """
    found: dict[str, str] = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not (equals and name):
            from tidegate.errors import ConfigError
            from tidegate.masking import MASK

            shown = f"={MASK}" if equals else text
            raise ConfigError(f"{option} {shown!r} is not NAME=VALUE. {example}")
        found[name.strip()] = value
    return found


def parameters(given: list[str] | None, example: str) -> dict[str, str]:
    """Return the pipeline's parameters, by name.

    They come from `TIDEGATE_PARAMS__NAME` in the environment and from `--set`, which takes
    precedence. Raise ConfigError for the name of a setting, because `--config` sets those.
    """
    found = parse_pairs(given, "--set", example)
    for name in found:
        section, dot, _ = name.partition(".")
        if dot and section in _sections():
            from tidegate.errors import ConfigError

            raise ConfigError(
                f"--set {name} names a setting of tidegate, and --set is for parameters of the "
                f"pipeline. Write -c {name}=VALUE."
            )
    return {**environment_parameters(), **found}


def _sections() -> set[str]:
    """Return the names of the sections of the configuration."""
    from tidegate.config_load import known_keys

    return {key.partition(".")[0] for key in known_keys()}


def environment_parameters() -> dict[str, str]:
    """Return the parameters that `TIDEGATE_PARAMS__NAME` in the environment gives, by name."""
    from tidegate.config_load import PARAMETERS

    return {
        name.removeprefix(PARAMETERS).lower(): value
        for name, value in sorted(os.environ.items())
        if name.startswith(PARAMETERS)
    }


def given_settings(**given: object | None) -> dict[str, object]:
    """Return the settings that the command line gives, by dotted key, without those that are None.

    The name of an argument has `__` instead of the dot.
    """
    return {key.replace("__", "."): value for key, value in given.items() if value is not None}
