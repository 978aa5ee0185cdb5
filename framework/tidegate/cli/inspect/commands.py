"""The commands that look at a pipeline before anything runs: check, diff, graph and config.

- `tidegate check` builds a pipeline, validates it and prints its plan (`check.py`). With brokers it
  also asks them (`broker_checks.py`).
- `tidegate diff` compares the code of a job with its last checkpoint (`diff.py`).
- `tidegate graph` shows the steps of a pipeline as text, as a Mermaid diagram or as SVG.
- `tidegate config` prints the effective settings as TOML, and where each of them comes from. Its
  lines have the form that `tidegate.toml` accepts. Secrets are masked.

This module only parses and prints.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from tidegate.terminal import options as o

UNREACHABLE, REFUSED = 1, 2
DEFAULT = "default"

_CHECK_EXAMPLE = "Example: tidegate check pipelines.order_totals:OrderTotals --kafka localhost:9092"


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
    command_line = _command_line(config, kafka, parallelism, name)
    params = o.parameters(settings, _CHECK_EXAMPLE)
    from tidegate.cli.inspect.check import check as check_pipeline
    from tidegate.cli.inspect.plan_output import result_json, result_text

    result = check_pipeline(
        pipeline, Path.cwd(), command_line, params, with_kafka=brokers or kafka is not None
    )
    print(json.dumps(result_json(result)) if as_json else result_text(result))
    if result.errors:
        unreachable = all(each.unreachable for each in result.errors)
        raise typer.Exit(UNREACHABLE if unreachable else REFUSED)


_DIFF_EXAMPLE = "Example: tidegate diff pipelines.order_totals:OrderTotals --kafka localhost:9092"


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
    command_line = _command_line(config, kafka, parallelism, name)
    params = o.parameters(settings, _DIFF_EXAMPLE)
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


_GRAPH_EXAMPLE = "Example: tidegate graph pipelines.order_totals:OrderTotals --svg > totals.svg"


def graph(
    pipeline: o.PipelineArgument,
    settings: o.Parameters = None,
    config: o.Settings = None,
    mermaid: Annotated[
        bool, typer.Option("--mermaid", help="A Mermaid flowchart, for Markdown pages.")
    ] = False,
    svg: Annotated[bool, typer.Option("--svg", help="An SVG picture.")] = False,
    as_json: o.AsJson = False,
) -> None:
    """Show the steps of a pipeline and the way of its records. No broker is needed.

    Example: tidegate graph pipelines.order_totals:OrderTotals --svg > totals.svg
    """
    from tidegate.api.pipeline import build
    from tidegate.cli.inspect.graph_svg import svg_text
    from tidegate.cli.inspect.graph_text import drawing, drawing_json, mermaid_text, plain_text
    from tidegate.config_load import load
    from tidegate.controlplane.client.preflight import class_settings, load_for_submit
    from tidegate.errors import ConfigError

    if mermaid + svg + as_json > 1:
        raise ConfigError(f"Give one of --mermaid, --svg and --json. {_GRAPH_EXAMPLE}")
    # What user code prints while it is imported must not be part of the picture.
    with contextlib.redirect_stdout(sys.stderr):
        declared = load_for_submit(pipeline, Path.cwd())
        effective = load(
            environment=dict(os.environ),
            class_statement=class_settings(declared),
            command_line=o.parse_pairs(config, "--config", o.CONFIG_EXAMPLE),
        )
        picture = drawing(build(declared, o.parameters(settings, _GRAPH_EXAMPLE)), effective)
    if as_json:
        print(json.dumps(drawing_json(picture)))
    elif mermaid:
        print(mermaid_text(picture))
    else:
        print(svg_text(picture) if svg else plain_text(picture))


def config(given: o.Settings = None, as_json: o.AsJson = False) -> None:
    """Show the effective settings of this folder, and where each value comes from: a default, the
    file, the environment or the command line.

    Each line can be copied into tidegate.toml. default.toml in the package explains each key. With
    --json, each key has "value" and "source".

    Example: tidegate config -c checkpoint.interval=1s --json
    """
    from tidegate.config import flattened
    from tidegate.config_load import load_with_origins, written
    from tidegate.masking import masked

    command_line = o.parse_pairs(
        given, "--config", "Example: tidegate config -c checkpoint.interval=1s"
    )
    effective, origins = load_with_origins(environment=dict(os.environ), command_line=command_line)
    rows = {
        key: {"value": written(key, value), "source": _source(origins.get(key))}
        for key, value in flattened(masked(effective.to_dict()))
    }
    if as_json:
        print(json.dumps(rows))
        return
    lines = {
        f"{key} = {json.dumps(row['value'], ensure_ascii=False)}": row["source"]
        for key, row in rows.items()
    }
    width = max(map(len, lines))
    for line, source in lines.items():
        print(f"{line:<{width}}  # {source}")


def _source(origin: str | None) -> str:
    """Return the origin of a setting without the article that error messages have."""
    return DEFAULT if origin is None else origin.removeprefix("the ")


def _command_line(
    config: list[str] | None, kafka: str | None, parallelism: int | None, name: str | None
) -> dict[str, object]:
    """Return the settings that `check` and `diff` get on the command line, by dotted key."""
    return {
        **o.parse_pairs(config, "--config", o.CONFIG_EXAMPLE),
        **o.given_settings(
            kafka__bootstrap_servers=kafka, job__parallelism=parallelism, job__name=name
        ),
    }
