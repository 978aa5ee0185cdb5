"""`tidegate graph`: shows the steps of a pipeline as text, as a Mermaid diagram or as SVG.

The command imports the class and builds its graph. It asks no broker and starts nothing.
`graph_text` and `graph_svg` draw.
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

EXAMPLE = "Example: tidegate graph pipelines.order_totals:OrderTotals --svg > totals.svg"


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
        raise ConfigError(f"Give one of --mermaid, --svg and --json. {EXAMPLE}")
    # What user code prints while it is imported must not be part of the picture.
    with contextlib.redirect_stdout(sys.stderr):
        declared = load_for_submit(pipeline, Path.cwd())
        effective = load(
            environment=dict(os.environ),
            class_statement=class_settings(declared),
            command_line=o.parse_pairs(config, "--config", o.CONFIG_EXAMPLE),
        )
        picture = drawing(build(declared, o.parameters(settings, EXAMPLE)), effective)
    if as_json:
        print(json.dumps(drawing_json(picture)))
    elif mermaid:
        print(mermaid_text(picture))
    else:
        print(svg_text(picture) if svg else plain_text(picture))
