"""`tidegate config`: prints the effective settings, and where each of them comes from.

The output is TOML. A user can copy its lines into `tidegate.toml`: they have the form that the file
accepts. Secrets are masked.
"""

from __future__ import annotations

import json
import os

from tidegate.terminal import options as o

DEFAULT = "default"


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
