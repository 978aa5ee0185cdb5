"""`tidegate dev`: the loop of development, with a broker, topics, restarts on save, and records.

This module parses and joins the parts: `broker` has the brokers, `session` decides,
`processes` has the children, and `record_viewer` shows the records.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from tidegate.drivers.file_watch import watched_folders
from tidegate.errors import RefusedError
from tidegate.terminal import options as o


def find_pipeline(folder: Path) -> str:
    """Return the only pipeline in a folder, as MODULE:CLASS. RefusedError if there is not exactly
    one.

    The files are read, and none is imported, so an error in one of them does no harm. A pipeline is
    a class whose statement has the base `Pipeline` and the keyword `name=`.
    """
    found = sorted(pipelines_in(folder))
    if len(found) == 1:
        return found[0]
    if found:
        raise RefusedError(
            f"This folder has several pipelines. Give one of them: {', '.join(found)}."
        )
    raise RefusedError(
        "There is no pipeline in this folder: no file has a class whose statement has the base "
        "Pipeline and a name=. Run the command in the folder of the project, or give MODULE:CLASS."
    )


def pipelines_in(folder: Path) -> Iterator[str]:
    """Yield every pipeline in the modules of a folder, without those in `tests`."""
    for place in watched_folders(folder):
        parts = place.relative_to(folder).parts
        if "tests" in parts or not all(part.isidentifier() for part in parts):
            continue
        for path in place.glob("*.py"):
            module = parts if path.stem == "__init__" else (*parts, path.stem)
            if module and path.stem.isidentifier():
                yield from (f"{'.'.join(module)}:{name}" for name in _classes(path))


def _classes(path: Path) -> Iterator[str]:
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, OSError):
        return  # the import of the module reports the error, if the pipeline needs the module
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            bases = {ast.unparse(base).rpartition(".")[2] for base in node.bases}
            if "Pipeline" in bases and any(each.arg == "name" for each in node.keywords):
                yield node.name


EXAMPLE = "Example: tidegate dev pipelines.order_totals:OrderTotals -p 2"
INTERVAL = "1 s"


PipelineOfFolder = Annotated[
    str | None,
    typer.Argument(
        help="MODULE:CLASS, from the working folder; else the only pipeline below it.",
        show_default=False,
    ),
]
Partitions = Annotated[int, typer.Option(help="Partitions of topics that it creates.")]
Keep = Annotated[
    bool,
    typer.Option("--keep", help="Keep topics and checkpoints of its broker for the next time."),
]
DropState = Annotated[
    bool,
    typer.Option(
        "--drop-state", help="Start without state if the checkpoint no longer fits the code."
    ),
]
JsonEvents = Annotated[bool, typer.Option("--json", help="For scripts: one JSON object per event.")]


def dev(
    pipeline: PipelineOfFolder = None,
    settings: o.Parameters = None,
    config: o.Settings = None,
    kafka: o.Brokers = None,
    parallelism: o.Parallelism = None,
    name: o.As = None,
    checkpoint_interval: o.CheckpointInterval = None,
    partitions: Partitions = 4,
    keep: Keep = False,
    drop_state: DropState = False,
    as_json: JsonEvents = False,
) -> None:
    """Run a pipeline while you write it: with a broker and topics, and again after each save.

    If the settings name no broker, it uses that of `tidegate kafka up`, or starts one of its own.
    It creates missing topics and shows some of the records in and out. When a file is saved, the
    job continues from its last checkpoint with the new code. Code with an error is shown, and the
    old job continues. Ctrl-C stops the job, and removes the broker that was started here with its
    data. If no setting says otherwise, it takes a checkpoint every second. With --json, standard
    output has one object per event: job_started, record, file_saved, job_restarted and others.

    Example: tidegate dev pipelines.order_totals:OrderTotals -p 2
    """
    given = {
        **o.parse_pairs(config, "--config", o.CONFIG_EXAMPLE),
        **o.given_settings(
            kafka__bootstrap_servers=kafka,
            job__parallelism=parallelism,
            job__name=name,
            checkpoint__interval=checkpoint_interval,
        ),
    }
    params = o.parse_pairs(settings, "--set", EXAMPLE)
    from tidegate.cli.project.broker import dev_broker
    from tidegate.cli.project.output import DevOutput, JsonOutput
    from tidegate.cli.project.session import DevOptions, DevSession
    from tidegate.config_load import load_with_origins

    folder = Path.cwd()
    reference = pipeline or find_pipeline(folder)
    effective, origins = load_with_origins(
        folder=folder, environment=dict(os.environ), command_line=given
    )
    if "checkpoint.interval" not in origins:
        given["checkpoint.interval"] = INTERVAL
    words = [word for key, value in params.items() for word in ("--set", f"{key}={value}")]
    words += [word for key, value in given.items() for word in ("-c", f"{key}={value}")]
    output = JsonOutput() if as_json else DevOutput()
    named = effective.kafka.bootstrap_servers if "kafka.bootstrap_servers" in origins else None
    with dev_broker(folder, named, output.message, keep=keep) as broker:
        output.event(
            "session_started",
            f"{reference} on Kafka at {broker.bootstrap} ({broker.origin})",
            pipeline=reference,
            kafka=broker.bootstrap,
            origin=broker.origin,
        )
        options = DevOptions(
            reference=reference,
            words=words,
            settings={**given, "params": settings or []},
            partitions=partitions,
            drop_state=drop_state,
        )
        DevSession(folder, options, broker, output).run()
    output.event("session_stopped", "stopped")
