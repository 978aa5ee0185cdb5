"""The command `tidegate`: gathers the commands, each in a module of its own, and runs one.

Only typer is imported here, so that help appears in about a tenth of a second.
"""

from __future__ import annotations

import typer

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)


@app.callback()
def tidegate() -> None:
    """Kafka-native, exactly-once stream pipelines."""


def main() -> None:
    """Entry point of the console script."""
    app()
