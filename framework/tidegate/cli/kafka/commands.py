"""`tidegate kafka`: a real broker on this machine, for trials and development, and topics by hand.

`topics`, `produce` and `read` have modules of their own. This module has the broker: it parses,
calls `drivers.kafka.embedded` and prints. The broker does not depend on the
command or the terminal: it runs until `tidegate kafka down`. Its data is below the working folder,
in `.tidegate/kafka/<version>`, so two projects have two brokers.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.cli.kafka import topics
from tidegate.cli.kafka.produce import produce
from tidegate.cli.kafka.read import read
from tidegate.message_text import counted
from tidegate.terminal.live_line import LiveLine

if TYPE_CHECKING:
    from tidegate.drivers.kafka.embedded import EmbeddedKafka

FOLDER = Path(".tidegate") / "kafka"
DEFAULT_VERSION = "4.3.0"
OPEN_TO_ALL = "Every user of this host can read and write its topics: it has no authentication."

app = typer.Typer(
    help="A Kafka broker on this machine, without Docker or an installed Java; and topics by hand.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(topics.app, name="topics")
app.command()(produce)
app.command()(read)


@app.command()
def up(
    version: Annotated[str, typer.Option(help="Version of Kafka: 4.3.0, 4.3.1 or 3.9.1.")] = (
        DEFAULT_VERSION
    ),
    nodes: Annotated[int, typer.Option(help="How many brokers, each also a controller.")] = 1,
) -> None:
    """Start a broker, or say where one runs already.

    It listens on the loopback address only, without authentication: every user of this host can
    read and write its topics. It keeps its data, and its port where that is still free, from one
    start to the next. Standard output gets its address, and nothing if the start fails. The first
    start downloads Kafka. A start ends after ten minutes, or when its process does nothing for 90
    seconds. Exit code: 0 it runs, 1 it did not start, 2 refused.

    Example: tidegate kafka up --version 3.9.1
    """
    from tidegate.drivers.kafka.embedded import EmbeddedKafka
    from tidegate.errors import UserError

    begun = time.monotonic()
    directory = FOLDER / version
    kafka = EmbeddedKafka.attach(directory)
    line = LiveLine(sys.stderr)
    if kafka is None:
        try:
            kafka = EmbeddedKafka.start(version, directory=directory, nodes=nodes, report=line.show)
        finally:
            line.end()
        what = f"started in {time.monotonic() - begun:.1f} s"
    elif len(kafka.pids) != nodes:
        message = (
            f"Kafka {version} runs already, with {counted(len(kafka.pids), 'node')}. Use it, or "
            "stop it and delete its data first: tidegate kafka down --wipe."
        )
        raise UserError(message)
    else:
        dead = [node for node, alive in enumerate(kafka.alive) if not alive]
        try:
            for node in dead:
                kafka.restart(node, report=line.show)
        finally:
            line.end()
        what = f"had {counted(len(dead), 'dead node')}, started again" if dead else "runs already"
    print(f"Kafka {version} {what}; stop it with: tidegate kafka down", file=sys.stderr)
    print(OPEN_TO_ALL, file=sys.stderr)
    print(kafka.bootstrap)


@app.command()
def status(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON array.")] = False,
) -> None:
    """Show the brokers of this folder; exit code 1 if none runs.

    Example: tidegate kafka status --json
    """
    from tidegate.drivers.kafka.embedded import EmbeddedKafka

    found = [(path, EmbeddedKafka.attach(path)) for path in _directories()]
    facts = [_facts(path, kafka) for path, kafka in found]
    if as_json:
        print(json.dumps(facts, indent=2))
    for path, kafka in () if as_json else found:
        if kafka is None:
            print(f"Kafka {path.name}: stopped; data in {path}")
        else:
            pids = ", ".join(
                f"{pid}" if alive else "dead"
                for pid, alive in zip(kafka.pids, kafka.alive, strict=True)
            )
            print(f"Kafka {path.name}: running at {kafka.bootstrap}; pid {pids}; data in {path}")
    if not found and not as_json:
        print("No broker in this folder. Start one with: tidegate kafka up")
    if not any(kafka for _, kafka in found):
        raise typer.Exit(1)


@app.command()
def down(
    *,
    version: Annotated[str | None, typer.Option(help="Only this version; else all.")] = None,
    wipe: Annotated[bool, typer.Option("--wipe", help="Delete the data too.")] = False,
) -> None:
    """Stop the brokers of this folder. Their data stays, unless --wipe is given.

    Example: tidegate kafka down --wipe
    """
    from tidegate.drivers.kafka.embedded import EmbeddedKafka
    from tidegate.drivers.kafka.embedded import wipe as delete

    directories = [path for path in _directories() if version in {None, path.name}]
    if not directories:
        others = ", ".join(path.name for path in _directories())
        which = f" of version {version}; there is {others}" if others else ""
        print(f"No broker in this folder{which}: nothing to stop.", file=sys.stderr)
    for path in directories:
        kafka = EmbeddedKafka.attach(path)
        if kafka is not None:
            kafka.stop()
            print(f"Kafka {path.name}: stopped", file=sys.stderr)
        if wipe:
            delete(path)
            print(f"Kafka {path.name}: data deleted", file=sys.stderr)


def _directories() -> list[Path]:
    return sorted(path.parent for path in FOLDER.glob("*/cluster.json"))


def _facts(path: Path, kafka: EmbeddedKafka | None) -> dict[str, object]:
    return {
        "version": path.name,
        "running": kafka is not None,
        "bootstrap": kafka.bootstrap if kafka else None,
        "pids": kafka.pids if kafka else [],
        "alive": kafka.alive if kafka else [],
        "data": str(path),
    }
