"""`tidegate check`: builds a pipeline, validates it and prints its plan, before anything runs.

This module only parses. `check` does the work, `broker_checks` asks the brokers, and
`plan_output` prints the result.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from tidegate.terminal import options as o

EXAMPLE = "Example: tidegate check pipelines.order_totals:OrderTotals --kafka localhost:9092"
UNREACHABLE, REFUSED = 1, 2


def check(
    pipeline: o.PipelineArgument,
    settings: o.Parameters = None,
    config: o.Settings = None,
    kafka: Annotated[
        str | None,
        typer.Option("--kafka", help="Also check topics, rights and timeouts on these brokers."),
    ] = None,
    brokers: o.CheckBrokers = False,
    parallelism: o.Parallelism = None,
    name: o.As = None,
    as_json: o.AsJson = False,
) -> None:
    """Build and validate a pipeline, and print its plan and all problems.

    Without --kafka or --brokers, the command needs no broker. With one of them, it also checks
    that topics exist and fit, that the job has its rights, and that the brokers accept its
    transaction timeout. Exit code: 0 no error (there may be warnings), 1 the brokers do not
    answer, 2 a run would be refused.

    Example: tidegate check pipelines.order_totals:OrderTotals --kafka localhost:9092
    """
    command_line = {
        **o.parse_pairs(config, "--config", o.CONFIG_EXAMPLE),
        **o.given_settings(
            kafka__bootstrap_servers=kafka, job__parallelism=parallelism, job__name=name
        ),
    }
    params = o.parameters(settings, EXAMPLE)
    from tidegate.cli.inspect.check import check as check_pipeline
    from tidegate.cli.inspect.plan_output import result_json, result_text

    result = check_pipeline(
        pipeline, Path.cwd(), command_line, params, with_kafka=brokers or kafka is not None
    )
    print(json.dumps(result_json(result)) if as_json else result_text(result))
    if result.errors:
        unreachable = all(each.unreachable for each in result.errors)
        raise typer.Exit(UNREACHABLE if unreachable else REFUSED)
