"""`tidegate diff`: compares the code of a job with its last checkpoint before it is deployed.

This module only parses. `diff` does the work, `code_changes` finds the differences, and
`diff_output` prints them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from tidegate.terminal import options as o

EXAMPLE = "Example: tidegate diff pipelines.order_totals:OrderTotals --kafka localhost:9092"
REFUSED = 2


def diff(
    pipeline: o.PipelineArgument,
    settings: o.Parameters = None,
    config: o.Settings = None,
    kafka: Annotated[
        str | None,
        typer.Option(
            "--kafka", help="Also compare the positions with the topics of these brokers."
        ),
    ] = None,
    brokers: o.CheckBrokers = False,
    parallelism: o.Parallelism = None,
    name: o.As = None,
    restore: Annotated[
        str, typer.Option(help="The checkpoint to compare with: latest, none, or an id.")
    ] = "latest",
    as_json: o.AsJson = False,
) -> None:
    """Compare the code with the job's last checkpoint: steps, states, types, sources and sinks.

    The last lines say whether a run would continue from the checkpoint, and what would be lost.
    The command writes nothing and needs no broker. Exit code: 0 the restore is accepted, or there
    is no checkpoint; 1 the storage or the brokers do not answer; 2 a run would be refused, or the
    job has no checkpoint of the given id.

    Example: tidegate diff pipelines.order_totals:OrderTotals --kafka localhost:9092
    """
    command_line = {
        **o.parse_pairs(config, "--config", o.CONFIG_EXAMPLE),
        **o.given_settings(
            kafka__bootstrap_servers=kafka, job__parallelism=parallelism, job__name=name
        ),
    }
    params = o.parameters(settings, EXAMPLE)
    from tidegate.cli.inspect.diff import compare
    from tidegate.cli.inspect.diff_output import comparison_json, comparison_text

    found = compare(
        pipeline,
        Path.cwd(),
        command_line,
        params,
        restore,
        with_kafka=brokers or kafka is not None,
    )
    print(json.dumps(comparison_json(found)) if as_json else comparison_text(found))
    if not found.accepted:
        raise typer.Exit(REFUSED)
